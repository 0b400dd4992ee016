//! Writing checkpoints.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use annulus_experiment::{ModelSource, Plan, write_adapter, write_config};
use annulus_model::{Weights, WeightsError};
use candle_core::{DType, Tensor};

use super::hashes::Hashes;
use super::{HASHES, LATEST, OPTIMIZER, STATE, State, steps};
use crate::folder::{failure, sync_folder, temporary, write_atomically};
use crate::parameters::{Optimizer, Parameters};
use crate::{Result, TrainError};

/// Larger models are cut into several files.
const SHARD_BYTES: u64 = 5 << 30;
/// The tokenizer, under the name that `transformers` looks for.
const TOKENIZER: &str = "tokenizer.json";
/// What may lie beside it.
const BESIDE_TOKENIZER: [&str; 3] =
    ["tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"];

/// What a checkpoint is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Saved<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) parameters: &'a Parameters,
    pub(crate) optimizer: &'a Optimizer,
    pub(crate) state: &'a State,
}

/// Writes `output/step-N`, whole or not at all, and points `LATEST` at it.
pub(crate) fn save(output: &Path, saved: Saved<'_>) -> Result<PathBuf> {
    let name = format!("step-{}", saved.state.step);
    let folder = output.join(&name);
    let unfinished = temporary(&folder);
    let written = fs::create_dir(&unfinished)
        .map_err(|error| failure("create", &unfinished, &error))
        .and_then(|()| write(&unfinished, saved))
        .and_then(|()| {
            commit(output, &unfinished, &folder).map_err(|e| failure("write", &folder, &e))
        });
    if let Err(error) = written {
        // The first error says what is wrong; what remains is swept at the next start.
        let _ = fs::remove_dir_all(&unfinished);
        return Err(error);
    }
    Ok(folder)
}

fn commit(output: &Path, unfinished: &Path, folder: &Path) -> io::Result<()> {
    sync_folder(unfinished)?;
    if folder.exists() {
        // Refused at the start: otherwise the run would have gone on from it.
        fs::remove_dir_all(folder)?;
    }
    fs::rename(unfinished, folder)?;
    sync_folder(output)?;
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    write_atomically(&output.join(LATEST), format!("{name}\n").as_bytes())
}

fn write(folder: &Path, saved: Saved<'_>) -> Result<()> {
    let weights = &saved.parameters.weights;
    if saved.plan.experiment.lora.is_some() {
        let trained = |name: &str| Some((name.to_owned(), weights.get(name)?.clone()));
        let trained = saved.parameters.trained().filter_map(trained).collect();
        let tied = saved.plan.shape.tie_word_embeddings;
        annulus_model::save_adapter(folder, &trained, tied).map_err(unwritten)?;
    } else {
        annulus_model::save(folder, weights, SHARD_BYTES).map_err(unwritten)?;
    }
    let optimizer = folder.join(OPTIMIZER);
    write_optimizer(&optimizer, saved)?;
    let failed = |error| failure("write", folder, &error);
    write_texts(folder, saved).map_err(failed)?;
    let hashes = Hashes::of(folder).map_err(failed)?;
    let text = serde_json::to_vec_pretty(&hashes).map_err(|e| failed(e.into()))?;
    let path = folder.join(HASHES);
    fs::write(&path, text).and_then(|()| fs::File::open(&path)?.sync_all()).map_err(failed)
}

/// Moments by name and, where weights are narrower, f32 masters.
fn write_optimizer(path: &Path, saved: Saved<'_>) -> Result<()> {
    let mut tensors: BTreeMap<String, &Tensor> = BTreeMap::new();
    for (name, moments) in &saved.optimizer.moments {
        tensors.insert(format!("first.{name}"), &moments.first);
        tensors.insert(format!("second.{name}"), &moments.second);
    }
    for (name, master) in masters(saved.parameters, saved.optimizer) {
        tensors.insert(format!("master.{name}"), master);
    }
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), *tensor)).collect();
    annulus_model::save_file(path, &tensors).map_err(unwritten)
}

