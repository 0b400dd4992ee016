//! Opens the model that `evaluate` or `generate` names: an experiment's, a run's, a checkpoint's, or a Hugging Face folder's.

use std::path::{Path, PathBuf};

use annulus_comm::World;
use annulus_evaluation::Subject;
use annulus_experiment::{
    Experiment, ModelSource, Override, has_saved_config, parse, quoted, quoted_path, read_config,
    read_experiment, replacing,
};
use annulus_train::{
    Opened, RESOLVED, Saved, Setup, check_processes_agree, checkpoint_folder, is_run, resolve,
    resolve_trained, resolved_text, step_of,
};

use crate::experiment_file::{ExperimentFile, replaced_path};
use crate::failure::Failure;
use crate::processes::{self, JobError};
use crate::{check, hub, print};

/// The longest sequence for a Hugging Face model, unless `data.tokens` is set.
const LENGTH: usize = 4096;

/// An experiment's text, and the checkpoint with the weights; `None` for the weights that the experiment names.
#[derive(Clone)]
struct Named {
    file: ExperimentFile,
    text: String,
    checkpoint: Option<Saved>,
}

impl Named {
    /// Whether the checkpoint, of the run in the folder `run`, has been removed since.
    fn is_gone(&self, run: &Path) -> bool {
        let of_run = self.checkpoint.as_ref().filter(|_| is_run(run));
        of_run.is_some_and(|saved| !checkpoint_folder(run, saved.step()).exists())
    }
}

/// Opens what `find` finds; looks once more where it `is_gone` by then: a run that trains removes checkpoints when it has saved newer ones.
fn newest<F: Clone, T>(
    find: impl Fn() -> Result<F, Failure>,
    is_gone: impl Fn(&F) -> bool,
    open: impl Fn(F) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let found = find()?;
    match open(found.clone()) {
        Err(_) if is_gone(&found) => open(find()?),
        opened => opened,
    }
}

/// Opens the model that `path` names in the processes of `world`.
pub(crate) fn subject(
    path: &Path,
    replacements: &[Override],
    verify_cache: bool,
    world: &World,
) -> Result<Subject, JobError> {
    let opened = |Named { file, text, checkpoint }: Named| {
        let experiment = parse(&file.file.display().to_string(), &text, &file.replacements)?;
        let mut opened = resolved(experiment, checkpoint.as_ref())?;
        // Evaluation and generation hold whole layers.
        opened.resolved.experiment.mesh.tensor = 1;
        open(opened, checkpoint, verify_cache, world)
    };
    let lead = || {
        let subject = newest(|| named(path, replacements), |named| named.is_gone(path), opened)?;
        subject.warnings.iter().for_each(print::warn);
        let text = resolved_text(&subject.plan);
        // Which checkpoint of a run it is: for other processes another may be the newest.
        let step = if is_run(path) { subject.step.to_string() } else { String::new() };
        Ok((subject, format!("{step}\n{text}")))
    };
    let follow = |told: &str| {
        let (step, text) = told.split_once('\n').unwrap_or_default();
        let own =
            step.parse().map_or_else(|_| path.to_owned(), |step| checkpoint_folder(path, step));
        let Named { checkpoint, .. } = named(&own, replacements)?;
        let experiment = parse(processes::FROM_PROCESS_0, text, &[])?;
        open(resolved(experiment, checkpoint.as_ref())?, checkpoint, verify_cache, world)
    };
    let subject = processes::led(world, lead, follow)?;
    let tokenizer = subject.tokenizer().map(|tokenizer| tokenizer.fingerprint().to_vec());
    let read = tokenizer.ok().map(|tokenizer| ("the tokenizer", tokenizer));
    let weights = Some(subject.weights.first());
    check_processes_agree(world, Some(&subject.plan), weights, read.as_slice())?;
    Ok(subject)
}

/// The experiment with its model, which is the checkpoint's own if there is one.
fn resolved(experiment: Experiment, checkpoint: Option<&Saved>) -> Result<Opened, Failure> {
    match checkpoint {
        Some(checkpoint) => resolve_trained(experiment, checkpoint, &mut hub::description),
        None => resolve(experiment, &mut hub::description),
    }
}

