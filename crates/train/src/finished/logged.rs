//! A run's folder, read by commands that ask what it did: its experiment, its manifest and its metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use annulus_experiment::tags::EVALUATE_LOSS_OF;
use annulus_experiment::{Experiment, parse, quoted_path, read_experiment};

use crate::folder::line::Line;
use crate::folder::lines::checked_lines;
use crate::folder::manifest::{Manifest, Process, RunStart};
use crate::folder::record::Record;
use crate::folder::{GIVEN, RESOLVED, is_run};
use crate::{Result, TrainError};

/// How many runs a hint names.
const NAMED: usize = 2;

/// The content of a run's folder, of a run that is finished or not.
#[derive(Clone, Debug)]
pub struct Logged {
    /// The run's folder.
    pub folder: PathBuf,
    /// The experiment as it was resolved: `experiment.yaml`.
    pub experiment: Experiment,
    /// The text of the resolved experiment.
    pub resolved: String,
    /// The text as it was given, `given.yaml`; `None` where that was the resolved one.
    pub given: Option<String>,
    /// The run's manifest; `None` where the file is missing.
    pub manifest: Option<Manifest>,
    /// Whether the last line of `metrics.jsonl` is torn: it is being written, or its writer was killed.
    pub torn: bool,
    pub(crate) lines: Vec<Line>,
}

impl Logged {
    /// Reads a run's folder.
    ///
    /// # Errors
    /// A folder that is no run's, and the first file or line in it that is not as it was written.
    pub fn read(folder: &Path) -> Result<Logged> {
        is_of_run(folder)?;
        let (lines, torn) = checked_lines(folder)?;
        Logged::of(folder, lines, torn, Manifest::open(folder)?)
    }

    /// Reads a run's folder as if a manifest that cannot be read was not there.
    pub(crate) fn lenient(folder: &Path) -> Result<Logged> {
        is_of_run(folder)?;
        let (lines, torn) = checked_lines(folder)?;
        Logged::of(folder, lines, torn, Manifest::read(folder))
    }

    fn of(
        folder: &Path,
        lines: Vec<Line>,
        torn: bool,
        manifest: Option<Manifest>,
    ) -> Result<Logged> {
        let (path, given) = (folder.join(RESOLVED), folder.join(GIVEN));
        let resolved = read_experiment(&path)?;
        let experiment = parse(&path.display().to_string(), &resolved, &[])?;
        let given = given.is_file().then(|| read_experiment(&given)).transpose()?;
        Ok(Logged { folder: folder.to_owned(), experiment, resolved, given, manifest, torn, lines })
    }

    /// The values of a tag by step; of values by rank the largest. What is not finite, and so `null` in the file, is NaN.
    pub fn numbers(&self, tag: &str) -> Vec<(u64, f64)> {
        let number = |line: &Line| Some((line.step, line.get(tag)?.most()));
        self.lines.iter().filter_map(number).collect()
    }

    /// The values of a tag by step and rank; a number for the whole run is a list of one.
    pub fn of_ranks(&self, tag: &str) -> Vec<(u64, Vec<f64>)> {
        let values = |line: &Line| Some((line.step, line.get(tag)?.each().to_vec()));
        self.lines.iter().filter_map(values).collect()
    }

    /// The tags of the losses of a mixture's sources.
    pub(crate) fn tags_of_sources(&self) -> BTreeSet<String> {
        let tags = self.lines.iter().flat_map(Line::tags);
        tags.filter(|tag| tag.starts_with(EVALUATE_LOSS_OF)).map(ToString::to_string).collect()
    }

    /// The last step that was logged; `None`: no step was.
    pub fn last_step(&self) -> Option<u64> {
        self.lines.last().map(|line| line.step)
    }

    /// The last value of every tag; of values by rank the largest.
    pub fn last(&self) -> BTreeMap<String, f64> {
        Record::of(&self.lines).last
    }

    /// How the last attempt ended; `None`: it goes on, or was killed.
    pub fn ending(&self) -> Option<&str> {
        self.manifest.as_ref()?.attempts.last()?.ending.as_deref()
    }

    /// Seconds from start to end, over all attempts; `None` if one has no end: it was killed, or goes on.
    pub fn seconds(&self) -> Option<u64> {
        let attempts = self.manifest.iter().flat_map(|manifest| &manifest.attempts);
        attempts.map(|one| Some(one.end?.saturating_sub(one.start))).sum()
    }

    /// The last step that was computed with other ranks, with ranks shared otherwise by processes and hosts, or by another strategy than the
    /// last start: what was measured up to it is not of the last start's plan. 0: none was.
    pub fn alike_since(&self) -> u64 {
        let attempts = self.manifest.as_ref().map_or(&[][..], |manifest| &manifest.attempts);
        let how = |one: &RunStart| {
            // Not the names of hosts: a scheduler may give others.
            let host = |process: &Process| {
                one.processes.iter().position(|other| other.host == process.host)
            };
            let of_process = |process: &Process| (host(process), process.ranks.clone());
            let processes: Vec<_> = one.processes.iter().map(of_process).collect();
            (one.ranks, one.strategy.clone(), processes)
        };
        let alike = attempts.chunk_by(|one, next| how(one) == how(next)).last().unwrap_or_default();
        // A start that began anew, or resumed from an older checkpoint, dropped the steps behind it.
        alike.iter().map(|one| one.resumed_from.unwrap_or(0)).min().unwrap_or(0)
    }
}

/// The median of the finite values; `None` where there are none.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

/// An error where a folder holds no run.
pub(crate) fn is_of_run(folder: &Path) -> Result<()> {
    if is_run(folder) {
        return Ok(());
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut runs: Vec<_> = entries.map(|entry| entry.path()).filter(|path| is_run(path)).collect();
    runs.sort();
    let folder = folder.display();
    // Other things lie beside runs, such as the cache of tokens: a pattern would name them, too.
    let named: Vec<_> = runs.iter().take(NAMED).map(|path| quoted_path(path)).collect();
    let named = named.join(" ");
    let hint = match runs.len() {
        0 => "give the `output` of an experiment that has been trained".to_owned(),
        1 => format!("it contains a run: name it, as in `{named}`"),
        runs => format!("it contains {runs} runs: name them, as in `{named}`"),
    };
    Err(TrainError::configuration(format!("`{folder}` is not a run's folder"), hint))
}
