//! Opens the model that `evaluate` or `generate` names: an experiment's, a run's, a checkpoint's, or a Hugging Face folder's.

use std::path::{Path, PathBuf};

use annulus_comm::World;
use annulus_evaluation::Subject;
use annulus_experiment::{
    ModelSource, Override, has_saved_config, parse, quoted, quoted_path, read_config,
    read_experiment,
};
use annulus_train::{
    Opened, RESOLVED, Setup, alike, experiment_of, is_run, resolved_text, saved_step,
};

use crate::experiment_file::{ExperimentFile, replaced_path};
use crate::failure::{DATA, Failure};
use crate::processes::{self, JobError};
use crate::{check, hub, print};

/// The longest sequence for a Hugging Face model, unless `data.tokens` is set.
const LENGTH: usize = 4096;

/// An experiment's text, and the folder of checkpoints with the weights; `None` for the weights that the experiment names.
struct Named {
    file: ExperimentFile,
    text: String,
    checkpoints: Option<PathBuf>,
}

/// Opens the model that `path` names in the processes of `world`.
pub(crate) fn subject(
    path: &Path,
    replacements: &[Override],
    verify_cache: bool,
    world: &World,
) -> Result<Subject, JobError> {
    let lead = || {
        let Named { file, text, checkpoints } = named(path, replacements)?;
        let mut opened = check::opened_from(&file, &text)?;
        // Evaluation and generation hold whole layers.
        opened.resolved.experiment.mesh.tensor = 1;
        let subject = open(opened, checkpoints.as_deref(), verify_cache, world)?;
        subject.warnings.iter().for_each(print::warn);
        let text = resolved_text(&subject.plan);
        Ok((subject, text))
    };
    let follow = |text: &str| {
        let Named { checkpoints, .. } = named(path, replacements)?;
        let opened = annulus_train::resolve(
            parse(processes::FROM_PROCESS_0, text, &[])?,
            &mut hub::description,
        )?;
        open(opened, checkpoints.as_deref(), verify_cache, world)
    };
    let subject = processes::led(world, lead, follow)?;
    alike(world, Some(&subject.plan), Some(subject.weights.first()))?;
    Ok(subject)
}

fn open(
    mut opened: Opened,
    checkpoints: Option<&Path>,
    verify_cache: bool,
    world: &World,
) -> Result<Subject, Failure> {
    processes::place(world, &mut opened.resolved.experiment)?;
    let plans = opened.plans(annulus_machine::cores())?;
    // This reads every checkpoint whole, so it is done only if phases differ.
    let step = match checkpoints {
        Some(folder) if plans.len() > 1 => saved_step(folder)?,
        _ => None,
    };
    let plan = check::phase_at(plans, step.unwrap_or(u64::MAX));
    if world.process() == 0 {
        print::warn_of_device(&plan.experiment.device);
    }
    if checkpoints.is_none() {
        hub::weights(&plan.experiment, verify_cache)?;
    }
    let setup = Setup::on_its_device_over(world, &plan, processes::cores(world))?;
    Ok(Subject::open(&plan, setup, checkpoints, opened.tokenizer)?)
}

fn named(path: &Path, replacements: &[Override]) -> Result<Named, Failure> {
    let file = |file: &Path, more: Option<Override>| ExperimentFile {
        file: file.to_owned(),
        replacements: replacements.iter().cloned().chain(more).collect(),
    };
    if has_saved_config(path) || path.to_str().is_some_and(ModelSource::is_of_hub) {
        return of_weights(path, &file);
    }
    if !path.is_dir() {
        return Ok(Named {
            file: file(path, None),
            text: read_experiment(path)?,
            checkpoints: None,
        });
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
    let file = file(&resolved, Some(output(path)));
    Ok(Named { file, text, checkpoints: Some(path.to_owned()) })
}

/// A folder of weights: a checkpoint of a run, or a Hugging Face model.
fn of_weights(
    path: &Path,
    file: &dyn Fn(&Path, Option<Override>) -> ExperimentFile,
) -> Result<Named, Failure> {
    let Some(text) = experiment_of(path)? else {
        let text = of_model(path)?;
        return Ok(Named { file: file(path, None), text, checkpoints: None });
    };
    // Evaluations of a checkpoint are written to its run's folder, which may have been moved; those of a copy into the copy.
    let is_in_run =
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-"));
    let run = if is_in_run { path.parent().unwrap_or(path) } else { path };
    let run = if run.as_os_str().is_empty() { Path::new(".") } else { run };
    let file = file(&path.join(RESOLVED), Some(output(run)));
    Ok(Named { file, text, checkpoints: Some(path.to_owned()) })
}

fn output(run: &Path) -> Override {
    replaced_path("output", run)
}

/// The text of an experiment for a Hugging Face model; the command line names its data by `data.path`.
fn of_model(path: &Path) -> Result<String, Failure> {
    let folder = hub::folder(path)?;
    let shape = read_config(&folder).map_err(|problems| Failure { code: DATA, problems })?;
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
