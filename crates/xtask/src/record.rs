//! Checkpoints of the program in the hands of transformers: both generations load them and compute
//! the same logits, and so does PEFT with adapters. What they computed is kept in `tests/fixtures`, so that tests compare with it
//! without Python.

mod adapters;
mod round;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::{root, setup, tool};

/// How far logits may be off, relative to the largest.
const LIMIT: &str = "1e-5";

/// Small enough to be kept: grouped queries, two layers, trained until its logits are not flat.
const EXPERIMENT: &str = "\
name: fixture
seed: 11
model:
  hidden_size: 16
  intermediate_size: 24
  num_hidden_layers: 2
  num_attention_heads: 4
  num_key_value_heads: 2
  initializer_range: 0.2
data: { path: LICENSE-MIT, tokens: 64, batch: 4, evaluate: 0 }
mesh: { sequence: 2 }
attention: { strategy: striped }
optimizer: { learning_rate: 1e-2 }
schedule: { steps: 40 }
";

/// What is recorded: a folder's name, and how its experiment differs.
const FIXTURES: [(&str, &[&str]); 6] = [
    ("untied", &["model.attention_bias=true"]),
    ("tied", &["model.tie_word_embeddings=true"]),
    (
        "dynamic",
        &["model.max_position_embeddings=24", "extend={ rope: dynamic, tokens: 64, factor: 2 }"],
    ),
    (
        "mistral",
        &[
            "model.model_type=mistral",
            "model.sliding_window=20",
            "model.max_position_embeddings=16",
            "extend={ rope: llama3, tokens: 64 }",
        ],
    ),
    (
        "qwen2",
        &[
            "model.model_type=qwen2",
            "model.sliding_window=20",
            "model.use_sliding_window=true",
            "model.max_window_layers=1",
            "model.max_position_embeddings=16",
            "extend={ rope: longrope, tokens: 64, long_factor: [1, 1.75] }",
        ],
    ),
    (
        "qwen3",
        &[
            "model.model_type=qwen3",
            "model.max_position_embeddings=16",
            "extend={ rope: yarn, tokens: 64 }",
        ],
    ),
];

/// Where transformers is, in two generations.
const ENVIRONMENTS: [&str; 2] = ["transformers-4", "transformers-5"];

/// The files of a checkpoint that transformers reads.
const FILES: [&str; 3] = ["config.json", "generation_config.json", "model.safetensors"];

/// Trains, lets transformers score, compares, and keeps model and logits.
pub(crate) fn run() -> Result<()> {
    setup::python()?;
    tool::cargo(&["build", "--package", "annulus-cli"])?;
    let scratch = root().join("target/record");
    if scratch.exists() {
        fs::remove_dir_all(&scratch)?;
    }
    fs::create_dir_all(&scratch)?;
    let experiment = scratch.join("experiment.yaml");
    fs::write(&experiment, EXPERIMENT)?;
    for (name, changes) in FIXTURES {
        let model = root().join("tests/fixtures").join(name);
        train(&experiment, changes, &scratch.join(name), &model)?;
        let exported = round::export(&scratch.join(name))?;
        for environment in ENVIRONMENTS {
            let theirs = scratch.join(format!("{name}-{environment}.safetensors"));
            let saved = round::saved(environment, &exported)?;
            let beside =
                |folder: &Path| folder.with_extension(format!("{environment}.safetensors"));
            let models = [&exported, &saved].map(|folder| (folder.clone(), beside(folder)));
            let mut pairs = vec![(&*model, &*theirs)];
            pairs.extend(models.iter().map(|(folder, out)| (&**folder, &**out)));
            compare(environment, &pairs)?;
            // The newest is the one that is kept.
            let golden = model.join("golden.safetensors");
            fs::copy(&theirs, &golden).with_context(|| golden.display().to_string())?;
        }
    }
    ENVIRONMENTS.iter().try_for_each(|environment| round::chats(environment))?;
    adapters::run(&experiment, &scratch)?;
    round::versions(&ENVIRONMENTS)
}

/// Trains in `output` and copies the last checkpoint's model to `model`.
fn train(experiment: &Path, changes: &[&str], output: &Path, model: &Path) -> Result<()> {
    let mut words = vec!["train".to_owned(), experiment.display().to_string()];
    words.extend(changes.iter().map(|&change| change.to_owned()));
    words.push(format!("output={}", output.display()));
    tool::run(tool::program("debug", "annulus")?, &words)?;
    let latest = fs::read_to_string(output.join("LATEST"))?;
    fs::create_dir_all(model)?;
    for file in FILES {
        let from = output.join(latest.trim()).join(file);
        fs::copy(&from, model.join(file)).with_context(|| from.display().to_string())?;
    }
    Ok(())
}

/// Fails where the logits of transformers, which go to the second path of each pair, are not the program's of
/// the model in the first.
fn compare(environment: &str, models: &[(&Path, &Path)]) -> Result<()> {
    let python = python(environment);
    let mut logits = vec![script("logits.py")];
    let mut agree = vec![script("agree.py"), LIMIT.into()];
    for (model, theirs) in models {
        let ours = theirs.with_extension("ours");
        logits.extend([model.to_path_buf(), theirs.to_path_buf()]);
        agree.extend([ours, theirs.to_path_buf()]);
    }
    tool::run(&python, &logits)?;
    for (model, theirs) in models {
        let ours = theirs.with_extension("ours");
        let named = [("--model", *model), ("--tokens", *theirs), ("--out", &*ours)];
        let named = named.map(|(name, path)| [PathBuf::from(name), path.to_path_buf()]);
        let words = [&[PathBuf::from("score")][..], &named.concat()].concat();
        tool::run(tool::program("debug", "annulus")?, &words)?;
    }
    tool::run(&python, &agree)
}

fn python(environment: &str) -> PathBuf {
    root().join("target/python").join(environment).join("bin/python")
}

fn script(name: &str) -> PathBuf {
    root().join("crates/xtask/python").join(name)
}
