//! What a newcomer meets first, and must not be misled by: every test is one such behaviour.

use std::fs;

use annulus_tests::runs::{Place, last_saved, losses};
use annulus_tests::{Ran, run};
use serde_json::Value;

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

fn annulus(place: &Place, arguments: &[&str]) -> Ran {
    run(ANNULUS, &place.path(""), arguments)
}

fn json(place: &Place, name: &str) -> Value {
    serde_json::from_str(&text(place, name)).expect("it is JSON")
}

fn text(place: &Place, name: &str) -> String {
    fs::read_to_string(place.path(name)).expect("it is there")
}

/// A run whose model knows 64 positions, saved after step 4.
fn short(place: &Place) {
    place.train("short", &["model.max_position_embeddings=64", "schedule.steps=4"]).ended(0);
}

#[test]
fn longer_than_the_model_was_trained_for_is_refused() {
    let place = Place::new(ANNULUS);
    short(&place);
    let longer = ["model={ path: short/step-4 }", "data.tokens=96", "schedule.steps=2"];
    for command in ["check", "plan", "train"] {
        let ran = annulus(
            &place,
            &[&[command, "experiment.yaml", "output=longer"], &longer[..]].concat(),
        );
        let said = &ran.ended(2).stderr;
        let wanted = "sequences of 96 tokens are longer than the 64 that the model was trained for";
        assert!(said.contains(wanted), "{said}");
        assert!(said.contains("extend: {rope: yarn, tokens: 96}"), "{said}");
    }
    // Stretched, it says the length that its frequencies have; overruled, no more than before.
    let stretched = [&longer[..], &["extend={ rope: yarn, tokens: 96 }"]].concat();
    place.train("stretched", &stretched).ended(0);
    assert_eq!(json(&place, "stretched/step-2/config.json")["max_position_embeddings"], 96);
    let knowingly = ["model={ path: short/step-4, allow_longer: true }", longer[1], longer[2]];
    place.train("knowingly", &knowingly).ended(0);
    assert_eq!(json(&place, "knowingly/step-2/config.json")["max_position_embeddings"], 64);
}

#[test]
fn the_run_s_experiment_is_what_was_run_and_trains_again_to_the_same_bits() {
    let place = Place::new(ANNULUS);
    place.train("first", &["schedule.steps=5", "schedule.decay=constant", "seed=9"]).ended(0);
    let resolved = text(&place, "first/experiment.yaml");
    assert!(resolved.contains("steps: 5") && resolved.contains("seed: 9"), "{resolved}");
    assert_eq!(text(&place, "first/given.yaml"), text(&place, "experiment.yaml"));
    let command = &json(&place, "first/manifest.json")["attempts"][0]["command"];
    assert!(command.as_array().is_some_and(|words| words.iter().any(|word| word == "seed=9")));
    annulus(&place, &["train", "first/experiment.yaml", "output=again"]).ended(0);
    assert_eq!(losses(&place.path("first")), losses(&place.path("again")));
    let logged = fs::read_dir(place.path("first")).expect("a run").flatten();
    let curves = logged.filter(|entry| entry.file_name().to_string_lossy().contains("tfevents"));
    let shown =
        curves.flat_map(|entry| fs::read(entry.path()).expect("curves")).collect::<Vec<_>>();
    assert!(String::from_utf8_lossy(&shown).contains("seed: 9"), "TensorBoard shows the same");
}

#[test]
fn what_changes_no_result_does_not_keep_a_run_from_going_on() {
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.steps=4", "schedule.decay=constant"]).ended(0);
    fs::rename(place.path("text.txt"), place.path("moved.txt")).expect("a text");
    let changes = [
        "name=renamed",
        "schedule.decay=constant",
        "schedule.steps=7",
        "data.path=moved.txt",
        "keep=9",
        "expect={ train/loss: { max: 99 } }",
        "every.log=2",
    ];
    let ran = place.train("run", &changes);
    assert!(ran.ended(0).stderr.contains("from step 4"), "{}", ran.stderr);
    fs::rename(place.path("moved.txt"), place.path("text.txt")).expect("a text");
    place.train("whole", &["schedule.steps=7", "schedule.decay=constant"]).ended(0);
    let (weights, name) =
        (|run: &str| fs::read(place.path(run)).expect("weights"), "step-7/model.safetensors");
    assert_eq!(weights(&format!("run/{name}")), weights(&format!("whole/{name}")));
    // Another text under the same name is another run.
    place.write("text.txt", &"other words, and more of them. ".repeat(900));
    let other = place.train("run", &["schedule.steps=9", "schedule.decay=constant"]);
    assert!(other.ended(4).stderr.contains("was trained on other texts"), "{}", other.stderr);
}

