//! `cargo xtask exact`: compares a training step over a long text with float64 and with one rank.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::{root, setup, tool};

/// The largest relative difference of loss and gradient norm.
const LIMIT: f64 = 1e-5;
/// The experiment, whose model and strategy are used.
const EXPERIMENT: &str = "experiments/million-tokens.yaml";
/// The compared metrics: the loss and the norm of its gradient.
const TAGS: [&str; 2] = ["train/loss", "train/grad_norm"];

#[derive(Args)]
pub(crate) struct Arguments {
    /// A text longer than both comparisons
    text: PathBuf,
    /// Number of tokens of the comparison with float64
    #[arg(long, default_value_t = 16_384)]
    reference: usize,
    /// Number of tokens of the comparison of the experiment's four ranks with one
    #[arg(long, default_value_t = 131_072)]
    split: usize,
}

/// Prints both comparisons; fails if a difference exceeds `LIMIT`.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    setup::python()?;
    tool::cargo(&["build", "--release", "--package", "annulus-cli"])?;
    let bytes = fs::read(&arguments.text).with_context(|| arguments.text.display().to_string())?;
    let scratch = root().join("target/exact");
    tool::remove_old(&scratch)?;
    fs::create_dir_all(&scratch)?;
    reference(&scratch, &bytes, arguments.reference)?;
    let text = window(&scratch, &bytes, arguments.split)?;
    let four = step(&scratch.join("four"), &text, arguments.split, &[])?;
    let alone = ["mesh.sequence=1", "attention.strategy=local"].map(str::to_owned);
    let one = step(&scratch.join("one"), &text, arguments.split, &alone)?;
    compare(&format!("{} tokens, 4 ranks and 1", arguments.split), four, one)
}

/// Compares with float64, from weights that one step has changed.
fn reference(scratch: &Path, bytes: &[u8], tokens: usize) -> Result<()> {
    let text = window(scratch, bytes, tokens)?;
    let first = scratch.join("first");
    step(&first, &text, tokens, &[])?;
    let latest = fs::read_to_string(first.join("LATEST"))?;
    let model = first.join(latest.trim());
    let theirs = format!("model={{ path: {} }}", model.display());
    let ours = step(&scratch.join("second"), &text, tokens, &[theirs])?;
    let python = root().join("target/python/transformers-5/bin/python");
    let script = root().join("crates/xtask/python/exact.py");
    let output = Command::new(python).args([&script, &model, &text]).output()?;
    if !output.status.success() {
        bail!("exact.py failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let exact: Value = serde_json::from_slice(&output.stdout)?;
    let number = |key: &str| exact[key].as_f64().with_context(|| format!("exact.py: no `{key}`"));
    compare(
        &format!("{tokens} tokens, 4 ranks and float64"),
        ours,
        [number("loss")?, number("norm")?],
    )
}

/// Writes a text of a single window: the first `tokens` bytes, and the one after them.
fn window(scratch: &Path, bytes: &[u8], tokens: usize) -> Result<PathBuf> {
    let path = scratch.join(format!("{tokens}.txt"));
    let Some(text) = bytes.get(..=tokens) else {
        bail!("the text has {} bytes, wanted more than {tokens}", bytes.len());
    };
    fs::write(&path, text)?;
    Ok(path)
}

/// Trains one step in `output`; returns the loss and the gradient norm.
fn step(output: &Path, text: &Path, tokens: usize, changes: &[String]) -> Result<[f64; 2]> {
    let data = [format!("data.path={}", text.display()), format!("data.tokens={tokens}")];
    tool::train("release", EXPERIMENT, &[changes, &data].concat(), output)?;
    let line = &tool::metrics(output)?[0];
    let mut found = [0.0; 2];
    for (number, tag) in found.iter_mut().zip(TAGS) {
        *number = line[tag].as_f64().with_context(|| format!("a step without `{tag}`"))?;
    }
    Ok(found)
}

/// Prints the relative differences; fails if one exceeds `LIMIT`.
fn compare(what: &str, ours: [f64; 2], theirs: [f64; 2]) -> Result<()> {
    for ((tag, ours), theirs) in TAGS.into_iter().zip(ours).zip(theirs) {
        let off = ((ours - theirs) / theirs).abs();
        tool::say(&format!(
            "{what}: {tag} {ours:.9} and {theirs:.9}, relative difference {off:.1e}"
        ));
        if !(off <= LIMIT) {
            bail!("`{tag}` differs by {off:.1e}, more than {LIMIT:.0e}");
        }
    }
    Ok(())
}
