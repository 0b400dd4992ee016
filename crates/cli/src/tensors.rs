//! Safetensors files that commands read and write.

use std::collections::BTreeMap;
use std::path::Path;

use annulus_experiment::Problem as Mistake;
use annulus_tensors::{Entry, Problem, Room};
use annulus_train::Exit;
use candle_core::Tensor;

use crate::failure::Failure;
use crate::print;

/// The most tensors in a file: enough for a model with its gradients.
const MOST: usize = 1 << 14;

/// The keys of metadata that are kept.
const METADATA: &[&str] = &["mask"];

/// A safetensors file, whose tensors are read one by one as needed.
pub(crate) struct TensorFile(annulus_tensors::TensorFile);

impl TensorFile {
    pub(crate) fn open(path: &Path) -> Result<TensorFile, Failure> {
        let mut room = Room::of(MOST).and_metadata(METADATA);
        let file = annulus_tensors::TensorFile::open(path, path, &mut room);
        file.map(TensorFile).map_err(|error| {
            let hint = match error.problem {
                Problem::Read(_) => Some("check the path; it is relative to the current folder"),
                _ => error.hint(),
            };
            Failure::new(Exit::Data, error.to_string(), hint.map(str::to_owned))
        })
    }

    /// An error in this file.
    pub(crate) fn bad(&self, text: impl Into<String>) -> Failure {
        self.bad_with(Mistake::new(text))
    }

    /// An error in this file, with a hint.
    pub(crate) fn bad_with(&self, Mistake { message, hint, .. }: Mistake) -> Failure {
        Failure::new(Exit::Data, format!("`{}`: {message}", self.0.path().display()), hint)
    }

    pub(crate) fn metadata(&self, name: &str) -> Result<&str, Failure> {
        let value = self.0.metadata().get(name).map(String::as_str);
        value.ok_or_else(|| {
            let hint = format!("save it with metadata: a text under `{name}`");
            self.bad_with(Mistake::new(format!("no `{name}` in its metadata")).hint(hint))
        })
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<Tensor, Failure> {
        Ok(annulus_model::tensor(&self.0, name, self.entry(name)?)?)
    }

    /// The dtype, shape and place of a tensor, without reading it.
    pub(crate) fn entry(&self, name: &str) -> Result<&Entry, Failure> {
        let tensors = self.0.tensors();
        tensors.get(name).ok_or_else(|| {
            let names: Vec<_> = tensors.keys().map(|name| format!("`{name}`")).collect();
            let hint = match &names[..] {
                [] => "there is none at all".to_owned(),
                names => format!("there are {}", names.join(", ")),
            };
            self.bad_with(Mistake::new(format!("no tensor `{name}`")).hint(hint))
        })
    }

    /// All tensors by name, without reading them.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.0.tensors().iter().map(|(name, entry)| (name.as_str(), entry))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.tensors().contains_key(name)
    }
}

/// Writes tensors to a safetensors file.
pub(crate) fn save(tensors: &BTreeMap<String, Tensor>, path: &Path) -> Result<(), Failure> {
    let bytes = safetensors::serialize(tensors, None);
    let bytes = bytes.map_err(|error| Failure::internal(error.to_string()))?;
    print::file(path, &bytes)
}
