//! Reading checkpoints: only those whose files all have the right hashes.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use annulus_model::{Config, Llama, Runs, Specification};
use annulus_tensors::{Dtype, Entry, Room, TensorFile};
use candle_core::Tensor;

use super::hashes::{FileHashes, Refusal};
use super::{
    HASHES, LATEST, OptimizerTensor, STATE, State, VERSION, checkpoint_folder, step_of, steps,
};
use crate::error::failure;
use crate::folder::is_run;
use crate::{Result, TrainError};

/// The most tokens that a checkpoint may have been trained on: those of the following steps are added.
const MOST_TOKENS: u64 = 1 << 62;

/// How often a run's folder is listed again because a checkpoint was deleted while it was read.
const LISTS: usize = 100;

/// A whole checkpoint: its folder and state.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) folder: PathBuf,
    pub(crate) state: State,
    /// Newer steps of the same run whose checkpoints are not whole.
    pub(crate) refused: Vec<u64>,
}

impl Found {
    /// The hash of all its files: that of its `hashes.json`, against which they have been checked.
    pub(crate) fn hash(&self) -> Result<String> {
        let path = self.folder.join(HASHES);
        let text = std::fs::read(&path).map_err(|error| failure("read", &path, &error))?;
        Ok(blake3::hash(&text).to_hex().to_string())
    }
}

/// The newest whole checkpoint in the folder of a run that this process goes on with: [`whole`], with a warning for everything unfinished
/// that a crash left there and that could not be removed.
///
/// # Errors
/// Those of [`whole`].
pub(crate) fn newest(output: &Path) -> Result<(Option<Found>, Vec<String>)> {
    let (found, mut warnings) = whole(output, "resuming from")?;
    let left = annulus_files::leftovers(output).map_err(|error| failure("read", output, &error))?;
    warnings.extend(left.iter().map(|left| {
        format!("`{}` is left of an earlier start and cannot be deleted: remove it", left.display())
    }));
    Ok((found, warnings))
}

/// The newest whole checkpoint in `output`, and a warning for every newer one that is not whole, which says what is done with the one that is:
/// `used`. `None`: there is no checkpoint.
///
/// # Errors
/// Checkpoints none of which is whole: a run whose checkpoints are damaged must not look like one that never saved. A newer one that the
/// system cannot read: an older one must not take its place.
fn whole(output: &Path, used: &str) -> Result<(Option<Found>, Vec<String>)> {
    let (found, mut warnings) = listed(output, LISTS, &mut open)?;
    if let Some(Found { state, .. }) = &found {
        for warning in &mut warnings {
            *warning = format!("{warning}; {used} `step-{}`", state.step);
        }
    }
    Ok((found, warnings))
}

/// [`whole`], where `open` opens a checkpoint. While the run trains, checkpoints come and go: the folder is listed up to `again` times more.
fn listed(
    output: &Path,
    again: usize,
    open: &mut dyn FnMut(&Path) -> std::result::Result<State, Refusal>,
) -> Result<(Option<Found>, Vec<String>)> {
    let steps = steps(output).map_err(|error| failure("read", output, &error))?;
    let mut refused = Vec::new();
    if let Some(step) = named(output).filter(|step| !steps.contains(step)) {
        if again > 0 && checkpoint_folder(output, step).is_dir() {
            return listed(output, again - 1, open);
        }
        refused.push(format!(
            "`{LATEST}` names `step-{step}`, which is not in `{}`",
            output.display()
        ));
    }
    for (index, &step) in steps.iter().enumerate().rev() {
        let folder = checkpoint_folder(output, step);
        match open(&folder) {
            Ok(state) => {
                let newer = steps[index + 1..].to_vec();
                return Ok((Some(Found { folder, state, refused: newer }), refused));
            }
            Err(_) if again > 0 && !folder.exists() => return listed(output, again - 1, open),
            Err(why) => refused.push(damaged(&folder, why)?),
        }
    }
    if refused.is_empty() { Ok((None, refused)) } else { Err(none_whole(output, &refused)) }
}

