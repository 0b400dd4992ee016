//! Runs beside each other: how their files differ, what they computed, how fast and in how much memory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use annulus_experiment::tags::{
    EVALUATE_LOSS, MEMORY_PEAK, SPEED_MFU, SPEED_TOKENS_PER_SECOND, TRAIN_LOSS,
};
use annulus_experiment::{Experiment, varying};
use serde::Serialize;

use crate::finished::aligned::{Aligned, align};
use crate::finished::logged::{Logged, median};
use crate::folder::lines::FILE;
use crate::folder::manifest::Manifest;
use crate::{Result, TrainError};

/// Several runs beside each other, in the order in which they were given.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The compared runs.
    pub runs: Vec<Compared>,
    /// Keys of their resolved experiments that are not the same in all runs.
    pub keys: Vec<Differing>,
    /// What differs between the manifests: program, data, weights, machine, ranks.
    pub origins: Vec<Differing>,
    /// Aligned curves of `train/loss` and, where all runs have them, `evaluate/loss` and those of a mixture's sources.
    pub curves: Vec<Aligned>,
    /// Curves that some of the runs have, but not all, so that they are left out.
    pub left_out: Vec<LeftOut>,
    /// The places of the runs, from 0, whose evaluations are of other held-out text than the first run's, so that differences of these curves
    /// are not the models' alone.
    pub other_texts: Vec<usize>,
}

/// A curve that not all runs have.
#[derive(Clone, Debug, Serialize)]
pub struct LeftOut {
    /// The curve's tag.
    pub tag: String,
    /// The places of the runs that lack it, from 0.
    pub without: Vec<usize>,
}

/// A value that is not the same in all runs.
#[derive(Clone, Debug, Serialize)]
pub struct Differing {
    /// The key's name, or that of the manifest's entry.
    pub name: String,
    /// A value for each run; `None`: it is absent there.
    pub values: Vec<Option<String>>,
    /// The default of an absent key, if it has one.
    pub default: Option<String>,
}

/// One of the compared runs.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// The run's folder.
    pub folder: PathBuf,
    /// How the run's last attempt ended; `None`: it goes on, or was killed.
    pub ending: Option<String>,
    /// The run's training loss by step.
    #[serde(skip)]
    pub losses: Vec<(u64, f64)>,
    /// The first and the last step with a logged loss.
    pub steps: (u64, u64),
    /// Tokens per second, the median over the logged steps that ranks, processes and strategy of the last start computed.
    pub tokens_per_second: Option<f64>,
    /// Model FLOPs utilisation, the median over the same steps.
    pub mfu: Option<f64>,
    /// The peak that the MFU is a share of, in operations per second, as the last start's machine has it; `None`: unknown.
    pub peak: Option<u64>,
    /// Seconds from start to end, over all attempts; `None` if one was killed, or goes on.
    pub seconds: Option<u64>,
    /// Peak memory in bytes of the rank that had the most in the same steps.
    pub memory: Option<u64>,
}

/// Compares the runs in several folders.
///
/// # Errors
/// A folder that is no run's, has no metrics, or cannot be read.
pub fn compare(folders: &[PathBuf]) -> Result<Comparison> {
    let read: Vec<Logged> =
        folders.iter().map(|folder| with_losses(folder)).collect::<Result<_>>()?;
    let all = |tag: &str| read.iter().map(|run| run.numbers(tag)).collect::<Vec<_>>();
    let (mut curves, mut left_out) = (Vec::new(), Vec::new());
    let of_sources: BTreeSet<String> = read.iter().flat_map(Logged::tags_of_sources).collect();
    let losses = [TRAIN_LOSS, EVALUATE_LOSS].into_iter();
    for tag in losses.chain(of_sources.iter().map(String::as_str)) {
        let runs = all(tag);
        let without: Vec<usize> = (0..runs.len()).filter(|run| runs[*run].is_empty()).collect();
        match without.len() {
            0 => curves.push(align(tag, &runs)),
            missing if missing == runs.len() => {}
            _ => left_out.push(LeftOut { tag: tag.to_owned(), without }),
        }
    }
    let (keys, origins) = differing(&read);
    let runs = read.iter().map(compared).collect();
    Ok(Comparison { runs, keys, origins, curves, left_out, other_texts: other_texts(&read) })
}

