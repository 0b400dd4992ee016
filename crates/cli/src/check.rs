//! `annulus check`, `schema`: what can be said of an experiment without running it.

use std::path::Path;

use annulus_data::{DataError, Needles, Recall, Source, Tokenizer, byte_tokenizer};
use annulus_experiment::{
    Experiment, Format, ModelSource, Plan, Problem, WeightsFrom, parse, read_config,
    read_experiment,
};
use annulus_train::{TrainError, device_memory};
use serde_json::json;

use crate::Done;
use crate::arguments::{File, Reading};
use crate::failure::{DATA, Failure, USAGE};
use crate::hub::{self, TOKENIZER};
use crate::{print, shown};

/// The word for a tokenizer that is none.
const BYTES: &str = "bytes";

pub(crate) fn check(arguments: &Reading) -> Done {
    let checked = on_its_device(&arguments.file).and_then(|(experiment, vocabulary)| {
        data_is_there(&experiment)?;
        let name = experiment.name.clone();
        fits(&Plan::all(experiment, vocabulary)?)?;
        Ok(name)
    });
    if !arguments.json {
        print::line(&format!("{}: ok", checked?))?;
        return Ok(0);
    }
    let (code, problems) = match checked {
        Ok(_) => (0, Vec::new()),
        Err(Failure { code, problems }) => (code, problems.0),
    };
    let problems: Vec<_> = problems
        .into_iter()
        .map(|Problem { message, place, hint }| {
            let [place, hint] = [place, hint].map(|text| text.as_deref().map(shown::message));
            json!({"message": shown::message(&message), "place": place, "hint": hint})
        })
        .collect();
    print::line(&json!({"ok": code == 0, "problems": problems}).to_string())?;
    Ok(code)
}

pub(crate) fn schema(markdown: bool) -> Done {
    let schema = || format!("{:#}", annulus_experiment::schema());
    print::line(&if markdown { annulus_experiment::page() } else { schema() })?;
    Ok(0)
}

/// Refuses what `train` would refuse for its memory; what is for a described cluster is not for this machine.
pub(crate) fn fits(plans: &[Plan]) -> Result<(), Failure> {
    let mut here = plans.iter().filter(|plan| plan.experiment.mesh.cluster.is_none());
    here.find_map(Plan::misfit).map_or(Ok(()), |misfit| Err(TrainError::from(misfit).into()))
}

fn data_is_there(experiment: &Experiment) -> Result<(), Failure> {
    let Some(path) = &experiment.data.path else { return Ok(()) };
    let found = std::fs::metadata(path);
    found.map_err(|source| DataError::Read { path: path.clone(), source })?;
    annulus_train::excluded(std::slice::from_ref(path), &experiment.output)?;
    Ok(())
}

/// The experiment's plan, of several stages the last's; a strategy that is left open is chosen by what machines like this one achieve.
pub(crate) fn read(file: &File) -> Result<Plan, Failure> {
    let (experiment, vocabulary) = on_its_device(file)?;
    Ok(Plan::new(experiment, vocabulary)?)
}

/// The same where a strategy that is left open is chosen by what this machine achieves now, or as before in the run's folder.
pub(crate) fn measured(file: &File) -> Result<Plan, Failure> {
    let (experiment, vocabulary) = on_its_device(file)?;
    Ok(annulus_train::plan(experiment, vocabulary, annulus_machine::cores())?)
}

/// The same of every stage.
pub(crate) fn stages(file: &File) -> Result<Vec<Plan>, Failure> {
    stages_of(file, &read_experiment(&file.file)?)
}

/// The same of a file whose text was read already: a pipe can be read but once.
pub(crate) fn stages_of(file: &File, text: &str) -> Result<Vec<Plan>, Failure> {
    let (experiment, vocabulary) = on_its_device_of(file, text)?;
    Ok(annulus_train::plans(experiment, vocabulary, annulus_machine::cores())?)
}

/// The same of the stage that a run's last checkpoint is of.
pub(crate) fn reached(file: &File, run: &Path) -> Result<Plan, Failure> {
    let (experiment, vocabulary) = on_its_device(file)?;
    let plans = annulus_train::plans(experiment, vocabulary, annulus_machine::cores())?;
    // Reads every checkpoint whole: only where it matters.
    let step = if plans.len() > 1 { annulus_train::last_saved(run)? } else { None };
    Ok(stage_of(plans, step.unwrap_or(u64::MAX)))
}

