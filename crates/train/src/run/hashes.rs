//! What a run hashes every `every.hash` steps: `hashes.jsonl`, the same however the step is split over ranks where it computes the same, and
//! `messages.jsonl`, which is of one way to split.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use annulus_experiment::Experiment;
use annulus_model::Stage;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::run::jsonl;
use crate::step::hashes::Hashes;
use crate::step::points::{At, Messages, Points};

/// The files' names in a run's folder.
pub(crate) const STATE: &str = "hashes.jsonl";
pub(crate) const MESSAGES: &str = "messages.jsonl";

/// A step's line of `hashes.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// The step, from 1.
    pub step: u64,
    /// Of all tensors, blake3 of names and hashes.
    pub state: String,
    /// What the step found and left, by kind and name, 16 hexadecimal digits.
    pub tensors: BTreeMap<String, String>,
    /// What it read and computed, in its order: batch, weights, the output of every stage, the gradient of every stage's input.
    #[serde(default)]
    pub computed: Vec<(String, String)>,
}

/// A step's line of `messages.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sent {
    /// The step, from 1.
    pub(crate) step: u64,
    /// How it was split over ranks: messages of another way are others.
    pub(crate) split: String,
    /// In the order of the step.
    pub(crate) hops: Vec<HopSent>,
}

/// What all ranks sent at a hop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HopSent {
    /// Where, as in errors.
    pub(crate) at: String,
    /// What is computed next behind it; none: nothing of what is hashed.
    pub(crate) before: Option<String>,
    /// By the rank that sent it.
    pub(crate) sent: BTreeMap<usize, String>,
    /// Ranks whose messages did not come as they were sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) damaged: Vec<usize>,
}

fn digits(hash: u64) -> String {
    format!("{hash:016x}")
}

impl Line {
    pub(crate) fn new(step: u64, hashes: &Hashes, computed: Vec<(String, String)>) -> Line {
        let tensors: BTreeMap<String, String> =
            hashes.iter().map(|(name, hash)| (name.clone(), digits(*hash))).collect();
        let mut all = blake3::Hasher::new();
        for (name, hash) in &tensors {
            all.update(name.as_bytes()).update(b" ").update(hash.as_bytes()).update(b"\n");
        }
        Line { step, state: all.finalize().to_hex().to_string(), tensors, computed }
    }
}

impl Sent {
    /// The messages of a step whose `points` have these stages.
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

    /// The first message that was corrupted in transit: where, and its sender.
    pub(crate) fn damaged(&self) -> Option<(&str, usize)> {
        self.hops.iter().find_map(|hop| Some((hop.at.as_str(), *hop.damaged.first()?)))
    }
}

/// Writes lines of both files.
#[derive(Debug)]
pub(crate) struct HashLines {
    state: File,
    messages: File,
    split: String,
}

impl HashLines {
    /// Of the run of an experiment that goes on behind step `step`, if it hashes its state.
    pub(crate) fn wanted(experiment: &Experiment, step: u64) -> io::Result<Option<HashLines>> {
        if experiment.every.hash == 0 {
            return Ok(None);
        }
        let mut split = blake3::Hasher::new();
        for (key, value) in experiment.split_lines() {
            split.update(format!("{key}: {value}\n").as_bytes());
        }
        let folder = &experiment.output;
        // Their lines may be long: none is kept here.
        let (state, _) = jsonl::resume(&folder.join(STATE), |line| {
            parse::<Line>(line).filter(|line| line.step <= step).map(drop)
        })?;
        let (messages, _) = jsonl::resume(&folder.join(MESSAGES), |line| {
            parse::<Sent>(line).filter(|line| line.step <= step).map(drop)
        })?;
        Ok(Some(HashLines { state, messages, split: split.finalize().to_hex()[..16].to_owned() }))
    }

    /// Writes what a step with these stages came to. The hash of all of its state, and what was damaged on its way, if anything was.
    pub(crate) fn write(
        &mut self,
        step: u64,
        (hashes, points): &(Hashes, Points),
        stages: &[Box<dyn Stage>],
    ) -> io::Result<(String, Option<(String, usize)>)> {
        let computed = points.computed.iter().map(|(at, hash)| (at.name(stages), digits(*hash)));
        let line = Line::new(step, hashes, computed.collect());
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

fn parse<L: DeserializeOwned>(line: &str) -> Option<L> {
    serde_json::from_str(line).ok()
}

/// The hashed steps of the run in `folder`, rising; none where it hashed none.
///
/// # Errors
/// A file that cannot be read, and a line but the last that is torn.
pub fn hashed(folder: &Path) -> Result<Vec<Line>> {
    let mut steps: Vec<Line> = read(&folder.join(STATE))?;
    steps.sort_by_key(|line| line.step);
    Ok(steps)
}

/// What travelled in them.
pub(crate) fn messages(folder: &Path) -> Result<Vec<Sent>> {
    read(&folder.join(MESSAGES))
}

fn read<L: DeserializeOwned>(path: &Path) -> Result<Vec<L>> {
    let (lines, _) =
        jsonl::read(path, |line| parse(line).ok_or_else(|| "no hashes of a step".to_owned()))?;
    Ok(lines)
}
