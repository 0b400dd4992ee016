//! Evaluations of a trained run with long texts.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use annulus_data::{Records, train_tokenizer};
use annulus_tests::runs::{Place, flip};
use annulus_tests::{Ran, root, run, run_measured};
use serde_json::Value;

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

/// Evaluates after 40 and 96 tokens of the training text.
pub(crate) const ASKED: [&str; 4] = [
    "evaluation.path=text.txt",
    "evaluation.lengths=[40, 96]",
    "evaluation.windows=6",
    "evaluation.targets=16",
];

pub(crate) fn evaluate(place: &Place, arguments: &[&str]) -> Ran {
    run(ANNULUS, &place.path(""), &[&["evaluate"], arguments].concat())
}

fn losses(json: &Value) -> Vec<f64> {
    let lengths = json["perplexity"]["lengths"].as_array().expect("lengths");
    lengths.iter().map(|length| length["loss"]["mean"].as_f64().expect("a loss")).collect()
}

#[test]
fn a_run_and_its_checkpoint_as_a_folder_are_the_same_model_on_any_ranks() {
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.steps=12", "mesh.sequence=2"]).ended(0);
    let of_run = evaluate(&place, &[&["run", "--json"], &ASKED[..]].concat());
    let of_run = losses(&of_run.ended(0).json()[0]);
    let found = std::fs::read_to_string(place.path("run/evaluation/perplexity.json"));
    let found: Value = serde_json::from_str(&found.expect("it is there")).expect("JSON");
    let found = serde_json::json!({ "perplexity": found });
    let own = &found["perplexity"];
    let wanted = (of_run.clone(), &2.into(), &12.into());
    assert_eq!((losses(&found), &own["ranks"], &own["step"]), wanted);

    let model = ["experiment.yaml", "model={path: run/step-12}", "mesh.sequence=3", "--json"];
    let of_folder = evaluate(&place, &[&model[..], &ASKED[..], &["--out", "elsewhere"]].concat());
    for (a, b) in losses(&of_folder.ended(0).json()[0]).iter().zip(&of_run) {
        assert!((a - b).abs() < 1e-5 * b, "{a} {b}");
    }
    assert!(place.path("elsewhere/loss-by-length.svg").is_file());
    let table = evaluate(&place, &[&["run"], &ASKED[..]].concat());
    assert_eq!(table.ended(0).stdout.lines().count(), 4, "{}", table.stdout);
    seen_by_tensorboard(&place.path("run/evaluation"));
}

/// A curve of loss by length over checkpoints needs the results of all of them.
#[test]
fn results_of_another_checkpoint_are_kept() {
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.steps=4", "every.checkpoint=2", "keep=2"]).ended(0);
    let folder = place.path("run/evaluation");
    let read = |name: &str| -> Value {
        let text = fs::read_to_string(folder.join(name)).expect(name);
        serde_json::from_str(&text).expect("JSON")
    };
    // TensorBoard has a file of each step.
    let files = || {
        let files = fs::read_dir(&folder).expect("a folder").map(|file| file.expect("a file"));
        files.filter(|file| file.file_name().to_string_lossy().contains("tfevents")).count()
    };
    evaluate(&place, &[&["run"], &ASKED[..]].concat()).ended(0);
    let last = read("perplexity.json");
    let of_first = evaluate(&place, &[&["run/step-2"], &ASKED[..]].concat());
    assert!(of_first.ended(0).stderr.contains("step-4`"), "{}", of_first.stderr);
    assert_eq!(
        (read("perplexity.json")["step"].as_u64(), read("step-4/perplexity.json")),
        (Some(2), last.clone())
    );
    assert!(folder.join("step-4/loss-by-length.svg").is_file());
    assert_eq!(files(), 2);
    // Evaluated again, the last step's results are replaced where they belong, and those of the first are kept.
    evaluate(&place, &[&["run"], &ASKED[..]].concat()).ended(0);
    assert_eq!(
        (read("perplexity.json"), read("step-2/perplexity.json")["step"].as_u64()),
        (last, Some(2))
    );
    assert!(!folder.join("step-4").exists());
    assert_eq!(files(), 2);
}

