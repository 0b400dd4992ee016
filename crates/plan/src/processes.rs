//! Memory that ranks of several processes take beyond ranks that are threads of one: a block from another process is held in a buffer of
//! the receiver's.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use annulus_experiment::{Experiment, Host, Parallel, Settled, State};
use annulus_memory::{ByClass, Class};
use annulus_sequence::{Alive, Move, Pass, Schedule, Schedules, Taken, taken};
use annulus_text::count;
use annulus_yaml::Problem;

use crate::cost::Share;
use crate::rank::RankMemory;
use crate::{Plan, StateSharding};

/// Ranks with the same memory: at the same place of a sequence, beside the same other places in their process.
#[derive(Clone, Debug)]
pub(crate) struct RankKind {
    pub(crate) place: usize,
    /// Ranks that sum the same gradients: in other processes (`elsewhere`), and in its own (`here`).
    pub(crate) elsewhere: usize,
    pub(crate) here: usize,
    /// Whether the rank is the first of its process with its tensor-parallel part: memory that they share is counted for it.
    pub(crate) is_first: bool,
    /// Whether it is rank 0, which writes the whole checkpoint where the state is not sharded.
    pub(crate) is_writer: bool,
    /// Buffers that it allocates for blocks, by layer group: forward, backward.
    pub(crate) taken: Vec<[Taken; 2]>,
}

/// All kinds of ranks, and the kind of every rank of the world.
#[derive(Clone, Debug)]
pub(crate) struct RankKinds {
    pub(crate) all: Vec<RankKind>,
    of: Vec<usize>,
}

impl RankKinds {
    /// The kind of `rank`, a number in the world.
    pub(crate) fn of(&self, rank: usize) -> &RankKind {
        &self.all[self.of[rank]]
    }

    /// The number of the kind of `rank`, a number in the world.
    pub(crate) fn number(&self, rank: usize) -> usize {
        self.of[rank]
    }
}

impl Plan {
    /// The number of ranks per process.
    pub(crate) fn ranks_of_process(&self) -> usize {
        if let Err(problem) = check(&self.experiment) {
            panic!("{problem}");
        }
        self.world() / self.experiment.host.processes
    }

    /// The number of ranks that share a memory: a process's, or each of its GPUs'.
    pub fn ranks_of_device(&self) -> usize {
        self.ranks_of_process() / self.experiment.host.devices
    }

    /// The number of ranks that share a memory, 1 where every rank has a device of its own.
    fn ranks_beside(&self) -> usize {
        if self.experiment.host.cluster.is_some() { 1 } else { self.ranks_of_device() }
    }

    /// The GPUs of the process, each with its ranks: `cuda:0 (ranks 0 to 3)`. Empty on a CPU, and where processes have one GPU each.
    pub fn gpus(&self) -> Vec<String> {
        let Host { gpu_memory, devices, processes, cluster, .. } = &self.experiment.host;
        if gpu_memory.is_none() || *processes > 1 || cluster.is_some() {
            return Vec::new();
        }
        let each = self.ranks_of_device();
        let ranks = |first: usize| match each {
            1 => format!("rank {first}"),
            _ => format!("ranks {first} to {}", first + each - 1),
        };
        let numbers = self.experiment.device.numbers(*devices).into_iter().enumerate();
        numbers.map(|(at, number)| format!("cuda:{number} ({})", ranks(at * each))).collect()
    }

    /// The number of ranks that sum the same gradients: those with the same tensor-parallel part.
    pub fn summing(&self) -> usize {
        self.world() / self.experiment.mesh.tensor
    }

    /// The number of ranks that sum the same gradients and share a memory.
    pub(crate) fn summing_beside(&self) -> usize {
        self.ranks_beside() / self.parts(self.ranks_beside())
    }

    /// The number of different tensor-parallel parts among `ranks` neighbours.
    fn parts(&self, ranks: usize) -> usize {
        ranks.min(self.experiment.mesh.tensor)
    }

    /// The slice number of `rank` among the ranks that sum the same gradients, in the order of processes and their ranks.
    pub(crate) fn slot(&self, rank: usize) -> usize {
        let (beside, tensor) = (self.ranks_beside(), self.experiment.mesh.tensor);
        let process = rank / beside / (tensor / beside).max(1);
        self.sharding().slot(rank % beside / self.parts(beside), process)
    }

    /// How processes shard the state.
    pub fn sharding(&self) -> StateSharding {
        self.sharding_of(self.memory.state, self.summing_beside())
    }

