//! The shares of a checkpoint of all ranks, gathered on rank 0.

use annulus_comm::{Communicator, Label};
use candle_core::{Device, Tensor};

use crate::Result;
use crate::checkpoint::{Contents, Piece};
use crate::step::slices::Slices;

/// The whole content of a checkpoint on rank 0, nothing on other ranks; all must ask for the same tensors in the same order.
pub(crate) struct GatheredSlices<'a> {
    comm: &'a dyn Communicator,
    pub(crate) slices: Slices<'a>,
    label: Label,
}

impl<'a> GatheredSlices<'a> {
    /// Gathers the `slices` of all ranks.
    pub(crate) fn new(
        comm: &'a dyn Communicator,
        step: u64,
        slices: Slices<'a>,
    ) -> GatheredSlices<'a> {
        let label = Label { step, pass: "checkpoint, handed over", ..Label::default() };
        GatheredSlices { comm, slices, label }
    }

    /// The pieces of all ranks, on rank 0: each sends first where its elements lie, then the elements.
    pub(crate) fn all(&mut self, own: Vec<Piece>) -> Result<Vec<Piece>> {
        let label = self.label;
        self.label.hop += 2;
        // A rank's share has at most one piece; a count of zero says that it has none.
        let own = own.into_iter().next();
        let runs = own.as_ref().map_or(vec![0], |own| {
            own.runs.iter().flat_map(|&(begins, many)| [begins as i64, many as i64]).collect()
        });
        let count = runs.len();
        let runs = self.comm.gather(label, &Tensor::from_vec(runs, count, &Device::Cpu)?, 0)?;
        let nothing = Tensor::new(&[0_f32], &Device::Cpu)?;
        let elements = own.map_or(nothing, |own| own.elements);
        let label = Label { hop: label.hop + 1, ..label };
        let elements = self.comm.gather(label, &elements, 0)?;
        let mut pieces = Vec::new();
        for (runs, elements) in runs.into_iter().flatten().zip(elements.into_iter().flatten()) {
            let runs: Vec<i64> = runs.to_vec1()?;
            let (pairs, _) = runs.as_chunks::<2>();
            let run = |&[begins, many]: &[i64; 2]| (begins as usize, many as usize);
            let runs: Vec<_> = pairs.iter().map(run).collect();
            if !runs.is_empty() {
                pieces.push(Piece { elements, runs });
            }
        }
        Ok(pieces)
    }
}

impl Contents for GatheredSlices<'_> {
    fn of_weight(&mut self, name: &str) -> Result<Vec<Piece>> {
        let own = self.slices.of_weight(name)?;
        self.all(own)
    }
    fn of_optimizer(&mut self, name: &str) -> Result<Vec<Piece>> {
        let own = self.slices.of_optimizer(name)?;
        self.all(own)
    }
}