fn open(
    mut opened: Opened,
    checkpoint: Option<Saved>,
    verify_cache: bool,
    world: &World,
) -> Result<Subject, Failure> {
    processes::place(world, &mut opened.resolved.experiment)?;
    let plans = opened.plans(annulus_machine::cores())?;
    let step = checkpoint.as_ref().map_or(u64::MAX, Saved::step);
    let plan = check::phase_at(plans, step);
    if world.process() == 0 {
        print::warn_of_device(&plan.experiment.device);
    }
    if checkpoint.is_none() {
        hub::weights(&plan.experiment, verify_cache)?;
    }
    let setup = Setup::on_its_device_over(world, &plan, annulus_machine::cores())?;
    Ok(Subject::open(&plan, setup, checkpoint, opened.tokenizer)?)
}

fn named(path: &Path, replacements: &[Override]) -> Result<Named, Failure> {
    if has_saved_config(path) || path.to_str().is_some_and(ModelSource::is_of_hub) {
        return of_weights(path, replacements);
    }
    if !path.is_dir() {
        let file = ExperimentFile { file: path.to_owned(), replacements: replacements.to_vec() };
        return Ok(Named { file, text: read_experiment(path)?, checkpoint: None });
    }
    if !is_run(path) {
        let message = format!(
            "`{}` is neither a run's folder (there is no `{RESOLVED}`) nor a model's (there is no `config.json`)",
            path.display()
        );
        return Err(Failure::usage(
            message,
            "give a run, a `step-N` in it, a Hugging Face folder or an experiment",
        ));
    }
    let resolved = path.join(RESOLVED);
    let text = read_experiment(&resolved)?;
    let file = of_run(&resolved, path, &text, replacements);
    Ok(Named { file, text, checkpoint: Some(Saved::open(path)?) })
}

/// `resolved`, whose text is that of a run in the folder `run`, with the keys that are replaced in it.
fn of_run(resolved: &Path, run: &Path, text: &str, replacements: &[Override]) -> ExperimentFile {
    let output = replaced_path("output", run);
    let replacements = replacing(text, replacements).into_iter().chain([output]).collect();
    ExperimentFile { file: resolved.to_owned(), replacements }
}

/// A folder of weights: a checkpoint of a run, or a Hugging Face model.
fn of_weights(path: &Path, replacements: &[Override]) -> Result<Named, Failure> {
    let Some(checkpoint) = Saved::in_folder(path)? else {
        let text = of_model(path)?;
        // The text is in no file: errors name no line of it.
        let file = ExperimentFile { file: PathBuf::new(), replacements: replacements.to_vec() };
        return Ok(Named { file, text, checkpoint: None });
    };
    // Evaluations of a checkpoint are written to its run's folder, which may have been moved; those of a copy into the copy.
    let run = if step_of(path).is_some() { path.parent().unwrap_or(path) } else { path };
    let run = if run.as_os_str().is_empty() { Path::new(".") } else { run };
    let text = checkpoint.experiment().to_owned();
    let file = of_run(&path.join(RESOLVED), run, &text, replacements);
    Ok(Named { file, text, checkpoint: Some(checkpoint) })
}

/// The text of an experiment for a Hugging Face model; the command line names its data by `data.path`.
fn of_model(path: &Path) -> Result<String, Failure> {
    let folder = hub::folder(path)?;
    let shape = read_config(&folder).map_err(Failure::data)?;
    let tokens = shape.max_position_embeddings.map_or(LENGTH, |most| most.min(LENGTH));
    let stem =
        path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let plain =
        |letter: char| if letter.is_ascii_alphanumeric() || letter == '-' { letter } else { '-' };
    let name: String = stem.chars().map(plain).collect();
    let path = quoted_path(path);
    Ok(format!(
        "name: {}\nmodel: {{ path: {path}, allow_longer: true }}\ndata: {{ tokens: {tokens} }}\n\
         optimizer: {{ learning_rate: 1e-4 }}\nschedule: {{ steps: 1 }}\n",
        quoted(&format!("evaluation-of-{}", name.trim_matches('-')))
    ))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_checkpoint_that_is_removed_before_it_is_read_is_looked_for_once_more() {
        let looked = Cell::new(0);
        let opened = |gone: u64| {
            let find = || {
                looked.set(looked.get() + 1);
                Ok(looked.get())
            };
            let open = |found| {
                if found > gone { Ok(found) } else { Err(Failure::internal("it is not there")) }
            };
            newest(find, |found| *found <= 1, open)
        };
        assert_eq!(opened(1).expect("the second is there"), 2);
        // What is there and cannot be read stays an error.
        assert!(opened(9).is_err() && looked.get() == 3);
    }
}
