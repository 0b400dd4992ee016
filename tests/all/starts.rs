//! A run that is started again: what it keeps, where it begins, and what it says of steps that other starts computed otherwise.

use std::fs;

use annulus_tests::Ran;
use annulus_tests::runs::{Place, contents, metrics};
use serde_json::Value;

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");
const LEVEL: [&str; 4] = ["schedule.decay=constant", "schedule.warmup=0", "keep=9", "every.hash=1"];

fn train(place: &Place, output: &str, changes: &[&str]) -> Ran {
    place.train(output, &[&LEVEL[..], changes].concat())
}

fn manifest(place: &Place, run: &str) -> Value {
    let text = fs::read_to_string(place.path(run).join("manifest.json")).expect("a manifest");
    serde_json::from_str(&text).expect("JSON")
}

/// As if the run had been killed before it saved anything.
fn unsave(place: &Place, run: &str, step: u64) {
    fs::remove_dir_all(place.path(run).join(format!("step-{step}"))).expect("a checkpoint");
    fs::remove_file(place.path(run).join("LATEST")).expect("a file");
}

#[test]
fn a_chosen_strategy_is_kept_though_the_curve_and_paths_change() {
    let place = Place::new(ANNULUS);
    // Not what `auto` takes by itself.
    let chosen = ["attention.strategy=li-ring", "mesh.sequence=2", "schedule.steps=2"];
    train(&place, "run", &chosen).ended(0);
    fs::rename(place.path("text.txt"), place.path("moved.txt")).expect("a text");
    let open = ["attention.strategy=auto", "mesh.sequence=2", "schedule.steps=3"];
    let said = train(&place, "run", &[&open[..], &["data.path=moved.txt"]].concat());
    assert!(!said.ended(0).stderr.contains("auto takes"), "{}", said.stderr);
    assert_eq!(manifest(&place, "run")["attempts"][1]["strategy"], "li-ring");
}

#[test]
fn going_on_with_other_vector_instructions_is_said() {
    let place = Place::new(ANNULUS);
    let started = |output: &str, more: &[&str], vector: Option<&str>| {
        let mut command = place.command(output, &[&LEVEL[..], more].concat());
        command.env_remove("ANNULUS_VECTOR");
        command.envs(vector.map(|word| ("ANNULUS_VECTOR", word)));
        Ran::of(&command.output().expect("the program starts")).ended(0).stderr.clone()
    };
    for (output, more) in [("plain", "seed=3"), ("strict", "reproducible=strict")] {
        started(output, &[more, "schedule.steps=2"], Some("portable"));
        let said = started(output, &[more, "schedule.steps=3"], None);
        let own = manifest(&place, output)["machine"]["vector"].as_str().unwrap().to_owned();
        let warned = format!(
            "computed with {own}, the steps before with portable: the following steps are not bit-identical"
        );
        assert_eq!(said.contains(&warned), own != "portable", "{said}");
        let said = started(output, &[more, "schedule.steps=4"], None);
        assert!(!said.contains("bit-identical"), "{said}");
    }
}

#[test]
fn a_fork_that_saved_nothing_begins_again_where_it_began() {
    let place = Place::new(ANNULUS);
    train(&place, "base", &["schedule.steps=2"]).ended(0);
    let rest = ["schedule.steps=5", "every.checkpoint=0"];
    let with = [&rest[..], &["--from", "base"]].concat();
    train(&place, "fork", &with).ended(0);
    train(&place, "base", &["schedule.steps=3"]).ended(0);
    for arguments in [&rest[..], &with] {
        unsave(&place, "fork", 5);
        train(&place, "fork", arguments).ended(0);
        let made = manifest(&place, "fork");
        assert!(made["began"] == 2 && made["fork"]["from"] == "base", "{made}");
        assert_eq!(metrics(&place.path("fork"))[0]["step"], 3);
    }
    fs::remove_dir_all(place.path("base/step-2")).expect("a checkpoint");
    // With steps of its own it needs no other run.
    train(&place, "fork", &["schedule.steps=6"]).ended(0);
    unsave(&place, "fork", 6);
    fs::remove_dir_all(place.path("fork/step-5")).expect("a checkpoint");
    for arguments in [&rest[..], &with] {
        let said = train(&place, "fork", arguments).ended(4).stderr.clone();
        assert!(said.contains("began from `base/step-2`, which is not there"), "{said}");
        assert!(said.contains("`--from` another `step-N`"), "{said}");
    }
    train(&place, "fork", &[&rest[..], &["--from", "base/step-3"]].concat()).ended(0);
    assert_eq!(manifest(&place, "fork")["began"], 3);
}

