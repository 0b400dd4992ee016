//! Whether a run that was computed again gives the same bits: logged values, hashes, weights.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use annulus_experiment::{ModelSource, differences, parse_config, read_config, tags, write_config};
use annulus_tensors::{Room, TensorFile, TensorsError};
use serde::Serialize;

use crate::checkpoint::identity::other_shape;
use crate::checkpoint::{Found, State, checkpoint_folder, last_checkpoint, opened};
use crate::error::failure;
use crate::finished::bisect::{Bisected, bisect};
use crate::finished::logged::Logged;
use crate::folder::line::{Line, LoggedValue};
use crate::run::hashes::{StepHashes, hashed};
use crate::{Result, TrainError};

/// The beginnings of tags of computed values; other tags are measurements: speed, memory, waiting.
const COMPUTED: [&str; 2] = [tags::TRAIN, tags::EVALUATE];
/// The most tensors in a checkpoint, and in a file of one step; headers have their own limit in bytes.
pub(crate) const MOST_TENSORS: usize = 1 << 20;

/// A comparison of a run with itself, computed again.
#[derive(Clone, Debug, Serialize)]
pub struct Reproduced {
    /// The number of logged steps that both have.
    pub logged: usize,
    /// The number of steps that the run logged.
    pub of: usize,
    /// The first value of the common logged steps that differs.
    pub value: Option<Unlike>,
    /// The comparison of state hashes, where both have some.
    pub hashes: Option<Bisected>,
    /// The comparison of the run's last checkpoint, where both have it.
    pub weights: Option<Weighed>,
}

/// A logged value that differs.
#[derive(Clone, Debug, Serialize)]
pub struct Unlike {
    /// The step, from 1.
    pub step: u64,
    /// The value's tag, as in `metrics.jsonl`.
    pub tag: String,
    /// The value that the run logged; `None`: it logged none.
    pub was: Option<f64>,
    /// The value that was logged now; `None`: none was.
    pub is: Option<f64>,
}

/// A comparison of the same checkpoint of two runs.
#[derive(Clone, Debug, Serialize)]
pub struct Weighed {
    /// The step of the checkpoint.
    pub step: u64,
    /// The number of tensors compared: weights and optimizer state.
    pub tensors: usize,
    /// The tensors that differ, or that one run lacks.
    pub differing: Vec<String>,
}

impl Reproduced {
    /// Whether the run and its repetition differ anywhere.
    pub fn differs(&self) -> bool {
        self.first().is_some()
    }

    /// The first step at which something differs; `None`: everything is alike.
    pub fn first(&self) -> Option<u64> {
        let hashes = self.hashes.as_ref().and_then(|found| found.first.as_ref());
        let weights = self.weights.as_ref().filter(|found| !found.differing.is_empty());
        let value = self.value.as_ref().map(|unlike| unlike.step);
        let steps = [value, hashes.map(|first| first.step), weights.map(|found| found.step)];
        steps.into_iter().flatten().min()
    }
}

/// What of a run can be compared, known before it is computed again.
#[derive(Clone, Debug)]
pub struct Comparable {
    /// The step of the last checkpoint; `None`: there is none.
    pub last: Option<u64>,
    /// Keys of `experiment.yaml` that differ from what the checkpoint says was trained.
    pub rewritten: Vec<String>,
}

/// What in the folder of `run` can be compared and is whole: found before hours of computing, not after.
///
/// # Errors
/// A last checkpoint, or hashes, that are not as they were written.
pub fn comparable(run: &Logged) -> Result<Comparable> {
    hashed(&run.folder)?;
    let Some(last) = last_checkpoint(&run.folder) else {
        return Ok(Comparable { last: None, rewritten: Vec::new() });
    };
    let found = opened(&checkpoint_folder(&run.folder, last));
    let found = found.map_err(|error| {
        TrainError::checkpoint(
            error.to_string(),
            "restore it as it was; or remove it, to compare all else",
        )
    })?;
    let trained = found.state.experiment()?;
    let rewritten = differences(&trained, &run.experiment).into_iter();
    let rewritten = rewritten.map(|one| {
        let (key, was, is) = (&one.key, one.was(), one.is());
        format!(
            "`{key}` of `experiment.yaml` is `{is}`, and `step-{last}` was trained with `{was}`"
        )
    });
    Ok(Comparable { last: Some(last), rewritten: rewritten.collect() })
}

/// How the config.json of a run's model differs from what the last checkpoint says that it was, if it does: it was edited in place.
pub fn edited_model(run: &Logged) -> Option<String> {
    let ModelSource::Folder { path, .. } = &run.experiment.model.source else { return None };
    let folder = checkpoint_folder(&run.folder, last_checkpoint(&run.folder)?);
    // What cannot be read is reported by what needs it.
    let was = State::read(&folder).ok()?.model().ok()??;
    let is = write_config(&read_config(path).ok()?, run.experiment.model.dtype);
    other_shape(was, parse_config("the model", &is).ok()?)
}

