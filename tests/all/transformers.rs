//! Models and adapters in the hands of transformers and PEFT, as `cargo xtask record` has recorded: they loaded these
//! checkpoints of the program and their exports, these are their logits, and these are the folders that they saved
//! of them. And the reverse: a Hugging Face folder is trained.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use annulus_data::{
    Cache, Longer, Packed, Packing, Records, Source as _, Texts, Tokenizer, Window,
};
use annulus_tests::runs::{Place, losses};
use annulus_tests::{error, root, run, tensors};
use safetensors::SafeTensors;
use serde_json::Value;

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

/// Relative to the largest logit.
const LOGITS: f64 = 1e-5;

const NAMES: [&str; 7] = ["dynamic", "mistral", "qwen2", "qwen3", "smollm3", "tied", "untied"];

/// Adapters, and the models that they lie beside.
const ADAPTERS: [(&str, &str); 3] =
    [("adapter", "untied"), ("adapter-tied", "tied"), ("adapter-qwen3", "qwen3")];

/// Who scored and saved, and of which generation it is.
const ENVIRONMENTS: [(&str, &str); 2] = [("transformers-4", "4."), ("transformers-5", "5.")];

const SPLIT: [&str; 4] = ["--ranks", "2", "--strategy", "striped"];

fn fixture(name: &str) -> PathBuf {
    root().join("tests/fixtures").join(name)
}

/// Fails unless the program's logits of what these words name are those in `golden`; gives them.
#[track_caller]
fn scored(words: &[&str], golden: &Path) -> Vec<f64> {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let tokens = golden.to_string_lossy();
    let arguments = [&["score", "--tokens", &tokens, "--out", "out"], words].concat();
    run(ANNULUS, scratch.path(), &arguments).ended(0);
    let ours = tensors(&scratch.path().join("out")).remove("logits").expect("logits");
    let off = error(&ours, &tensors(golden)["logits"]);
    assert!(off < LOGITS, "{words:?}: {off:.1e}");
    ours
}

/// The folder of a fixture, and those that were saved of it.
fn folders(name: &str) -> Vec<String> {
    let saved = ENVIRONMENTS.map(|(environment, _)| fixture(name).join(environment));
    [fixture(name)].iter().chain(&saved).map(|folder| folder.display().to_string()).collect()
}

#[test]
fn logits_are_those_of_transformers_and_of_what_it_saves() {
    for name in NAMES {
        let golden = fixture(name).join("golden.safetensors");
        for model in folders(name) {
            scored(&["--model", &model], &golden);
            scored(&[&["--model", &*model][..], &SPLIT].concat(), &golden);
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
    let inputs = [file];
    let texts = Texts::new(&inputs, Records::Chats, tokenizer);
    let cache = Cache::open(&texts, &cache, false, &mut |_| ());
    let cache = Arc::new(cache.expect("a cache"));
    let tokens = cache.tokens() as usize;
    let packing = Packing::new(cache, tokens, Longer::Refuse).expect("it fits");
    let packed = Packed::new(Arc::new(packing), Window::Train, 0, 1, 0).expect("one sequence");
    let sequence = packed.batch(0).expect("the first").remove(0);
    (sequence.inputs, sequence.targets)
}

/// Beside the model, as PEFT scored them, which it did merged too.
#[test]
fn logits_with_adapters_are_those_of_peft_and_of_what_it_saves() {
    for (name, base) in ADAPTERS {
        let (golden, model) = (fixture(name).join("golden.safetensors"), fixture(base));
        let model = model.to_string_lossy();
        for adapter in folders(name) {
            let words = ["--model", &model, "--adapter", &adapter];
            let ours = scored(&words, &golden);
            scored(&[&words[..], &SPLIT].concat(), &golden);
            let changed = error(&ours, &tensors(&golden)["plain"]);
            assert!(changed > 0.1, "{name}: without the adapter it is {changed:.1e}");
        }
    }
}

/// What was measured when transformers and PEFT were there: nothing is left out, and nothing is too far apart.
#[test]
fn every_fixture_went_the_whole_way_round_with_two_generations() {
    let record = json(&fixture("record.json"));
    let page = fs::read_to_string(root().join("experiments/MODELS.md")).expect("the page");
    let adapters = ADAPTERS.map(|(name, _)| name);
    for (environment, generation) in ENVIRONMENTS {
        let versions = &record["versions"][environment];
        let version = |module: &str| versions[module].as_str().expect(module);
        assert!(version("transformers").starts_with(generation), "{versions}");
        assert!(!version("torch").is_empty());
        for module in ["transformers", "peft"] {
            assert!(page.contains(version(module)), "the page: {module} {}", version(module));
        }
        for name in NAMES.into_iter().chain(adapters) {
            let merged = adapters.contains(&name).then_some("merged");
            for what in ["ours", "exported", "saved"].into_iter().chain(merged) {
                let off = record["errors"][name][environment][what].as_f64();
                assert!(
                    off.is_some_and(|off| off <= LOGITS),
                    "{name} {environment} {what}: {off:?}"
                );
            }
        }
    }
    let entries =
        fs::read_dir(fixture("")).expect("fixtures").map(|entry| entry.expect("readable"));
    let with_goldens = entries.filter(|entry| entry.path().join("golden.safetensors").exists());
    assert_eq!(with_goldens.count(), NAMES.len() + ADAPTERS.len());
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