    /// How processes shard the state if `state` is sharded, and each has `here` ranks that sum the same gradients.
    pub fn sharding_of(&self, state: State, here: usize) -> StateSharding {
        let sharding = sharding_of(&self.experiment, state, here);
        sharding.expect("processes were checked to lie along the axes")
    }

    /// Peak memory of every rank of a sequence, bytes, where each has a device of its own: by class, and of all classes at the same
    /// moment.
    pub fn peaks_apart(&self) -> Vec<(ByClass, u64)> {
        let kinds = self.rank_kinds();
        let ranks = self.experiment.mesh.replica(0).ranks();
        ranks.map(|rank| self.held_apart(self.memory, kinds.of(rank))).collect()
    }

    /// Peak memory of a rank of `kind` that has a device of its own: by class, and of all classes at the same moment. What arrives takes a
    /// buffer of its own, blocks in flight are those of the proofs, and the largest layer group counts.
    pub(crate) fn held_apart(&self, memory: Settled, kind: &RankKind) -> (ByClass, u64) {
        let elsewhere = self.summing() - 1;
        let kind = &RankKind { elsewhere, here: 1, is_first: true, ..kind.clone() };
        let of_group = |(group, schedules): (usize, &Arc<Schedules>)| {
            let workers = self.experiment.host.workers;
            let share = Share::new(self, memory, group, schedules, kind, workers);
            let received = |pass| share.received(pass, schedules.proof(pass).alive[kind.place]);
            let key_values = [Pass::Forward, Pass::Backward].map(received);
            let most = key_values.into_iter().max().unwrap_or_default();
            let peak_by_class = share.peak_by_class().with(Class::KeyValue, most);
            let peak = share.peak(&peak_by_class, key_values);
            let held = RankMemory { peak_by_class, peak, ..RankMemory::default() };
            let held = held.and_workspace(self.attending(share.scratch(), workers));
            (held.peak_by_class, held.peak)
        };
        let groups = self.schedules.iter().enumerate().map(of_group);
        groups.max_by_key(|(_, peak)| *peak).unwrap_or_default()
    }

    /// The kinds of the plan's ranks, by how they share processes. A block from another device of the same process takes a buffer, as one
    /// from another process does.
    pub(crate) fn rank_kinds(&self) -> RankKinds {
        let (world, summing, here) = (self.world(), self.summing(), self.ranks_of_device());
        let parts = self.parts(here);
        let mesh = &self.experiment.mesh;
        let (mut all, mut known, mut played) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let of_rank = |rank: usize| {
            let process = rank / here * here;
            let (place, sequence) = (mesh.place_of(rank), mesh.beside(rank));
            let beside = sequence.places_in(process..process + here);
            let is_first = rank - process < parts;
            let is_writer = rank == 0;
            *known.entry((place, beside.start, beside.end, is_first, is_writer)).or_insert_with(
                || {
                    let plays = played.entry((beside.start, beside.end));
                    let plays = plays.or_insert_with(|| self.played(&beside));
                    let of_group = |[forward, backward]: &[Vec<Taken>; 2]| {
                        [forward, backward].map(|play| play[place - beside.start])
                    };
                    let taken = plays.iter().map(of_group).collect();
                    let elsewhere = summing - here / parts;
                    let here = here / parts;
                    all.push(RankKind { place, elsewhere, here, is_first, is_writer, taken });
                    all.len() - 1
                },
            )
        };
        let of = (0..world).map(of_rank).collect();
        RankKinds { all, of }
    }

    /// Buffers for blocks of the places `beside` of a sequence, which are in one process: by layer group, forward and backward.
    fn played(&self, beside: &Range<usize>) -> Vec<[Vec<Taken>; 2]> {
        let of_pass = |schedules: &Schedules, pass| {
            if beside.len() < schedules.of(pass).world() {
                return taken(schedules.of(pass), beside.clone());
            }
            // With all places in one process, the proof has counted them.
            let proof = schedules.proof(pass);
            let copies = copies_what_it_lends(schedules.of(pass), self.micro_batch);
            let lent =
                |alive: &Alive| Alive { outputs: 0, query_gradients: 0, gradients: 0, ..*alive };
            let received = |alive| if copies { lent(alive) } else { Alive::default() };
            let both = proof.made.iter().zip(&proof.alive);
            both.map(|(made, alive)| Taken { made: *made, received: received(alive) }).collect()
        };
        let of_group = |schedules: &Schedules| {
            [Pass::Forward, Pass::Backward].map(|pass| of_pass(schedules, pass))
        };
        self.schedules.iter().map(|schedules| of_group(schedules)).collect()
    }
}

