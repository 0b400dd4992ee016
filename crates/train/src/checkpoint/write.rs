//! Writing checkpoints.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use annulus_comm::{Communicator, Label};
use annulus_experiment::{Experiment, ModelSource, WeightsFrom, write_adapter, write_config};
use annulus_files::PendingFolder;
use annulus_model::{Read, Weights, WeightsError};
use annulus_plan::Plan;
use candle_core::Tensor;

use super::hashes::Hashes;
use super::read::named;
use super::tokenizer::missing;
use super::{Contents, HASHES, LATEST, OPTIMIZER, STATE, State, steps};
use crate::run::folder::{failure, write_atomically};
use crate::{Result, TrainError};

/// Larger models are cut into several files.
const SHARD_BYTES: u64 = 5 << 30;
/// The tokenizer, under the name that `transformers` looks for.
const TOKENIZER: &str = "tokenizer.json";
/// The largest file that is copied along, in bytes: a tokenizer's.
const LARGEST: u64 = 1 << 26;
/// What may lie beside it.
const BESIDE_TOKENIZER: [&str; 3] =
    ["tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"];

/// What a checkpoint is made of.
pub(crate) struct Saved<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) contents: &'a mut dyn Contents,
    pub(crate) state: &'a State,
    /// The rank that writes; none where a thread does that is no rank's.
    pub(crate) comm: Option<&'a dyn Communicator>,
}

impl Saved<'_> {
    /// What is written now, for the flight record.
    fn note(&self, pass: &'static str) {
        if let Some(comm) = self.comm {
            comm.note(Label { step: self.state.step, pass, ..Label::default() });
        }
    }
}

/// Writes `output/step-N`, whole or not at all, and points `LATEST` at it.
pub(crate) fn save(output: &Path, mut saved: Saved<'_>) -> Result<PathBuf> {
    let step = saved.state.step;
    let folder = output.join(format!("step-{step}"));
    let failed = |error| failure("write", &folder, &error);
    let unfinished = PendingFolder::create(&folder).map_err(failed)?;
    write(unfinished.path(), &folder, &mut saved)?;
    saved.note("checkpoint, commit");
    let commit = || {
        if folder.is_dir() {
            // Refused at the start: otherwise the run would have gone on from it.
            annulus_files::remove(&folder)?;
        }
        unfinished.commit()
    };
    commit().map_err(failed)?;
    point(output, step)?;
    Ok(folder)
}

/// Makes `LATEST` name `output/step-N`. A run that was killed just before does it when it goes on.
pub(crate) fn point(output: &Path, step: u64) -> Result<()> {
    if named(output) == Some(step) {
        return Ok(());
    }
    let path = output.join(LATEST);
    write_atomically(&path, format!("step-{step}\n").as_bytes())
        .map_err(|error| failure("write", &path, &error))
}

/// Writes all files into `folder`, which is to become `named`: that is what errors call it.
fn write(folder: &Path, named: &Path, saved: &mut Saved<'_>) -> Result<()> {
    saved.note("checkpoint, weights");
    write_weights(folder, named, saved)?;
    saved.note("checkpoint, optimizer");
    let (kept, optimizer) = (saved.contents.optimizer(), folder.join(OPTIMIZER));
    reading(
        named,
        |name| saved.contents.of_optimizer(name),
        |read| annulus_model::save_file(&optimizer, &kept, read),
    )?;
    let failed = |error| failure("write", named, &error);
    saved.note("checkpoint, texts and hashes");
    write_texts(folder, saved).map_err(failed)?;
    let hashes = Hashes::of(folder).map_err(failed)?;
    let text = serde_json::to_vec_pretty(&hashes).map_err(|e| failed(e.into()))?;
    let path = folder.join(HASHES);
    fs::write(&path, text).and_then(|()| fs::File::open(&path)?.sync_all()).map_err(failed)
}

fn write_weights(folder: &Path, named: &Path, saved: &mut Saved<'_>) -> Result<()> {
    let weights = saved.contents.weights();
    if saved.plan.experiment.lora.is_none() {
        let write = |read: Read<'_>| annulus_model::save_by(folder, &weights, SHARD_BYTES, read);
        return reading(named, |name| saved.contents.of_weight(name), write).map(drop);
    }
    let mut trained = Weights::new();
    for one in weights {
        let slices = saved.contents.of_weight(&one.name)?;
        let slices =
            slices.iter().map(Tensor::flatten_all).collect::<candle_core::Result<Vec<_>>>()?;
        trained.insert(one.name, Tensor::cat(&slices, 0)?.reshape(one.shape)?);
    }
    let tied = saved.plan.shape.tie_word_embeddings;
    annulus_model::save_adapter(folder, &trained, tied).map_err(|error| unwritten(error, named))
}

