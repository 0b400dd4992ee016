//! Which elements of every parameter a rank sums, updates and holds.
//!
//! All N ranks sum gradients, each a slice of every parameter ([`slice_range`]). The T ranks of a process share one copy of what it holds, and
//! each updates a part of it. A process holds all of the state, or a shard:
//!
//! ```text
//! replicated    each of the processes all of it
//! zero1, zero2  masters and moments: all `holders` together, each a shard; weights: every process all
//! zero3         weights, too: they are gathered before a stage runs, and dropped after it
//! ```
//!
//! Holders are all processes, or those along the named axes of the mesh; the processes along the other axes are mirrors, which hold the
//! same shard (hybrid sharding, Zhao et al. 2023, arXiv 2304.11277, section 3.2.2) and exchange what they have summed of it.

use std::ops::Range;

use annulus_architecture::slice_range;
use annulus_experiment::{Order, Parallel, State, StateAxes};

/// How processes shard the state of the ranks that have the same tensor-parallel part of the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSharding {
    /// The number of these ranks in each process.
    pub here: usize,
    /// The number of processes that hold all of the state together; 1: each holds all.
    pub holders: usize,
    /// The number of processes with the same shard.
    pub mirrors: usize,
    /// The distance between neighbouring holders, and between neighbouring mirrors, in processes.
    steps: [usize; 2],
    /// What is sharded; [`State::Replicated`] where each process holds everything.
    pub state: State,
}

/// Ranks at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// The first rank of the group.
    pub first: usize,
    /// The distance from one rank to the next.
    pub step: usize,
    /// The number of ranks in the group.
    pub many: usize,
}

impl Group {
    /// The first and the last rank's number, where every rank of the group stands for `each` ranks.
    pub fn ends(&self, each: usize) -> [usize; 2] {
        [self.first, self.first + (self.many - 1) * self.step].map(|rank| rank * each)
    }
}

impl StateSharding {
    /// The sharding of processes with `here` ranks each, on a mesh of `data` by `sequence`; `None` where processes do not lie along the
    /// axes over which the state is sharded.
    pub fn of(
        (order, [data, sequence]): (Order, [usize; 2]),
        parallel: Parallel,
        here: usize,
    ) -> Option<StateSharding> {
        let (neighbours, others) = match order {
            Order::SequenceFirst => (sequence, data),
            Order::DataFirst => (data, sequence),
        };
        let processes = neighbours * others / here;
        if !here.is_multiple_of(neighbours) && !neighbours.is_multiple_of(here) {
            let is_told =
                parallel.state != State::Replicated && parallel.state_axes != StateAxes::All;
            let over_all =
                || StateSharding::over(here, [processes, 1], [1, processes], parallel.state);
            return (!is_told).then(over_all);
        }
        // Processes along the axis of neighbouring ranks; `others` is the other axis.
        let along = neighbours.div_ceil(here);
        let across = processes / along;
        let (holders, steps) =
            match (parallel.state_axes, order) {
                (StateAxes::All, _) => ([processes, 1], [1, processes]),
                (StateAxes::Sequence, Order::SequenceFirst)
                | (StateAxes::Data, Order::DataFirst) => ([along, across], [1, along]),
                (StateAxes::Sequence, Order::DataFirst)
                | (StateAxes::Data, Order::SequenceFirst) => ([across, along], [along, 1]),
            };
        Some(StateSharding::over(here, holders, steps, parallel.state))
    }

    fn over(
        here: usize,
        [holders, mirrors]: [usize; 2],
        steps: [usize; 2],
        state: State,
    ) -> StateSharding {
        if holders > 1 && state.shards_optimizer() {
            return StateSharding { here, holders, mirrors, steps, state };
        }
        let processes = holders * mirrors;
        let steps = [processes, 1];
        StateSharding { here, holders: 1, mirrors: processes, steps, state: State::Replicated }
    }

    /// The number of ranks that sum a parameter.
    pub fn ranks(&self) -> usize {
        self.parts() * self.mirrors
    }

