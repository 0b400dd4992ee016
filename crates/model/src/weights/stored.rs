//! Weights on disk: files checked against a model, from which tensors are read when they are wanted.

use std::collections::BTreeMap;

use annulus_tensors::{Entry, TensorFile, TensorsError};
use candle_core::safetensors::Load;
use candle_core::{DType, Device, Tensor};
use safetensors::tensor::TensorView;

use super::{Weights, WeightsError};

/// Elements of a tensor, flat: runs of neighbours, each as its first index and its length.
pub type Runs = [(usize, usize)];

/// The tensors of open files, by their names in the model.
#[derive(Debug)]
pub struct Stored {
    pub(super) files: Vec<TensorFile>,
    pub(super) tensors: BTreeMap<String, StoredTensor>,
}

/// A tensor in one of the files.
#[derive(Debug)]
pub(super) struct StoredTensor {
    /// The index of the file.
    pub(super) file: usize,
    /// The tensor's name in the file.
    pub(super) called: String,
    pub(super) entry: Entry,
    /// The dtype that the tensor is converted to.
    pub(super) dtype: DType,
}

impl Stored {
    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Elements of the tensor `name`, flat; `None` where there is no such tensor.
    ///
    /// # Errors
    /// When they cannot be read, or are not there any more.
    pub fn elements(&self, name: &str, runs: &Runs) -> Result<Option<Tensor>, WeightsError> {
        let Some(StoredTensor { file, called, entry, dtype }) = self.tensors.get(name) else {
            return Ok(None);
        };
        let file = &self.files[*file];
        let found = elements(file, called, entry, runs)?.to_dtype(*dtype);
        found.map(Some).map_err(|error| unusable(file, called, error))
    }

    /// All tensors, each in its shape.
    ///
    /// # Errors
    /// As of [`Stored::elements`].
    pub fn all(&self) -> Result<Weights, WeightsError> {
        let whole =
            |(name, StoredTensor { file, called, entry, dtype }): (&String, &StoredTensor)| {
                let file = &self.files[*file];
                let whole = tensor(file, called, entry)?.to_dtype(*dtype);
                Ok((name.clone(), whole.map_err(|error| unusable(file, called, error))?))
            };
        self.tensors.iter().map(whole).collect()
    }
}

/// Reads the tensor `name` of `file`, whose entry is `entry`.
///
/// # Errors
/// When it cannot be read, or its elements are such that no tensor can hold them.
pub fn tensor(file: &TensorFile, name: &str, entry: &Entry) -> Result<Tensor, WeightsError> {
    let all = elements(file, name, entry, &[(0, entry.shape.iter().product())])?;
    all.reshape(entry.shape.as_slice()).map_err(|error| unusable(file, name, error))
}

/// Reads elements of a tensor of `file`, flat.
///
/// # Errors
/// As of [`tensor`].
pub fn elements(
    file: &TensorFile,
    name: &str,
    entry: &Entry,
    runs: &Runs,
) -> Result<Tensor, WeightsError> {
    let many = runs.iter().map(|(_, many)| many).sum();
    let size = entry.dtype.bitsize() / 8;
    let mut bytes = vec![0; many * size];
    let mut rest = bytes.as_mut_slice();
    for (begins, many) in runs {
        let (run, behind) = rest.split_at_mut(many * size);
        file.read_at(entry, (begins * size) as u64, run)?;
        rest = behind;
    }
    let view = TensorView::new(entry.dtype, vec![many], &bytes);
    let view = view.map_err(|error| TensorsError::malformed(file.path(), &error))?;
    view.load(&Device::Cpu).map_err(|error| unusable(file, name, error))
}

fn unusable(file: &TensorFile, name: &str, source: candle_core::Error) -> WeightsError {
    let (file, tensor) = (file.path().to_owned(), name.to_owned());
    WeightsError::Tensor { file, tensor, source: Box::new(source) }
}