#[test]
fn more_steps_are_taken_where_the_curve_up_to_here_is_the_same() {
    let place = Place::new(ANNULUS);
    let wsd = ["schedule.decay=wsd", "schedule.cooldown=0.5"];
    let stopped = [&wsd[..], &["schedule.steps=20", "schedule.stop=8"]].concat();
    place.train("run", &stopped).ended(0);
    place.train("run", &[&wsd[..], &["schedule.steps=24", "schedule.stop=9"]].concat()).ended(0);
    // It would have been going down already.
    let refused = place.train("run", &[&wsd[..], &["schedule.steps=12"]].concat());
    assert!(refused.ended(4).stderr.contains("`schedule.steps` was `24`"), "{}", refused.stderr);
    let cosine = place.train("cosine", &["schedule.steps=4"]);
    cosine.ended(0);
    let longer = place.train("cosine", &["schedule.steps=8"]);
    assert!(longer.ended(4).stderr.contains("--from"), "{}", longer.stderr);
}

#[test]
fn a_run_is_forked_with_or_without_the_optimizer_s_state() {
    let place = Place::new(ANNULUS);
    let steady = ["schedule.decay=constant", "schedule.steps=8"];
    place.train("whole", &steady).ended(0);
    place.train("trunk", &["schedule.decay=constant", "schedule.steps=5"]).ended(0);
    let fork = |output: &str, more: &[&str]| {
        let into = format!("output={output}");
        let words = ["train", "experiment.yaml", &into, "--from", "trunk/step-5"];
        annulus(&place, &[&words[..], &steady, more].concat())
    };
    fork("fork", &[]).ended(0);
    assert_eq!(losses(&place.path("fork")), losses(&place.path("whole"))[5..]);
    fork("fresh", &["--fresh-optimizer"]).ended(0);
    assert_ne!(losses(&place.path("fresh")), losses(&place.path("fork")));
    assert_eq!(losses(&place.path("fresh"))[0].to_bits(), losses(&place.path("fork"))[0].to_bits());
    // Stopped and gone on, the moments are still counted from where they began.
    fork("halves", &["--fresh-optimizer", "schedule.stop=7"]).ended(0);
    place.train("halves", &steady).ended(0);
    assert_eq!(losses(&place.path("halves")), losses(&place.path("fresh")));
    let other = fork("other", &["model.hidden_size=64"]);
    assert!(other.ended(4).stderr.contains("another model"), "{}", other.stderr);
    let behind = fork("behind", &["schedule.steps=5"]);
    assert!(behind.ended(4).stderr.contains("set more `schedule.steps`"), "{}", behind.stderr);
    assert!(!place.path("other").exists() && !place.path("behind").exists());
}

#[test]
fn a_checkpoint_a_run_and_a_model_s_folder_are_all_models() {
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.steps=4"]).ended(0);
    annulus(&place, &["export", "run/step-4", "--out", "model"]).ended(0);
    let ask = |what: &str| {
        let words = ["generate", what, "--prompt", "alpha 0 al", "--tokens", "9", "--json"];
        annulus(&place, &words).ended(0).json().remove(0)["text"].clone()
    };
    let said = ask("run");
    for model in ["run/step-4", "model"] {
        assert_eq!(ask(model), said, "{model}");
    }
    let lengths = "evaluation.lengths=[16, 32]";
    let measure = |what: &str, more: &[&str]| {
        let words = [&["evaluate", what, lengths, "--json", "--out", "found"], more].concat();
        annulus(&place, &words).ended(0).json().remove(0)
    };
    let path = ["evaluation.path=text.txt"];
    let of_model = measure(
        "model",
        &["data.path=text.txt", path[0], "mesh.sequence=3", "attention.strategy=striped"],
    );
    assert_eq!(
        of_model["perplexity"]["lengths"],
        measure("run/step-4", &path)["perplexity"]["lengths"]
    );
    // A run's folder is a model's path, too.
    let again = ["model={ path: run }", "schedule.steps=2"];
    place.train("again", &again).ended(0);
    assert!(text(&place, "again/experiment.yaml").contains("path: run/step-4"));
    let lost = annulus(&place, &["generate", "others", "--prompt", "x"]);
    assert!(lost.ended(2).stderr.contains("cannot be read"), "{}", lost.stderr);
}

