//! Files of tensors that are given to the program, and that it gives back.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use safetensors::SafeTensors;

use crate::failure::{DATA, Failure};
use crate::print;

/// The largest file of tensors that is read whole, in bytes.
const LARGEST: u64 = 1 << 32;

/// A safetensors file, read whole.
pub(crate) struct TensorFile {
    path: PathBuf,
    metadata: HashMap<String, String>,
    tensors: HashMap<String, Tensor>,
}

impl TensorFile {
    pub(crate) fn open(path: &Path) -> Result<TensorFile, Failure> {
        let unread = |error: std::io::Error| {
            let hint = "check the path; it is relative to the current folder".to_owned();
            Failure::new(DATA, format!("cannot read `{}`: {error}", path.display()), Some(hint))
        };
        if !fs::metadata(path).map_err(unread)?.is_file() {
            return Err(Failure::data(format!("`{}` is not a regular file", path.display())));
        }
        let bytes = annulus_files::read(path, LARGEST).map_err(unread)?;
        let broken = |error: &dyn std::fmt::Display| {
            let text = format!("`{}` is no whole safetensors file: {error}", path.display());
            Failure::new(DATA, text, Some("fetch or save the file again".to_owned()))
        };
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|error| broken(&error))?;
        let tensors = candle_core::safetensors::load_buffer(&bytes, &Device::Cpu)
            .map_err(|error| broken(&error))?;
        let metadata = header.metadata().clone().unwrap_or_default();
        Ok(TensorFile { path: path.to_owned(), metadata, tensors })
    }

    /// What is wrong with this file.
    pub(crate) fn bad(&self, text: impl std::fmt::Display) -> Failure {
        Failure::data(format!("`{}`: {text}", self.path.display()))
    }

    /// The same with the way out.
    pub(crate) fn bad_with(&self, text: impl std::fmt::Display, hint: String) -> Failure {
        Failure::new(DATA, format!("`{}`: {text}", self.path.display()), Some(hint))
    }

    pub(crate) fn metadata(&self, name: &str) -> Result<&str, Failure> {
        let value = self.metadata.get(name).map(String::as_str);
        value.ok_or_else(|| {
            let hint = format!("save it with metadata: a text under `{name}`");
            self.bad_with(format!("no `{name}` in its metadata"), hint)
        })
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<Tensor, Failure> {
        self.tensors.get(name).cloned().ok_or_else(|| {
            let names: BTreeSet<&String> = self.tensors.keys().collect();
            let names: Vec<_> = names.into_iter().map(|name| format!("`{name}`")).collect();
            let hint = match &names[..] {
                [] => "there is none at all".to_owned(),
                names => format!("there are {}", names.join(", ")),
            };
            self.bad_with(format!("no tensor `{name}`"), hint)
        })
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }
}

/// Writes tensors to a safetensors file.
pub(crate) fn save(tensors: &BTreeMap<String, Tensor>, path: &Path) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure::data(format!("cannot write `{}`: {error}", path.display()))
    };
    let bytes = safetensors::serialize(tensors, None).map_err(|error| failed(&error))?;
    print::file(path, &bytes).map_err(|error| failed(&error))
}