/// Weights that cannot be saved are no fault of the weights.
fn unwritten(error: WeightsError) -> TrainError {
    match error {
        WeightsError::Write { file, source } => failure("write", &file, &source),
        error => TrainError::Checkpoint { message: error.to_string(), hint: error.hint() },
    }
}

fn masters<'a>(parameters: &Parameters, optimizer: &'a Optimizer) -> Vec<(&'a String, &'a Tensor)> {
    let narrow = |weights: &Weights, name| weights[name].dtype() != DType::F32;
    optimizer.masters.iter().filter(|(name, _)| narrow(&parameters.weights, *name)).collect()
}

fn write_texts(folder: &Path, saved: Saved<'_>) -> io::Result<()> {
    let experiment = &saved.plan.experiment;
    let config = write_config(&saved.plan.shape, experiment.model.dtype);
    fs::write(folder.join("config.json"), config)?;
    if let Some(lora) = &experiment.lora {
        let (base, revision) = name_of(&experiment.model.source)?;
        let adapter = write_adapter(lora, &base, revision.as_deref(), &saved.plan.shape);
        fs::write(folder.join("adapter_config.json"), adapter)?;
    }
    write_generation(folder, &experiment.model.source)?;
    let tokenizer = Path::new(&experiment.data.tokenizer);
    // `bytes` is no file, and needs none.
    if tokenizer.is_file() {
        fs::copy(tokenizer, folder.join(TOKENIZER))?;
        for name in BESIDE_TOKENIZER {
            let beside = tokenizer.with_file_name(name);
            if beside.is_file() {
                fs::copy(beside, folder.join(name))?;
            }
        }
    }
    fs::write(folder.join(STATE), serde_json::to_vec_pretty(saved.state)?)
}

/// What PEFT finds a model by: its name and revision on the hub, or its folder from anywhere on this machine.
fn name_of(source: &ModelSource) -> io::Result<(String, Option<String>)> {
    match source {
        ModelSource::Folder { hub: Some(hub), .. } => {
            let name = hub.strip_prefix("hf://").unwrap_or(hub);
            let (name, revision) = name.split_once('@').unwrap_or((name, "main"));
            Ok((name.to_owned(), Some(revision.to_owned())))
        }
        ModelSource::Folder { path, .. } => {
            Ok((std::path::absolute(path)?.display().to_string(), None))
        }
        ModelSource::Inline(_) => Ok((String::new(), None)),
    }
}

/// How to generate is the business of the model that was trained on, where there is one.
fn write_generation(folder: &Path, source: &ModelSource) -> io::Result<()> {
    const NAME: &str = "generation_config.json";
    match source {
        ModelSource::Folder { path, .. } if path.join(NAME).is_file() => {
            fs::copy(path.join(NAME), folder.join(NAME)).map(drop)
        }
        _ => fs::write(folder.join(NAME), "{\n  \"_from_model_config\": true\n}\n"),
    }
}

/// Deletes the oldest checkpoints but `keep`, and never `verified`, which is known to be good.
pub(crate) fn prune(output: &Path, keep: usize, verified: u64) -> Result<()> {
    let failed = |error| failure("delete a checkpoint of", output, &error);
    let mut steps = steps(output).map_err(failed)?;
    // Later ones were refused at the start: they are no checkpoints.
    steps.retain(|&step| step <= verified);
    let surplus = steps.len().saturating_sub(keep.max(1));
    for step in steps.into_iter().take(surplus).filter(|&step| step != verified) {
        let folder = output.join(format!("step-{step}"));
        // Renamed first: a folder that is half deleted must not look like a checkpoint.
        let going = temporary(&folder);
        fs::rename(&folder, &going).and_then(|()| fs::remove_dir_all(&going)).map_err(failed)?;
    }
    Ok(())
}
