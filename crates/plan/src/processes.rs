//! What ranks in several processes take more than threads do: what another process sends is held in a buffer of the receiver's.

use std::collections::BTreeMap;
use std::ops::Range;

use annulus_experiment::Experiment;
use annulus_sequence::{Alive, Pass, Schedules, Taken, taken};
use annulus_yaml::Problem;

use crate::Plan;

/// Ranks that hold alike: at one place of a sequence, with the same places of it beside them in their process.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) place: usize,
    /// Ranks of the world in other processes, and in its own.
    pub(crate) elsewhere: usize,
    pub(crate) here: usize,
    /// The first of its process: what the ranks of a process share is counted to it.
    pub(crate) is_first: bool,
    /// By layer group, forward and backward.
    pub(crate) taken: Vec<[Taken; 2]>,
}

/// The kinds of ranks, and which kind a rank of the world is.
#[derive(Clone, Debug)]
pub(crate) struct Kinds {
    pub(crate) all: Vec<Kind>,
    of: Vec<usize>,
}

impl Kinds {
    /// That of a rank of the world.
    pub(crate) fn of(&self, rank: usize) -> &Kind {
        &self.all[self.of[rank]]
    }

    /// The same by its number.
    pub(crate) fn number(&self, rank: usize) -> usize {
        self.of[rank]
    }

    /// How many of so many ranks are of each kind.
    pub(crate) fn counted(&self, ranks: Range<usize>) -> impl Iterator<Item = (&Kind, usize)> {
        let mut counts = vec![0; self.all.len()];
        self.of[ranks].iter().for_each(|kind| counts[*kind] += 1);
        self.all.iter().zip(counts)
    }
}

impl Plan {
    /// How many ranks each process has.
    pub(crate) fn ranks_of_process(&self) -> usize {
        if let Err(problem) = check(&self.experiment) {
            panic!("{problem}");
        }
        self.world() / self.experiment.host.processes
    }

    /// How many ranks share what a process holds once: of devices apart, each is alone.
    pub(crate) fn ranks_beside(&self) -> usize {
        if self.experiment.host.apart.is_some() { 1 } else { self.ranks_of_process() }
    }

    /// The kinds of its ranks, by the processes that share them.
    pub(crate) fn kinds(&self) -> Kinds {
        let (world, here) = (self.world(), self.ranks_of_process());
        let mesh = &self.experiment.mesh;
        let (mut all, mut known, mut played) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let of_rank = |rank: usize| {
            let process = rank / here * here;
            let replica = mesh.replica(mesh.replica_of(rank));
            let (place, beside) = (mesh.place_of(rank), replica.places_in(process..process + here));
            let is_first = rank == process;
            *known.entry((place, beside.start, beside.end, is_first)).or_insert_with(|| {
                let plays = played.entry((beside.start, beside.end));
                let plays = plays.or_insert_with(|| self.played(&beside));
                let of_group = |[forward, backward]: &[Vec<Taken>; 2]| {
                    [forward, backward].map(|play| play[place - beside.start])
                };
                let taken = plays.iter().map(of_group).collect();
                all.push(Kind { place, elsewhere: world - here, here, is_first, taken });
                all.len() - 1
            })
        };
        let of = (0..world).map(of_rank).collect();
        Kinds { all, of }
    }

    /// What the places of a sequence that are in one process take, by layer group, forward and backward.
    fn played(&self, beside: &Range<usize>) -> Vec<[Vec<Taken>; 2]> {
        let of_pass = |passes: &Schedules, pass| {
            if beside.len() < passes.of(pass).world() {
                return taken(passes.of(pass), beside.clone());
            }
            // Where all are, the proof says so.
            let made = passes.proof(pass).made.iter();
            made.map(|made| Taken { made: *made, received: Alive::default() }).collect()
        };
        let of_group =
            |passes: &Schedules| [Pass::Forward, Pass::Backward].map(|pass| of_pass(passes, pass));
        self.passes.iter().map(|passes| of_group(passes)).collect()
    }
}

/// Refuses processes that would not have as many ranks each.
pub(crate) fn check(experiment: &Experiment) -> Result<(), Problem> {
    let Experiment { mesh, host, places, .. } = experiment;
    let (ranks, processes) = (mesh.data * mesh.sequence, host.processes);
    if processes > 0 && ranks.is_multiple_of(processes) {
        return Ok(());
    }
    let message = format!("{processes} processes cannot share {ranks} ranks evenly");
    Err(places.problem("mesh.sequence", message))
}
