//! `annulus bisect`: where two runs that should be alike differ first.

use std::collections::BTreeMap;
use std::path::PathBuf;

use annulus_train::{Bisected, Difference, Exit, bisect};
use clap::Args;
use serde_json::json;

use crate::{Done, print};

/// Tensors that are named of each kind; JSON has all.
const NAMED: usize = 4;
/// What a step computes; the rest is what it leaves.
const GRADIENTS: &str = "gradients";

#[derive(Args, Debug)]
pub(crate) struct Bisect {
    /// The folder of a run that was trained with `every.hash`
    #[arg(value_name = "RUN")]
    one: PathBuf,
    /// That of another
    #[arg(value_name = "OTHER")]
    other: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Bisect) -> Done {
    let found = bisect([arguments.one.as_path(), arguments.other.as_path()])?;
    print::either(arguments.json, || json!(found), || text(&found))?;
    Ok(if found.first.is_some() { Exit::Expectation.code() } else { 0 })
}

/// The first of these names.
pub(crate) fn named(differing: &[String]) -> String {
    let named = differing.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    let more = if differing.len() > NAMED { ", …" } else { "" };
    format!("{named}{more}")
}

/// A line for each kind of tensors: how many differ, and the first of them.
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
        return format!("alike to the bit behind all {steps} hashed steps, the last {last}");
    };
    format!("{}{}", table(found.alike, first), meaning(found.alike, first))
}

/// Behind which step they differ first, and in which tensors.
pub(crate) fn table(alike: Option<u64>, Difference { step, kinds }: &Difference) -> String {
    let since = alike.map_or_else(
        || String::from("no step before it has hashes of both"),
        |alike| format!("alike behind step {alike}"),
    );
    format!("differ first behind step {step}; {since}\n{}", rows(kinds))
}

/// What follows from that, where both were computed alike.
fn meaning(alike: Option<u64>, Difference { step, kinds }: &Difference) -> &'static str {
    let computed = kinds.get(GRADIENTS).is_some_and(|(differing, _)| !differing.is_empty());
    match (computed, alike) {
        (false, _) => {
            "What the step computed is alike: what it was applied to, or what was left of it, was changed."
        }
        (true, Some(alike)) if alike + 1 == *step => {
            "From the same state the step computed something else."
        }
        (true, _) => {
            "Between these steps something else was computed, or the state was changed: hash every step to tell."
        }
    }
}
