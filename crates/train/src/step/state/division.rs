//! The groups of ranks that sum gradients and gather weights, as a [`StateSharding`] has them.
//!
//! Ranks with the same number in their processes have neighbouring slices of every parameter. They are in groups of two kinds. *Mirrors* are
//! ranks whose processes hold the same shard of the state: they gather the sums of each other. *Holders* are ranks whose processes together
//! hold the whole state: they gather weights from each other.
//! With tensor parallelism the ranks of a group have the same part of parameters, and gradients of parameters that every rank has whole are
//! first summed over the tensor-parallel ranks.

use std::ops::Range;
use std::sync::Arc;

use annulus_comm::{Axis, Communicator, Label, Mesh, Reduce, all_gather_values};
use annulus_ops::order_free::Squares;
use annulus_plan::StateSharding;
use annulus_trace::{Activity, begin};
use candle_core::{Device, Tensor};

use crate::{Result, Setup};

/// Which ranks of one process meet, and this rank's number among them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeetingRanks {
    /// This rank's number among those that meet.
    pub(crate) own: usize,
    /// The first rank that meets, by number in the process, and the distance from one to the next.
    pub(crate) first: usize,
    pub(crate) step: usize,
}

/// How the elements of parameters are divided among ranks.
#[derive(Clone, Debug)]
pub(crate) struct Division {
    /// All ranks with the same part of parameters.
    pub(crate) all: Arc<dyn Communicator>,
    /// By rank of `all`, the number of the slice that it sums.
    slots: Vec<usize>,
    sharding: StateSharding,
    /// The ranks that update the same slices as this one, in processes with the same shard of the state.
    pub(crate) mirrors: Arc<dyn Communicator>,
    /// One rank of every process that holds a shard of the state: the one with this rank's number.
    pub(crate) holders: Arc<dyn Communicator>,
    /// The ranks of the same positions that have the other parts of parameters.
    pub(crate) tensor: Arc<dyn Communicator>,
    /// This rank's number among the ranks of its device that have the same part, and their count.
    own: (usize, usize),
    place: PlaceInProcess,
}

/// A rank's place in its process.
#[derive(Clone, Copy, Debug)]
struct PlaceInProcess {
    /// The rank's number in its process.
    own: usize,
    /// How many ranks each device of the process has.
    here: usize,
    /// How many parts of parameters the ranks of a device have.
    parts: usize,
}

impl Setup {
    /// Whether no rank has all of the state on its device.
    pub(crate) fn shards_state(&self) -> bool {
        self.tensor > 1 || self.sharding().holders > 1
    }

    /// Whether processes hold shards of the weights that their ranks compute with.
    pub(crate) fn shards_weights(&self) -> bool {
        self.sharding().state.shards_weights()
    }

    /// How many ranks compute on one device: all of a process, or those of one of its GPUs.
    pub(crate) fn ranks_of_device(&self) -> usize {
        self.ranks_of_process() / self.processors.devices()
    }

    /// How many ranks each process has.
    pub(crate) fn ranks_of_process(&self) -> usize {
        self.world() / self.processes.processes()
    }

    /// How the state is sharded over processes, or over the devices of one; a plan has checked that it can be.
    pub(crate) fn sharding(&self) -> StateSharding {
        let here = self.ranks_of_device();
        let mesh = (self.order, [self.data, self.sequence]);
        let sharding = StateSharding::of(mesh, self.parallel, here / self.parts());
        sharding.expect("processes lie along the axes")
    }

    /// How many parts of parameters the ranks of a device have; 1 without tensor parallelism.
    pub(crate) fn parts(&self) -> usize {
        self.tensor.min(self.ranks_of_device())
    }
}

impl Division {
    /// The division among the ranks of `mesh`, for rank number `rank`: every process has `ranks` ranks, and those of each device have
    /// `parts` parts of parameters. All ranks must call it.
    pub(crate) fn new(
        mesh: &Mesh,
        rank: usize,
        ranks: usize,
        parts: usize,
        sharding: StateSharding,
    ) -> Result<Division> {
        let here = sharding.here * parts;
        let all = mesh.group(&[Axis::Data, Axis::Sequence]).clone();
        let tensor = mesh.group(&[Axis::Tensor]).clone();
        // Neighbours on a device have different parts; where a device does not have all parts, so do neighbouring devices.
        let beside = tensor.world_size() / parts;
        let place_of = |rank: usize| (rank % here / parts, rank / here / beside);
        let label = Label { pass: "division", ..Label::default() };
        let (own, process) = place_of(rank);
        let [holder, mirror] = sharding.place(process);
        let mirrors = all.split(label, own * sharding.holders + holder, mirror)?;
        let holders = all.split(label, own * sharding.mirrors + mirror, holder)?;
        let slot = |rank| {
            let (own, process) = place_of(all.global_rank(rank));
            sharding.slot(own, process)
        };
        let slots = (0..all.world_size()).map(slot).collect();
        let (own, place) =
            ((own, sharding.here), PlaceInProcess { own: rank % ranks, here, parts });
        Ok(Division { all, slots, sharding, mirrors, holders, tensor, own, place })
    }

