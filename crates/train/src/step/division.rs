//! Whom a rank sums, gathers and holds parameters with: the groups of a [`StateSharding`].
//!
//! Of every process the ranks with the same number among its own have slices that lie together. Those in processes that hold the same
//! gather what they have summed, those in processes that hold all together gather weights. Tensor-parallel ranks have parts of parameters:
//! of those with the same part all this is said, and what they all have whole is summed over them first.

use std::ops::Range;
use std::sync::Arc;

use annulus_comm::{Axis, Communicator, Label, Mesh, Reduce, all_gather_values};
use annulus_ops::order_free::Squares;
use annulus_plan::StateSharding;
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
    sharding: StateSharding,
    /// Those that update the same, in processes that hold the same.
    pub(crate) mirrors: Arc<dyn Communicator>,
    /// Of every process that holds a share of the state the rank that has the same number in it.
    pub(crate) holders: Arc<dyn Communicator>,
    /// Those that have other parts, of the same positions.
    pub(crate) tensor: Arc<dyn Communicator>,
    /// Which of the ranks of its device with this part this is, and how many they are.
    own: (usize, usize),
    crew: Crew,
}

/// Where a rank is in its process.
#[derive(Clone, Copy, Debug)]
struct Crew {
    /// Which of the process's ranks it is.
    own: usize,
    /// How many of them each device of the process has.
    here: usize,
    /// How many parts of parameters those have.
    parts: usize,
}

impl Setup {
    /// Whether no rank has all of the state on its device.
    pub(crate) fn shards_state(&self) -> bool {
        self.tensor > 1 || self.sharding().holders > 1
    }

    /// Whether processes hold shares of the weights that their ranks compute with.
    pub(crate) fn shards_weights(&self) -> bool {
        self.sharding().state.shards_weights()
    }

    /// How many ranks share a device: that of their process, or one of its GPUs.
    pub(crate) fn ranks_of_device(&self) -> usize {
        self.ranks_of_process() / self.processors.devices()
    }

    /// How many ranks each process has.
    pub(crate) fn ranks_of_process(&self) -> usize {
        self.world() / self.processes.processes()
    }

    /// How processes, or the devices of one, hold the state: a plan has checked that they can.
    pub(crate) fn sharding(&self) -> StateSharding {
        let here = self.ranks_of_device();
        let mesh = (self.order, [self.data, self.sequence]);
        let sharding = StateSharding::of(mesh, self.parallel, here / self.parts());
        sharding.expect("processes lie along the axes")
    }

    /// How many parts of a model the ranks of a device have, of tensor-parallel ones.
    pub(crate) fn parts(&self) -> usize {
        self.tensor.min(self.ranks_of_device())
    }
}

impl Division {
    /// That of the ranks of `mesh`, of which this is number `rank`; of every process's `ranks` those of each device have so many `parts` of
    /// parameters. All ranks must call it.
    pub(crate) fn new(
        mesh: &Mesh,
        (rank, ranks): (usize, usize),
        (parts, sharding): (usize, StateSharding),
    ) -> Result<Division> {
        let here = sharding.here * parts;
        let all = mesh.group(&[Axis::Data, Axis::Sequence]).clone();
        let tensor = mesh.group(&[Axis::Tensor]).clone();
        // Neighbours on a device have different parts; where it has not all, so have neighbours among devices.
        let beside = tensor.world() / parts;
        let place = |rank: usize| (rank % here / parts, rank / here / beside);
        let label = Label { pass: "division", ..Label::default() };
        let (own, process) = place(rank);
        let [holder, mirror] = sharding.place(process);
        let mirrors = all.split(label, own * sharding.holders + holder, mirror)?;
        let holders = all.split(label, own * sharding.mirrors + mirror, holder)?;
        let slot = |rank| {
            let (own, process) = place(all.original(rank));
            sharding.slot(own, process)
        };
        let slots = (0..all.world()).map(slot).collect();
        let (own, crew) = ((own, sharding.here), Crew { own: rank % ranks, here, parts });
        Ok(Division { all, slots, sharding, mirrors, holders, tensor, own, crew })
    }

    /// Whether a device holds a share of masters and moments alone.
    pub(crate) fn shards_optimizer(&self) -> bool {
        self.sharding.state.shards_optimizer()
    }

    /// Whether it holds a share of weights alone.
    pub(crate) fn shards_weights(&self) -> bool {
        self.sharding.state.shards_weights()
    }

    /// What rank `rank` of all sums of a parameter of so many elements.
    pub(crate) fn summed(&self, elements: usize, rank: usize) -> Range<usize> {
        self.sharding.summed(elements, self.slots[rank])
    }

    /// What this rank sums.
    pub(crate) fn own_sums(&self, elements: usize) -> Range<usize> {
        self.summed(elements, self.all.rank())
    }

    /// What rank `rank` of the mirrors sums.
    pub(crate) fn mirrored(&self, elements: usize, rank: usize) -> Range<usize> {
        let first = self.slots[self.all.rank()] / self.sharding.mirrors * self.sharding.mirrors;
        self.sharding.summed(elements, first + rank)
    }

    /// What rank `rank` of the holders updates.
    pub(crate) fn gathered(&self, elements: usize, rank: usize) -> Range<usize> {
        let (own, _) = self.own;
        self.sharding
            .updated(elements, (own * self.sharding.holders + rank) * self.sharding.mirrors)
    }

    /// What this rank updates, and where weights are shared holds.
    pub(crate) fn updated(&self, elements: usize) -> Range<usize> {
        self.sharding.updated(elements, self.slots[self.all.rank()])
    }

    /// Whether it is for this rank to count what tensor-parallel ranks have whole.
    pub(crate) fn counts_whole(&self) -> bool {
        self.tensor.rank() == 0
    }

    /// Which of the parts that its process holds this rank has: device after device, each has them all.
    pub(crate) fn part(&self) -> usize {
        let Crew { own, here, parts } = self.crew;
        own / here * parts + own % parts
    }

    /// All ranks of this process, where they meet.
    pub(crate) fn crew(&self) -> Seats {
        Seats { own: self.crew.own, first: 0, step: 1 }
    }

    /// Those of them on this device that have the same part.
    pub(crate) fn sharers(&self) -> Seats {
        let Crew { own, here, parts } = self.crew;
        Seats { own: self.own.0, first: own / here * here + own % parts, step: parts }
    }

    /// Which of the ranks of its device with this part this is, and how many they are.
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

    /// The same of sums that add up to the same bits in any order.
    pub(crate) fn total_of_squares(&self, label: Label, own: &Squares) -> Result<f64> {
        if self.all.world() == 1 {
            return Ok(own.value());
        }
        let summing = begin();
        let all = self.all.all_reduce(label, &own.tensor()?, Reduce::Sum)?;
        let (bytes, among) = (Squares::BYTES, Some(self.all.ends()));
        summing.end(|| Doing::Sum { name: String::from("norm"), bytes, among });
        Ok(Squares::of(&all)?.value())
    }

    /// The same of those with this part.
    fn total_of_part(&self, label: Label, own: f64) -> Result<f64> {
        if self.all.world() == 1 {
            return Ok(own);
        }
        let mut by_slot = vec![0.0; self.slots.len()];
        let summing = begin();
        let found = all_gather_values(&*self.all, label, &[own])?;
        let (bytes, among) = (size_of::<f64>() as u64, Some(self.all.ends()));
        summing.end(|| Doing::Sum { name: String::from("norm"), bytes, among });
        for (slot, found) in self.slots.iter().zip(found) {
            by_slot[*slot] = found.iter().sum();
        }
        Ok(by_slot.iter().sum())
    }
}
