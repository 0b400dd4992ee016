//! The program with models of the hub.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use annulus_tests::hub::{COMMIT, File, Hub};
use annulus_tests::runs::{Place, losses};
use annulus_tests::{Ran, root};

use super::{NAME, WEIGHTS};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

/// A fixture as a model of the hub.
fn fixture(name: &str) -> (PathBuf, Hub) {
    let folder = root().join("tests/fixtures").join(name);
    let files = ["config.json", "generation_config.json", WEIGHTS];
    let hub = Hub::new(NAME, files.map(|file| (file, File::read(&folder.join(file)))));
    (folder, hub)
}

/// Trains two steps of the model at `path` in `output`.
fn train(place: &Place, hub: &Hub, output: &str, path: &str, offline: &str) -> Ran {
    let tokenizer = if path.starts_with("hf://") { path } else { "tokenizer.json" };
    place.write(
        "experiment.yaml",
        &format!(
            "name: hub\nmodel: {{ path: '{path}' }}\n\
             data: {{ path: text.txt, tokenizer: '{tokenizer}', tokens: 32, batch: 2, evaluate: 0 }}\n\
             mesh: {{ sequence: 2 }}\nattention: {{ strategy: ring }}\n\
             optimizer: {{ learning_rate: 1e-3 }}\nschedule: {{ steps: 2 }}\n",
        ),
    );
    with_hub(place.command(output, &[]), place, hub, offline)
}

fn with_hub(mut command: Command, place: &Place, hub: &Hub, offline: &str) -> Ran {
    hub.to(command.env("HF_HUB_OFFLINE", offline), &place.path("home"))
}

#[test]
fn a_model_of_the_hub_is_trained_like_a_folder() {
    let place = Place::new(ANNULUS);
    let (folder, hub) = fixture("untied");
    let tokenizer = place.path("tokenizer.json");
    annulus_data::train_tokenizer(
        &[place.path("text.txt")],
        annulus_data::Records::Text,
        257,
        &tokenizer,
    )
    .expect("a tokenizer");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        hub.file(name, |file| *file = File::read(&place.path(name)));
    }
    let model = format!("hf://{NAME}");
    train(&place, &hub, "folder", &folder.display().to_string(), "").ended(0);
    assert!(hub.asked().is_empty());
    let ran = train(&place, &hub, "hub", &model, "");
    assert!(ran.ended(0).stderr.contains(&format!("fetching {model}@")), "{}", ran.stderr);
    assert_eq!(losses(&place.path("hub")), losses(&place.path("folder")));
    // What a run was made of is written down, and does not move with the branch.
    let plan = fs::read_to_string(place.path("hub/experiment.yaml")).expect("the plan");
    assert!(plan.contains(&format!("path: \"{model}@{COMMIT}\"")), "{plan}");
    assert!(plan.contains(&format!("tokenizer: \"{model}@{COMMIT}\"")), "{plan}");
    assert!(place.path("hub/step-2/tokenizer.json").is_file());
    hub.asked();
    let ran = train(&place, &hub, "hub", &model, "1");
    assert!(ran.ended(0).stdout.contains("already finished"), "{}", ran.stdout);
    train(&place, &hub, "offline", &model, "1").ended(0);
    assert_eq!(losses(&place.path("offline")), losses(&place.path("folder")));
    assert!(hub.asked().is_empty());
}

#[test]
fn an_experiment_is_checked_without_its_weights() {
    let place = Place::new(ANNULUS);
    let (_, hub) = fixture("untied");
    let ask = |command: &str, path: &str| {
        place.write(
            "experiment.yaml",
            &format!(
                "name: hub\nmodel:\n  path: {path}\ndata: {{ path: text.txt, tokens: 32 }}\n\
                 optimizer: {{ learning_rate: 1e-3 }}\nschedule: {{ steps: 2 }}\n",
            ),
        );
        let mut program = Command::new(ANNULUS);
        program.args([command, "experiment.yaml"]).current_dir(place.path(""));
        with_hub(program, &place, &hub, "")
    };
    for command in ["check", "plan", "prove"] {
        ask(command, &format!("hf://{NAME}")).ended(0);
    }
    assert!(hub.asked().iter().all(|asked| !asked.path.contains(WEIGHTS)));
    let ran = ask("check", "hf://owner");
    assert!(ran.ended(2).stderr.contains("expected `owner/name`"), "{}", ran.stderr);
    assert!(ran.stderr.contains("experiment.yaml:3:9"), "{}", ran.stderr);
    let ran = ask("check", "hf://owner/nothing");
    let wanted =
        "is not on the hub\nhint: check owner, name and revision at huggingface.co/owner/nothing";
    assert!(ran.ended(3).stderr.contains(wanted), "{}", ran.stderr);
}
