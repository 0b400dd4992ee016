//! Which model is asked: an experiment's, a run's, a checkpoint's, or that of a Hugging Face folder.

use std::path::{Path, PathBuf};

use annulus_comm::World;
use annulus_evaluation::Subject;
use annulus_experiment::{ModelSource, Override, parse, quoted, read_config, read_experiment};
use annulus_train::{
    Opened, RESOLVED, Setup, alike, experiment_of, is_run, resolved_text, saved_step,
};

use crate::experiment_file::{ExperimentFile, replaced};
use crate::failure::{DATA, Failure};
use crate::processes::{self, End};
use crate::{check, hub, print};

/// The longest sequence that a model is asked for where nothing says a length.
const LENGTH: usize = 4096;

/// An experiment's text, and the checkpoints whose weights are meant; none: those of the experiment's model.
struct Named {
    file: ExperimentFile,
    text: String,
    checkpoints: Option<PathBuf>,
}

/// The model that `path` names, opened to be asked by the processes of `world`.
pub(crate) fn subject(
    path: &Path,
    replacements: &[Override],
    verify_cache: bool,
    world: &World,
) -> Result<Subject, End> {
    let lead = || {
        let Named { file, text, checkpoints } = named(path, replacements)?;
        let mut opened = check::opened_from(&file, &text)?;
        // Whoever asks has whole layers.
        opened.resolved.experiment.mesh.tensor = 1;
        let subject = open(opened, checkpoints.as_deref(), verify_cache, world)?;
        subject.warnings.iter().for_each(print::warn);
        let text = resolved_text(&subject.plan);
        Ok((subject, text))
    };
    let follow = |text: &str| {
        let Named { checkpoints, .. } = named(path, replacements)?;
        let opened = annulus_train::resolve(parse(processes::TOLD, text, &[])?, &mut hub::bring)?;
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
    // Reads every checkpoint whole: only where it matters.
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
    if path.to_str().is_some_and(ModelSource::is_of_hub) || path.join("config.json").is_file() {
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

/// A folder of weights: a checkpoint of a run, or one of nobody's.
fn of_weights(
    path: &Path,
    file: &dyn Fn(&Path, Option<Override>) -> ExperimentFile,
) -> Result<Named, Failure> {
    let Some(text) = experiment_of(path)? else {
        let text = of_model(path)?;
        return Ok(Named { file: file(path, None), text, checkpoints: None });
    };
    // Evaluations of a checkpoint lie in its run's folder, which may have been moved since.
    let run = path.parent().filter(|run| !run.as_os_str().is_empty());
    let file = file(&path.join(RESOLVED), Some(output(run.unwrap_or(Path::new(".")))));
    Ok(Named { file, text, checkpoints: Some(path.to_owned()) })
}

fn output(run: &Path) -> Override {
    replaced("output", &run.display().to_string())
}

/// The experiment that asks a model of nobody's run: it reads what `data.path` on the command line names.
fn of_model(path: &Path) -> Result<String, Failure> {
    let folder = hub::folder(path)?;
    let shape = read_config(&folder).map_err(|problems| Failure { code: DATA, problems })?;
    let tokens = shape.max_position_embeddings.map_or(LENGTH, |most| most.min(LENGTH));
    let stem =
        path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let plain =
        |letter: char| if letter.is_ascii_alphanumeric() || letter == '-' { letter } else { '-' };
    let name: String = stem.chars().map(plain).collect();
    let path = quoted(&path.display().to_string());
    Ok(format!(
        "name: {}\nmodel: {{ path: {path}, allow_longer: true }}\ndata: {{ tokens: {tokens} }}\n\
         optimizer: {{ learning_rate: 1e-4 }}\nschedule: {{ steps: 1 }}\n",
        quoted(&format!("evaluation-of-{}", name.trim_matches('-')))
    ))
}
