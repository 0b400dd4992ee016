//! Runs that go on: in parts, with other ranks, from damaged checkpoints; and what is refused.

use std::fs;
use std::path::Path;

use annulus_experiment::parse;
use annulus_tests::run;
use annulus_tests::runs::{
    Place, assert_same, contents, difference, flip, last_saved, losses, truncate,
};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

/// How far losses may be off, relatively, when they are summed in another order.
const REORDERED: f64 = 1e-5;

#[test]
fn ten_steps_and_ten_are_twenty_to_the_bit() {
    let place = Place::new(ANNULUS);
    for (name, changes) in [
        ("striped", vec![]),
        ("local", vec!["mesh.sequence=1", "attention.strategy=local"]),
        ("megatron", vec!["mesh.sequence=4", "attention.strategy=megatron"]),
        ("mesh", vec!["mesh.data=2", "mesh.sequence=2", "attention.strategy=ring"]),
        ("bf16", vec!["model.dtype=bf16"]),
    ] {
        // The end is evaluated: here so is the middle, in both.
        let changes = [&changes[..], &["every.evaluate=10"]].concat();
        let (whole, halves) = (format!("{name}-whole"), format!("{name}-halves"));
        place.train(&whole, &changes).ended(0);
        place.train(&halves, &[&changes[..], &["schedule.stop=10"]].concat()).ended(0);
        assert_eq!(last_saved(&place.path(&halves)), 10);
        place.train(&halves, &changes).ended(0);
        assert_same(&place.path(&halves), &place.path(&whole));
    }
}

/// A folder's name is a name, not YAML, and no variable of the environment.
#[test]
fn a_run_goes_on_in_its_folder_whatever_that_is_called() {
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.stop=2"]).ended(0);
    let odd = ["a #1", "b: c", "d ${HOME}", "~", "[e]"];
    for name in odd {
        fs::rename(place.path("run"), place.path(name)).expect("it is renamed");
        let words = ["evaluate", name, "evaluation.lengths=[16]", "--json"];
        run(ANNULUS, &place.path(""), &words).ended(0);
        assert!(place.path(name).join("evaluation/perplexity.json").is_file(), "{name}");
        fs::rename(place.path(name), place.path("run")).expect("it is renamed");
    }
    fs::rename(place.path("run"), place.path(odd[2])).expect("it is renamed");
    run(ANNULUS, &place.path(""), &["train", odd[2], "schedule.stop=4"]).ended(0);
    assert_eq!(last_saved(&place.path(odd[2])), 4);
    let again = ["reproduce", odd[2], "--out", odd[0]];
    run(ANNULUS, &place.path(""), &again).ended(0);
    assert!(place.path(odd[0]).join("metrics.jsonl").is_file());
}

#[cfg(unix)]
#[test]
fn an_argument_that_is_no_text_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    let place = Place::new(ANNULUS);
    let name = std::ffi::OsStr::from_bytes(b"odd/a\xff");
    let said = std::process::Command::new(ANNULUS)
        .current_dir(place.path(""))
        .args(["train".as_ref(), name])
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.code() == Some(2) && text.contains("is not UTF-8"), "{text}");
}

/// What it has written there since, hashes among it, is no data.
#[test]
fn a_run_in_the_folder_of_its_data_goes_on() {
    let place = Place::new(ANNULUS);
    let text = fs::read_to_string(place.path("text.txt")).expect("it is there");
    let lines = text.lines().map(|line| format!("{{\"text\": \"{line}\"}}\n"));
    fs::create_dir(place.path("run")).expect("a folder");
    place.write("run/data.jsonl", &lines.collect::<String>());
    let changes = ["data.path=run", "data.format=jsonl", "every.hash=1"];
    for stop in [2, 4] {
        let stop = format!("schedule.stop={stop}");
        place.train("run", &[&changes[..], &[stop.as_str()]].concat()).ended(0);
    }
    assert_eq!(last_saved(&place.path("run")), 4);
}

