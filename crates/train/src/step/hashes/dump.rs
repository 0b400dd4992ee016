//! All tensors of a step as files, each whole whichever ranks hold it: for inspection.

use std::path::PathBuf;

use annulus_model::{Described, Layout, Weights};
use candle_core::DType;

use crate::checkpoint::{OptimizerTensor, Piece};
use crate::step::finished::Finished;
use crate::step::hashes::{GRADIENTS, WEIGHTS};
use crate::step::measure::alive::alive;
use crate::step::slices::Slices;
use crate::step::slices::gathered::GatheredSlices;
use crate::{Result, TrainError};

/// Which step's tensors are written down, and where.
#[derive(Clone, Debug)]
pub struct Dump {
    /// The step, from 1.
    pub step: u64,
    /// An existing folder on the host of rank 0, for one file by kind of tensors.
    pub folder: PathBuf,
}

impl Dump {
    /// Writes gradients before clipping and the state after the step, under the names of their hashes. All ranks must call it: one tensor
    /// at a time is whole, on rank 0.
    pub(crate) fn write(&self, finished: Finished<'_>, gradients: &Weights) -> Result<()> {
        let Finished { step, comm, slices, .. } = finished;
        let all = described(&slices, gradients);
        let mut gathered = GatheredSlices::new(comm, step, slices);
        for of_kind in all.chunk_by(|a, b| kind(&a.name) == kind(&b.name)) {
            let named = of_kind.iter().map(|one| (one.name.as_str(), one.clone()));
            let layout = Layout::of_file(&file(kind(&of_kind[0].name)), named)?;
            let is_first = comm.rank() == 0;
            let open = || layout.create(&self.folder).and_then(|_| layout.open(&self.folder));
            let mut files = is_first.then(open).transpose()?;
            for one in of_kind {
                let own = own(&gathered.slices, gradients, &one.name)?;
                let pieces = gathered.all(own)?;
                let Some(files) = &mut files else { continue };
                alive(comm, || {
                    for Piece { elements, runs } in pieces {
                        files.write(&one.name, &elements.to_dtype(one.dtype)?, &runs)?;
                    }
                    Ok::<(), TrainError>(())
                })?;
            }
            files.map(|files| alive(comm, || files.end())).transpose()?;
        }
        Ok(())
    }
}

/// The names of all files that may be written: what a step computed, and the state after it.
pub(crate) fn files() -> impl Iterator<Item = String> {
    [GRADIENTS, WEIGHTS]
        .into_iter()
        .chain(OptimizerTensor::ALL.map(OptimizerTensor::name))
        .map(file)
}

/// The file name of a kind of tensors, such as `gradients`.
fn file(kind: &str) -> String {
    format!("{kind}.safetensors")
}

/// The kind of a tensor: its name up to the first dot.
fn kind(name: &str) -> &str {
    name.split_once('.').map_or(name, |(kind, _)| kind)
}

/// All tensors of a step, grouped by kind.
fn described(slices: &Slices<'_>, gradients: &Weights) -> Vec<Described> {
    let gradients = gradients
        .keys()
        .map(|name| slices.described(format!("{GRADIENTS}.{name}"), name, DType::F32));
    let weights = slices
        .weights()
        .into_iter()
        .map(|one| Described { name: format!("{WEIGHTS}.{}", one.name), ..one });
    gradients.chain(weights).chain(slices.optimizer()).collect()
}

/// This rank's elements of the tensor `name`, which no other rank writes.
fn own(slices: &Slices<'_>, gradients: &Weights, name: &str) -> Result<Vec<Piece>> {
    match name.split_once('.') {
        Some((GRADIENTS, of)) => {
            gradients.get(of).map_or_else(|| Ok(Vec::new()), |own| slices.own_gradient(of, own))
        }
        Some((WEIGHTS, of)) => slices.own_weight(of),
        _ => slices.own_kept(name),
    }
}
