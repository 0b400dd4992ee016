//! A run's model as a folder of its own, which `transformers` and other readers of its format load: it is written elsewhere and moved into
//! place only when it is whole.

mod card;

use crate::setup::saved::weights;
use std::fs;
use std::path::{Path, PathBuf};

use annulus_experiment::{ADAPTED, Experiment, ModelSource, Shape, WeightsFrom, read_saved_config};
use annulus_files::PendingFolder;
use annulus_files::hugging_face::{
    BESIDE_TOKENIZER, CONFIG, GENERATION_CONFIG, LARGEST, TOKENIZER, TOKENIZER_CONFIG,
};
use annulus_model::{Config, Llama, Weights, element_type};
use annulus_plan::mask_beyond_config;
use candle_core::DType;

use crate::checkpoint::{Found, for_both_versions, missing, named_by, templates, unwritten_in};
use crate::error::{failure, failure_in};
use crate::folder::lines::read_lines;
use crate::folder::manifest::Manifest;
use crate::folder::record::Record;
use crate::folder::write_atomically;
use crate::{Result, TrainError, model_config};

/// What names the folder that is written, for errors.
const OPTION: &str = "--out";
/// The files that are copied as they are, if a checkpoint has them.
const COPIED: [&str; 3] = [CONFIG, GENERATION_CONFIG, TOKENIZER];

/// A whole checkpoint, and the records of its run.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    step: u64,
    tokens: u64,
    experiment: Experiment,
    shape: Shape,
    manifest: Option<Manifest>,
    record: Record,
    warnings: Vec<String>,
}

impl Checkpoint {
    /// Opens the checkpoint in `path`, or the newest whole one of a run's folder.
    ///
    /// # Errors
    /// No checkpoint there, or none that is whole.
    pub fn open(path: &Path) -> Result<Checkpoint> {
        let (Found { folder, state, .. }, warnings) = named_by(path)?;
        let shape = read_saved_config(&folder)?;
        let experiment = state.experiment()?.phase_at(state.step);
        let run = folder.parent().unwrap_or(Path::new("")).to_owned();
        let lines = read_lines(&run).map_err(|error| failure("read", &run, &error))?;
        let lines: Vec<_> = lines.into_iter().filter(|line| line.step <= state.step).collect();
        Ok(Checkpoint {
            step: state.step,
            tokens: state.tokens,
            manifest: Manifest::read(&run),
            record: Record::of(&lines),
            folder,
            experiment,
            shape,
            warnings,
        })
    }

    /// The checkpoint's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The resolved experiment of the checkpoint's run.
    pub fn experiment(&self) -> &Experiment {
        &self.experiment
    }

    /// Warnings about newer checkpoints that are not whole.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// A warning of a mask that config.json cannot express: whatever loads the model attends otherwise than it was trained to.
    pub fn unsaid(&self) -> Option<String> {
        mask_beyond_config(&self.experiment, &self.shape)
    }

    /// The checkpoint's weights, as they are stored.
    ///
    /// # Errors
    /// Weights that do not fit config.json, and adapters alone.
    pub fn weights(&self) -> Result<Weights> {
        if self.experiment.lora.is_some() {
            return Err(TrainError::checkpoint(
                format!("`{}` holds adapters alone", self.folder.display()),
                "add `--merge` for a whole model; PEFT reads the folder as it is",
            ));
        }
        let config = model_config(&self.shape, self.experiment.model.dtype)?;
        Ok(annulus_model::load(&self.folder, &Llama::specification(&config), config.dtype)?)
    }

