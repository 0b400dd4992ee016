//! Checkpoints of the program in the hands of transformers: both generations load them and compute
//! the same logits. What they computed is kept in `tests/fixtures`, so that tests compare with it
//! without Python.

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
        for environment in ["transformers-4", "transformers-5"] {
            let theirs = scratch.join(format!("{name}-{environment}.safetensors"));
            compare(environment, &model, &theirs)?;
            // The newest is the one that is kept.
            let golden = model.join("golden.safetensors");
            fs::copy(&theirs, &golden).with_context(|| golden.display().to_string())?;
        }
    }
    Ok(())
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

/// Fails where the logits of transformers, which go to `theirs`, are not the program's.
fn compare(environment: &str, model: &Path, theirs: &Path) -> Result<()> {
    let python = root().join("target/python").join(environment).join("bin/python");
    let script = |name: &str| root().join("crates/xtask/python").join(name);
    let ours = theirs.with_extension("ours");
    let words = |paths: &[&Path]| paths.iter().map(PathBuf::from).collect::<Vec<PathBuf>>();
    tool::run(&python, &words(&[&script("logits.py"), model, theirs]))?;
    let mut score = words(&[Path::new("score"), Path::new("--model"), model]);
    score.extend(words(&[Path::new("--tokens"), theirs, Path::new("--out"), &ours]));
    tool::run(tool::program("debug", "annulus")?, &score)?;
    let mut agree = words(&[&script("agree.py"), &ours, theirs]);
    agree.push(LIMIT.into());
    tool::run(&python, &agree)
}