#[test]
fn a_manifest_that_is_damaged_or_gone_is_not_passed_over() {
    let place = Place::new(ANNULUS);
    train(&place, "base", &["schedule.steps=2"]).ended(0);
    let rest = ["schedule.steps=4", "every.checkpoint=0"];
    train(&place, "fork", &[&rest[..], &["--from", "base"]].concat()).ended(0);
    let whole = fs::read(place.path("fork/manifest.json")).expect("a manifest");
    place.write("fork/manifest.json", "{");
    for is_saved in [true, false] {
        let said = train(&place, "fork", &["schedule.steps=5"]).ended(3).stderr.clone();
        assert!(said.contains("`fork/manifest.json`: EOF"), "{said}");
        assert!(said.contains("a fork needs its `--from` again"), "{said}");
        if is_saved {
            unsave(&place, "fork", 4);
        }
    }
    fs::write(place.path("fork/manifest.json"), whole).expect("a manifest");
    train(&place, "fork", &rest).ended(0);
    fs::remove_file(place.path("fork/manifest.json")).expect("a manifest");
    let lost = "`fork` has checkpoints and no manifest.json";
    let said = train(&place, "fork", &["schedule.steps=5"]).ended(0).stderr.clone();
    assert!(said.contains(lost), "{said}");
    assert_eq!(manifest(&place, "fork")["weights"], "unknown");
    let said = train(&place, "fork", &["schedule.steps=6"]).ended(0).stderr.clone();
    assert!(!said.contains(lost), "{said}");
    assert_eq!(manifest(&place, "fork")["weights"], "unknown");
    // A run with its manifest says none of this.
    let said = train(&place, "base", &["schedule.steps=3"]).ended(0).stderr.clone();
    assert!(!said.contains("manifest.json"), "{said}");
}

#[test]
fn a_model_that_was_edited_is_named_where_a_run_is_computed_again() {
    let place = Place::new(ANNULUS);
    train(&place, "base", &["schedule.steps=1"]).ended(0);
    place.copy("base/step-1", "model");
    let own = ["model={ path: model, weights: random }", "schedule.steps=2", "every.checkpoint=0"];
    train(&place, "run", &own).ended(0);
    let config = place.path("model/config.json");
    let text = fs::read(&config).expect("a file");
    let mut keys: serde_json::Map<String, Value> = serde_json::from_slice(&text).expect("JSON");
    keys.insert("rms_norm_eps".to_owned(), 0.1.into());
    fs::write(&config, serde_json::to_vec(&keys).expect("JSON")).expect("a file");
    let named = "`model.path` has another model: `rms_norm_eps` was `";
    for words in [&["reproduce", "run"][..], &["replay", "run", "--step", "1"]] {
        let ran = annulus_tests::run(ANNULUS, &place.path(""), words);
        assert!(ran.ended(10).stdout.contains(named) && ran.stderr.contains(named), "{ran:?}");
    }
}

#[test]
fn a_run_does_not_go_on_with_the_weights_of_another_base() {
    let place = Place::new(ANNULUS);
    for (name, seed) in [("one", "seed=1"), ("two", "seed=2")] {
        train(&place, name, &["schedule.steps=1", seed]).ended(0);
        fs::rename(place.path(name).join("step-1"), place.path(&format!("of-{name}"))).unwrap();
    }
    let begun = "`full` began with the weights of `model.path: of-one`, and `of-two` has others: ";
    let back = "hint: set `model.path` back to `of-one`; or set another `output` to begin another run, with `--from full`";
    let beside =
        "the adapters in `beside/step-2` were trained on other base weights than those in `of-two`";
    for (run, lora, wanted) in
        [("full", "keep=3", [begun, back]), ("beside", "lora={ rank: 2 }", [beside, "hint: "])]
    {
        train(&place, run, &["model={ path: of-one }", lora, "schedule.steps=2"]).ended(0);
        let before = contents(&place.path(run));
        // Where it is finished, and where it goes on.
        for steps in ["schedule.steps=2", "schedule.steps=3"] {
            let ran = train(&place, run, &["model={ path: of-two }", lora, steps]);
            let said = &ran.ended(4).stderr;
            assert!(wanted.iter().all(|words| said.contains(words)), "{said}");
            assert_eq!(contents(&place.path(run)), before, "{run}");
        }
    }
    // A fork began with a checkpoint, whatever folder its shape is of.
    let fork = ["model={ path: of-two }", "schedule.steps=3"];
    train(&place, "fork", &[&fork[..], &["--from", "full"]].concat()).ended(0);
    train(&place, "fork", &["model={ path: of-one }", "schedule.steps=4"]).ended(0);
    // The same weights may be anywhere, and where the path is the same they are not asked for.
    fs::rename(place.path("of-one"), place.path("moved")).expect("a folder");
    for (steps, ended) in
        [("schedule.steps=2", "already finished"), ("schedule.steps=3", "finished at")]
    {
        let ran = train(&place, "full", &["model={ path: moved }", steps]);
        assert!(ran.ended(0).stdout.contains(ended), "{}", ran.stdout);
    }
    fs::remove_file(place.path("moved/model.safetensors")).expect("a file");
    train(&place, "full", &["model={ path: moved }", "schedule.steps=4"]).ended(0);
}

/// The first point of a fork's validation curve is that of the weights that it begins with.
#[test]
fn a_fork_is_evaluated_before_its_first_step() {
    let place = Place::new(ANNULUS);
    let keys = ["data.evaluate=2", "every.evaluate=2", "schedule.steps=4"];
    train(&place, "base", &keys).ended(0);
    let fork = ["every.evaluate=5", "every.evaluate_on_start=true", "schedule.steps=5"];
    let fork = [&keys[..1], &fork, &["--from", "base/step-3"]].concat();
    train(&place, "fork", &fork).ended(0);
    let steps = |run: &str| -> Vec<u64> {
        let lines = metrics(&place.path(run));
        let evaluated = lines.iter().filter(|line| line.get("evaluate/loss").is_some());
        evaluated.map(|line| line["step"].as_u64().expect("a step")).collect()
    };
    assert_eq!(steps("base"), [2, 4]);
    assert_eq!(steps("fork"), [3, 5]);
}