/// The phase that a checkpoint is of says how its model is extended, not the phase that goes on.
#[test]
fn a_base_may_move_at_the_end_of_a_phase() {
    let place = Place::new(ANNULUS);
    place.train("base", &["schedule.steps=2"]).ended(0);
    place.copy("base/step-2", "model");
    let yaml = fs::read_to_string(place.path("experiment.yaml")).expect("it is there");
    place.write("experiment.yaml", &yaml.replace("tokens: 48, ", "").replace("steps: 20, ", ""));
    let phases = "stages={ a: { tokens: 48, steps: 2 }, b: { tokens: 96, steps: 1, reset: [], extend: { rope: yarn, tokens: 96 } } }";
    place.train("run", &[phases, "model={path: model}", "schedule.stop=2"]).ended(0);
    fs::rename(place.path("model"), place.path("moved")).expect("a folder");
    place.train("run", &[phases, "model={path: moved}"]).ended(0);
    assert_eq!(last_saved(&place.path("run")), 3);
}

/// Trains in parts, each with its own changes, and compares losses with a run in one part.
#[track_caller]
fn check_parts(parts: &[(&str, &[&str])]) {
    let place = Place::new(ANNULUS);
    place.train("whole", &["mesh.sequence=1", "attention.strategy=local"]).ended(0);
    for (stop, changes) in parts {
        let stop = format!("schedule.stop={stop}");
        place.train("run", &[&[stop.as_str()], *changes].concat()).ended(0);
    }
    let (parts, whole) = (losses(&place.path("run")), losses(&place.path("whole")));
    let off = difference(&parts, &whole);
    assert!(off < REORDERED, "{off:e}");
}

#[test]
fn a_run_goes_on_with_other_ranks() {
    check_parts(&[
        ("7", &["mesh.sequence=4"]),
        ("14", &["mesh.sequence=3"]),
        ("20", &["mesh.sequence=1"]),
    ]);
}

#[test]
fn a_run_goes_on_with_another_strategy() {
    check_parts(&[
        ("4", &["attention.strategy=ring"]),
        ("8", &["attention.strategy=striped", "mesh.sequence=2"]),
        ("12", &["attention.strategy=megatron", "mesh.sequence=4"]),
        ("16", &["attention.strategy=all-gather"]),
        ("20", &["attention.strategy=local", "mesh.sequence=1"]),
    ]);
}

#[test]
fn what_only_says_how_it_is_computed_may_differ() {
    let place = Place::new(ANNULUS);
    place.train("first", &["schedule.stop=2"]).ended(0);
    for change in [
        "mesh.sequence=2",
        "mesh.data=2",
        "mesh.deadline=30",
        "mesh.engine=mpi",
        "attention.strategy=ring",
        "memory.recompute=none",
        "memory.micro_batch=1",
        "memory.loss_chunk=16",
        "memory.mlp_chunk=16",
        "every.log=2",
        "every.evaluate=0",
        "every.checkpoint=0",
    ] {
        // In another folder, and to another stop, besides.
        let copy = change.replace('=', "-");
        place.copy("first", &copy);
        let ran = place.train(&copy, &[change, "schedule.stop=3"]);
        ran.ended(0);
        assert!(ran.stderr.contains("from step 2"), "{}", ran.stderr);
    }
}

/// Another value for every key that may not differ on resume.
const OTHERS: [(&str, &str); 38] = [
    ("reproducible", "strict"),
    ("seed", "4"),
    ("model.hidden_size", "64"),
    ("model.intermediate_size", "64"),
    ("model.num_hidden_layers", "1"),
    ("model.num_attention_heads", "2"),
    ("model.num_key_value_heads", "4"),
    ("model.head_dim", "16"),
    ("model.rms_norm_eps", "0.0001"),
    ("model.rope_theta", "20000.0"),
    ("model.tie_word_embeddings", "true"),
    ("model.attention_bias", "true"),
    ("model.mlp_bias", "true"),
    ("model.vocab_size", "300"),
    ("model.max_position_embeddings", "512"),
    ("model.initializer_range", "0.04"),
    ("model.dtype", "bf16"),
    ("data.format", "jsonl"),
    ("data.column", "body"),
    ("data.tokens", "96"),
    ("data.batch", "4"),
    ("data.evaluate", "8"),
    ("data.pack", "documents"),
    ("data.longer", "cut"),
    ("attention.mask", "full"),
    ("attention.window", "8"),
    ("attention.kernel", "reference"),
    ("attention.dropout", "0.1"),
    ("attention.wire.key_value", "bf16"),
    ("optimizer.learning_rate", "0.02"),
    ("optimizer.betas", "[0.9, 0.99]"),
    ("optimizer.epsilon", "1.0e-6"),
    ("optimizer.weight_decay", "0.2"),
    ("optimizer.clip", "2.0"),
    ("schedule.steps", "30"),
    ("schedule.warmup", "3"),
    ("schedule.decay", "linear"),
    ("schedule.floor", "0.2"),
];

