//! Where two runs that should be alike first differ, by the hashes that they wrote.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use annulus_text::plural;
use serde::Serialize;

use crate::run::hashes::{Sent, StepHashes, hashed, messages};
use crate::step::hashes::WEIGHTS;
use crate::step::hashes::points::BATCH;
use crate::{Result, TrainError};

/// Where two runs first differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bisected {
    /// The last hashed step before the difference after which they are alike; `None`: they differ from the first.
    pub alike: Option<u64>,
    /// The number of steps that both runs have hashes of.
    pub steps: usize,
    /// For each run: how many steps only it has hashes of, which are not compared.
    pub only: [usize; 2],
    /// The first step in which they differ; `None`: they are alike.
    pub first: Option<Difference>,
}

/// How two runs differ in a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The step, from 1.
    pub step: u64,
    /// By kind of tensors, such as `gradients`: those that differ after the step, and how many there are in all.
    pub kinds: BTreeMap<String, (Vec<String>, usize)>,
    /// Where within the step they first differ; `None`: what it computed is alike, or not hashed in both.
    pub divergence: Option<Divergence>,
}

/// The first difference within a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Divergence {
    /// In one of the runs a message was corrupted in transit.
    Damaged {
        /// The run in which the message was corrupted: 0 for the first, 1 for the other.
        run: usize,
        /// The message's place, such as `forward, layer 0, hop 1`.
        at: String,
        /// The rank that sent the message.
        rank: usize,
    },
    /// A rank sent other bits, and everything before is alike. Known only of runs that are split alike.
    Sent {
        /// The message's place, such as `forward, layer 0, hop 1`.
        at: String,
        /// The ranks that sent other bits.
        ranks: Vec<usize>,
    },
    /// The runs read or computed other bits.
    Computed {
        /// What differs: `batch`, a parameter as `weights.NAME`, the output of a stage as `forward STAGE`, or the gradient of its input as
        /// `backward STAGE`.
        at: String,
    },
}

impl Divergence {
    /// Whether the runs read other tokens.
    pub fn is_of_batch(&self) -> bool {
        matches!(self, Divergence::Computed { at } if at == BATCH)
    }

    /// Whether the runs read another weight.
    pub fn is_of_weight(&self) -> bool {
        matches!(self, Divergence::Computed { at } if at.starts_with(WEIGHTS))
    }
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Divergence::Damaged { run, at, rank } => {
                let run = ["the first run", "the other run"][usize::from(*run > 0)];
                write!(f, "{at}: in {run} a message from rank {rank} was corrupted in transit")
            }
            Divergence::Sent { at, ranks } => {
                let word = plural("rank", ranks.len());
                let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
                write!(f, "{at}: {word} {} sent something else", ranks.join(", "))
            }
            Divergence::Computed { at } if at.starts_with("forward") => {
                write!(f, "{at}: its output")
            }
            Divergence::Computed { at } if at.starts_with("backward") => {
                write!(f, "{at}: the gradient of its input")
            }
            Divergence::Computed { at } => write!(f, "{at}, as the step read it"),
        }
    }
}

/// Finds where the runs in two folders first differ, by the hashes that they wrote.
///
/// # Errors
/// A run without hashes, runs without a common hashed step, and a file that cannot be read.
pub fn bisect(runs: [&Path; 2]) -> Result<Bisected> {
    let [a, b] = runs.map(lines);
    let (a, b) = (a?, b?);
    let both: Vec<(&StepHashes, &StepHashes)> =
        a.values().filter_map(|line| Some((line, b.get(&line.step)?))).collect();
    if both.is_empty() {
        let [a, b] = runs.map(Path::display);
        return Err(TrainError::configuration(
            format!("`{a}` and `{b}` have hashes of no step in common"),
            "train both with the same `every.hash`",
        ));
    }
    let [x, y] = runs.map(messages);
    let (x, y) = (by_step(x?), by_step(y?));
    let difference = |(a, b): &(&StepHashes, &StepHashes)| {
        let divergence = divergence([a, b], [x.get(&a.step), y.get(&a.step)]);
        let differs = divergence.is_some() || a.tensors != b.tensors;
        differs.then(|| Difference { step: a.step, kinds: kinds(a, b), divergence })
    };
    let first = both.iter().find_map(difference);
    let is_before = |step: &u64| first.as_ref().is_none_or(|first| *step < first.step);
    let alike = both.iter().map(|(a, _)| a.step).take_while(is_before).last();
    let steps = both.len();
    Ok(Bisected { alike, steps, only: [a.len() - steps, b.len() - steps], first })
}

