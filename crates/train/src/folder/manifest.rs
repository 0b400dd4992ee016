//! `manifest.json`: what made a run, so that it can be repeated.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use annulus_experiment::KeyDifference;
use annulus_machine::Core;
use serde::{Deserialize, Serialize};

use crate::error::failure;
use crate::folder::write_atomically;
use crate::{Result, TrainError};

/// The file's name in a run's folder.
pub(crate) const FILE: &str = "manifest.json";
/// The `ending` of an attempt that reached the last step.
pub const FINISHED: &str = "finished";
/// The ending of an attempt that was asked to stop.
pub const PREEMPTED: &str = "preempted";
/// What stands for a hash, version or name that nobody knows.
pub(crate) const UNKNOWN: &str = "unknown";

/// What made a run: program, experiment, data, weights, machine, and every start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of the last start's program.
    pub version: String,
    /// The commit from which that program was built.
    pub commit: String,
    /// blake3 of that program's file.
    pub binary: String,
    /// blake3 of the experiment's text as given.
    pub experiment: String,
    /// The data's fingerprint.
    pub data: String,
    /// The fingerprint of the text that is held out, in sequences as they are evaluated; of several phases, that of the last that began.
    /// `None`: nothing is held out, or an earlier version wrote the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out: Option<String>,
    /// blake3 of the weights before the first step; `unknown` where the manifest of the run's beginning was lost.
    pub weights: String,
    /// The machine of the last start.
    pub machine: Machine,
    /// What `strategy: auto` chose from and why, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<serde_json::Value>,
    /// The checkpoint that the run began from, if not with its own weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork: Option<Fork>,
    /// Of a fork: the step of the checkpoint that it began from; `None` in manifests of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began: Option<u64>,
    /// The run that this run computes again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reproduces: Option<PathBuf>,
    /// Every start of the run, in order.
    pub attempts: Vec<RunStart>,
}

/// The checkpoint that a run begins from, instead of weights of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    /// A checkpoint, or a run's folder, which means its newest checkpoint.
    pub from: PathBuf,
    /// Whether the optimizer starts anew.
    pub fresh_optimizer: bool,
}

/// The machine of a run's process 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The name of the processor.
    pub cpu: String,
    /// The number of the machine's cores.
    pub cores: usize,
    /// The vector instructions of the kernels; `None` in manifests of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vector: Option<String>,
    /// The generation of the GPU whose kernels compute, such as `sm_90`: with another the bits may differ. `None`: the CPU computes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernels: Option<String>,
    /// The operating system and the architecture.
    pub system: String,
    /// Operations per second at most, which `speed/mfu` is a share of: of CPU cores as the first start on this machine measured them, or as a
    /// faster step showed, of all processes together. `None`: unknown, or an earlier version wrote the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<u64>,
}

/// One start of a run, up to its end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunStart {
    /// The time of the start, seconds since 1970, UTC.
    pub start: u64,
    /// The time of the end, seconds since 1970, UTC; `None`: it runs, or was killed.
    pub end: Option<u64>,
    /// How the attempt ended: `finished`, `preempted`, or the error.
    pub ending: Option<String>,
    /// The step that the attempt resumed from.
    pub resumed_from: Option<u64>,
    /// Of a run with several phases: the name of the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// The command line of this start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The number of ranks.
    pub ranks: usize,
    /// The name of the strategy, or of those of the layer groups.
    pub strategy: String,
    /// The settled keys that change the rounding; none with `reproducible: strict`, and in manifests of earlier versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rounding: BTreeMap<String, String>,
    /// blake3 of the program's file; `None` in manifests of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary: Option<String>,
    /// The vector instructions that the attempt computed with; `None` in manifests of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vector: Option<String>,
    /// The generation of the GPU whose kernels compute; `None`: the CPU computes, or an earlier version wrote the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernels: Option<String>,
    /// Of several processes: the host and ranks of each, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<Process>,
    /// In a single process on GPUs: the GPUs, each with its ranks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
    /// The MPI library that joins the processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mpi: Option<Mpi>,
    /// The NCCL library that carries tensors between processes, if MPI does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nccl: Option<Nccl>,
    /// The hash of the state after the last step that was hashed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StateHash>,
}

/// The keys of [`RunStart::rounding`] with different values in `was` and `is`; none where one of them has no keys.
pub(crate) fn differing(
    was: &BTreeMap<String, String>,
    is: &BTreeMap<String, String>,
) -> Vec<KeyDifference> {
    if was.is_empty() || is.is_empty() { Vec::new() } else { KeyDifference::between(was, is) }
}

/// Each text once, in the order in which they first come.
fn unique<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found = Vec::new();
    for one in all {
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found
}

/// The hash of a run's whole state after a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateHash {
    /// The step after which the state was hashed.
    pub step: u64,
    /// The hash, as in `hashes.jsonl`.
    pub hash: String,
}

/// One of the processes of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// The name of the process's host.
    pub host: String,
    /// The ranks that are threads of the process.
    pub ranks: Vec<usize>,
    /// Peak resident memory of the process, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident: Option<u64>,
    /// Bytes that the process's ranks were planned to hold, with those that it took before they began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned: Option<u64>,
}

/// The NCCL library that a run uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nccl {
    /// The library's version.
    pub version: String,
    /// The library's file.
    pub file: PathBuf,
}

