//! `cargo xtask record`: exchanges models and adapters with transformers and PEFT. Each loads, scores and saves the other's; results and
//! differences are recorded in `tests/fixtures`, with which tests compare without Python.

mod adapters;
mod models;
mod others;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::{root, setup, tool};

/// The largest difference of logits, relative to the largest logit.
const LIMIT: f64 = 1e-5;

/// A model small enough for the repository: grouped queries, two layers, trained until its logits are not uniform.
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

/// Changes that make a run write the weights that it has read: its one step is too small to change a bit.
const AGAIN: [&str; 3] =
    ["schedule.steps=1", "optimizer.learning_rate=1e-30", "optimizer.weight_decay=0"];

/// The Python environments with two generations of transformers and PEFT. Reference results are recorded from the last one.
const ENVIRONMENTS: [&str; 2] = ["transformers-4", "transformers-5"];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Train models and adapters again that exist already; on another processor their bits may differ
    #[arg(long)]
    retrain: bool,
}

/// Has transformers and PEFT load, score and save every fixture, compares, and records the results.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    setup::python()?;
    tool::cargo(&["build", "--package", "annulus-cli"])?;
    let scratch = root().join("target/record");
    tool::remove_old(&scratch)?;
    fs::create_dir_all(&scratch)?;
    fs::write(scratch.join("experiment.yaml"), EXPERIMENT)?;
    let mut record = json!({ "versions": {}, "errors": {} });
    for environment in ENVIRONMENTS {
        record["versions"][environment] = others::versions(environment)?;
    }
    models::record(&scratch, arguments.retrain, &mut record["errors"])?;
    adapters::record(&scratch, arguments.retrain, &mut record["errors"])?;
    others::chats(arguments.retrain)?;
    others::tables()?;
    write(&record, &fixture("record.json"))
}

fn fixture(name: &str) -> PathBuf {
    root().join("tests/fixtures").join(name)
}

fn write(value: &Value, path: &Path) -> Result<()> {
    let text = serde_json::to_string_pretty(value)? + "\n";
    fs::write(path, text).with_context(|| path.display().to_string())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    fs::copy(from, to).map(drop).with_context(|| from.display().to_string())
}

/// Trains in `output`; returns the last checkpoint.
fn train(output: &Path, changes: &[String]) -> Result<PathBuf> {
    tool::train("debug", "target/record/experiment.yaml", changes, output)?;
    Ok(output.join(fs::read_to_string(output.join("LATEST"))?.trim()))
}

/// Exports the last checkpoint of `run`, with a shard size so small that there are several files.
fn export(run: &Path, merge: bool) -> Result<PathBuf> {
    let out = run.with_extension("export");
    let mut words = vec![Path::new("export"), run, Path::new("--out"), &out];
    words.extend(["--shard", "2k"].map(Path::new));
    words.extend(merge.then_some(Path::new("--merge")));
    tool::run(tool::program("debug", "annulus")?, &words)?;
    ensure!(out.join("model.safetensors.index.json").exists(), "the export is not sharded");
    Ok(out)
}

/// The difference of the program's logits from reference logits, for the model, and the adapter if any, in `folders`.
fn ours(folders: &[&Path], golden: &Path, out: &Path) -> Result<f64> {
    let mut words = vec![Path::new("score")];
    for (name, folder) in ["--model", "--adapter"].iter().zip(folders) {
        words.extend([Path::new(name), folder]);
    }
    words.extend([Path::new("--tokens"), golden, Path::new("--out"), out]);
    tool::run(tool::program("debug", "annulus")?, &words)?;
    apart(out, golden)
}

/// max|a − b| / max|b| of the logits in two files.
fn apart(ours: &Path, golden: &Path) -> Result<f64> {
    let (a, b) = (logits(ours)?, logits(golden)?);
    ensure!(a.len() == b.len(), "{} and {} logits", a.len(), b.len());
    let most = |values: &mut dyn Iterator<Item = f32>| values.fold(0.0, |most: f32, x| most.max(x));
    ensure!(a.iter().chain(&b).all(|x| x.is_finite()), "{}: not all are finite", ours.display());
    let off = most(&mut a.iter().zip(&b).map(|(a, b)| (a - b).abs()));
    Ok(f64::from(off / most(&mut b.iter().map(|b| b.abs()))))
}

fn logits(path: &Path) -> Result<Vec<f32>> {
    let bytes = fs::read(path).with_context(|| path.display().to_string())?;
    let file = SafeTensors::deserialize(&bytes)?;
    let (numbers, rest) = file.tensor("logits")?.data().as_chunks();
    ensure!(rest.is_empty(), "logits are not f32");
    Ok(numbers.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
}

/// Prints and records the differences of `name` in `environment`, and fails if one exceeds `LIMIT`.
fn keep(errors: &mut Value, [name, environment]: [&str; 2], found: &[(&str, f64)]) -> Result<()> {
    for &(what, error) in found {
        tool::say(&format!("{name}, {environment}, {what}: {error:.1e}"));
        ensure!(error <= LIMIT, "logits differ by {error:.1e}, more than {LIMIT:.0e}");
        errors[name][environment][what] = format!("{error:.1e}").parse::<f64>()?.into();
    }
    Ok(())
}

fn python(environment: &str) -> PathBuf {
    root().join("target/python").join(environment).join("bin/python")
}

fn script(name: &str) -> PathBuf {
    root().join("crates/xtask/python").join(name)
}