    /// The weights of the folder `base` with the checkpoint's adapters added, in the model's dtype.
    ///
    /// # Errors
    /// A checkpoint without adapters, or with adapters that were trained beside other weights.
    pub fn merged(&self, base: &Path) -> Result<Weights> {
        let Some(lora) = &self.experiment.lora else {
            let message = format!("`{}` has no adapters to merge", self.folder.display());
            return Err(TrainError::checkpoint(
                message,
                "leave `--merge` out: this run has no adapters",
            ));
        };
        if !base.is_dir() {
            let (own, base) = (self.folder.display(), base.display());
            return Err(TrainError::checkpoint(
                format!("the base weights `{base}` of `{own}` are missing"),
                "name their folder, `model.path=FOLDER`, or run the command where the run was started; if `keep` of its run deleted them, train that run again",
            ));
        }
        let plain = model_config(&self.shape, self.experiment.model.dtype)?;
        let config = Config { lora: Some(lora.clone()), ..plain };
        let weights = weights(&self.folder, Some(base), &config)?.all()?;
        Ok(Llama::merged(&config, weights)?)
    }

    /// Writes the model with these weights to the new folder `out`, in files of at most `shard_bytes`; returns the names of the files.
    ///
    /// # Errors
    /// `out` exists, or cannot be written: then nothing is left of it.
    pub fn export(&self, weights: &Weights, out: &Path, shard_bytes: u64) -> Result<Vec<String>> {
        if fs::symlink_metadata(out).is_ok() {
            return Err(TrainError::checkpoint(
                format!("`{}` already exists", out.display()),
                "give a folder that does not exist yet",
            ));
        }
        let failed = |error| failure_in(OPTION, "write", out, &error);
        out.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
        let folder = PendingFolder::create(out).map_err(failed)?;
        let mut files = annulus_model::save(folder.path(), weights, shard_bytes)
            .map_err(|error| unwritten_in(OPTION, error, out))?;
        files.extend(self.write_texts(folder.path(), out, weights).map_err(failed)?);
        folder.commit().map_err(failed)?;
        Ok(files)
    }

    /// Writes everything but weights to `folder`, which becomes `out`; returns the names of the files.
    fn write_texts(
        &self,
        folder: &Path,
        out: &Path,
        weights: &Weights,
    ) -> std::io::Result<Vec<String>> {
        let mut files = Vec::new();
        let has = |name: &&str| self.folder.join(name).is_file();
        let copied = [(ADAPTED, CONFIG)].into_iter();
        let templates = templates(&self.folder)?;
        let alike = COPIED.into_iter().chain(BESIDE_TOKENIZER);
        let alike = alike.chain(templates.iter().map(String::as_str)).map(|name| (name, name));
        for (name, called) in copied.chain(alike).filter(|(name, _)| has(name)) {
            let found = annulus_files::within(&self.folder, name)?;
            let copy = folder.join(called);
            copy.parent().map_or(Ok(()), fs::create_dir_all)?;
            if name == TOKENIZER_CONFIG {
                let text = for_both_versions(annulus_files::read(&found, LARGEST)?);
                annulus_files::write(&copy, &text)?;
            } else {
                annulus_files::copy(&found, &copy, LARGEST)?;
            }
            files.push(called.to_owned());
        }
        let [tokenizer, said] = [TOKENIZER, TOKENIZER_CONFIG].map(|name| folder.join(name));
        let tokenizer = Some(tokenizer.as_path()).filter(|tokenizer| tokenizer.is_file());
        for (name, text) in missing(tokenizer, said.is_file(), &self.experiment, &self.shape)? {
            write_atomically(&folder.join(name), text.as_bytes())?;
            files.push(name.to_owned());
        }
        let card = card::card(self, out, weights);
        write_atomically(&folder.join(card::NAME), card.as_bytes())?;
        files.push(card::NAME.to_owned());
        Ok(files)
    }

    /// The hub's model whose weights training began with, as `owner/name` and a revision.
    fn base(&self) -> Option<(&str, &str)> {
        let source = &self.experiment.model.source;
        let is_pretrained =
            matches!(source, ModelSource::Folder { weights: WeightsFrom::Pretrained, .. });
        source.on_hub().filter(|_| is_pretrained)
    }

    /// The run or checkpoint that the run was forked from, and its step.
    fn forked(&self) -> Option<(&Path, u64)> {
        let manifest = self.manifest.as_ref()?;
        Some((&manifest.fork.as_ref()?.from, manifest.began?))
    }

    fn dtype(&self) -> DType {
        element_type(self.experiment.model.dtype)
    }
}