/// The error that no checkpoint in `output` is whole, for these reasons.
fn none_whole(output: &Path, refused: &[String]) -> TrainError {
    TrainError::checkpoint(
        refused.join("\n"),
        format!(
            "`{}` has no complete checkpoint: restore one, or set another `output` to start again",
            output.display()
        ),
    )
}

/// The checkpoint in `folder`; an error unless it is whole.
pub(crate) fn opened(folder: &Path) -> Result<Found> {
    let refused = |why| match damaged(folder, why) {
        Ok(message) => TrainError::Checkpoint { message, hint: None },
        Err(error) => error,
    };
    let state = open(folder).map_err(refused)?;
    Ok(Found { folder: folder.to_owned(), state, refused: Vec::new() })
}

/// Whether a folder claims to be a checkpoint, whole or not: it has a `state.json`.
pub(crate) fn is_checkpoint(folder: &Path) -> bool {
    folder.join(STATE).is_file()
}

/// The checkpoint that `path` names: itself, or the newest whole one of a run's folder; with warnings about newer ones.
///
/// # Errors
/// No checkpoint, or none that is whole.
pub(crate) fn named_by(path: &Path) -> Result<(Found, Vec<String>)> {
    if is_checkpoint(path) {
        return Ok((opened(path)?, Vec::new()));
    }
    if !path.exists() {
        return Err(TrainError::checkpoint(
            format!("there is no folder `{}`", path.display()),
            "give a run's folder, or a `step-N` in it",
        ));
    }
    let (found, warnings) = whole(path, "using")?;
    let found = found.ok_or_else(|| {
        let hint = if is_run(path) {
            "it has saved nothing yet: `annulus train` goes on with it"
        } else {
            "give a run's folder, or a `step-N` in it"
        };
        TrainError::checkpoint(format!("`{}` has no checkpoint", path.display()), hint)
    })?;
    Ok((found, warnings))
}

/// The hash of the base weights beside which the adapters in `folder` were trained, if it says so: folders of PEFT do not.
///
/// # Errors
/// A `state.json` that cannot be read.
pub(crate) fn beside(folder: &Path) -> Result<Option<String>> {
    match State::read(folder) {
        Ok(state) => Ok(state.base),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unusable(&folder.join(STATE), &error.to_string())),
    }
}

/// The step that `LATEST` names.
pub(super) fn named(output: &Path) -> Option<u64> {
    let name = annulus_files::read_to_string(&output.join(LATEST), 64).ok()?;
    step_of(Path::new(name.trim()))
}

/// What is wrong with a damaged checkpoint.
///
/// # Errors
/// The checkpoint could not be read.
fn damaged(folder: &Path, why: Refusal) -> Result<String> {
    match why {
        Refusal::Damaged { file, what } => {
            Ok(format!("checkpoint `{}` is refused: `{file}`: {what}", folder.display()))
        }
        Refusal::Unread { file, error } => Err(TrainError::checkpoint(
            format!("cannot read `{}`: {error}", folder.join(file).display()),
            format!(
                "see that it can be read; if it is lost, delete `{}` to resume from an older checkpoint",
                folder.display()
            ),
        )),
    }
}

/// Checks the hashes of `folder` and reads its state.
fn open(folder: &Path) -> std::result::Result<State, Refusal> {
    FileHashes::verify(folder)?;
    let state = State::read(folder).map_err(|error| Refusal::of(STATE, error))?;
    let refused = |what: String| Refusal::damaged(STATE, what);
    if state.version != VERSION {
        return Err(refused(format!("format {}, expected {VERSION}", state.version)));
    }
    // A copy may have any name but that of another step.
    if super::step_of(folder).is_some_and(|step| step != state.step) {
        return Err(refused(format!("it is of step {}", state.step)));
    }
    contradiction(&state).map_or(Ok(state), |what| Err(refused(what)))
}

/// How numbers of a state contradict each other, or its experiment.
fn contradiction(state: &State) -> Option<String> {
    let State { step, tokens, moments, .. } = state;
    if let Some(moments) = moments.filter(|moments| moments > step) {
        return Some(format!("it contradicts itself: `step` is {step} and `moments` {moments}"));
    }
    if *tokens > MOST_TOKENS {
        return Some(format!("`tokens` is {tokens}, expected at most {MOST_TOKENS}"));
    }
    // An experiment that cannot be read is reported where it is needed.
    let all = state.experiment().ok()?.all_steps();
    (*step > all).then(|| {
        format!("it contradicts itself: `step` is {step}, and its experiment has {all} steps")
    })
}

