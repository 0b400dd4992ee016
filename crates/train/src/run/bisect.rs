//! Where two runs that should be alike differ first, by what they hashed.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::Serialize;

use crate::run::hashes::{Line, Sent, hashed, messages};
use crate::step::hashes::WEIGHTS;
use crate::step::points::BATCH;
use crate::{Result, TrainError};

/// Where two runs differ first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bisected {
    /// The last hashed step behind which they are alike, of those before the difference; none: they differ from the first on.
    pub alike: Option<u64>,
    /// How many steps both have hashes of.
    pub steps: usize,
    /// The first in which they differ; none: they are alike.
    pub first: Option<Difference>,
}

/// What differs in a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The step, from 1.
    pub step: u64,
    /// By kind, as `gradients`, the tensors that differ behind it, and how many there are.
    pub kinds: BTreeMap<String, (Vec<String>, usize)>,
    /// Where in the step they differ first; none: what it computed on its way is alike, or not known of both.
    pub divergence: Option<Divergence>,
}

/// What differs first in a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Divergence {
    /// In one of the runs a message was corrupted in transit.
    Damaged {
        /// 0: in the first run; 1: in the other.
        run: usize,
        /// Where, as `forward, layer 0, hop 1`.
        at: String,
        /// The rank that sent it.
        rank: usize,
    },
    /// A rank sent something else, and all before it is alike. Only of runs that are split alike.
    Sent {
        /// Where, as `forward, layer 0, hop 1`.
        at: String,
        /// The ranks that did.
        ranks: Vec<usize>,
    },
    /// It read or computed something else.
    Computed {
        /// What: `batch`, a parameter as `weights.NAME`, the output of a stage as `forward STAGE`, or the gradient of its input as
        /// `backward STAGE`.
        at: String,
    },
}

impl Divergence {
    /// Whether they read other tokens.
    pub fn is_of_batch(&self) -> bool {
        matches!(self, Divergence::Computed { at } if at == BATCH)
    }

    /// Whether they read another weight.
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
                let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
                let word = if ranks.len() == 1 { "rank" } else { "ranks" };
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

/// Finds where the runs in two folders differ first, by the hashes that they wrote.
///
/// # Errors
/// When one wrote none, or they have no step in common; a file that cannot be read.
pub fn bisect(runs: [&Path; 2]) -> Result<Bisected> {
    let [a, b] = runs.map(lines);
    let (a, b) = (a?, b?);
    let both: Vec<(&Line, &Line)> =
        a.values().filter_map(|line| Some((line, b.get(&line.step)?))).collect();
    if both.is_empty() {
        let [a, b] = runs.map(Path::display);
        return Err(TrainError::Configuration {
            message: format!("`{a}` and `{b}` have hashes of no step in common"),
            hint: Some("train both with the same `every.hash`".into()),
        });
    }
    let [x, y] = runs.map(messages);
    let (x, y) = (by_step(x?), by_step(y?));
    let difference = |(a, b): &(&Line, &Line)| {
        let divergence = divergence([a, b], [x.get(&a.step), y.get(&a.step)]);
        let differs = divergence.is_some() || a.tensors != b.tensors;
        differs.then(|| Difference { step: a.step, kinds: kinds(a, b), divergence })
    };
    let first = both.iter().find_map(difference);
    let is_before = |step: &u64| first.as_ref().is_none_or(|first| *step < first.step);
    let alike = both.iter().map(|(a, _)| a.step).take_while(is_before).last();
    Ok(Bisected { alike, steps: both.len(), first })
}

/// What differs first on the way of a step that both have hashed.
fn divergence(lines: [&Line; 2], sent: [Option<&Sent>; 2]) -> Option<Divergence> {
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

/// The first hop at which ranks sent something else, of those right before what differs; an empty name: behind all that is computed.
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

/// By kind, the tensors that differ behind a step, and how many there are.
pub(crate) fn kinds(a: &Line, b: &Line) -> BTreeMap<String, (Vec<String>, usize)> {
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

/// The lines of a run, by step.
fn lines(run: &Path) -> Result<BTreeMap<u64, Line>> {
    if !run.is_dir() {
        return Err(TrainError::Configuration {
            message: format!("there is no folder `{}`", run.display()),
            hint: Some("give the folder of a run".into()),
        });
    }
    let all = hashed(run)?;
    if all.is_empty() {
        return Err(TrainError::Configuration {
            message: format!("`{}` has no hashes of the state", run.display()),
            hint: Some(
                "train with `every.hash=1`, or another number of steps between hashes".into(),
            ),
        });
    }
    Ok(all.into_iter().map(|line| (line.step, line)).collect())
}

fn by_step(all: Vec<Sent>) -> BTreeMap<u64, Sent> {
    all.into_iter().map(|line| (line.step, line)).collect()
}