/// What some of these mean nothing without.
const BESIDE: [(&str, &str); 3] = [
    ("data.column", "data.format=jsonl"),
    ("data.longer", "data.pack=documents"),
    ("schedule.floor", "schedule.decay=linear"),
];

/// Keys that have one value only, as yet.
const SINGLE: [&str; 3] = ["model.model_type", "model.hidden_act", "optimizer.name"];
/// Files, of which only what is in them is compared.
const MOVED: [&str; 2] = ["data.path", "data.tokenizer"];
/// The smallest file that is a tokenizer.
const TOKENIZER: &str = r#"{"version": "1.0", "added_tokens": [], "model":
    {"type": "WordLevel", "vocab": {"alpha": 0, "?": 1}, "unk_token": "?"}}"#;

#[test]
fn any_other_difference_is_refused_by_its_key() {
    let place = Place::new(ANNULUS);
    place.write("tokenizer.json", TOKENIZER);
    place.train("run", &["schedule.stop=5"]).ended(0);
    let before = contents(&place.path("run"));
    let plan = fs::read_to_string(place.path("run/experiment.yaml")).unwrap();
    let saved = parse("experiment.yaml", &plan, &[]).unwrap().identity();
    for (key, _) in &saved {
        let is_tried = OTHERS.iter().any(|(tried, _)| tried == key);
        let known = [&SINGLE[..], &MOVED].concat();
        assert!(is_tried || known.contains(&key.as_str()), "`{key}` has no other value here");
    }
    for (key, is) in OTHERS {
        let was = saved.iter().find(|(saved, _)| saved == key);
        let was = was.map_or("nothing", |(_, value)| value);
        let beside = BESIDE.iter().filter(|(other, _)| *other == key).map(|(_, beside)| *beside);
        let change = format!("{key}={is}");
        let changes: Vec<&str> = [change.as_str()].into_iter().chain(beside).collect();
        let ran = place.train("run", &changes);
        ran.ended(4);
        let wanted = format!("`{key}` was `{was}` and is `{is}`");
        assert!(ran.stderr.contains(&wanted), "{wanted}: {}", ran.stderr);
    }
    // Two words: too few tokens to compare a fingerprint of.
    place.train("run", &["data.tokenizer=tokenizer.json"]).ended(3);
    place.write("text.txt", &"another text ".repeat(1000));
    let ran = place.train("run", &[]);
    let texts = "was trained on other texts: `text.txt` has changed since";
    assert!(ran.ended(4).stderr.contains(texts), "{}", ran.stderr);
    let (inputs, learned) = ([place.path("text.txt")], place.path("learned/tokenizer.json"));
    annulus_data::train_tokenizer(&inputs, annulus_data::Records::Text, 257, &learned)
        .expect("a tokenizer");
    let ran = place.train("run", &["data.tokenizer=learned/tokenizer.json"]);
    let tokenizer = "was trained with another tokenizer than `learned/tokenizer.json`";
    assert!(ran.ended(4).stderr.contains(tokenizer), "{}", ran.stderr);
    assert_eq!(contents(&place.path("run")), before);
}

#[test]
fn a_finished_run_says_so_and_changes_nothing() {
    let place = Place::new(ANNULUS);
    place.train("run", &[]).ended(0);
    let before = contents(&place.path("run"));
    for _ in 0..2 {
        let ran = place.train("run", &[]);
        ran.ended(0);
        assert!(ran.stdout.contains("already finished at step 20"), "{}", ran.stdout);
        assert_eq!(contents(&place.path("run")), before);
    }
}

