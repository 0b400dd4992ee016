//! What lies beside a checkpoint's weights: tokenizer, special tokens, lengths, and the frequencies that adapters mean.

use std::fs;
use std::path::Path;

use annulus_data::{Records, train_tokenizer};
use annulus_tests::runs::{Place, last_logged};
use annulus_tests::{Ran, run, tensors};
use candle_core::{Device, Tensor};
use serde_json::{Value, json};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

fn annulus(place: &Place, words: &[&str]) -> Ran {
    run(ANNULUS, &place.path(""), words)
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON")
}

/// A place with a tokenizer of 300 tokens in `read/`.
fn place() -> Place {
    let place = Place::new(ANNULUS);
    fs::create_dir(place.path("read")).expect("a folder");
    let out = place.path("read/tokenizer.json");
    train_tokenizer(&[place.path("text.txt")], Records::Text, 300, &out).expect("a tokenizer");
    place
}

const READ: [&str; 2] = ["data.tokenizer=read/tokenizer.json", "data.tokens=24"];

/// `transformers` stops generating at what the settings name alone, and reads prompts without an end.
#[test]
fn a_trained_tokenizers_end_is_in_every_file_that_is_asked_for_it() {
    let place = place();
    place.train("run", &[&READ[..], &["schedule.steps=2"]].concat()).ended(0);
    let folder = place.path("run/step-2");
    for name in ["config.json", "generation_config.json"] {
        assert_eq!(json(&folder.join(name))["eos_token_id"], 0, "{name}");
    }
    assert_eq!(json(&folder.join("tokenizer_config.json"))["eos_token"], "<|endoftext|>");
    assert_eq!(json(&folder.join("tokenizer.json"))["post_processor"], Value::Null);
    // The same model is gone on with, and asked.
    let more = ["model={ path: run/step-2 }", "schedule.steps=2"];
    place.train("more", &[&more[..], &["data.tokens=24"]].concat()).ended(0);
    annulus(&place, &["generate", "more", "--prompt", "a", "--tokens", "3"]).ended(0);
    // A fresh model ends with its own tokenizer's end.
    let fresh = ["model={ path: run/step-2, weights: random }", "data.tokenizer=bytes"];
    place.train("fresh", &[&fresh[..], &["schedule.steps=2"]].concat()).ended(0);
    for name in ["config.json", "generation_config.json"] {
        assert_eq!(json(&place.path("fresh/step-2").join(name))["eos_token_id"], 256, "{name}");
    }
}

#[test]
fn a_file_called_bytes_is_no_tokenizer() {
    let place = Place::new(ANNULUS);
    place.write("bytes", "x");
    place.train("run", &["schedule.steps=2"]).ended(0);
}

#[test]
fn a_tokenizer_that_is_moved_is_saved_as_it_was() {
    let place = place();
    let whole = fs::read(place.path("read/tokenizer.json")).expect("a file");
    let changes = ["schedule.steps=60", "every.checkpoint=0"];
    let mut live = place.start("run", &[&READ[..], &changes].concat());
    assert!(live.wait_for(|folder| last_logged(folder) > 1));
    fs::rename(place.path("read"), place.path("moved")).expect("a folder");
    live.end().ended(0);
    assert!(fs::read(place.path("run/step-60/tokenizer.json")).expect("a file") == whole);
}

/// What says how long texts may be, or how long what is generated, follows an extension.
#[test]
fn lengths_grow_with_the_model() {
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.steps=2"]).ended(0);
    annulus(&place, &["export", "run", "--out", "model"]).ended(0);
    assert_eq!(json(&place.path("model/generation_config.json"))["eos_token_id"], 256);
    let settings = json!({ "max_length": 48, "eos_token_id": [5, 6] });
    place.write("model/generation_config.json", &settings.to_string());
    let extended = ["model={ path: model }", "extend={ rope: yarn, tokens: 96 }", "data.tokens=96"];
    let once = ["schedule.steps=2"];
    place.train("longer", &[&extended[..], &once].concat()).ended(0);
    let folder = place.path("longer/step-2");
    assert_eq!(json(&folder.join("tokenizer_config.json"))["model_max_length"], 96);
    let settings = json(&folder.join("generation_config.json"));
    assert_eq!((&settings["max_length"], &settings["eos_token_id"]), (&96.into(), &json!([5, 6])));
    place.train("alike", &[&["model={ path: model }"][..], &once].concat()).ended(0);
    let settings = json(&place.path("alike/step-2/generation_config.json"));
    assert_eq!(settings["max_length"], 48);
    // Of settings that name no end, it is config.json's.
    place.write("model/generation_config.json", "{ \"top_k\": 7 }");
    place.train("ends", &[&["model={ path: model }"][..], &once].concat()).ended(0);
    let settings = json(&place.path("ends/step-2/generation_config.json"));
    assert_eq!((&settings["top_k"], &settings["eos_token_id"]), (&7.into(), &256.into()));
    // A copy of a checkpoint may have any name but that of another step.
    let copy = |name: &str| {
        place.copy("ends/step-2", name);
        annulus(&place, &["generate", name, "--prompt", "a", "--tokens", "2"])
    };
    copy("copied").ended(0);
    copy("step-7").ended(4);
}