/// TensorBoard's own reader finds the pictures, at the step of the weights.
#[expect(clippy::print_stdout, reason = "a skipped test says so")]
fn seen_by_tensorboard(folder: &Path) {
    let python = root().join("target/python/tensorboard/bin/python");
    if !python.exists() {
        println!("SKIPPED: no {}; `cargo xtask setup python` installs it", python.display());
        return;
    }
    let script = root().join("tests/python/read_events.py");
    let output = Command::new(python).arg(script).arg(folder).output().expect("python starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let seen: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    // Two evaluations wrote there: the second replaced the first.
    let wanted = serde_json::json!([[12, 960, 600]]);
    assert_eq!(seen["images"]["evaluation/loss-by-length"], wanted);
}

/// What a folder of weights was trained on nobody knows, whatever data are named beside it.
#[test]
fn only_of_a_run_is_it_known_what_it_was_trained_on() {
    let place = Place::new(ANNULUS);
    let text = fs::read_to_string(place.path("text.txt")).expect("a text");
    place.write("other.txt", &text);
    fs::create_dir(place.path("linked")).expect("a folder");
    symlink("../text.txt", place.path("linked/text.txt")).expect("a link");
    place.train("run", &["schedule.steps=2"]).ended(0);
    run(ANNULUS, &place.path(""), &["export", "run", "--out", "model"]).ended(0);
    let whole = place.path("text.txt");
    for (subject, data, read, is_known) in [
        ("run", "data.batch=2", "text.txt", true),
        ("run", "data.batch=2", "./text.txt", true),
        ("run", "data.batch=2", whole.to_str().expect("a path"), true),
        ("run", "data.batch=2", "linked", true),
        ("run/step-2", "data.path=other.txt", "text.txt", true),
        ("run", "data.path=other.txt", "other.txt", false),
        ("model", "data.path=text.txt", "text.txt", false),
    ] {
        let path = format!("evaluation.path={read}");
        let ran =
            evaluate(&place, &[&[subject, data, "data.tokens=48"], &ASKED[1..], &[&path]].concat());
        let said = &ran.ended(0).stderr;
        assert_eq!(said.contains("was trained on"), is_known, "{subject} {data}: {said}");
        assert_eq!(said.contains(&format!("reading `{read}`")), !is_known, "{said}");
    }
}

/// Tasks make their own texts; and a folder's experiment, which the program makes, is in no file.
#[test]
fn nothing_is_said_of_texts_and_files_that_are_not_there() {
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.steps=2"]).ended(0);
    run(ANNULUS, &place.path(""), &["export", "run", "--out", "model"]).ended(0);
    let tasks = ["evaluation.tasks=[needle]", "data.tokens=160", "evaluation.samples=1"];
    for subject in ["run", "model"] {
        let said = evaluate(&place, &[&[subject], &tasks[..]].concat()).ended(0).stderr.clone();
        assert!(!said.contains("reading "), "{subject}: {said}");
    }
    let missing = evaluate(&place, &["model"]).ended(3).stderr.clone();
    assert!(missing.contains("`data.path` is missing\nhint: "), "{missing}");
    assert!(!missing.contains("reading "), "{missing}");
    let wrong = evaluate(&place, &["model", "data.tokens=many"]).ended(2).stderr.clone();
    assert!(wrong.contains(" --> command line\n"), "{wrong}");
}

#[test]
fn where_results_cannot_be_written_another_folder_can_be_named() {
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.steps=2"]).ended(0);
    place.write("run/evaluation", "a file");
    let asked = |more: &[&str]| evaluate(&place, &[&["run"], &ASKED[..], more].concat());
    let ran = asked(&[]);
    let hint = "hint: give another folder: `--out DIR`";
    assert!(ran.ended(4).stderr.contains(hint), "{}", ran.stderr);
    asked(&["--out", "out"]).ended(0);
    // That is said before anything is computed, and what cannot be computed leaves no folder.
    place.write("file", "");
    let ran = asked(&["--out", "file"]);
    assert!(ran.ended(4).stderr.contains(hint), "{}", ran.stderr);
    assert!(!ran.stderr.contains("reading"), "{}", ran.stderr);
    asked(&["--out", "nothing", "evaluation.windows=999"]).ended(2);
    assert!(!place.path("nothing").exists());
    // What was computed is shown all the same.
    fs::create_dir_all(place.path("taken/perplexity.json")).expect("a folder");
    let ran = asked(&["--out", "taken"]);
    assert_eq!(ran.ended(4).stdout.lines().count(), 4, "{}", ran.stdout);
}

#[test]
fn what_has_not_trained_is_not_asked() {
    let place = Place::new(ANNULUS);
    let fresh = evaluate(&place, &[&["experiment.yaml"], &ASKED[..]].concat());
    assert!(fresh.ended(2).stderr.contains("no trained weights"), "{}", fresh.stderr);
    place.train("run", &["schedule.steps=2"]).ended(0);
    let other = evaluate(&place, &["run", "model.num_hidden_layers=1"]);
    assert!(other.ended(4).stderr.contains("is of another model"), "{}", other.stderr);
    evaluate(&place, &["run"]).ended(0);
    fs::create_dir(place.path("empty")).expect("a folder");
    let nothing = evaluate(&place, &["empty"]);
    assert!(nothing.ended(2).stderr.contains("neither a run's folder"), "{}", nothing.stderr);
    let trained_on = evaluate(&place, &["run", "evaluation.windows=999"]);
    assert!(trained_on.ended(2).stderr.contains("tokens held out"), "{}", trained_on.stderr);
    let shorter = evaluate(&place, &[&["run"], &ASKED[..], &["evaluation.targets=41"]].concat());
    assert!(shorter.ended(2).stderr.contains("at most 40"), "{}", shorter.stderr);
}

/// A checkpoint is whole: neither its model's folder nor its tokenizer is needed, and what has become of them does not matter.
#[test]
fn a_checkpoint_is_evaluated_as_it_was_trained_whatever_has_become_of_its_base() {
    let place = Place::new(ANNULUS);
    let out = place.path("words/tokenizer.json");
    train_tokenizer(&[place.path("text.txt")], Records::Text, 300, &out).expect("a tokenizer");
    let words = "data.tokenizer=words/tokenizer.json";
    place.train("base", &["schedule.steps=2", words, "model.vocab_size=320"]).ended(0);
    fs::rename(place.path("base/step-2"), place.path("model")).expect("a folder");
    for file in ["state.json", "hashes.json", "optimizer.safetensors"] {
        fs::remove_file(place.path("model").join(file)).expect("a checkpoint's");
    }
    let own = ["model={path: model}", "extend={rope: yarn, tokens: 96}", "schedule.steps=4"];
    place.train("run", &own).ended(0);
    place.train("adapters", &[&own[..], &["lora={rank: 2}"]].concat()).ended(0);
    let asked = |run: &str| evaluate(&place, &[&[run, "--json"], &ASKED[..]].concat());
    let of = |run: &str| losses(&asked(run).ended(0).json()[0]);
    let wanted = ["run", "adapters"].map(of);
    let config = fs::read_to_string(place.path("model/config.json")).expect("a config");
    let edited = config.replace("\"rms_norm_eps\": 0.00001", "\"rms_norm_eps\": 0.5");
    assert_ne!(config, edited);
    place.write("model/config.json", &edited);
    assert_eq!(["run", "adapters"].map(of), wanted);
    let weights = fs::read(place.path("model/model.safetensors")).expect("weights");
    flip(&place.path("model/model.safetensors"));
    let refused = asked("adapters");
    assert!(
        refused.ended(4).stderr.contains("were trained on other base weights than those in"),
        "{}",
        refused.stderr
    );
    fs::write(place.path("model/model.safetensors"), weights).expect("weights");
    fs::remove_dir_all(place.path("model")).expect("a folder");
    fs::remove_dir_all(place.path("words")).expect("a folder");
    assert_eq!([of("run"), of("run/step-4")], [wanted[0].clone(), wanted[0].clone()]);
    let arguments = ["generate", "run", "--prompt", "alpha", "--tokens", "3"];
    run(ANNULUS, &place.path(""), &arguments).ended(0);
    // Another model that is named is compared.
    fs::create_dir(place.path("other")).expect("a folder");
    place.write("other/config.json", &edited);
    let other = evaluate(&place, &["run", "model.path=other"]);
    let said = "`rms_norm_eps` was `0.00001` and is `0.5`";
    assert!(other.ended(4).stderr.contains(said), "{}", other.stderr);
}

/// The file of a run writes out how it was split, which goes with another strategy.
#[test]
fn a_run_is_evaluated_and_planned_under_another_strategy() {
    let place = Place::new(ANNULUS);
    let striped = ["mesh.sequence=2", "attention.strategy=striped", "attention.stripe=2"];
    place.train("run", &[&striped[..], &["schedule.steps=2"]].concat()).ended(0);
    let other = ["attention.strategy=megatron", "mesh.sequence=3"];
    for subject in ["run", "run/step-2"] {
        evaluate(&place, &[&[subject], &other[..], &ASKED[..]].concat()).ended(0);
    }
    run(ANNULUS, &place.path(""), &[&["plan", "run"], &other[..]].concat()).ended(0);
    let resumed = [&["train", "run"], &other[..]].concat();
    assert!(run(ANNULUS, &place.path(""), &resumed).ended(0).stdout.contains("already finished"));
}

/// Without its text, nobody knows what a run held out.
#[test]
fn a_text_that_has_changed_since_is_not_taken_for_the_one_that_was_held_out() {
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.steps=2"]).ended(0);
    evaluate(&place, &["run", "data.tokens=40"]).ended(0);
    let text = fs::read_to_string(place.path("text.txt")).expect("a text");
    place.write("text.txt", &text[..text.len() / 2]);
    let changed = evaluate(&place, &["run"]);
    assert!(changed.ended(4).stderr.contains("was trained on other texts"), "{}", changed.stderr);
    evaluate(&place, &["run", "evaluation.path=text.txt"]).ended(0);
    // Under its new path it is the same text, or another one.
    place.write("moved.txt", &text);
    place.write("short.txt", &text[..80]);
    place.write("lines.jsonl", "{\"text\": \"alpha\"}\n");
    evaluate(&place, &["run", "data.path=moved.txt"]).ended(0);
    for (given, path) in [
        (&["data.path=./text.txt"][..], "./text.txt"),
        (&["data.path=short.txt"], "short.txt"),
        (&["data.path=lines.jsonl", "data.format=jsonl"], "lines.jsonl"),
    ] {
        let ran = evaluate(&place, &[&["run"], given].concat());
        let said = &ran.ended(4).stderr;
        assert!(said.contains(&format!("was trained on other texts than `{path}` has")), "{said}");
        assert!(
            said.contains(&format!("give `evaluation.path={path}` in place of `data.path`")),
            "{said}"
        );
    }
}

/// What it was trained on does not change by what it is asked.
#[test]
fn what_is_asked_of_a_run_does_not_move_what_was_held_out() {
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.steps=2"]).ended(0);
    let asked = ["run", "evaluation.lengths=[40]", "evaluation.targets=24"];
    evaluate(&place, &[&asked[..], &["evaluation.windows=8"]].concat()).ended(0);
    for more in [&[][..], &["data.evaluate=20"], &["data.tokens=480"]] {
        let ran = evaluate(&place, &[&asked[..], &["evaluation.windows=9"], more].concat());
        let said = "192 tokens held out are too few: 9 windows of 24 targets need 216";
        assert!(ran.ended(2).stderr.contains(said), "{more:?}: {}", ran.stderr);
    }
}

/// Padding is not held out: four documents are, of 41 tokens and the last of 40, and no target precedes the first.
#[test]
fn of_packed_documents_those_of_the_last_sequences_are_held_out() {
    let place = Place::new(ANNULUS);
    let line = |number: usize| format!("{{\"text\": \"{number:40}\"}}\n");
    place.write("documents.jsonl", &(0..30).map(line).collect::<String>());
    let data = "data={path: documents.jsonl, format: jsonl, pack: documents, tokens: 64, batch: 2, evaluate: 4}";
    place.train("run", &[data, "mesh.sequence=2", "schedule.steps=2"]).ended(0);
    let asked = |windows: &str| {
        let lengths = ["run", "evaluation.lengths=[60]", "evaluation.targets=30"];
        evaluate(&place, &[&lengths[..], &[windows]].concat())
    };
    asked("evaluation.windows=5").ended(0);
    let more = asked("evaluation.windows=6");
    assert!(more.ended(2).stderr.contains("162 tokens held out are too few"), "{}", more.stderr);
}

#[test]
fn a_text_to_read_is_made_of_what_its_name_says_or_of_what_the_run_learned_from() {
    let place = Place::new(ANNULUS);
    let lines = |numbers: std::ops::Range<usize>| -> String {
        let line = |number: usize| format!("{{\"text\": \"{number:40}\"}}\n");
        numbers.map(line).collect()
    };
    place.write("learned.jsonl", &lines(0..30));
    place.write("read.jsonl", &lines(30..60));
    place.write("read.json", &lines(30..60));
    fs::create_dir(place.path("folder")).expect("a folder");
    place.write("folder/read.jsonl", &lines(30..60));
    let data = "data={path: learned.jsonl, format: jsonl, tokens: 48, batch: 2, evaluate: 4}";
    place.train("run", &[data, "schedule.steps=2"]).ended(0);
    let of = |path: &str| {
        let path = format!("evaluation.path={path}");
        let ran = evaluate(&place, &["run", "--json", "evaluation.targets=16", &path]);
        losses(&ran.ended(0).json()[0])
    };
    let wanted = of("read.jsonl");
    assert_eq!([of("read.json"), of("folder")], [wanted.clone(), wanted]);
}

/// 1,024 rows of 40,000 logits are 164 MB.
#[test]
fn right_answers_are_counted_without_the_logits_of_whole_sequences() {
    let place = Place::new(ANNULUS);
    let peak = |evaluate: usize| {
        let data =
            format!("data={{ format: recall, tokens: 1024, batch: 1, evaluate: {evaluate} }}");
        let small =
            ["model.vocab_size=40000", "schedule.steps=1", "schedule.warmup=0", "every.evaluate=0"];
        let output = format!("output=of-{evaluate}");
        let words = [&["train", "experiment.yaml", &output, &data], &small[..]].concat();
        let (ran, peak) = run_measured(ANNULUS, &place.path(""), &words);
        ran.ended(0);
        peak
    };
    let (with, without) = (peak(1), peak(0));
    assert!(with < without + 60_000_000, "{with} bytes, {without} without an evaluation");
}

#[test]
fn needles_are_learned_and_the_map_is_the_same_from_one_rank() {
    let place = Place::new(ANNULUS);
    let file = root().join("experiments/needle.yaml");
    let file = file.to_str().expect("a path");
    let stages = "stages={ only: { tokens: 128, steps: 150 } }";
    let small = ["output=run", stages, "mesh.sequence=2", "every.evaluate=0"];
    run(ANNULUS, &place.path(""), &[&["train", file], &small[..]].concat()).ended(0);
    let asked = ["evaluation.lengths=[128, 200]", "evaluation.samples=6", "evaluation.depths=4"];
    let four = ["run", "--out", "four", "mesh.sequence=4"];
    evaluate(&place, &[&four[..], &asked[..]].concat()).ended(0);
    let one = ["run", "--out", "one", "mesh.sequence=1"];
    evaluate(&place, &[&one[..], &asked[..]].concat()).ended(0);
    let bytes = |name: &str| std::fs::read(place.path(name)).expect("it is there");
    assert_eq!(bytes("four/needle.png"), bytes("one/needle.png"));
    let found: Value = serde_json::from_slice(&bytes("four/tasks.json")).expect("JSON");
    let cells = found["cells"].as_array().expect("cells");
    assert_eq!(cells.len(), 2 * 4);
    let right: u64 =
        cells.iter().map(|cell| cell["right"]["right"].as_u64().expect("a number")).sum();
    // 48 questions, of which a guess answers three.
    assert!(right >= 40, "{right} of 48");
}

#[test]
fn a_run_goes_on_with_a_text() {
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.steps=12", "mesh.sequence=2"]).ended(0);
    let generate = |more: &[&str]| {
        let asked = ["generate", "run", "--prompt", "alpha 0 al", "--tokens", "9", "--json"];
        let ran = run(ANNULUS, &place.path(""), &[&asked[..], more].concat());
        ran.ended(0).json()[0].clone()
    };
    let found = generate(&[]);
    assert_eq!(found["ids"].as_array().map(Vec::len), Some(9));
    assert_eq!(found, generate(&["mesh.sequence=3"]));
    let sampled = ["--temperature", "1.5", "--seed", "1"];
    assert_eq!(generate(&sampled), generate(&[&sampled[..], &["mesh.sequence=1"]].concat()));
    assert_ne!(generate(&sampled), generate(&["--temperature", "1.5", "--seed", "2"]));
}