/// Compares the run in `again` with that in `run`.
///
/// # Errors
/// A file of either run that is not as it was written.
pub fn reproduced(run: &Path, again: &Path) -> Result<Reproduced> {
    let (logged, now) = (Logged::read(run)?, Logged::read(again)?);
    let theirs: BTreeMap<u64, &Line> = now.lines.iter().map(|line| (line.step, line)).collect();
    let both: Vec<(&Line, &Line)> =
        logged.lines.iter().filter_map(|line| Some((line, *theirs.get(&line.step)?))).collect();
    let steps = hashed(again)?;
    let is_there = |line: &StepHashes| steps.iter().any(|other| other.step == line.step);
    let has_hashes = hashed(run)?.iter().any(is_there);
    let found = Reproduced {
        logged: both.len(),
        of: logged.lines.len(),
        value: both.iter().find_map(|(then, now)| unlike(then, now)),
        hashes: has_hashes.then(|| bisect([run, again])).transpose()?,
        weights: weights(run, again)?,
    };
    if found.logged == 0 && found.hashes.is_none() && found.weights.is_none() {
        let [run, again] = [run, again].map(Path::display);
        return Err(TrainError::configuration(
            format!("`{run}` and `{again}` have no step in common to be compared by"),
            "leave `every.log` and `schedule.stop` as they were",
        ));
    }
    Ok(found)
}

/// The first computed value of a step that differs. Values that only one run was asked for, such as an evaluation, are left out; a loss is
/// not.
pub(crate) fn unlike(then: &Line, now: &Line) -> Option<Unlike> {
    let is_computed = |tag: &str| COMPUTED.iter().any(|begins| tag.starts_with(begins));
    let number = |line: &Line, tag: &str| match line.get(tag) {
        Some(LoggedValue::Number(number)) => Some(*number).filter(|number| !number.is_nan()),
        _ => None,
    };
    let differs = |tag: &&Arc<str>| {
        let (was, is) = (number(then, tag), number(now, tag));
        let are_both = now.get(tag).is_some() || tag.starts_with(COMPUTED[0]);
        is_computed(tag) && are_both && was.map(f64::to_bits) != is.map(f64::to_bits)
    };
    let tag = then.tags().find(differs)?;
    let (was, is) = (number(then, tag), number(now, tag));
    Some(Unlike { step: then.step, tag: tag.to_string(), was, is })
}

/// Compares the last checkpoint of `run` with that of the same step in `again`.
fn weights(run: &Path, again: &Path) -> Result<Option<Weighed>> {
    let Some(step) = last_checkpoint(run) else { return Ok(None) };
    let of = |folder: &Path| checkpoint_folder(folder, step);
    if !of(again).is_dir() {
        return Ok(None);
    }
    let [then, now] =
        [of(run), of(again)].map(|folder| opened(&folder).and_then(|it| tensors(&it)));
    let (then, now) = (then?, now?);
    let mut differing = Vec::new();
    for (name, file) in &then {
        let same = |other: &Arc<TensorFile>| {
            file.same(&file.tensors()[name], other, &other.tensors()[name])
                .map_err(|error| unreadable(&error))
        };
        if !now.get(name).map(same).transpose()?.unwrap_or_default() {
            differing.push(name.clone());
        }
    }
    differing.extend(now.keys().filter(|name| !then.contains_key(*name)).cloned());
    Ok(Some(Weighed { step, tensors: then.len(), differing }))
}

/// All tensors of a checkpoint, with the file in which each is.
fn tensors(found: &Found) -> Result<BTreeMap<String, Arc<TensorFile>>> {
    let failed = |error| failure("read", &found.folder, &error);
    let mut all = BTreeMap::new();
    let mut room = Room::of(MOST_TENSORS).and_metadata(&["format"]);
    for entry in std::fs::read_dir(&found.folder).map_err(failed)? {
        let path: PathBuf = entry.map_err(failed)?.path();
        if path.extension().is_none_or(|extension| extension != "safetensors") {
            continue;
        }
        let file = TensorFile::open(&path, &path, &mut room).map_err(|error| unreadable(&error))?;
        let file = Arc::new(file);
        all.extend(file.tensors().keys().map(|name| (name.clone(), file.clone())));
    }
    Ok(all)
}

pub(crate) fn unreadable(error: &TensorsError) -> TrainError {
    TrainError::Checkpoint { message: error.to_string(), hint: None }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::folder::line::Parser;

    fn line(values: &Json) -> Line {
        Parser::default().of(3, values.as_object().unwrap())
    }

    #[test]
    fn what_is_computed_is_compared_to_the_bit_and_what_is_measured_is_not() {
        let then = line(&json!({"train/loss": 0.1, "speed/mfu": 0.5, "evaluate/loss": 2.0}));
        let now = |loss: f64| line(&json!({"train/loss": loss, "speed/mfu": 0.25}));
        assert!(unlike(&then, &now(0.1)).is_none());
        let found = unlike(&then, &now(0.1_f64.next_up())).unwrap();
        assert_eq!((found.step, found.tag.as_str(), found.was), (3, "train/loss", Some(0.1)));
        let gone = unlike(&then, &line(&json!({}))).unwrap();
        assert_eq!((gone.tag.as_str(), gone.is), ("train/loss", None));
        let evaluated = line(&json!({"train/loss": 0.1, "evaluate/loss": 2.5}));
        assert_eq!(unlike(&then, &evaluated).unwrap().tag, "evaluate/loss");
    }
}