/// Where nothing is left to do, too, what a path names is compared, not the path.
#[test]
fn a_finished_run_is_not_taken_for_one_of_other_data() {
    let place = Place::new(ANNULUS);
    fs::copy(place.path("text.txt"), place.path("moved.txt")).expect("a text");
    place.write("other.txt", &"another text ".repeat(1000));
    let mixed = |weight: u8| {
        format!(
            "data.path=[{{ path: text.txt, weight: 1 }}, {{ path: other.txt, weight: {weight} }}]"
        )
    };
    let phases = "stages={ a: { tokens: 24, steps: 1 }, b: { tokens: 48, steps: 1, reset: [] } }";
    let own = fs::read_to_string(place.path("experiment.yaml")).expect("it is there");
    let staged = own.replace("tokens: 48, ", "").replace("steps: 20, ", "");
    for (run, file, length, first) in [
        ("plain", &own, "schedule.steps=2", "data.path=text.txt"),
        ("mixed", &own, "schedule.steps=2", &mixed(1)),
        ("staged", &staged, phases, "data.path=text.txt"),
    ] {
        place.write("experiment.yaml", file);
        place.train(run, &[length, first]).ended(0);
        let before = contents(&place.path(run));
        for path in ["data.path=other.txt", &mixed(2)] {
            let ran = place.train(run, &[length, path]);
            assert!(ran.ended(4).stderr.contains("was trained on other texts"), "{}", ran.stderr);
        }
        let gone = place.train(run, &[length, "data.path=gone.txt"]);
        assert!(gone.ended(3).stderr.contains("gone.txt"), "{}", gone.stderr);
        let moved = first.replace("text.txt", "moved.txt");
        let moved = place.train(run, &[length, &moved]);
        assert!(moved.ended(0).stdout.contains("already finished at step 2"), "{}", moved.stdout);
        assert_eq!(contents(&place.path(run)), before, "{run}");
    }
}

/// What happens to files.
const DAMAGES: [(&str, fn(&Path)); 3] = [
    ("flipped", flip),
    ("truncated", truncate),
    ("missing", |path| fs::remove_file(path).expect("it is there")),
];

#[test]
fn a_damaged_checkpoint_is_refused_by_file_and_the_one_before_is_used() {
    let place = Place::new(ANNULUS);
    place.train("whole", &["schedule.stop=5"]).ended(0);
    place.train("first", &["schedule.stop=4"]).ended(0);
    let files = contents(&place.path("first/step-4"));
    assert_eq!(files.len(), 8);
    for file in files.keys().map(|path| path.file_name().unwrap().to_str().unwrap()) {
        for (what, damage) in DAMAGES {
            let run = format!("{file}-{what}");
            place.copy("first", &run);
            damage(&place.path(&run).join("step-4").join(file));
            let ran = place.train(&run, &["schedule.stop=5"]);
            ran.ended(0);
            let warning = ran.stderr.lines().find(|line| line.starts_with("warning: "));
            let warning = warning.unwrap_or_else(|| panic!("{run}: {}", ran.stderr));
            for wanted in [&format!("{run}/step-4"), &format!("`{file}`"), "from `step-3`"] {
                assert!(warning.contains(wanted), "{run}: {warning}");
            }
            assert_same(&place.path(&run), &place.path("whole"));
        }
    }
}

#[test]
fn where_no_checkpoint_is_whole_nothing_is_overwritten() {
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.stop=3"]).ended(0);
    let files = ["model.safetensors", "optimizer.safetensors", "state.json"];
    for (step, file) in std::iter::zip(1.., files) {
        DAMAGES[step % 3].1(&place.path("run").join(format!("step-{step}")).join(file));
    }
    let before = contents(&place.path("run"));
    let ran = place.train("run", &[]);
    ran.ended(4);
    for file in files {
        assert!(ran.stderr.contains(file), "{}", ran.stderr);
    }
    assert!(ran.stderr.contains("hint: `run` has no complete checkpoint"), "{}", ran.stderr);
    assert_eq!(contents(&place.path("run")), before);
}

#[test]
fn a_last_step_before_the_checkpoint_is_refused() {
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.stop=6"]).ended(0);
    let before = contents(&place.path("run"));
    let ran = place.train("run", &["schedule.stop=2"]);
    let said = "`run/step-6` has 6 steps, and the last step here is 2";
    assert!(ran.ended(4).stderr.contains(said), "{}", ran.stderr);
    assert_eq!(contents(&place.path("run")), before);
}