    /// Whether a device holds only a shard of f32 masters and moments.
    pub(crate) fn shards_optimizer(&self) -> bool {
        self.sharding.state.shards_optimizer()
    }

    /// Whether a device holds only a shard of the weights.
    pub(crate) fn shards_weights(&self) -> bool {
        self.sharding.state.shards_weights()
    }

    /// The elements that rank `rank` of `all` sums, of a parameter of `elements` elements.
    pub(crate) fn summed(&self, elements: usize, rank: usize) -> Range<usize> {
        self.sharding.summed(elements, self.slots[rank])
    }

    /// The elements that this rank sums, of a parameter of `elements` elements.
    pub(crate) fn own_sums(&self, elements: usize) -> Range<usize> {
        self.summed(elements, self.all.rank())
    }

    /// The elements that rank `rank` of the mirrors sums, of a parameter of `elements` elements.
    pub(crate) fn mirrored(&self, elements: usize, rank: usize) -> Range<usize> {
        let first = self.slots[self.all.rank()] / self.sharding.mirrors * self.sharding.mirrors;
        self.sharding.summed(elements, first + rank)
    }

    /// The elements that rank `rank` of the holders updates, of a parameter of `elements` elements.
    pub(crate) fn gathered(&self, elements: usize, rank: usize) -> Range<usize> {
        let (own, _) = self.own;
        self.sharding
            .updated(elements, (own * self.sharding.holders + rank) * self.sharding.mirrors)
    }

    /// The elements of a parameter that this rank updates and, where weights are sharded, holds.
    pub(crate) fn updated(&self, elements: usize) -> Range<usize> {
        self.sharding.updated(elements, self.slots[self.all.rank()])
    }

    /// Whether this rank counts what all tensor-parallel ranks have: only one of them does.
    pub(crate) fn counts_whole(&self) -> bool {
        self.tensor.rank() == 0
    }

    /// Which of the parts in its process's store this rank has; they are listed device by device.
    pub(crate) fn part(&self) -> usize {
        let PlaceInProcess { own, here, parts } = self.place;
        own / here * parts + own % parts
    }

    /// All ranks of this process, for meetings.
    pub(crate) fn process_ranks(&self) -> MeetingRanks {
        MeetingRanks { own: self.place.own, first: 0, step: 1 }
    }

    /// The ranks of this device that have the same part of parameters, for meetings.
    pub(crate) fn sharers(&self) -> MeetingRanks {
        let PlaceInProcess { own, here, parts } = self.place;
        MeetingRanks { own: self.own.0, first: own / here * here + own % parts, step: parts }
    }

    /// This rank's number among the ranks of its device that have the same part, and their count.
    pub(crate) fn own(&self) -> (usize, usize) {
        self.own
    }

    /// The sum of a value of every rank's slices, added in the order of slices: the same bits wherever ranks run.
    pub(crate) fn total(&self, label: Label, own: f64) -> Result<f64> {
        let of_part = self.total_of_part(label, own)?;
        if self.tensor.world_size() == 1 {
            return Ok(of_part);
        }
        let own = Tensor::new(&[of_part], &Device::Cpu)?;
        let all: Vec<f64> = self.tensor.all_reduce(label, &own, Reduce::Sum)?.to_vec1()?;
        Ok(all.iter().sum())
    }

    /// The sum of all ranks' order-free sums of squares.
    pub(crate) fn total_of_squares(&self, label: Label, own: &Squares) -> Result<f64> {
        if self.all.world_size() == 1 {
            return Ok(own.value());
        }
        let summing = begin();
        let all = self.all.all_reduce(label, &own.tensor()?, Reduce::Sum)?;
        let (bytes, among) = (Squares::BYTES, Some(self.all.ends()));
        summing.end(|| Activity::Sum { name: String::from("norm"), bytes, among });
        Ok(Squares::of(&all)?.value())
    }

    /// The sum of a value of the slices of all ranks with this part of parameters, added in the order of slices.
    fn total_of_part(&self, label: Label, own: f64) -> Result<f64> {
        if self.all.world_size() == 1 {
            return Ok(own);
        }
        let mut by_slot = vec![0.0; self.slots.len()];
        let summing = begin();
        let found = all_gather_values(&*self.all, label, &[own])?;
        let (bytes, among) = (size_of::<f64>() as u64, Some(self.all.ends()));
        summing.end(|| Activity::Sum { name: String::from("norm"), bytes, among });
        for (slot, found) in self.slots.iter().zip(found) {
            by_slot[*slot] = found.iter().sum();
        }
        Ok(by_slot.iter().sum())
    }
}
