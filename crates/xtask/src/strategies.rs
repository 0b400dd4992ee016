//! `cargo xtask strategies`: trains one experiment with four strategies on 1 to 4 ranks, and tabulates how far their losses are from
//! those of dense attention on one rank.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::{root, tool};

/// The largest relative difference of a step's loss that is allowed.
const LIMIT: f64 = 1e-5;

#[derive(Args)]
pub(crate) struct Arguments {
    /// The experiment; its `data.tokens` must shard over 1, 2, 3 and 4 ranks in every layout, as 12k does
    file: PathBuf,
    /// Keys to replace, as in `data.tokens=12k`
    replacements: Vec<String>,
}

/// Prints a Markdown table; fails if a loss differs by more than `LIMIT`.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    tool::cargo(&["build", "--release", "--package", "annulus-cli"])?;
    let local = losses(arguments, "local", 1)?;
    let (first, last) = (local[0], local[local.len() - 1]);
    tool::say(&format!("{} steps, loss {first:.6} to {last:.6} on one rank", local.len()));
    let mut table = vec![
        "| strategy | 1 rank | 2 ranks | 3 ranks | 4 ranks |".to_owned(),
        "| --- | --- | --- | --- | --- |".to_owned(),
    ];
    let mut worst = 0.0f64;
    for strategy in ["ring", "striped", "megatron", "all-gather"] {
        let mut row = vec![format!("| `{strategy}`")];
        for ranks in 1..=4 {
            let off = difference(&losses(arguments, strategy, ranks)?, &local)?;
            worst = worst.max(off);
            row.push(format!("{off:.1e}"));
        }
        table.push(row.join(" | ") + " |");
    }
    tool::say(&table.join("\n"));
    if !(worst <= LIMIT) {
        bail!("losses differ by {worst:.1e}, more than {LIMIT:.0e}");
    }
    Ok(())
}

/// Trains from the start, and reads the losses of all steps.
fn losses(arguments: &Arguments, strategy: &str, ranks: usize) -> Result<Vec<f64>> {
    let folder = root().join(format!("target/strategies/{strategy}-{ranks}"));
    tool::remove_old(&folder)?;
    let mut changes = arguments.replacements.clone();
    changes.extend([format!("attention.strategy={strategy}"), format!("mesh.sequence={ranks}")]);
    tool::train("release", &arguments.file.to_string_lossy(), &changes, &folder)?;
    let loss = |line: &Value| line["train/loss"].as_f64().context("a line without `train/loss`");
    tool::metrics(&folder)?.iter().map(loss).collect()
}

/// The largest relative difference over all steps.
fn difference(ours: &[f64], theirs: &[f64]) -> Result<f64> {
    if ours.len() != theirs.len() {
        bail!("{} steps against {}", ours.len(), theirs.len());
    }
    let off = std::iter::zip(ours, theirs).map(|(a, b)| ((a - b) / b).abs());
    Ok(off.fold(0.0, |most, off| if off.is_nan() { f64::INFINITY } else { most.max(off) }))
}