/// Writes what `read` hands over; why it cannot counts for more than that nothing can be written then.
fn reading<T>(
    named: &Path,
    mut read: impl FnMut(&str) -> Result<Vec<Tensor>>,
    write: impl FnOnce(Read<'_>) -> std::result::Result<T, WeightsError>,
) -> Result<T> {
    let mut failed = None;
    let written = write(&mut |name| {
        read(name).map_err(|error| {
            failed = Some(error);
            io::Error::other("what is to be written is not there")
        })
    });
    match failed {
        Some(error) => Err(error),
        None => written.map_err(|error| unwritten(error, named)),
    }
}

/// Weights that cannot be saved are no fault of the weights.
fn unwritten(error: WeightsError, folder: &Path) -> TrainError {
    match error {
        WeightsError::Write { file, source } => {
            failure("write", &folder.join(file.file_name().unwrap_or_default()), &source)
        }
        error => TrainError::Checkpoint { message: error.to_string(), hint: error.hint() },
    }
}

fn write_texts(folder: &Path, saved: &Saved<'_>) -> io::Result<()> {
    let experiment = &saved.plan.experiment;
    let config = write_config(&saved.plan.shape, experiment.model.dtype);
    fs::write(folder.join("config.json"), config)?;
    if let Some(lora) = &experiment.lora {
        let (base, revision) = name_of(&experiment.model.source)?;
        let adapter = write_adapter(lora, &base, revision.as_deref(), &saved.plan.shape);
        fs::write(folder.join("adapter_config.json"), adapter)?;
    }
    write_generation(folder, &experiment.model.source)?;
    if let Some(tokenizer) = tokenizer_of(experiment) {
        annulus_files::copy(&tokenizer, &folder.join(TOKENIZER), LARGEST)?;
        let beside = tokenizer.parent().unwrap_or(Path::new(""));
        BESIDE_TOKENIZER.iter().try_for_each(|name| copied(beside, name, folder).map(drop))?;
    }
    for (name, text) in missing(folder, experiment, &saved.plan.shape)? {
        fs::write(folder.join(name), text)?;
    }
    fs::write(folder.join(STATE), serde_json::to_vec_pretty(saved.state)?)
}

/// The tokenizer.json that is kept with the weights: the one that texts are read by; where that is bytes, the
/// model's own, which has its chat template.
fn tokenizer_of(experiment: &Experiment) -> Option<PathBuf> {
    let named = PathBuf::from(&experiment.data.tokenizer);
    let own = match &experiment.model.source {
        ModelSource::Folder { path, weights: WeightsFrom::Pretrained, .. } => {
            annulus_files::within(path, TOKENIZER).ok()
        }
        _ => None,
    };
    if named.is_file() { Some(named) } else { own.filter(|own| own.is_file()) }
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

/// Copies `name` of a folder that somebody else may have made, if it is there; a link that leads out of the folder is
/// refused: what it leads to would be published with the checkpoint.
fn copied(from: &Path, name: &str, folder: &Path) -> io::Result<bool> {
    if fs::symlink_metadata(from.join(name)).is_err() {
        return Ok(false);
    }
    let named = |error: io::Error| {
        io::Error::new(error.kind(), format!("`{}`: {error}", from.join(name).display()))
    };
    let found = annulus_files::within(from, name).map_err(named)?;
    annulus_files::copy(&found, &folder.join(name), LARGEST).map_err(named)?;
    Ok(true)
}

/// How to generate is the business of the model that was trained on, where there is one.
fn write_generation(folder: &Path, source: &ModelSource) -> io::Result<()> {
    const NAME: &str = "generation_config.json";
    if let ModelSource::Folder { path, .. } = source
        && copied(path, NAME, folder)?
    {
        return Ok(());
    }
    fs::write(folder.join(NAME), "{\n  \"_from_model_config\": true\n}\n")
}

/// Deletes the oldest checkpoints but `keep`, and never `verified`, which is known to be good.
pub(crate) fn prune(output: &Path, keep: usize, verified: u64) -> Result<()> {
    let failed = |error| failure("delete a checkpoint of", output, &error);
    let mut steps = steps(output).map_err(failed)?;
    // Later ones were refused at the start: they are no checkpoints.
    steps.retain(|&step| step <= verified);
    let surplus = steps.len().saturating_sub(keep.max(1));
    for step in steps.into_iter().take(surplus).filter(|&step| step != verified) {
        annulus_files::remove(&output.join(format!("step-{step}"))).map_err(failed)?;
    }
    Ok(())
}