#[test]
fn adapters_of_an_extended_model_are_asked_under_its_frequencies() {
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.steps=2"]).ended(0);
    annulus(&place, &["export", "run", "--out", "model"]).ended(0);
    let (model, lora) = ("model={ path: model }", "lora={ rank: 2, train: [norms] }");
    let extend = ["extend={ rope: yarn, tokens: 96 }", "data.tokens=96"];
    let once = ["schedule.steps=2"];
    place.train("longer", &[&[model, lora][..], &extend, &once].concat()).ended(0);
    // `transformers` takes a folder with a config.json for a whole model.
    let saved = |name: &str| place.path("longer/step-2").join(name).is_file();
    assert!(saved("model_config.json") && !saved("config.json"));
    annulus(&place, &["generate", "longer/step-2", "--prompt", "a", "--tokens", "2"]).ended(0);
    annulus(&place, &["export", "longer", "--merge", "--out", "merged"]).ended(0);
    assert!(place.path("merged/config.json").is_file());
    let ids = Tensor::arange(0i64, 80, &Device::Cpu).and_then(|ids| ids.reshape((1, 80)));
    let ids = ids.expect("on the CPU");
    safetensors::serialize_to_file([("input_ids", &ids)], None, &place.path("ids"))
        .expect("a file");
    let logits = |words: &[&str]| {
        let asked = [&["score", "--tokens", "ids", "--out", "out"], words].concat();
        annulus(&place, &asked).ended(0);
        tensors(&place.path("out"))["logits"].clone()
    };
    let merged = logits(&["--model", "merged"]);
    let beside = logits(&["--model", "model", "--adapter", "longer/step-2"]);
    let off = merged.iter().zip(&beside).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(off < 1e-4, "{off}");
    let more = ["schedule.steps=3", "schedule.decay=constant", "--from", "longer/step-2"];
    place.train("forked", &[&[model, lora][..], &extend, &more].concat()).ended(0);
    // They are gone on with under the same frequencies alone.
    let on = "lora={ rank: 2, train: [norms], path: longer/step-2 }";
    place.train("on", &[&[model, on][..], &extend, &once].concat()).ended(0);
    let plain = place.train("plain", &[&[model, on][..], &once].concat());
    assert!(
        plain.ended(2).stderr.contains("`rope_type` was `yarn` and is `default`"),
        "{}",
        plain.stderr
    );
    // Nor under other norms.
    let config = place.path("model/config.json");
    let mut keys: serde_json::Map<String, Value> =
        serde_json::from_slice(&fs::read(&config).expect("a file")).expect("JSON");
    keys.insert("rms_norm_eps".to_owned(), 0.1.into());
    fs::write(&config, serde_json::to_vec(&keys).expect("JSON")).expect("a file");
    let other = place.train("other", &[&[model, on][..], &extend, &once].concat());
    assert!(other.ended(2).stderr.contains("and this model has 1e-1"), "{}", other.stderr);
}

/// Data of token ids are asked in text by the tokenizer that lies beside the weights, or not at all.
#[test]
fn models_of_token_ids_are_asked_by_their_own_tokenizer() {
    let place = place();
    place.train("base", &[&READ[..], &["schedule.steps=2"]].concat()).ended(0);
    let batches = Tensor::arange(0i64, 200, &Device::Cpu).and_then(|ids| ids.reshape((4, 2, 25)));
    let batches = batches.expect("on the CPU");
    safetensors::serialize_to_file([("tokens", &batches)], None, &place.path("ids"))
        .expect("a file");
    let data = "data={ path: ids, format: batches, tokens: 24, batch: 2 }";
    let once = ["schedule.steps=2", "every={}"];
    let tuned = ["model={ path: base/step-2 }", data];
    place.train("tuned", &[&tuned[..], &once].concat()).ended(0);
    let generate = |run: &str, more: &[&str]| {
        let words = ["generate", run, "--prompt", "alpha", "--tokens", "2", "--json"];
        annulus(&place, &[&words[..], more].concat())
    };
    let prompt = generate("base", &[]).ended(0).json()[0]["prompt_ids"].clone();
    assert!(prompt.as_array().is_some_and(|ids| ids.len() < 5), "{prompt}");
    assert_eq!(generate("tuned", &[]).ended(0).json()[0]["prompt_ids"], prompt);
    place.train("fresh", &[&[data, "model.vocab_size=300"][..], &once].concat()).ended(0);
    let fresh = generate("fresh", &[]);
    assert!(fresh.ended(2).stderr.contains("has no tokenizer"), "{}", fresh.stderr);
    let named = generate("fresh", &["data.tokenizer=read/tokenizer.json"]);
    assert_eq!(named.ended(0).json()[0]["prompt_ids"], prompt);
    let bytes =
        generate("fresh", &["data.tokenizer=bytes"]).ended(0).json()[0]["prompt_ids"].clone();
    assert_eq!(bytes, json!(b"alpha".map(u32::from)));
}

