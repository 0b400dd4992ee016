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
//! In one process all of them are the same. Tensor-parallel ranks have parts of parameters: of those with the same part all this is said,
//! and what they all have whole is summed over them first.

use std::ops::Range;
use std::sync::Arc;

use annulus_comm::{Axis, Communicator, Label, Mesh, Reduce};
use annulus_experiment::State;
use annulus_plan::slice;
use annulus_trace::{Doing, begin};
use candle_core::{Device, Tensor};

use crate::{Result, Setup};

/// Where a rank of a process meets others of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seats {
    /// Which of them it is.
    pub(crate) own: usize,
    /// Among the ranks of the process the first of them, and how far apart they are.
    pub(crate) first: usize,
    pub(crate) step: usize,
}

/// How the elements of parameters are divided among ranks.
#[derive(Clone, Debug)]
pub(crate) struct Division {
    /// All ranks with the same part of parameters.
    pub(crate) all: Arc<dyn Communicator>,
    /// By rank of `all`, which slice it sums.
    slots: Vec<usize>,
    /// Of every process the rank that updates the same slice.
    pub(crate) twins: Arc<dyn Communicator>,
    /// Those that have other parts, of the same positions.
    pub(crate) tensor: Arc<dyn Communicator>,
    /// Which of the ranks of its process with this part this is, and how many they are.
    own: (usize, usize),
    /// The same of all ranks of its process, and how many parts they have.
    crew: (usize, usize, usize),
    /// Who holds what; of one process [`State::Replicated`].
    state: State,
}

impl Setup {
    /// Whether no rank has all of the state in its process.
    pub(crate) fn shares_state(&self) -> bool {
        self.tensor > 1 || self.holders() > 1 && self.state.shares_optimizer()
    }

    /// Whether processes hold shares of the weights that their ranks compute with.
    pub(crate) fn shares_weights(&self) -> bool {
        self.holders() > 1 && self.state.shares_weights()
    }

    /// How many processes have ranks that compute with the same weights.
    fn holders(&self) -> usize {
        let processes = self.processes.processes();
        processes / (self.tensor * processes / self.world()).max(1)
    }

    /// How many parts of a model the ranks of a process have, of tensor-parallel ones.
    pub(crate) fn parts(&self) -> usize {
        self.tensor.min(self.world() / self.processes.processes())
    }
}

impl Division {
    /// That of the ranks of `mesh`, of which this is number `rank`; every process has `here`, with so many `parts` of parameters. All
    /// ranks must call it.
    pub(crate) fn new(
        mesh: &Mesh,
        rank: usize,
        (here, parts, state): (usize, usize, State),
    ) -> Result<Division> {
        let all = mesh.group(&[Axis::Data, Axis::Sequence]).clone();
        let tensor = mesh.group(&[Axis::Tensor]).clone();
        // Neighbours in a process have different parts; where it has not all, so have neighbours among processes.
        let beside = tensor.world() / parts;
        let place = |rank: usize| (rank % here / parts, rank / here / beside);
        let label = Label { pass: "division", ..Label::default() };
        let (own, process) = place(rank);
        let twins = all.split(label, own, process)?;
        let processes = all.world() * parts / here;
        let slot = |rank| {
            let (own, process) = place(all.original(rank));
            own * processes + process
        };
        let slots = (0..all.world()).map(slot).collect();
        let state = if processes > 1 { state } else { State::Replicated };
        let (own, crew) = ((own, here / parts), (rank % here, here, parts));
        Ok(Division { all, slots, twins, tensor, own, crew, state })
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

    /// Whether it is for this rank to count what tensor-parallel ranks have whole.
    pub(crate) fn counts_whole(&self) -> bool {
        self.tensor.rank() == 0
    }

    /// Which of the parts that its process has this rank has.
    pub(crate) fn part(&self) -> usize {
        let (own, _, parts) = self.crew;
        own % parts
    }

    /// All ranks of this process, where they meet.
    pub(crate) fn crew(&self) -> Seats {
        let (own, ..) = self.crew;
        Seats { own, first: 0, step: 1 }
    }

    /// Those of them that have the same part.
    pub(crate) fn sharers(&self) -> Seats {
        let ((own, _), (_, _, parts)) = (self.own, self.crew);
        Seats { own, first: self.part(), step: parts }
    }

    /// Which of the ranks of its process with this part this is, and how many they are.
    pub(crate) fn own(&self) -> (usize, usize) {
        self.own
    }

    /// The sum of what all ranks found of their slices, in the order of those: the same bits wherever ranks run.
    pub(crate) fn total(&self, label: Label, own: f64) -> Result<f64> {
        let of_part = self.total_of_part(label, own)?;
        if self.tensor.world() == 1 {
            return Ok(of_part);
        }
        let own = Tensor::new(&[of_part], &Device::Cpu)?;
        let all: Vec<f64> = self.tensor.all_reduce(label, &own, Reduce::Sum)?.to_vec1()?;
        Ok(all.iter().sum())
    }

    /// The same of those with this part.
    fn total_of_part(&self, label: Label, own: f64) -> Result<f64> {
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