#[test]
fn a_checkpoint_has_its_tokenizer_s_files() {
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.steps=2"]).ended(0);
    let config = json(&place, "run/step-2/tokenizer_config.json");
    assert_eq!(config["tokenizer_class"], "PreTrainedTokenizerFast");
    assert_eq!(json(&place, "run/step-2/tokenizer.json")["model"]["type"], "BPE");
    // A template beside a tokenizer of bytes is kept, and used for conversations.
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    place.write("run/chat_template.jinja", template);
    fs::create_dir(place.path("base")).expect("a folder");
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(place.path(&format!("run/step-2/{name}")), place.path(&format!("base/{name}")))
            .expect("a checkpoint's file");
    }
    place.write("base/chat_template.jinja", template);
    // As transformers 5 names its class, which version 4 does not load.
    let mut of_5 = config.clone();
    of_5["tokenizer_class"] = "TokenizersBackend".into();
    place.write("base/tokenizer_config.json", &of_5.to_string());
    let line = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": \"ho ho\"}]}\n";
    place.write("chats.jsonl", &line.repeat(60));
    let chat = [
        "model={ path: base }",
        "data={ path: chats.jsonl, format: chat, tokens: 48, evaluate: 2 }",
        "schedule.steps=2",
    ];
    place.train("chat", &chat).ended(0);
    assert_eq!(text(&place, "chat/step-2/chat_template.jinja"), template);
    assert_eq!(json(&place, "chat/step-2/tokenizer_config.json"), config);
}

#[test]
fn batch_systems_and_closed_terminals_stop_a_run_that_saves() {
    let place = Place::new(ANNULUS);
    for signal in ["USR1", "HUP"] {
        let mut live = place.start(signal, &["schedule.steps=100000"]);
        assert!(live.wait_for(|output| last_saved(output) > 1));
        live.signal(&[signal]);
        live.end().ended(75);
        assert!(last_saved(&place.path(signal)) > 1);
    }
}

#[test]
fn quantities_have_one_notation() {
    let place = Place::new(ANNULUS);
    let resolved = |change: &str| annulus(&place, &["check", "experiment.yaml", change]);
    for change in [
        "data.tokens=0.0625K",
        "data.tokens=0.0625k",
        "memory.budget=1.5G",
        "memory.budget=80GB",
        "memory.budget=64000kB",
        "memory.budget=100MiB",
        "mesh.deadline=10min",
        "mesh.deadline=2h",
    ] {
        resolved(change).ended(0);
    }
    let bare = annulus(&place, &["plan", "--compare", "--bandwidth", "50"]);
    assert!(bare.ended(2).stderr.contains("200GB/s"), "{}", bare.stderr);
    annulus(&place, &["plan", "--compare", "--bandwidth", "50GB/s", "--tokens", "64K"]).ended(0);
    place.train("run", &["schedule.steps=2"]).ended(0);
    annulus(&place, &["export", "run", "--out", "model", "--shard", "5GB"]).ended(0);
}

#[test]
fn paths_may_have_the_environment_in_them() {
    let place = Place::new(ANNULUS);
    annulus(&place, &["check", "experiment.yaml", "data.path=${PWD_THAT_NOBODY_SETS}/text.txt"])
        .ended(2);
    let home = fs::canonicalize(place.path("")).expect("a folder");
    let check = |path: &str| {
        let mut command = std::process::Command::new(ANNULUS);
        command.args(["check", "experiment.yaml", &format!("data.path={path}")]);
        command.current_dir(place.path("")).env("HOME", &home).env("TEXTS", &home);
        Ran::of(&command.output().expect("the program starts"))
    };
    check("~/text.txt").ended(0);
    check("${TEXTS}/text.txt").ended(0);
    check("~/nowhere.txt").ended(3);
}

#[test]
fn an_error_is_said_once() {
    let place = Place::new(ANNULUS);
    short(&place);
    let changes = [
        "model={ path: short/step-4 }",
        "extend={ rope: yarn, tokens: 48 }",
        "attention={ strategy: auto }",
    ];
    let ran = annulus(&place, &[&["check", "experiment.yaml"], &changes[..]].concat());
    let said = &ran.ended(2).stderr;
    assert_eq!(said.matches("no more than the 64 of the model").count(), 1, "{said}");
    assert!(!said.contains("no strategy can run"), "{said}");
}

#[test]
fn a_run_that_never_began_leaves_no_folder() {
    let place = Place::new(ANNULUS);
    place.train("run", &["data.path=nowhere.txt"]).ended(3);
    place.train("run", &["data.tokens=32k"]).ended(3);
    assert!(!place.path("run").exists());
}