/// The file with the optimizer's tensors of a checkpoint, for every trained parameter.
#[derive(Debug)]
pub(crate) struct Kept(TensorFile);

impl Kept {
    /// Opens the file at `path` and checks it against the model.
    pub(crate) fn open(path: &Path, config: &Config) -> Result<Kept> {
        let specification = Llama::specification(config);
        let mut room = Room::of(4 * specification.len());
        let file = TensorFile::open(path, path, &mut room)
            .map_err(|error| unusable(path, &error.problem.to_string()))?;
        let kept = Kept(file);
        for parameter in specification.iter().filter(|parameter| parameter.trained) {
            OptimizerTensor::of(config.dtype).try_for_each(|which| kept.check(which, parameter))?;
        }
        Ok(kept)
    }

    /// An error if a parameter's tensor of the kind `which` has a wrong dtype or shape.
    fn check(&self, which: OptimizerTensor, parameter: &Specification) -> Result<()> {
        let Specification { name, shape, .. } = parameter;
        let entry = self.entry(which, name)?;
        if entry.shape == *shape && entry.dtype == Dtype::F32 {
            return Ok(());
        }
        let (found, dtype) = (&entry.shape, entry.dtype);
        let what = format!("`{}` is {dtype} {found:?}, expected F32 {shape:?}", which.key(name));
        Err(unusable(self.0.path(), &what))
    }

    fn entry(&self, which: OptimizerTensor, name: &str) -> Result<&Entry> {
        let key = which.key(name);
        let entry = self.0.tensors().get(&key);
        entry.ok_or_else(|| unusable(self.0.path(), &format!("no `{key}`")))
    }

    /// Whether a parameter has a tensor of the kind `which`.
    pub(crate) fn has(&self, which: OptimizerTensor, name: &str) -> bool {
        self.0.tensors().contains_key(&which.key(name))
    }

    /// Some elements of a parameter's tensor of the kind `which`, f32, flat.
    pub(crate) fn elements(
        &self,
        which: OptimizerTensor,
        name: &str,
        runs: &Runs,
    ) -> Result<Tensor> {
        let entry = self.entry(which, name)?;
        Ok(annulus_model::elements(&self.0, &which.key(name), entry, runs)?)
    }
}

fn unusable(path: &Path, what: &str) -> TrainError {
    TrainError::Checkpoint {
        message: format!("`{}` cannot be used: {what}", path.display()),
        hint: None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn state(step: u64) -> State {
        State {
            version: VERSION,
            step,
            tokens: 0,
            moments: None,
            data: String::new(),
            experiment: String::new(),
            model: None,
            base: None,
        }
    }

    /// A run goes on while another program reads its folder, and keeps one checkpoint.
    #[test]
    fn a_checkpoint_that_is_deleted_while_it_is_read_is_not_a_damaged_one() {
        let run = tempfile::tempdir().unwrap();
        let folder = |step| checkpoint_folder(run.path(), step);
        fs::create_dir(folder(1)).unwrap();
        let mut newest = 1;
        let mut open = |path: &Path| {
            if newest < 4 {
                fs::create_dir(folder(newest + 1)).unwrap();
                fs::remove_dir(path).unwrap();
                newest += 1;
                return Err(Refusal::damaged(HASHES, "there is none".to_owned()));
            }
            Ok(state(newest))
        };
        let (found, warnings) = listed(run.path(), LISTS, &mut open).unwrap();
        assert_eq!(found.map(|found| found.state.step), Some(4));
        assert_eq!(warnings, [""; 0]);
        // One that is there and not whole is refused as before.
        let mut open = |_: &Path| Err(Refusal::damaged(HASHES, "there is none".to_owned()));
        assert_eq!(listed(run.path(), LISTS, &mut open).unwrap_err().exit_code(), 4);
    }
}