fn other_texts(runs: &[Logged]) -> Vec<usize> {
    let held_out = |run: &Logged| run.manifest.as_ref().and_then(|found| found.held_out.clone());
    let texts: Vec<Option<String>> = runs.iter().map(held_out).collect();
    let is_other = |run: &usize| texts[*run].is_some() && texts[*run] != texts[0];
    (0..runs.len()).filter(|run| texts[0].is_some() && is_other(run)).collect()
}

/// Where these runs differ: in keys of their resolved experiments, and in the origins that their manifests record.
pub fn differing(runs: &[Logged]) -> (Vec<Differing>, Vec<Differing>) {
    let experiments: Vec<Experiment> = runs.iter().map(|run| run.experiment.clone()).collect();
    let keys = varying(&experiments).into_iter().map(|key| Differing {
        name: key.key,
        values: key.values,
        default: key.default.map(str::to_owned),
    });
    (keys.collect(), origins(runs))
}

fn with_losses(folder: &Path) -> Result<Logged> {
    let run = Logged::lenient(folder)?;
    if run.numbers(TRAIN_LOSS).is_empty() {
        return Err(TrainError::configuration(
            format!("`{}` has no `{TRAIN_LOSS}` in its {FILE}", folder.display()),
            "train it for a step that is logged (`every.log`), or leave it out",
        ));
    }
    Ok(run)
}

fn compared(run: &Logged) -> Compared {
    let losses = run.numbers(TRAIN_LOSS);
    let since = run.alike_since();
    let measured = |tag| run.numbers(tag).into_iter().filter(move |(step, _)| *step > since);
    let middle = |tag| median(measured(tag).map(|(_, value)| value));
    let memory = measured(MEMORY_PEAK).map(|(_, bytes)| bytes as u64).max();
    Compared {
        folder: run.folder.clone(),
        ending: run.ending().map(str::to_owned),
        steps: (losses[0].0, losses[losses.len() - 1].0),
        losses,
        tokens_per_second: middle(SPEED_TOKENS_PER_SECOND),
        mfu: middle(SPEED_MFU),
        peak: run.manifest.as_ref().and_then(|manifest| manifest.machine.peak),
        seconds: run.seconds(),
        memory,
    }
}

/// The entries that are not the same in all manifests.
fn origins(runs: &[Logged]) -> Vec<Differing> {
    type Said = fn(&Manifest) -> Option<String>;
    let rows: [(&str, Said); 17] = [
        ("version", |manifest| Some(manifest.version.clone())),
        ("commit", |manifest| Some(manifest.commit.clone())),
        ("program, hash", |manifest| {
            Some(manifest.of_starts(|start| start.binary.as_ref(), &manifest.binary))
        }),
        ("data, hash", |manifest| Some(manifest.data.clone())),
        ("held-out text, hash", |manifest| manifest.held_out.clone()),
        ("first weights, hash", |manifest| Some(manifest.weights.clone())),
        ("forked from", |manifest| Some(manifest.fork.as_ref()?.from.display().to_string())),
        ("processor", |manifest| Some(manifest.machine.cpu.clone())),
        ("cores", |manifest| Some(manifest.machine.cores.to_string())),
        ("vector instructions", |manifest| {
            let last = manifest.machine.vector.as_ref()?;
            Some(manifest.of_starts(|start| start.vector.as_ref(), last))
        }),
        ("GPU", |manifest| manifest.machine.kernels.clone()),
        ("ranks", |manifest| Some(manifest.ranks().to_string())),
        ("processes", |manifest| Some(manifest.hosts().map_or(1, |(count, _)| count).to_string())),
        ("hosts", |manifest| Some(manifest.hosts()?.1.join(", "))),
        ("MPI", |manifest| Some(manifest.mpi()?.library.clone())),
        ("NCCL", |manifest| Some(manifest.nccl()?.version.clone())),
        ("strategy as run", |manifest| Some(manifest.strategy().to_owned())),
    ];
    let row = |(name, said): (&str, Said)| {
        let said = |run: &Logged| run.manifest.as_ref().and_then(said);
        let values: Vec<_> = runs.iter().map(said).collect();
        let differ = values.windows(2).any(|pair| pair[0] != pair[1]);
        differ.then(|| Differing { name: name.to_owned(), values, default: None })
    };
    rows.into_iter().filter_map(row).collect()
}
