//! Runs beside each other: what differs in their files, what they computed, how fast and in how much memory.

use std::path::{Path, PathBuf};

use annulus_experiment::{Experiment, parse, read_experiment, varying};
use serde::Serialize;
use serde_json::Value as Json;

use crate::run::aligned::{Aligned, align};
use crate::run::folder::{RESOLVED, failure, is_run};
use crate::run::lines::{EVALUATION, FILE, Line, read_lines};
use crate::run::manifest::Manifest;
use crate::{Result, TrainError};

/// What training is compared by.
const LOSS: &str = "train/loss";

/// Several runs beside each other, in the order in which they were given.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The runs.
    pub runs: Vec<Compared>,
    /// Keys of their resolved experiments that are not the same in all runs.
    pub keys: Vec<Differing>,
    /// What is not the same in all manifests: program, data, weights, machine, ranks.
    pub origins: Vec<Differing>,
    /// `train/loss`, and `evaluate/loss` where all runs have it.
    pub curves: Vec<Aligned>,
}

/// Something that is not the same in all runs.
#[derive(Clone, Debug, Serialize)]
pub struct Differing {
    /// The key, or what a manifest has.
    pub name: String,
    /// A value for each run; `None`: it is absent there.
    pub values: Vec<Option<String>>,
    /// The value that stands for an absent key, where it is one.
    pub default: Option<String>,
}

/// One of the runs.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// The folder.
    pub folder: PathBuf,
    /// How the last attempt ended; `None`: it goes on, or was killed.
    pub ending: Option<String>,
    /// The training loss by step.
    #[serde(skip)]
    pub losses: Vec<(u64, f64)>,
    /// The first and the last step with a loss.
    pub steps: (u64, u64),
    /// The median over logged steps.
    pub tokens_per_second: Option<f64>,
    /// Model FLOPs utilisation, the median over logged steps.
    pub mfu: Option<f64>,
    /// From start to end of all attempts that ended.
    pub seconds: u64,
    /// The most bytes of the fullest rank.
    pub memory: Option<u64>,
}

/// What was read of a run.
struct Read {
    experiment: Experiment,
    manifest: Option<Manifest>,
    lines: Vec<Line>,
}

/// Several runs' folders beside each other.
///
/// # Errors
/// A folder that is no run's, has no metrics, or cannot be read.
pub fn compare(folders: &[PathBuf]) -> Result<Comparison> {
    let read: Vec<Read> = folders.iter().map(|folder| Read::of(folder)).collect::<Result<_>>()?;
    let all = |tag: &str| read.iter().map(|run| numbers(&run.lines, tag)).collect::<Vec<_>>();
    let tags = [LOSS, EVALUATION].map(|tag| (tag, all(tag)));
    let everywhere = tags.into_iter().filter(|(_, runs)| runs.iter().all(|run| !run.is_empty()));
    let experiments: Vec<Experiment> = read.iter().map(|run| run.experiment.clone()).collect();
    let keys = varying(&experiments).into_iter().map(|key| Differing {
        name: key.key,
        values: key.values,
        default: key.default.map(str::to_owned),
    });
    Ok(Comparison {
        runs: folders.iter().zip(&read).map(|(folder, run)| run.compared(folder)).collect(),
        keys: keys.collect(),
        origins: origins(&read),
        curves: everywhere.map(|(tag, runs)| align(tag, &runs)).collect(),
    })
}

impl Read {
    fn of(folder: &Path) -> Result<Read> {
        let refused = |message: String, hint: &str| TrainError::Configuration {
            message,
            hint: Some(hint.to_owned()),
        };
        let shown = folder.display();
        if !is_run(folder) {
            let hint = "give the `output` of an experiment that has been trained";
            return Err(refused(format!("`{shown}` is no run's folder"), hint));
        }
        let lines = read_lines(folder).map_err(|error| failure("read", folder, &error))?;
        if numbers(&lines, LOSS).is_empty() {
            let hint = "train it for a step that is logged (`every.log`), or leave it out";
            return Err(refused(format!("`{shown}` has no `{LOSS}` in its {FILE}"), hint));
        }
        let path = folder.join(RESOLVED);
        let experiment = parse(&path.display().to_string(), &read_experiment(&path)?, &[])?;
        Ok(Read { experiment, manifest: Manifest::read(folder), lines })
    }

    fn compared(&self, folder: &Path) -> Compared {
        let losses = numbers(&self.lines, LOSS);
        let attempts = self.manifest.iter().flat_map(|manifest| &manifest.attempts);
        let median = |tag| median(numbers(&self.lines, tag).into_iter().map(|(_, value)| value));
        let counts = self.lines.iter().filter_map(|line| line.values.get("memory/peak"));
        let ranks = counts.filter_map(Json::as_array).flatten();
        Compared {
            folder: folder.to_owned(),
            ending: attempts.clone().next_back().and_then(|last| last.ending.clone()),
            steps: (losses[0].0, losses[losses.len() - 1].0),
            losses,
            tokens_per_second: median("speed/tokens_per_second"),
            mfu: median("speed/mfu"),
            seconds: attempts
                .map(|one| one.end.unwrap_or(one.start).saturating_sub(one.start))
                .sum(),
            memory: ranks.filter_map(Json::as_u64).max(),
        }
    }
}

/// The values of a tag by step; what is not finite, and so `null` in the file, is not a number.
fn numbers(lines: &[Line], tag: &str) -> Vec<(u64, f64)> {
    let number =
        |line: &Line| Some((line.step, line.values.get(tag)?.as_f64().unwrap_or(f64::NAN)));
    lines.iter().filter_map(number).collect()
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

/// What is not the same in all manifests.
fn origins(runs: &[Read]) -> Vec<Differing> {
    type Said = fn(&Manifest) -> Option<String>;
    let rows: [(&str, Said); 14] = [
        ("version", |manifest| Some(manifest.version.clone())),
        ("commit", |manifest| Some(manifest.commit.clone())),
        ("program, hash", |manifest| Some(manifest.binary.clone())),
        ("data, hash", |manifest| Some(manifest.data.clone())),
        ("first weights, hash", |manifest| Some(manifest.weights.clone())),
        ("forked from", |manifest| Some(manifest.fork.as_ref()?.from.display().to_string())),
        ("processor", |manifest| Some(manifest.machine.cpu.clone())),
        ("cores", |manifest| Some(manifest.machine.cores.to_string())),
        ("vector instructions", |manifest| manifest.machine.vector.clone()),
        ("ranks", |manifest| Some(manifest.ranks().to_string())),
        ("processes", |manifest| Some(manifest.hosts().map_or(1, |(count, _)| count).to_string())),
        ("hosts", |manifest| Some(manifest.hosts()?.1.join(", "))),
        ("MPI", |manifest| Some(manifest.mpi()?.library.clone())),
        ("strategy as run", |manifest| Some(manifest.strategy().to_owned())),
    ];
    let row = |(name, said): (&str, Said)| {
        let said = |run: &Read| run.manifest.as_ref().and_then(said);
        let values: Vec<_> = runs.iter().map(said).collect();
        let differ = values.windows(2).any(|pair| pair[0] != pair[1]);
        differ.then(|| Differing { name: name.to_owned(), values, default: None })
    };
    rows.into_iter().filter_map(row).collect()
}
