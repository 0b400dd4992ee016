//! What a run hashes every `every.hash` steps: `hashes.jsonl`, which is the same for the same computation however a step is split over
//! ranks, and `messages.jsonl`, which depends on the split.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use annulus_experiment::Experiment;
use annulus_model::Stage;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::folder::{HASHES, MESSAGES, jsonl};
use crate::step::hashes::Hashes;
use crate::step::hashes::points::{At, Messages, Points};

/// A step's line of `hashes.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepHashes {
    /// The step, from 1.
    pub step: u64,
    /// The hash of all tensors: blake3 of their names and hashes.
    pub state: String,
    /// The hashes of gradients and of the new state, by kind and name, 16 hexadecimal digits.
    pub tensors: BTreeMap<String, String>,
    /// What the step read and computed, in order, each with its hash: batch, weights, every stage's output, the gradient of its input.
    #[serde(default)]
    pub computed: Vec<(String, String)>,
}

/// A step's line of `messages.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sent {
    /// The step, from 1.
    pub(crate) step: u64,
    /// How the step was split over ranks: only runs that are split alike have the same messages.
    pub(crate) split: String,
    /// The step's messages by hop, in the order of the step.
    pub(crate) hops: Vec<HopSent>,
}

/// Hashes of what all ranks sent at a hop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HopSent {
    /// The hop's place, named as in errors.
    pub(crate) at: String,
    /// The point that is computed next after the hop; `None`: no hashed one follows.
    pub(crate) before: Option<String>,
    /// Hashes of messages, by the rank that sent them.
    pub(crate) sent: BTreeMap<usize, String>,
    /// Ranks whose messages were corrupted in transit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) damaged: Vec<usize>,
}

fn digits(hash: u64) -> String {
    format!("{hash:016x}")
}

impl StepHashes {
    pub(crate) fn new(step: u64, hashes: &Hashes, computed: Vec<(String, String)>) -> StepHashes {
        let tensors: BTreeMap<String, String> =
            hashes.iter().map(|(name, hash)| (name.clone(), digits(*hash))).collect();
        let mut all = blake3::Hasher::new();
        for (name, hash) in &tensors {
            all.update(name.as_bytes()).update(b" ").update(hash.as_bytes()).update(b"\n");
        }
        StepHashes { step, state: all.finalize().to_hex().to_string(), tensors, computed }
    }
}

impl Sent {
    /// The messages of a step, by its `points` in these stages.
    fn of(step: u64, split: &str, points: &Points, stages: &[Box<dyn Stage>]) -> Sent {
        let hop = |(at, messages): &(At, Messages)| {
            let next = points.computed.partition_point(|(other, _)| other < at);
            let before = points.computed.get(next).map(|(at, _)| at.name(stages));
            let sent = messages.sent.iter().filter(|(_, hash)| **hash != 0);
            let sent = sent.map(|(rank, hash)| (*rank, digits(*hash))).collect();
            HopSent { at: at.name(stages), before, sent, damaged: messages.damaged().collect() }
        };
        let hops = points.messages.iter().map(hop).collect();
        Sent { step, split: split.to_owned(), hops }
    }

    /// The first message that was corrupted in transit: its place and its sender.
    pub(crate) fn damaged(&self) -> Option<(&str, usize)> {
        self.hops.iter().find_map(|hop| Some((hop.at.as_str(), *hop.damaged.first()?)))
    }
}

/// The writer of `hashes.jsonl` and `messages.jsonl`.
#[derive(Debug)]
pub(crate) struct HashLines {
    state: File,
    messages: File,
    split: String,
}

impl HashLines {
    /// The writer for a run of `experiment` that resumes after step `step`; `None` if it hashes nothing. Lines of later steps are dropped.
    pub(crate) fn wanted(experiment: &Experiment, step: u64) -> io::Result<Option<HashLines>> {
        let folder = &experiment.output;
        if experiment.every.hash == 0 && !folder.join(HASHES).exists() {
            return Ok(None);
        }
        let mut split = blake3::Hasher::new();
        for (key, value) in experiment.split_lines() {
            split.update(format!("{key}: {value}\n").as_bytes());
        }
        let (state, _) = jsonl::resume(&folder.join(HASHES), |line| {
            parse::<StepHashes>(line).map(|line| (line.step <= step).then_some(()))
        })?;
        let (messages, _) = jsonl::resume(&folder.join(MESSAGES), |line| {
            parse::<Sent>(line).map(|line| (line.step <= step).then_some(()))
        })?;
        let split = split.finalize().to_hex()[..16].to_owned();
        Ok((experiment.every.hash > 0).then_some(HashLines { state, messages, split }))
    }

    /// Writes the hashes of a step with these stages; returns the hash of its whole state, and the first corrupted message, if any.
    pub(crate) fn write(
        &mut self,
        step: u64,
        (hashes, points): &(Hashes, Points),
        stages: &[Box<dyn Stage>],
    ) -> io::Result<(String, Option<(String, usize)>)> {
        let computed = points.computed.iter().map(|(at, hash)| (at.name(stages), digits(*hash)));
        let line = StepHashes::new(step, hashes, computed.collect());
        append(&mut self.state, &line)?;
        let sent = Sent::of(step, &self.split, points, stages);
        append(&mut self.messages, &sent)?;
        Ok((line.state, sent.damaged().map(|(at, rank)| (at.to_owned(), rank))))
    }
}

fn append(file: &mut File, line: &impl Serialize) -> io::Result<()> {
    let line = serde_json::to_string(line).map_err(io::Error::other)?;
    file.write_all(format!("{line}\n").as_bytes())
}

fn parse<L: DeserializeOwned>(line: &str) -> std::result::Result<L, String> {
    serde_json::from_str(line).map_err(|_| "no hashes of a step".to_owned())
}

/// The hashed steps of the run in `folder`, rising; empty if it hashed none.
///
/// # Errors
/// A file that cannot be read, and a torn line that is not the last.
pub fn hashed(folder: &Path) -> Result<Vec<StepHashes>> {
    let mut steps: Vec<StepHashes> = read(&folder.join(HASHES))?;
    steps.sort_by_key(|line| line.step);
    Ok(steps)
}

/// The messages of the hashed steps of the run in `folder`.
pub(crate) fn messages(folder: &Path) -> Result<Vec<Sent>> {
    read(&folder.join(MESSAGES))
}

fn read<L: DeserializeOwned>(path: &Path) -> Result<Vec<L>> {
    Ok(jsonl::read(path, parse)?.0)
}
