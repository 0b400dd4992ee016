//! `hashes.jsonl`: every `every.hash` steps a line with the hash of every tensor of the state, and where two runs differ first.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use annulus_experiment::Experiment;
use serde::{Deserialize, Serialize};

use crate::run::folder::{failure, write_atomically};
use crate::step::hashes::Hashes;
use crate::{Result, TrainError};

/// The file's name in a run's folder.
pub(crate) const FILE: &str = "hashes.jsonl";
/// The largest such file that is read, in bytes.
const LARGEST: u64 = 1 << 32;

/// A step's line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// The step, from 1.
    pub step: u64,
    /// Of all that follow, blake3 of names and hashes.
    pub state: String,
    /// By kind and name, 16 hexadecimal digits.
    pub tensors: BTreeMap<String, String>,
}

impl Line {
    pub(crate) fn new(step: u64, hashes: &Hashes) -> Line {
        let tensors: BTreeMap<String, String> =
            hashes.iter().map(|(name, hash)| (name.clone(), format!("{hash:016x}"))).collect();
        let mut all = blake3::Hasher::new();
        for (name, hash) in &tensors {
            all.update(name.as_bytes()).update(b" ").update(hash.as_bytes()).update(b"\n");
        }
        Line { step, state: all.finalize().to_hex().to_string(), tensors }
    }
}

/// Writes lines.
#[derive(Debug)]
pub(crate) struct HashLines(File);

impl HashLines {
    /// Of the run of an experiment that goes on behind step `step`, if it hashes its state.
    pub(crate) fn wanted(experiment: &Experiment, step: u64) -> io::Result<Option<HashLines>> {
        let resume = || HashLines::resume(&experiment.output, step);
        (experiment.every.hash > 0).then(resume).transpose()
    }

    /// Goes on with the file in `folder` behind step `step`: later lines, and a torn one, are dropped.
    fn resume(folder: &Path, step: u64) -> io::Result<HashLines> {
        let path = folder.join(FILE);
        let text = text(&path)?;
        let kept = text.lines().filter(|line| parse(line).is_some_and(|line| line.step <= step));
        let kept: String = kept.flat_map(|line| [line, "\n"]).collect();
        if kept != text {
            write_atomically(&path, kept.as_bytes())?;
        }
        Ok(HashLines(annulus_files::append(&path)?))
    }

    pub(crate) fn write(&mut self, step: u64, hashes: &Hashes) -> io::Result<()> {
        let line = serde_json::to_string(&Line::new(step, hashes)).map_err(io::Error::other)?;
        self.0.write_all(format!("{line}\n").as_bytes())
    }
}

fn text(path: &Path) -> io::Result<String> {
    match annulus_files::read(path, LARGEST) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

fn parse(line: &str) -> Option<Line> {
    serde_json::from_str(line).ok()
}

/// Where two runs differ first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bisected {
    /// The last hashed step behind which they are alike, of those before the difference; none: they differ from the first on.
    pub alike: Option<u64>,
    /// How many steps both have hashes of.
    pub steps: usize,
    /// The first behind which they differ; none: they are alike.
    pub first: Option<Difference>,
}

/// What differs behind a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The step, from 1.
    pub step: u64,
    /// By kind, as `gradients`, the tensors that differ, and how many there are.
    pub kinds: BTreeMap<String, (Vec<String>, usize)>,
}

/// Finds where the runs in two folders differ first, by the hashes that they wrote.
///
/// # Errors
/// When one wrote none, or they have no step in common.
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
    let differs = both.iter().position(|(a, b)| a.tensors != b.tensors);
    let alike = both[..differs.unwrap_or(both.len())].last().map(|(a, _)| a.step);
    let first = differs.map(|at| difference(both[at].0, both[at].1));
    Ok(Bisected { alike, steps: both.len(), first })
}

pub(crate) fn difference(a: &Line, b: &Line) -> Difference {
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
    Difference { step: a.step, kinds }
}

/// The hashed steps of the run in `folder`, rising; none where it hashed none.
///
/// # Errors
/// A file that cannot be read, and a line but the last that is torn.
pub fn hashed(folder: &Path) -> Result<Vec<Line>> {
    let path = folder.join(FILE);
    let text = text(&path).map_err(|error| failure("read", &path, &error))?;
    let mut steps = Vec::new();
    for (index, line) in text.split_inclusive('\n').enumerate() {
        match parse(line) {
            Some(line) => steps.push(line),
            None if !line.ends_with('\n') => {}
            None => {
                let (path, number) = (path.display(), index + 1);
                let message = format!("`{path}`, line {number}: no hashes of a step");
                let hint =
                    "delete that line, or train the run on: what cannot be read is dropped then";
                return Err(TrainError::Unreadable { message, hint: hint.to_owned() });
            }
        }
    }
    steps.sort_by_key(|line| line.step);
    Ok(steps)
}

/// The lines of a run, by step.
fn lines(run: &Path) -> Result<BTreeMap<u64, Line>> {
    let path = run.join(FILE);
    let text = text(&path).map_err(|error| failure("read", &path, &error))?;
    let all: BTreeMap<u64, Line> =
        text.lines().filter_map(parse).map(|line| (line.step, line)).collect();
    if all.is_empty() {
        return Err(TrainError::Configuration {
            message: format!("`{}` has no hashes of the state", run.display()),
            hint: Some(
                "train with `every.hash=1`, or another number of steps between hashes".into(),
            ),
        });
    }
    Ok(all)
}