/// The MPI library that a run uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mpi {
    /// The library's own name, with its version.
    pub library: String,
    /// The library's file.
    pub file: PathBuf,
}

/// The largest manifest that is read, in bytes: it has some lines for every start.
const LARGEST: u64 = 1 << 26;

impl Manifest {
    /// The manifest of an earlier attempt in `folder`, if there is one that can be read.
    pub(crate) fn read(folder: &Path) -> Option<Manifest> {
        Manifest::open(folder).ok().flatten()
    }

    /// The manifest of the run in `folder`; `None` where there is no file.
    ///
    /// # Errors
    /// A file that cannot be read, or is not as it was written.
    pub fn open(folder: &Path) -> Result<Option<Manifest>> {
        let path = folder.join(FILE);
        let bytes = match annulus_files::read(&path, LARGEST) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|error| failure("read", &path, &error))?,
        };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            TrainError::unreadable(
                format!("`{}`: {error}", path.display()),
                "restore it as it was; or remove it: a run with checkpoints resumes without it, and one without starts again, for which a \
                 fork needs its `--from` again",
            )
        })
    }

    /// The manifest of a run that has not begun.
    pub(crate) fn new(cores: usize, experiment: &str, data: String, weights: String) -> Manifest {
        Manifest {
            version: env!("CARGO_PKG_VERSION").into(),
            commit: option_env!("ANNULUS_COMMIT").unwrap_or(UNKNOWN).into(),
            binary: binary().unwrap_or_else(|| UNKNOWN.into()),
            experiment: blake3::hash(experiment.as_bytes()).to_hex().to_string(),
            data,
            held_out: None,
            weights,
            machine: Machine {
                cpu: annulus_machine::processor().unwrap_or_else(|| UNKNOWN.into()),
                cores,
                vector: Some(Core::here().instructions.word().to_owned()),
                kernels: None,
                system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
                peak: None,
            },
            choice: None,
            fork: None,
            began: None,
            reproduces: None,
            attempts: Vec::new(),
        }
    }

    /// What the starts say by `said`, each value once, in order; `last` where none says.
    pub(crate) fn of_starts(&self, said: fn(&RunStart) -> Option<&String>, last: &str) -> String {
        let mut all = unique(self.attempts.iter().filter_map(said).map(String::as_str));
        if all.is_empty() {
            all.push(last);
        }
        all.join(", then ")
    }

    /// The strategy of the last start.
    pub fn strategy(&self) -> &str {
        self.attempts.last().map_or("", |attempt| &attempt.strategy)
    }

    /// The number of ranks of the last start.
    pub fn ranks(&self) -> usize {
        self.attempts.last().map_or(1, |attempt| attempt.ranks)
    }

    /// The number of processes of the last start, and their hosts, each named once; `None` where the ranks are threads of one process.
    pub(crate) fn hosts(&self) -> Option<(usize, Vec<&str>)> {
        let processes = &self.attempts.last().filter(|last| !last.processes.is_empty())?.processes;
        Some((processes.len(), unique(processes.iter().map(|process| process.host.as_str()))))
    }

    /// Whether the last start has several processes, but the run began as threads of one.
    pub(crate) fn was_of_threads(&self) -> bool {
        let has = |attempt: &RunStart| !attempt.processes.is_empty();
        self.attempts.last().is_some_and(has) && !self.attempts.first().is_some_and(has)
    }

    /// The MPI library of the last start.
    pub(crate) fn mpi(&self) -> Option<&Mpi> {
        self.attempts.last()?.mpi.as_ref()
    }

    /// The NCCL library that carried tensors between the processes of the last start, if MPI did not.
    pub(crate) fn nccl(&self) -> Option<&Nccl> {
        self.attempts.last()?.nccl.as_ref()
    }

    /// Notes the end of the last start.
    pub(crate) fn end(&mut self, ending: &str) {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.end = Some(now());
            attempt.ending = Some(ending.into());
        }
    }

    /// The manifest as JSON.
    pub(crate) fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("strings and numbers become JSON")
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(FILE);
        write_atomically(&path, self.text().as_bytes())
            .map_err(|error| failure("write", &path, &error))
    }
}

/// What identifies the running program: the hash of its file.
pub(crate) fn program() -> String {
    binary().unwrap_or_else(|| env!("CARGO_PKG_VERSION").to_owned())
}

/// The hash of the program's file, cached: reading it (some 100 MB if not optimised) for each of many runs of a process would take long.
fn binary() -> Option<String> {
    static HASH: OnceLock<Option<String>> = OnceLock::new();
    let hash = || {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(File::open(std::env::current_exe().ok()?).ok()?).ok()?;
        Some(hasher.finalize().to_hex().to_string())
    };
    HASH.get_or_init(hash).clone()
}

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_of_one_process_says_nothing_of_processes() {
        let text = r#"{"start": 1, "end": null, "ending": null, "resumed_from": null, "ranks": 2, "strategy": "ring"}"#;
        let attempt: RunStart = serde_json::from_str(text).unwrap();
        assert_eq!((&attempt.processes[..], &attempt.mpi), (&[][..], &None));
        let again = serde_json::to_string(&attempt).unwrap();
        assert!(!again.contains("processes") && !again.contains("mpi"), "{again}");
    }
}