/// The first difference within a step that both runs have hashed.
fn divergence(lines: [&StepHashes; 2], sent: [Option<&Sent>; 2]) -> Option<Divergence> {
    let damaged = |(run, sent): (usize, Option<&Sent>)| {
        let (at, rank) = sent?.damaged()?;
        Some(Divergence::Damaged { run, at: at.to_owned(), rank })
    };
    if let Some(damaged) = sent.into_iter().enumerate().find_map(damaged) {
        return Some(damaged);
    }
    let [a, b] = lines;
    let theirs: BTreeMap<&str, &str> =
        b.computed.iter().map(|(at, hash)| (&**at, &**hash)).collect();
    let differs = |(at, hash): &&(String, String)| {
        theirs.get(at.as_str()).is_some_and(|theirs| theirs != hash)
    };
    let at = a.computed.iter().find(differs).map(|(at, _)| at.clone());
    let before = at.clone().or_else(|| (a.tensors != b.tensors).then(String::new))?;
    sent_before(&before, sent).or_else(|| at.map(|at| Divergence::Computed { at }))
}

/// The first hop at which ranks sent other bits, of the hops right before the point `what`; empty: those after all that is computed.
fn sent_before(what: &str, sent: [Option<&Sent>; 2]) -> Option<Divergence> {
    let [Some(a), Some(b)] = sent else { return None };
    if a.split != b.split {
        return None;
    }
    let pairs = a.hops.iter().zip(&b.hops).filter(|(a, b)| a.at == b.at);
    let mut pairs = pairs.filter(|(a, _)| a.before.as_deref().unwrap_or_default() == what);
    let (hop, other) = pairs.find(|(a, b)| a.sent != b.sent)?;
    let ranks = hop.sent.iter().filter(|(rank, hash)| other.sent.get(rank) != Some(hash));
    let ranks = ranks.map(|(rank, _)| *rank).collect();
    Some(Divergence::Sent { at: hop.at.clone(), ranks })
}

/// By kind of tensors: those that differ after a step, and how many there are in all.
pub(crate) fn kinds(a: &StepHashes, b: &StepHashes) -> BTreeMap<String, (Vec<String>, usize)> {
    let mut kinds: BTreeMap<String, (Vec<String>, usize)> = BTreeMap::new();
    let names =
        a.tensors.keys().chain(b.tensors.keys().filter(|name| !a.tensors.contains_key(*name)));
    for whole in names {
        let (kind, name) = whole.split_once('.').unwrap_or((whole, ""));
        let (differing, all) = kinds.entry(kind.to_owned()).or_default();
        *all += 1;
        if a.tensors.get(whole) != b.tensors.get(whole) {
            differing.push(name.to_owned());
        }
    }
    kinds
}

/// The lines of `hashes.jsonl` of a run, by step.
fn lines(run: &Path) -> Result<BTreeMap<u64, StepHashes>> {
    if !run.is_dir() {
        return Err(TrainError::configuration(
            format!("there is no folder `{}`", run.display()),
            "give the folder of a run",
        ));
    }
    let all = hashed(run)?;
    if all.is_empty() {
        return Err(TrainError::configuration(
            format!("`{}` has no hashes of the state", run.display()),
            "train with `every.hash=1`, or another number of steps between hashes",
        ));
    }
    Ok(all.into_iter().map(|line| (line.step, line)).collect())
}

fn by_step(all: Vec<Sent>) -> BTreeMap<u64, Sent> {
    all.into_iter().map(|line| (line.step, line)).collect()
}