/// Whether ranks copy what they lend of their own: some heads of several sequences, or some rows of several heads, do not lie side by side.
fn copies_what_it_lends(schedule: &Schedule, sequences: usize) -> bool {
    let is_copied = |sent: &Move| {
        let block = sent.block;
        let whole = schedule.whole(block.part, block.owner);
        let few_heads = block.heads != whole.heads && sequences > 1;
        let few_rows = block.rows != whole.rows && sequences * block.heads.len() > 1;
        block.part.is_lent() && (few_heads || few_rows)
    };
    let in_hop = |hop: usize| {
        let groups = schedule.groups(hop);
        groups.iter().any(|group| schedule.hop(group.first(), hop).sends.iter().any(is_copied))
    };
    (0..schedule.hops()).any(in_hop)
}

/// Refuses processes, and GPUs of a process, that cannot share the ranks evenly.
pub(crate) fn check(experiment: &Experiment) -> Result<(), Problem> {
    let Experiment { mesh, host, device, places, .. } = experiment;
    check_of(experiment, host.processes)?;
    if host.devices == 1 || check_of(experiment, host.sharing()).is_ok() {
        return Ok(());
    }
    let (ranks, devices) = (mesh.ranks(), host.devices);
    let message =
        format!("`{}`: {devices} GPUs cannot share {} evenly", device.word(), count(ranks, "rank"));
    let hint = match devices_for(experiment, devices) {
        1 => "name one GPU for all, or let `mesh` have a rank for each".to_owned(),
        most => format!("name {most} of them, or let `mesh` have a rank for each"),
    };
    Err(places.problem("device", message).hint(hint))
}

/// The most of `there` devices that the ranks of an experiment can share: evenly, and along the axes of the mesh as processes do.
pub fn devices_for(experiment: &Experiment, there: usize) -> usize {
    let shared = |devices: &usize| check_of(experiment, *devices).is_ok();
    (1..=there.min(experiment.mesh.ranks())).rev().find(shared).unwrap_or(1)
}

/// Refuses `processes` that cannot share the ranks evenly along the axes of the mesh.
pub(crate) fn check_of(experiment: &Experiment, processes: usize) -> Result<(), Problem> {
    let Experiment { mesh, places, .. } = experiment;
    let ranks = mesh.ranks();
    if processes == 0 || !ranks.is_multiple_of(processes) {
        let message =
            format!("{} cannot share {} evenly", count(processes, "process"), count(ranks, "rank"));
        let hint = format!("start a number of processes that divides the {ranks} ranks of `mesh`");
        return Err(places.problem("mesh.sequence", message).hint(hint));
    }
    let (here, tensor) = (ranks / processes, mesh.tensor);
    if here.is_multiple_of(tensor) || tensor.is_multiple_of(here) {
        let sharding = sharding_of(experiment, experiment.parallel.state, here.div_ceil(tensor));
        return sharding.map(drop).ok_or_else(|| crosses(experiment, here));
    }
    let message =
        format!("{tensor} tensor-parallel ranks do not fit evenly into processes of {here} ranks");
    let hint =
        "start as many processes that each has a multiple, or a divisor, of `mesh.tensor` ranks";
    Err(places.problem("mesh.tensor", message).hint(hint))
}

/// How processes with `here` ranks each shard `state`; `None` where processes do not lie along its axes.
fn sharding_of(experiment: &Experiment, state: State, here: usize) -> Option<StateSharding> {
    let Experiment { mesh, parallel, .. } = experiment;
    let axes = (mesh.order, [mesh.data, mesh.sequence]);
    StateSharding::of(axes, Parallel { state, ..*parallel }, here)
}

/// The error of processes whose ranks belong to several holders of the state, or to their mirrors too.
fn crosses(experiment: &Experiment, here: usize) -> Problem {
    let Experiment { mesh, parallel, places, .. } = experiment;
    let (data, sequence, axes) = (mesh.data, mesh.sequence, parallel.state_axes.word());
    let message = format!(
        "processes of {here} ranks do not lie along the axis `{axes}` of a mesh of {data} by {sequence}"
    );
    let hint = "let all share (`state_axes: all`), or start as many processes that each has a multiple, or a divisor, of the ranks along the inner axis";
    places.problem("parallel.state_axes", message).hint(hint)
}