/// Of all stages the one whose weights a run has after `step` steps.
pub(crate) fn stage_of(mut plans: Vec<Plan>, step: u64) -> Plan {
    let number = plans[0].experiment.number_at(step);
    plans.swap_remove(number)
}

fn on_its_device(file: &File) -> Result<(Experiment, Option<usize>), Failure> {
    on_its_device_of(file, &read_experiment(&file.file)?)
}

fn on_its_device_of(file: &File, text: &str) -> Result<(Experiment, Option<usize>), Failure> {
    let (mut experiment, vocabulary) = experiment_of(file, text)?;
    experiment.host.device = device_memory(experiment.device);
    Ok((experiment, vocabulary))
}

/// The experiment, and what its tokenizer has, where it has one.
pub(crate) fn experiment(file: &File) -> Result<(Experiment, Option<usize>), Failure> {
    experiment_of(file, &read_experiment(&file.file)?)
}

fn experiment_of(file: &File, text: &str) -> Result<(Experiment, Option<usize>), Failure> {
    let name = file.file.display().to_string();
    let experiment = hub::described(parse(&name, text, &file.replacements)?)?;
    if let ModelSource::Folder { path, .. } = &experiment.model.source {
        // Wrong by itself, whatever the experiment says: another exit code.
        read_config(path).map_err(|problems| Failure { code: DATA, problems })?;
    }
    let experiment = with_its_tokenizer(experiment.of_model()?)?;
    let vocabulary = match experiment.data.format {
        Format::Text | Format::Jsonl | Format::Chat => {
            let tokenizer = Tokenizer::open(&experiment.data.tokenizer)?;
            if let ModelSource::Folder { path, .. } = &experiment.model.source {
                let special = read_config(path)?.special_tokens;
                let ids = |name| special.get(name).map(ids).unwrap_or_default();
                let [begin, end] = [ids("bos_token_id"), ids("eos_token_id")];
                tokenizer.check_special(&path.join("config.json"), &begin, &end)?;
            }
            Some(tokenizer.vocabulary())
        }
        Format::Recall => {
            let data = &experiment.data;
            Some(Recall::new(data.tokens, data.batch, experiment.seed)?.vocabulary())
        }
        Format::Needles => {
            let data = &experiment.data;
            Some(Needles::new(data.tokens, data.batch, experiment.seed)?.vocabulary())
        }
        Format::Batches => None,
    };
    Ok((experiment, vocabulary))
}

/// A pretrained model reads with the tokenizer in its folder, where no other is written.
fn with_its_tokenizer(mut experiment: Experiment) -> Result<Experiment, Failure> {
    let Experiment { data, model, places, .. } = &mut experiment;
    let ModelSource::Folder { path, hub, weights: WeightsFrom::Pretrained } = &model.source else {
        return Ok(experiment);
    };
    let own = path.join(TOKENIZER);
    if std::fs::symlink_metadata(&own).is_ok() {
        // Somebody else may have made the folder: what it holds is copied into every checkpoint.
        let read = |source| DataError::Read { path: own.clone(), source };
        annulus_files::within(path, TOKENIZER).map_err(read)?;
    }
    let reads = matches!(data.format, Format::Text | Format::Jsonl | Format::Chat);
    if !reads || data.tokenizer != BYTES || !own.is_file() || is_of_bytes(&own) {
        return Ok(experiment);
    }
    let own = own.display().to_string();
    if places.contains("data.tokenizer") {
        let message = format!("`data.tokenizer` is `{BYTES}`, but the model reads with `{own}`");
        let problem = places.problem("data.tokenizer", message);
        let hint = format!("drop it, or write `{own}`; with `model.weights: random` any will do");
        return Err(Failure { code: USAGE, problems: problem.hint(hint).into() });
    }
    data.tokenizer_hub.clone_from(hub);
    data.tokenizer = own;
    Ok(experiment)
}

/// The largest `tokenizer.json` of bytes, in bytes, is far smaller.
const LARGEST: u64 = 1 << 20;

/// Whether it is what is written of bytes.
fn is_of_bytes(path: &Path) -> bool {
    let Ok(text) = annulus_files::read_to_string(path, LARGEST) else { return false };
    // Without and with what stands between documents.
    [256, 257].into_iter().filter_map(byte_tokenizer).any(|bytes| bytes.text == text)
}

/// One id, or a list of them.
fn ids(value: &serde_json::Value) -> Vec<u32> {
    let all = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    let id = |value: &serde_json::Value| u32::try_from(value.as_u64()?).ok();
    all.iter().filter_map(id).collect()
}