/// Adapters are worth nothing without their base, which its own run would delete as it goes on.
#[test]
fn the_base_of_adapters_is_not_deleted_unless_somebody_says_so() {
    let place = Place::new(ANNULUS);
    let base = |steps: &str| {
        let steps = format!("schedule.steps={steps}");
        place.train("base", &["keep=2", "schedule.warmup=0", "schedule.decay=constant", &steps])
    };
    base("1").ended(0);
    let adapters = ["model={ path: base }", "lora={ rank: 2 }", "schedule.steps=2"];
    place.train("adapters", &adapters).ended(0);
    let ran = base("4");
    let said = "warning: `base/step-1` is kept, whatever `keep` is: `";
    assert_eq!(ran.ended(0).stderr.matches(said).count(), 1, "{}", ran.stderr);
    let kept = || [1, 2, 3, 4].map(|step| place.path(&format!("base/step-{step}")).is_dir());
    assert_eq!(kept(), [true, false, true, true]);
    annulus(&place, &["export", "adapters", "--merge", "--out", "merged"]).ended(0);
    // What is not where it was may have been moved.
    fs::rename(place.path("adapters"), place.path("moved")).expect("a folder");
    let ran = base("5");
    let said = "/adapters`, which is not there now, needs it; delete `base/step-1/needed_by.txt` to free it";
    assert!(ran.ended(0).stderr.contains(said), "{}", ran.stderr);
    assert_eq!(kept(), [true, false, false, true]);
    fs::remove_file(place.path("base/step-1/needed_by.txt")).expect("a file");
    base("6").ended(0);
    assert_eq!(kept(), [false; 4]);
}

/// `model.path` names a run, which goes on while the new one is stopped.
#[test]
fn a_run_goes_on_with_the_checkpoint_that_it_began_with_which_is_kept_for_it() {
    let place = Place::new(ANNULUS);
    let curve = ["schedule.warmup=0", "schedule.decay=constant"];
    let base = |steps: &str| {
        place.train("base", &[&curve[..], &["keep=1", steps]].concat()).ended(0);
    };
    base("schedule.steps=1");
    let own = [&curve[..], &["model={ path: base }", "schedule.steps=4"]].concat();
    place.train("own", &[&own[..], &["schedule.stop=2"]].concat()).ended(0);
    base("schedule.steps=3");
    assert!(place.path("base/step-1").is_dir());
    let ran = place.train("own", &own);
    assert!(ran.ended(0).stderr.contains("from step 2"), "{}", ran.stderr);
    let resolved = fs::read_to_string(place.path("own/experiment.yaml")).expect("a run");
    assert!(resolved.contains("path: base/step-1\n"), "{resolved}");
    base("schedule.steps=4");
    // It can be trained for longer.
    let longer = [&curve[..], &["model={ path: base }", "schedule.steps=5"]].concat();
    place.train("own", &longer).ended(0);
    // Another run begins with the newest.
    place.train("other", &own).ended(0);
    let resolved = fs::read_to_string(place.path("other/experiment.yaml")).expect("a run");
    assert!(resolved.contains("path: base/step-4\n"), "{resolved}");
}

/// Their own checkpoint has everything but the base, which may have moved.
#[test]
fn adapters_that_continue_others_do_without_them() {
    let place = Place::new(ANNULUS);
    place.train("base", &["schedule.steps=2"]).ended(0);
    let model = "model={ path: base/step-2 }";
    place.train("one", &[model, "lora={ rank: 2 }", "schedule.steps=2"]).ended(0);
    let two = [model, "lora={ rank: 2, path: one/step-2 }", "schedule.steps=4"];
    place.train("two", &[&two[..], &["schedule.stop=2"]].concat()).ended(0);
    fs::remove_dir_all(place.path("one")).expect("a folder");
    let ask = |folder: &str| {
        annulus(&place, &["generate", folder, "--prompt", "a", "--tokens", "2"]).ended(0);
    };
    ask("two");
    ask("two/step-2");
    place.train("two", &two).ended(0);
    ask("two");
    fs::rename(place.path("base/step-2"), place.path("elsewhere")).expect("a folder");
    let export =
        |more: &[&str]| annulus(&place, &[&["export", "two", "--out", "merged"], more].concat());
    let gone = export(&["--merge"]);
    let hint = "hint: name their folder, `model.path=FOLDER`";
    assert!(gone.ended(4).stderr.contains(hint), "{}", gone.stderr);
    for (more, said) in [
        (&["model.path=elsewhere"][..], "add `--merge`"),
        (&["--merge", "data.path=elsewhere"], "replaces no key but `model.path`"),
    ] {
        let refused = export(more);
        assert!(refused.ended(2).stderr.contains(said), "{}", refused.stderr);
    }
    export(&["--merge", "model.path=elsewhere"]).ended(0);
    ask("merged");
}
