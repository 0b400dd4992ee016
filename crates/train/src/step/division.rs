//! Which elements of every parameter a rank sums and updates.
//!
//! All N ranks sum gradients, each a slice of every parameter ([`slice`]). A process holds the state once: of its T ranks, rank t
//! updates slice t of T, which is N / T slices of N, those of rank t of every process; these gather what they have summed. In one
//! process a rank updates what it has summed.

use std::ops::Range;
use std::sync::Arc;

use annulus_comm::{Axis, Communicator, Label, Mesh};
use annulus_plan::slice;
use annulus_trace::{Doing, begin};
use candle_core::{Device, Tensor};

use crate::Result;

/// How the elements of parameters are divided among ranks.
#[derive(Clone, Debug)]
pub(crate) struct Division {
    /// All ranks.
    pub(crate) all: Arc<dyn Communicator>,
    /// By rank of `all`, which slice it sums.
    slots: Vec<usize>,
    /// Of every process the rank that updates the same slice.
    pub(crate) twins: Arc<dyn Communicator>,
    /// Which of the ranks of its process this is, and how many they are.
    own: (usize, usize),
}

impl Division {
    /// That of the ranks of `mesh`, of `world`, of which every process has `here`. All ranks must call it.
    pub(crate) fn new(world: &dyn Communicator, mesh: &Mesh, here: usize) -> Result<Division> {
        let all = mesh.group(&[Axis::Data, Axis::Sequence]).clone();
        let (own, process) = (world.rank() % here, world.rank() / here);
        let label = Label { pass: "division", ..Label::default() };
        let twins = world.split(label, own, process)?;
        let processes = all.world() / here;
        let slot = |rank| {
            let rank = all.original(rank);
            rank % here * processes + rank / here
        };
        let slots = (0..all.world()).map(slot).collect();
        Ok(Division { all, slots, twins, own: (own, here) })
    }

    /// What rank `rank` of all sums of a parameter of so many elements.
    pub(crate) fn summed(&self, elements: usize, rank: usize) -> Range<usize> {
        slice(elements, self.slots[rank], self.slots.len())
    }

    /// What rank `rank` of the twins has summed.
    pub(crate) fn gathered(&self, elements: usize, rank: usize) -> Range<usize> {
        let (own, _) = self.own;
        slice(elements, own * self.twins.world() + rank, self.slots.len())
    }

    /// What this rank updates.
    pub(crate) fn updated(&self, elements: usize) -> Range<usize> {
        let (own, here) = self.own;
        slice(elements, own, here)
    }

    /// Which of the ranks of its process this is, and how many they are.
    pub(crate) fn own(&self) -> (usize, usize) {
        self.own
    }

    /// The sum of what all ranks found of their slices, in the order of those: the same bits wherever ranks run.
    pub(crate) fn total(&self, label: Label, own: f64) -> Result<f64> {
        if self.all.world() == 1 {
            return Ok(own);
        }
        let mut by_slot = vec![0.0; self.slots.len()];
        let (summing, own) = (begin(), Tensor::new(&[own], &Device::Cpu)?);
        let found = self.all.all_gather(label, &own)?;
        let bytes = size_of::<f64>() as u64;
        summing.end(|| Doing::Sum { name: String::from("norm"), bytes });
        for (slot, found) in self.slots.iter().zip(found) {
            by_slot[*slot] = found.to_vec1::<f64>()?.iter().sum();
        }
        Ok(by_slot.iter().sum())
    }
}
