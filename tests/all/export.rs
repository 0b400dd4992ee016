//! A run's model as a folder of its own: complete, whole or not there, and the same model.

use std::fs;
use std::path::Path;

use annulus_data::{Records, Tokenizer, train_tokenizer};
use annulus_tests::runs::{Place, contents, flip};
use annulus_tests::{Ran, run, tensors};
use serde_json::{Value, json};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

fn export(place: &Place, arguments: &[&str]) -> Ran {
    run(ANNULUS, &place.path(""), &[&["export"], arguments].concat())
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("readable"));
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON")
}

/// Ids for the model to score.
fn ids(place: &Place) {
    let ids = candle_core::Tensor::arange(0i64, 32, &candle_core::Device::Cpu)
        .and_then(|ids| ids.reshape((1, 32)))
        .expect("on the CPU");
    safetensors::serialize_to_file([("input_ids", &ids)], None, &place.path("ids"))
        .expect("a file");
}

/// The logits of the model in `folder`.
fn logits(place: &Place, folder: &str) -> Vec<f64> {
    let arguments = ["score", "--model", folder, "--tokens", "ids", "--out", "out"];
    run(ANNULUS, &place.path(""), &arguments).ended(0);
    tensors(&place.path("out"))["logits"].clone()
}

#[test]
fn a_run_of_bytes_becomes_a_folder_that_says_how_it_was_made() {
    let place = Place::new(ANNULUS);
    ids(&place);
    place.train("run", &["schedule.steps=4"]).ended(0);
    export(&place, &["run", "--out", "model"]).ended(0);
    let files = [
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(names(&place.path("model")), files);
    assert_eq!(logits(&place, "model"), logits(&place, "run/step-4"));
    let card = fs::read_to_string(place.path("model/README.md")).expect("a card");
    let plan = fs::read_to_string(place.path("run/experiment.yaml")).expect("the plan");
    let manifest = fs::read_to_string(place.path("run/manifest.json")).expect("the manifest");
    for part in [
        "---\nlibrary_name: transformers\n",
        "# tiny\n\nA `llama` trained on sequences of 48 tokens, each split over 3 ranks (striped)",
        "| trained | 4 steps, 384 tokens |",
        "from_pretrained(\"model\")",
        "| started from | random weights, seed 3 |",
        "| validation loss (nats per token) | ",
        &plan,
        &manifest,
    ] {
        assert!(card.contains(part), "{part}\nis not in\n{card}");
    }
    let tokenizer = place.path("model/tokenizer.json");
    let tokenizer = Tokenizer::open(&tokenizer.to_string_lossy()).expect("a tokenizer");
    let mut found = Vec::new();
    tokenizer.encode("alpha;\n", &mut |ids| found.extend_from_slice(ids)).expect("a text");
    assert_eq!(found, b"alpha;\n".map(u32::from));
    let config = json(&place.path("model/tokenizer_config.json"));
    assert_eq!(
        (&config["eos_token"], &config["model_max_length"]),
        (&"<|endoftext|>".into(), &48.into())
    );
}

#[test]
fn weights_are_cut_and_any_checkpoint_is_exported() {
    let place = Place::new(ANNULUS);
    ids(&place);
    let tokenizer = place.path("tokenizer.json");
    train_tokenizer(&[place.path("text.txt")], Records::Text, 300, &tokenizer)
        .expect("a tokenizer");
    place.write("chat_template.jinja", "{{ messages }}");
    let changes =
        ["schedule.steps=3", "data.tokenizer=tokenizer.json", "model.dtype=bf16", "data.tokens=24"];
    place.train("run", &changes).ended(0);
    export(&place, &["run/step-2", "--out", "model", "--shard", "8k"]).ended(0);
    let files = names(&place.path("model"));
    let shards: Vec<_> = files.iter().filter(|name| name.ends_with(".safetensors")).collect();
    assert!(shards.len() > 3, "{files:?}");
    assert_eq!(*shards[0], format!("model-00001-of-{:05}.safetensors", shards.len()));
    for name in ["model.safetensors.index.json", "chat_template.jinja", "tokenizer.json"] {
        assert!(files.iter().any(|file| file == name), "{files:?}");
    }
    assert_eq!(logits(&place, "model"), logits(&place, "run/step-2"));
    assert_ne!(logits(&place, "model"), logits(&place, "run/step-3"));
    assert_eq!(json(&place.path("model/config.json"))["dtype"], "bfloat16");
    let card = fs::read_to_string(place.path("model/README.md")).expect("a card");
    assert!(
        card.contains(", bfloat16 |") && card.contains("| trained | 2 steps, 96 tokens |"),
        "{card}"
    );
    // What was exported is trained on like any other folder, and read with the tokenizer in it.
    let again = ["model={ path: model }", "schedule.steps=2", "data.tokens=24"];
    place.train("again", &again).ended(0);
    let plan = fs::read_to_string(place.path("again/experiment.yaml")).expect("a plan");
    assert!(plan.contains("tokenizer: model/tokenizer.json"), "{plan}");
    let bytes = place.train("bytes", &[&again[..], &["data.tokenizer=bytes"]].concat());
    assert!(bytes.ended(2).stderr.contains("`model/tokenizer.json`"), "{}", bytes.stderr);
}

/// They are the tokenizer's as the one without a name is: kept, held to a hash, and no link leads out of their folder.
#[cfg(unix)]
#[test]
fn chat_templates_with_names_go_with_their_tokenizer() {
    let place = Place::new(ANNULUS);
    let tokenizer = place.path("tokenizer.json");
    train_tokenizer(&[place.path("text.txt")], Records::Text, 300, &tokenizer)
        .expect("a tokenizer");
    let named = "additional_chat_templates/rag.jinja";
    fs::create_dir(place.path("additional_chat_templates")).expect("a folder");
    place.write(named, "{{ messages }}");
    place.write("additional_chat_templates/notes.txt", "none");
    let changes = ["schedule.steps=2", "data.tokenizer=tokenizer.json"];
    place.train("run", &changes).ended(0);
    assert!(!json(&place.path("run/step-2/hashes.json"))[named].is_null());
    export(&place, &["run", "--out", "model"]).ended(0);
    for folder in ["run/step-2", "model"] {
        let kept = fs::read_to_string(place.path(folder).join(named)).expect("a template");
        assert_eq!(kept, "{{ messages }}", "{folder}");
        assert_eq!(names(&place.path(folder).join("additional_chat_templates")), ["rag.jinja"]);
    }
    flip(&place.path("run/step-2").join(named));
    let ran = export(&place, &["run/step-2", "--out", "other"]);
    assert!(ran.ended(4).stderr.contains("rag.jinja`: its hash"), "{}", ran.stderr);
    place.write("secret", "secret");
    fs::remove_file(place.path(named)).expect("a file");
    let aside = place.path("aside");
    fs::create_dir(&aside).expect("a folder");
    fs::rename(place.path("tokenizer.json"), aside.join("tokenizer.json")).expect("a file");
    fs::create_dir(aside.join("additional_chat_templates")).expect("a folder");
    std::os::unix::fs::symlink("../../secret", aside.join(named)).expect("a link");
    let changes = ["schedule.steps=2", "data.tokenizer=aside/tokenizer.json"];
    let ran = place.train("outside", &changes);
    assert!(ran.ended(4).stderr.contains("outside of its folder"), "{}", ran.stderr);
}

#[test]
fn the_card_says_where_the_first_weights_are_from() {
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.steps=2"]).ended(0);
    let from = ["train", "experiment.yaml", "output=fork", "--from", "run", "schedule.steps=4"];
    run(ANNULUS, &place.path(""), &from).ended(0);
    for (output, model) in [("tuned", ""), ("anew", ", weights: random")] {
        let model = format!("model={{ path: run/step-2{model} }}");
        place.train(output, &[&model, "schedule.steps=2"]).ended(0);
    }
    for (output, wanted) in [
        ("fork", "| started from | `run`, step 2 |"),
        ("tuned", "| started from | `run/step-2` |"),
        ("anew", "| started from | random weights, seed 3 |"),
    ] {
        let folder = format!("{output}-model");
        export(&place, &[output, "--out", &folder]).ended(0);
        let card = fs::read_to_string(place.path(&folder).join("README.md")).expect("a card");
        assert!(card.contains(wanted), "{wanted}\nis not in\n{card}");
    }
}

/// What layers see is part of a model: a folder says it, or the run that it cannot.
#[test]
fn windows_are_said_where_the_family_has_a_word_for_them() {
    let place = Place::new(ANNULUS);
    let sliding = "attention.sliding={ layers: [1], window: 9 }";
    let unsaid = "cannot store `attention.";
    for (output, family, mask, warned, window) in [
        ("llama", "llama", "attention.window=9", "window`", Value::Null),
        ("mistral", "mistral", "attention.window=9", "", json!(9)),
        ("half", "mistral", sliding, "sliding`", Value::Null),
        ("qwen", "qwen2", sliding, "", json!(9)),
        (
            "sinks",
            "mistral",
            "attention={ strategy: ring, window: 9, sinks: 1 }",
            "sinks`",
            Value::Null,
        ),
    ] {
        let family = format!("model.model_type={family}");
        let ran = place.train(output, &[&family, mask, "schedule.steps=2"]);
        let said = &ran.ended(0).stderr;
        assert_eq!(said.contains(unsaid), !warned.is_empty(), "{output}: {said}");
        assert!(said.contains(&format!("{unsaid}{warned}")) || warned.is_empty(), "{said}");
        let config = json(&place.path(output).join("step-2/config.json"));
        assert_eq!(config["sliding_window"], window, "{output}");
        // So does whoever gets the folder learn it.
        let folder = format!("{output}-model");
        let said = export(&place, &[output, "--out", &folder]).ended(0).stderr.clone();
        let card = fs::read_to_string(place.path(&folder).join("README.md")).expect("a card");
        for told in [said, card] {
            assert_eq!(told.contains(unsaid), !warned.is_empty(), "{output}: {told}");
            assert!(told.contains(&format!("{unsaid}{warned}")) || warned.is_empty(), "{told}");
        }
        if output == "qwen" {
            assert_eq!(config["layer_types"], json!(["full_attention", "sliding_attention"]));
        }
    }
    // A window of the model's own that hides nothing here is none.
    let longer = ["model.model_type=mistral", "model.sliding_window=64", "attention.window=9"];
    place.train("longer", &[&longer[..], &["schedule.steps=2"]].concat()).ended(0);
    assert_eq!(json(&place.path("longer/step-2/config.json"))["sliding_window"], 9);
    // Who goes on with it attends as it was trained, without a word of it.
    place
        .train("on", &["model={ path: mistral/step-2 }", "schedule.steps=1", "schedule.warmup=1"])
        .ended(0);
    let experiment = fs::read_to_string(place.path("on/experiment.yaml")).expect("a file");
    assert!(experiment.contains("window: 9"), "{experiment}");
}

/// An id that ends a text, by config.json, ends what is generated.
#[test]
fn what_is_generated_ends_where_the_model_says() {
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.steps=2"]).ended(0);
    export(&place, &["run", "--out", "model"]).ended(0);
    let generated = || {
        let arguments = [
            "generate",
            "model",
            "--prompt",
            "alpha",
            "--tokens",
            "6",
            "--temperature",
            "0",
            "--json",
        ];
        let ids = run(ANNULUS, &place.path(""), &arguments).ended(0).json()[0]["ids"].clone();
        ids.as_array().expect("ids").clone()
    };
    let all = generated();
    assert_eq!(all.len(), 6);
    let path = place.path("model/config.json");
    let mut config = json(&path);
    config["eos_token_id"] = json!([256, all[2]]);
    fs::write(&path, config.to_string()).expect("a file");
    let first = all.iter().position(|id| *id == all[2]).expect("it is there");
    assert_eq!(generated(), all[..=first]);
}

#[test]
fn nothing_is_written_over_and_nothing_half() {
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.steps=2"]).ended(0);
    let before = contents(&place.path("run"));
    let ran = export(&place, &["run", "--out", "run"]);
    assert!(ran.ended(4).stderr.contains("`run` already exists\nhint: "), "{}", ran.stderr);
    let ran = export(&place, &["nowhere", "--out", "model"]);
    assert!(ran.ended(4).stderr.contains("nowhere"), "{}", ran.stderr);
    let ran = export(&place, &["run", "--out", "text.txt/model"]);
    assert!(ran.ended(4).stderr.contains("text.txt/model"), "{}", ran.stderr);
    assert!(ran.stderr.contains("hint: set an `--out` that is a folder"), "{}", ran.stderr);
    assert!(contents(&place.path("run")) == before);
    // The newest is damaged: the one before is taken, and that is said.
    flip(&place.path("run/step-2/model.safetensors"));
    let ran = export(&place, &["run", "--out", "model"]);
    assert!(
        ran.ended(0).stderr.contains("warning: checkpoint `run/step-2` is refused"),
        "{}",
        ran.stderr
    );
    let ran = export(&place, &["run/step-2", "--out", "other"]);
    assert!(ran.ended(4).stderr.contains("`model.safetensors`: its hash"), "{}", ran.stderr);
    assert!(
        !names(&place.path("")).iter().any(|name| name.starts_with(".other") || name == "other")
    );
}
