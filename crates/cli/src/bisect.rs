//! `annulus bisect`: finds where two runs that should be equal first differ.

use std::collections::BTreeMap;
use std::path::PathBuf;

use annulus_experiment::{KeyDifference, load};
use annulus_text::count;
use annulus_train::{Bisected, Difference, Divergence, RESOLVED, bisect};
use clap::Args;
use serde_json::json;

use crate::{Done, judged, print};

/// How many differing tensors of each kind are named as text; JSON has all.
const NAMED: usize = 4;
/// The kind of tensors that a step computes; the other kinds are its state afterwards.
const GRADIENTS: &str = "gradients";

#[derive(Args, Debug)]
pub(crate) struct Bisect {
    /// The folder of a run that was trained with `every.hash`
    #[arg(value_name = "RUN")]
    one: PathBuf,
    /// The folder of the run to compare it with
    #[arg(value_name = "OTHER")]
    other: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Bisect) -> Done {
    let found = bisect([arguments.one.as_path(), arguments.other.as_path()])?;
    print::either(arguments.json, || json!(found), || text(&found))?;
    let keys = found.first.as_ref().map(|_| rounded_otherwise([&arguments.one, &arguments.other]));
    if let Some(keys) = keys.filter(|keys| !keys.is_empty()) {
        print::say(&format!(
            "note: the runs differ in `{}`, which changes the order of sums, and so their last digits; only with `reproducible: strict` \
             are such runs bit-identical",
            keys.join("`, `")
        ));
    }
    Ok(judged(found.first.is_none()))
}

/// The keys in which the runs of these folders differ and which change the rounding. None for runs with `reproducible: strict`, and where
/// a file of a run cannot be read.
fn rounded_otherwise(runs: [&PathBuf; 2]) -> Vec<String> {
    let read = |run: &PathBuf| load(&run.join(RESOLVED), &[]).ok().map(|run| run.rounding());
    let [Some(one), Some(other)] = runs.map(read) else { return Vec::new() };
    let mut keys: Vec<String> =
        KeyDifference::between(&one, &other).into_iter().map(|one| one.key).collect();
    keys.sort();
    keys
}

/// The first few of these names.
pub(crate) fn named(differing: &[String]) -> String {
    let named = differing.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    let more = if differing.len() > NAMED { ", …" } else { "" };
    format!("{named}{more}")
}

/// A line for each kind of tensors: how many differ, and the first few by name.
pub(crate) fn rows(kinds: &BTreeMap<String, (Vec<String>, usize)>) -> String {
    let row = |(kind, (differing, all)): (&String, &(Vec<String>, usize))| {
        let count = format!("{} of {all}", differing.len());
        let row = format!("  {kind:<9}  {count:>10}  {}", named(differing));
        row.trim_end().to_owned() + "\n"
    };
    kinds.iter().map(row).collect()
}

pub(crate) fn text(found: &Bisected) -> String {
    let Some(first) = &found.first else {
        let (steps, last) = (found.steps, found.alike.unwrap_or_default());
        let only = ["the first run", "the other"].iter().zip(found.only);
        let more = only
            .filter(|(_, count)| *count > 0)
            .map(|(run, count)| format!("; {count} more are only in {run}, and are not compared"));
        let more = more.collect::<Vec<_>>().concat();
        let steps = count(steps, "hashed step");
        return format!("bit-identical after {steps}, the last {last}{more}");
    };
    format!("{}{}", table(found.alike, first), meaning(found.alike, first))
}

/// The first step that differs, where in it, and which tensors differ after it.
pub(crate) fn table(
    alike: Option<u64>,
    Difference { step, kinds, divergence }: &Difference,
) -> String {
    let since = alike.map_or_else(
        || String::from("no step before it has hashes of both"),
        |alike| format!("identical after step {alike}"),
    );
    let divergence = divergence.as_ref().map(|divergence| format!("  where      {divergence}\n"));
    format!(
        "differ first in step {step}; {since}\n{}{}",
        divergence.unwrap_or_default(),
        rows(kinds)
    )
}

/// What a difference tells of its cause, if both runs were computed in the same way.
fn meaning(
    alike: Option<u64>,
    Difference { step, kinds, divergence }: &Difference,
) -> &'static str {
    let computed = kinds.get(GRADIENTS).is_some_and(|(differing, _)| !differing.is_empty());
    let is_next = alike.is_some_and(|alike| alike + 1 == *step);
    match (divergence, computed) {
        (Some(Divergence::Damaged { .. }), _) => {
            "Memory or a link changed a message: with `mesh.checksum: true` a run ends there."
        }
        (Some(Divergence::Sent { .. }), _) => {
            "Earlier messages are equal: the sending rank computed it differently."
        }
        (Some(other), _) if other.is_of_batch() => "The runs read different tokens.",
        // What a step reads is hashed before what it computes, and is alike.
        (Some(other), _) if !other.is_of_weight() => {
            "From the same weights and tokens the step computed different values."
        }
        (Some(_), _) if is_next => "A weight was changed between two steps.",
        (Some(_), _) if *step == 1 => "The runs began with different weights.",
        (_, false) => {
            "The step computed the same gradients: the state before or after it was changed."
        }
        (_, true) if is_next => "From the same state the step computed different values.",
        (_, true) => {
            "In this step or before it different values were computed, or the state was changed: hash every step to tell."
        }
    }
}