#[test]
fn a_line_is_shown_for_every_logged_step_and_the_summary_is_data() {
    let place = Place::new(ANNULUS);
    let ran = place.train("run", &["schedule.steps=6", "every={ log: 2 }"]);
    let steps =
        ran.ended(0).stderr.lines().filter(|line| line.contains("tok/s")).collect::<Vec<_>>();
    assert_eq!(steps.len(), 3, "{}", ran.stderr);
    for (line, step) in steps.iter().zip([2, 4, 6]) {
        assert!(line.starts_with(&format!("step {step}/6  loss ")), "{line}");
        assert!([" lr ", " grad ", " tok/s"].iter().all(|word| line.contains(word)), "{line}");
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert!(ran.stdout.starts_with("finished at step 6\n"), "{}", ran.stdout);
}

#[test]
fn a_text_is_written_as_it_is_generated() {
    use std::io::Read;
    use std::process::{Command, Stdio};
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.steps=2"]).ended(0);
    let whole =
        annulus(&place, &["generate", "run", "--prompt", "alpha", "--tokens", "30", "--json"]);
    let text = format!("alpha{}", whole.ended(0).json()[0]["text"].as_str().expect("a text"));
    let shown = annulus(&place, &["generate", "run", "--prompt", "alpha", "--tokens", "30"]);
    assert!(!text.chars().all(|letter| letter == ' '), "no blanks: {text:?}");
    assert_eq!(shown.ended(0).stdout.matches("alpha").count(), 1);
    let mut command = Command::new(ANNULUS);
    command.args(["generate", "run", "--prompt", "alpha", "--tokens", "1M"]);
    let mut child = command
        .current_dir(place.path(""))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    // The first bytes come long before a million tokens could be there.
    let mut first = [0; 12];
    child.stdout.take().expect("a pipe").read_exact(&mut first).expect("text");
    assert!(first.starts_with(b"alpha"));
    child.kill().and_then(|()| child.wait()).expect("it ends");
}

#[test]
fn names_of_other_programs_are_understood() {
    let place = Place::new(ANNULUS);
    let said = |words: &[&str]| annulus(&place, words).ended(2).stderr.clone();
    assert!(said(&["train", "experiment.yaml", "optimizer.lr=1e-3"]).contains("`learning_rate`"));
    assert!(
        said(&["train", "experiment.yaml", "--resume", "latest"])
            .contains("the same command resumes a run")
    );
    assert!(
        said(&["train", "experiment.yaml", "--data.tokens=64"]).contains("`data.tokens=VALUE`")
    );
    assert!(said(&["train", "--config", "experiment.yaml"]).contains("`annulus train FILE`"));
    let hub = ["check", "experiment.yaml", "model={ path: Qwen/Qwen2.5-0.5B }"];
    let hub = annulus(&place, &hub).ended(3).stderr.clone();
    assert!(hub.contains("`hf://Qwen/Qwen2.5-0.5B`"), "{hub}");
    let cold = said(&["generate", "run", "--prompt", "x", "--temperature", "-1"]);
    assert!(cold.contains("at least 0"), "{cold}");
    let seed = said(&["generate", "run", "--prompt", "x", "--seed", "-1"]);
    assert!(seed.contains("a whole number from 0 to"), "{seed}");
}

/// A run that begins where another is keeps to the length that the other was trained for, and to its own beginning.
#[test]
fn from_a_run_neither_longer_sequences_nor_another_beginning_go_unsaid() {
    let place = Place::new(ANNULUS);
    place.train("first", &["schedule.steps=3"]).ended(0);
    let from = |output: &str, from: &str, changes: &[&str]| {
        let folder = format!("output={output}");
        let arguments = ["train", "experiment.yaml", "--from", from, &folder];
        annulus_tests::run(ANNULUS, &place.path(""), &[&arguments[..], changes].concat())
    };
    let longer = from("longer", "first", &["data.tokens=96", "schedule.steps=6"]);
    let said = &longer.ended(2).stderr;
    assert!(said.contains("longer than the 48 that ") && said.contains("extend"), "{said}");
    assert!(!place.path("longer").exists());
    from("second", "first", &["schedule.steps=5"]).ended(0);
    from("second", "./first", &["schedule.steps=5"]).ended(0);
    // The same command goes on; another beginning is refused, and so is one where there is none.
    from("second", "first", &["schedule.steps=5"]).ended(0);
    for other in ["first/step-2", "absent"] {
        let refused = from("second", other, &["schedule.steps=7"]);
        assert!(refused.ended(4).stderr.contains("is a run already, which began from `first`"));
    }
    assert!(from("first", "second", &[]).ended(4).stderr.contains("did not begin with `--from`"));
    // Another model begins with its weights in another way.
    let other = from("other", "first", &["model.rope_theta=5e5", "schedule.steps=6"]);
    let said = &other.ended(4).stderr;
    assert!(said.contains("leave `--from` out") && said.contains("add `model=null "), "{said}");
}
