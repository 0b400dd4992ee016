//! Experiments of the repository that build on others' models, in small: what each file promises holds.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use annulus_tests::runs::Place;
use annulus_tests::{root, run};
use serde_json::Value;

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

/// What keeps any of them small.
const SMALL: [&str; 5] = [
    "data.path=text.txt",
    "data.tokens=48",
    "data.evaluate=2",
    "every.evaluate=0",
    "every.checkpoint=0",
];

/// A model of any of them.
const NARROW: [&str; 3] =
    ["model.hidden_size=32", "model.intermediate_size=48", "model.num_hidden_layers=1"];

/// Trains an experiment of the repository in `NAME`, and holds it to its `expect:` if it is to be checked.
fn train(place: &Place, name: &str, changes: &[&str]) {
    let experiment = if name == "other" { "quickstart" } else { name };
    let file = root().join(format!("experiments/{experiment}.yaml")).display().to_string();
    let output = format!("output={name}");
    let words = [&["train", &file, &output], &SMALL[..], changes].concat();
    run(ANNULUS, &place.path(""), &words).ended(0);
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON")
}

fn words(list: &Value) -> BTreeSet<&str> {
    list.as_array().expect("a list").iter().map(|word| word.as_str().expect("a word")).collect()
}

#[test]
fn adapters_and_norms_learn_beside_the_quickstart() {
    let place = Place::new(ANNULUS);
    train(&place, "quickstart", &[&NARROW[..], &["schedule.steps=25"]].concat());
    train(&place, "lora", &["model.path=quickstart/step-25", "--check"]);
    // Beside other weights of the same shape it means nothing.
    train(
        &place,
        "other",
        &[&NARROW[..], &["schedule.steps=2", "schedule.warmup=0", "seed=9"]].concat(),
    );
    let beside = ["model.path=other/step-2", "lora.path=lora/step-100", "output=mixed"];
    let lora = root().join("experiments/lora.yaml").display().to_string();
    let mixed = [&["train", &lora], &SMALL[..], &beside].concat();
    let mixed = run(ANNULUS, &place.path(""), &mixed);
    let said = "the adapters in `lora/step-100` were trained on other base weights than those in `other/step-2`";
    assert!(mixed.ended(4).stderr.contains(said), "{}", mixed.stderr);
    let adapter = json(&place.path("lora/step-100/adapter_config.json"));
    assert_eq!((&adapter["r"], &adapter["lora_alpha"]), (&8.into(), &16.0.into()));
    assert_eq!(adapter["lora_dropout"], 0.05);
    let targets =
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"].into();
    assert_eq!(words(&adapter["target_modules"]), targets);
    let norms = ["input_layernorm", "post_attention_layernorm", "norm"].into();
    assert_eq!(words(&adapter["modules_to_save"]), norms);
}

#[test]
fn six_tasks_are_asked() {
    let place = Place::new(ANNULUS);
    train(&place, "ruler", &[&NARROW[..], &["--check"]].concat());
    let asked = ["evaluate", "ruler", "evaluation.lengths=[1k]", "evaluation.samples=1"];
    run(ANNULUS, &place.path(""), &asked).ended(0);
    let found = json(&place.path("ruler/evaluation/tasks.json"));
    let cells = found["cells"].as_array().expect("cells");
    let asked: BTreeSet<_> =
        cells.iter().map(|cell| cell["task"].as_str().expect("a name")).collect();
    let tasks =
        ["single", "multi-key", "multi-value", "variables", "common-words", "frequent-words"];
    assert_eq!(asked, tasks.into());
}

#[test]
fn examples_find_their_texts_wherever_they_are_written() {
    let place = Place::new(ANNULUS);
    for folder in ["experiments", "my examples: 1", "deep/er"] {
        run(ANNULUS, &place.path(""), &["init", folder]).ended(0);
        let file = format!("{folder}/quickstart.yaml");
        run(ANNULUS, &place.path(""), &["check", &file]).ended(0);
    }
}
