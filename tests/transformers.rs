//! Models in the hands of transformers, as `cargo xtask record` has recorded: it loaded these
//! checkpoints of the program, and these are its logits. And the way back: a Hugging Face folder is
//! trained.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use annulus_data::{Cache, Longer, Packed, Packing, Records, Source as _, Tokenizer, Window};
use annulus_tests::runs::{Place, losses};
use annulus_tests::{error, root, run, tensors};
use safetensors::SafeTensors;
use serde_json::Value;

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

/// Relative to the largest logit.
const LOGITS: f64 = 1e-5;

const NAMES: [&str; 6] = ["dynamic", "mistral", "qwen2", "qwen3", "tied", "untied"];

/// Adapters, and the models that they lie beside.
const ADAPTERS: [(&str, &str); 3] =
    [("adapter", "untied"), ("adapter-tied", "tied"), ("adapter-qwen3", "qwen3")];

fn fixture(name: &str) -> PathBuf {
    root().join("tests/fixtures").join(name)
}

#[test]
fn logits_are_those_of_transformers() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    for name in NAMES {
        let golden = fixture(name).join("golden.safetensors");
        let theirs = tensors(&golden);
        let (model, golden) = (fixture(name), golden.to_string_lossy());
        for split in [&[][..], &["--ranks", "2", "--strategy", "striped"]] {
            let arguments = ["score", "--model", &model.to_string_lossy(), "--tokens", &golden];
            let arguments = [&arguments[..], &["--out", "out"], split].concat();
            run(ANNULUS, scratch.path(), &arguments).ended(0);
            let ours = tensors(&scratch.path().join("out"));
            let off = error(&ours["logits"], &theirs["logits"]);
            assert!(off < LOGITS, "{name} {split:?}: {off:.1e}");
        }
    }
}

/// As `apply_chat_template(return_assistant_tokens_mask=True)` says it.
#[test]
fn what_is_learned_of_conversations_is_what_transformers_says() {
    let folder = root().join("tests/fixtures/chat");
    let tokenizer = folder.join("tokenizer.json");
    let tokenizer = Tokenizer::open(&tokenizer.to_string_lossy()).expect("a tokenizer");
    let chats = fs::read_to_string(folder.join("chats.jsonl")).expect("conversations");
    for environment in ["transformers-4", "transformers-5"] {
        let theirs = json(&folder.join(format!("{environment}.json")));
        let theirs = theirs.as_array().expect("a list");
        assert_eq!(theirs.len(), chats.lines().count());
        for (line, theirs) in std::iter::zip(chats.lines(), theirs) {
            let list = |key: &str| serde_json::from_value::<Vec<u32>>(theirs[key].clone());
            let (ids, mask) = (list("ids").expect("ids"), list("mask").expect("a mask"));
            let (ours, targets) = sequence(&tokenizer, line);
            let last = ids.len() - 1;
            assert_eq!((ours.len(), &ours[..last]), (ids.len(), &ids[..last]), "{line}");
            // What comes first has nothing before it to be learned from.
            for (at, target) in targets[..last].iter().enumerate() {
                let wanted = if mask[at + 1] == 1 { i64::from(ids[at + 1]) } else { -100 };
                assert_eq!(*target, wanted, "{environment}: {line}: token {}", at + 1);
            }
        }
    }
}

/// A conversation's inputs and targets, of which the last ones are padding.
fn sequence(tokenizer: &Tokenizer, line: &str) -> (Vec<u32>, Vec<i64>) {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let file = scratch.path().join("chat.jsonl");
    fs::write(&file, format!("{line}\n")).expect("a file");
    let cache = scratch.path().join("cache");
    let cache = Cache::open(&[file], Records::Chats, tokenizer, &cache, &mut |_, _| ());
    let cache = Arc::new(cache.expect("a cache"));
    let tokens = cache.tokens() as usize;
    let packing = Packing::new(cache, tokens, Longer::Refuse).expect("it fits");
    let packed = Packed::new(Arc::new(packing), Window::Train, 0, 1, 0).expect("one sequence");
    let sequence = packed.batch(0).expect("the first").remove(0);
    (sequence.inputs, sequence.targets)
}