    /// The number of ranks that each update a part of a parameter.
    pub fn parts(&self) -> usize {
        self.here * self.holders
    }

    /// The number of `process` among the holders, and among its mirrors.
    pub fn place(&self, process: usize) -> [usize; 2] {
        let [of_holders, of_mirrors] = self.steps.map(|step| process / step);
        [of_holders % self.holders, of_mirrors % self.mirrors]
    }

    /// The number of the slice that rank `own` of `process` sums: slices of mirrors are neighbours.
    pub fn slot(&self, own: usize, process: usize) -> usize {
        let [holder, mirror] = self.place(process);
        (own * self.holders + holder) * self.mirrors + mirror
    }

    /// The elements of a parameter that slice `slot` sums.
    pub fn summed(&self, elements: usize, slot: usize) -> Range<usize> {
        slice_range(elements, slot, self.ranks())
    }

    /// The elements of a parameter that the rank of slice `slot` updates: its own slice, and those that its mirrors sum.
    pub fn updated(&self, elements: usize, slot: usize) -> Range<usize> {
        slice_range(elements, slot / self.mirrors, self.parts())
    }

    /// The groups of holders, by number among the mirrors; and the groups of mirrors, by holder. Of each process the first rank.
    pub fn groups(&self) -> [Vec<Group>; 2] {
        let [step, other] = self.steps.map(|step| step * self.here);
        let of = |many: usize, step: usize, others: usize, other: usize| {
            (0..others).map(|number| Group { first: number * other, step, many }).collect()
        };
        let (holders, mirrors) = (self.holders, self.mirrors);
        [of(holders, step, mirrors, other), of(mirrors, other, holders, step)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For every process, its number among the holders and among its mirrors; `None` where processes cross the axes.
    fn places(order: Order, axes: StateAxes, here: usize) -> Option<Vec<[usize; 2]>> {
        let parallel = Parallel { state: State::Zero3, state_axes: axes };
        let sharding = StateSharding::of((order, [3, 4]), parallel, here)?;
        let processes = 12 / here;
        assert_eq!(sharding.holders * sharding.mirrors, processes);
        let slots = (0..here).flat_map(|own| (0..processes).map(move |of| sharding.slot(own, of)));
        let mut slots: Vec<usize> = slots.collect();
        for slot in 0..12 {
            let (summed, updated) = (sharding.summed(1000, slot), sharding.updated(1000, slot));
            assert!(updated.start <= summed.start && summed.end <= updated.end);
        }
        slots.sort_unstable();
        assert_eq!(slots, (0..12).collect::<Vec<_>>());
        Some((0..processes).map(|process| sharding.place(process)).collect())
    }

    #[test]
    fn processes_along_an_axis_hold_all_together() {
        let all = |here| places(Order::SequenceFirst, StateAxes::All, here).unwrap();
        assert_eq!(all(4), [[0, 0], [1, 0], [2, 0]]);
        assert_eq!(all(3), [[0, 0], [1, 0], [2, 0], [3, 0]]);
        let sequence = |here| places(Order::SequenceFirst, StateAxes::Sequence, here);
        assert_eq!(sequence(2).unwrap(), [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2]]);
        // Each process has whole sequences, and so holds all of the state.
        assert_eq!(sequence(4).unwrap(), [[0, 0], [0, 1], [0, 2]]);
        let data = |here| places(Order::SequenceFirst, StateAxes::Data, here);
        assert_eq!(data(2).unwrap(), [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1]]);
        assert_eq!(data(4).unwrap(), [[0, 0], [1, 0], [2, 0]]);
        let crossed = places(Order::DataFirst, StateAxes::Data, 1).unwrap();
        assert_eq!(crossed[..4], [[0, 0], [1, 0], [2, 0], [0, 1]]);
        let crossed = places(Order::DataFirst, StateAxes::Sequence, 3).unwrap();
        assert_eq!(crossed, [[0, 0], [1, 0], [2, 0], [3, 0]]);
        assert_eq!(sequence(3).or_else(|| data(6)), None);
    }
}
