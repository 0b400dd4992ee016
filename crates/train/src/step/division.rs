//! Which elements of every parameter a rank sums, updates and holds.
//!
//! All N ranks sum gradients, each a slice of every parameter ([`slice`]). Of a process's T ranks, rank t has N / T slices of N: slice t
//! of T, the same as rank t of every process, its twins.
//!
//! ```text
//! replicated    a process holds everything once; its rank t updates slice t of T, of which the twins gather what they have summed
//! zero1, zero2  a rank updates what it has summed, and holds the masters and moments of that; the twins gather the weights
//! zero3         it holds no more of the weights either: they are gathered before a stage runs, and dropped after it
//! ```
//!
//! In one process all of them are the same.

use std::ops::Range;
use std::sync::Arc;

use annulus_comm::{Axis, Communicator, Form, Hold, Label, Mesh, Move};
use annulus_experiment::State;
use annulus_plan::slice;
use annulus_trace::{Doing, begin};
use candle_core::{DType, Device, Tensor};

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
    /// Who holds what; of one process [`State::Replicated`].
    state: State,
}

impl Division {
    /// That of the ranks of `mesh`, of `world`, of which every process has `here`. All ranks must call it.
    pub(crate) fn new(
        world: &dyn Communicator,
        mesh: &Mesh,
        (here, state): (usize, State),
    ) -> Result<Division> {
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
        let state = if processes > 1 { state } else { State::Replicated };
        Ok(Division { all, slots, twins, own: (own, here), state })
    }

    /// Whether a process holds a share of masters and moments alone.
    pub(crate) fn shares_optimizer(&self) -> bool {
        self.state.shares_optimizer()
    }

    /// Whether it holds a share of weights alone.
    pub(crate) fn shares_weights(&self) -> bool {
        self.state.shares_weights()
    }

    /// What rank `rank` of all sums of a parameter of so many elements.
    pub(crate) fn summed(&self, elements: usize, rank: usize) -> Range<usize> {
        slice(elements, self.slots[rank], self.slots.len())
    }

    /// What rank `rank` of the twins has summed, and where state is shared updates.
    pub(crate) fn gathered(&self, elements: usize, rank: usize) -> Range<usize> {
        let (own, _) = self.own;
        slice(elements, own * self.twins.world() + rank, self.slots.len())
    }

    /// What this rank updates, and where weights are shared holds.
    pub(crate) fn updated(&self, elements: usize) -> Range<usize> {
        if self.shares_optimizer() {
            return self.summed(elements, self.all.rank());
        }
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

    /// Slices of a flat tensor of this type and so many elements, of which every rank has what it updates, on rank 0 of the world,
    /// in order; nothing on others. `own` is nothing where there are no elements.
    pub(crate) fn collected(
        &self,
        label: Label,
        (elements, dtype): (usize, DType),
        own: Option<&Tensor>,
    ) -> Result<Option<Vec<Tensor>>> {
        let (rank, world) = (self.all.rank(), self.all.world());
        let root = (0..world).find(|rank| self.all.original(*rank) == 0).unwrap_or_default();
        if rank != root {
            let send =
                |tensor: &Tensor| Move::Send { tensor: tensor.clone(), to: root, hold: Hold::Lend };
            self.all.exchange(label, own.map(send).into_iter().collect())?.wait()?;
            return Ok(None);
        }
        let mut order: Vec<usize> = (0..world).collect();
        order.sort_by_key(|rank| self.slots[*rank]);
        order.retain(|rank| !self.summed(elements, *rank).is_empty());
        let form = |rank| Form { dtype, shape: self.summed(elements, rank).len().into() };
        let receive = |from: &usize| Move::Receive { from: *from, form: Some(form(*from)) };
        let moves = order.iter().filter(|from| **from != root).map(receive).collect();
        let mut came = self.all.exchange(label, moves)?.wait()?.into_iter();
        let slice = |from: &usize| if *from == root { own.cloned() } else { came.next() };
        Ok(Some(order.iter().filter_map(slice).collect()))
    }
}