/// Adapters of the program as PEFT has read them, by what PEFT has written about them: merged and beside.
#[test]
fn logits_with_adapters_are_those_of_peft() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    for (name, base) in ADAPTERS {
        let golden = fixture(name).join("golden.safetensors");
        let theirs = tensors(&golden);
        let [model, adapter] = [base, name].map(|name| fixture(name).display().to_string());
        let golden = golden.to_string_lossy();
        for split in [&[][..], &["--ranks", "2", "--strategy", "striped"]] {
            let arguments =
                ["score", "--model", &model, "--adapter", &adapter, "--tokens", &golden];
            run(ANNULUS, scratch.path(), &[&arguments[..], &["--out", "out"], split].concat())
                .ended(0);
            let ours = tensors(&scratch.path().join("out"));
            let off = error(&ours["logits"], &theirs["logits"]);
            assert!(off < LOGITS, "{name} {split:?}: {off:.1e}");
            let changed = error(&ours["logits"], &theirs["plain"]);
            assert!(changed > 0.1, "{name}: without the adapter it is {changed:.1e}");
        }
    }
}

#[test]
fn the_record_says_by_which_versions() {
    for name in NAMES.into_iter().chain(ADAPTERS.map(|(name, _)| name)) {
        let bytes = fs::read(fixture(name).join("golden.safetensors")).expect("the record");
        let (_, header) = SafeTensors::read_metadata(&bytes).expect("a safetensors file");
        let versions = header.metadata().as_ref().expect("metadata");
        assert!(versions["transformers"].starts_with("5."), "{versions:?}");
        assert!(versions.contains_key("torch"), "{versions:?}");
        assert_eq!(versions.contains_key("peft"), name.starts_with("adapter"), "{versions:?}");
    }
}

/// Trains two steps from the fixture's folder.
#[track_caller]
fn trained(place: &Place, name: &str, weights: &str) -> Vec<f64> {
    let folder = fixture(name);
    place.write(
        "experiment.yaml",
        &format!(
            "name: hf\nmodel: {{ path: {}, weights: {weights} }}\n\
             data: {{ path: {}, tokens: 64, batch: 2, evaluate: 0 }}\n\
             mesh: {{ sequence: 2 }}\nattention: {{ strategy: ring }}\n\
             optimizer: {{ learning_rate: 1e-3 }}\nschedule: {{ steps: 2 }}\n",
            folder.display(),
            root().join("LICENSE-MIT").display(),
        ),
    );
    let output = format!("{name}-{weights}");
    place.train(&output, &[]).ended(0);
    losses(&place.path(&output))
}

#[test]
fn a_hugging_face_folder_is_trained() {
    let place = Place::new(ANNULUS);
    for name in NAMES {
        let (known, fresh) = (trained(&place, name, "pretrained"), trained(&place, name, "random"));
        assert_eq!((known.len(), fresh.len()), (2, 2), "{name}");
        // The fixtures were trained on this text until 3; ln 257 is 5.5.
        assert!(known[0] < 3.5, "{name}: {known:?}");
        assert!(fresh[0] > 5.0, "{name}: {fresh:?}");
    }
}

/// What the program writes today is what transformers loaded then, but for the numbers.
#[test]
fn checkpoints_are_written_as_transformers_has_read_them() {
    let place = Place::new(ANNULUS);
    for name in NAMES {
        trained(&place, name, "pretrained");
        let now = place.path(&format!("{name}-pretrained/step-2"));
        for file in ["config.json", "generation_config.json"] {
            assert_eq!(json(&now.join(file)), json(&fixture(name).join(file)), "{name}: {file}");
        }
        assert_eq!(header(&now), header(&fixture(name)), "{name}");
    }
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).expect("a file")).expect("JSON")
}

/// Every tensor's type, shape and place, and the metadata.
fn header(folder: &Path) -> Value {
    let bytes = fs::read(folder.join("model.safetensors")).expect("weights");
    let (length, _) = SafeTensors::read_metadata(&bytes).expect("a safetensors file");
    serde_json::from_slice(&bytes[8..8 + length]).expect("JSON")
}
