//! Memory, bytes and seconds of the steps of a plan, measured beside what was planned.

use std::sync::Arc;
use std::time::Instant;

use annulus_comm::{Label, World, all_gather_values};
use annulus_memory::{ByClass, Bytes, Class, current, peaks, reset_peaks};
use annulus_plan::{Plan, RankPlan};

use crate::setup::initial::initial_weights;
use crate::setup::pages::{Room, return_what_was_freed};
use crate::setup::shared::ranks_here;
use crate::setup::start::{Handout, Start};
use crate::step::measure::resident::{OfProcess, ProcessMemory, logged, process_memory_of};
use crate::step::rank::Rank;
use crate::step::state::parameters::Store;
use crate::step::trainer::Trainer;
use crate::{Opening, Result, Setup, open_data};

/// The memory of one rank over a step, bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// The rank's number in the world.
    pub rank: usize,
    /// The peak of every class, whenever it was.
    pub measured: ByClass,
    /// The planned peak of every class, for as many workers as there are cores: ranks lend theirs.
    pub planned: ByClass,
    /// The measured peak memory.
    pub together: u64,
    /// The planned peak memory.
    pub planned_together: u64,
}

/// What one rank held, sent and took over a few steps.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The rank's memory in the last step.
    pub memory: Memory,
    /// Bytes that the rank sent in the last step.
    pub bytes: u64,
    /// Bytes that the rank was planned to send in a step.
    pub planned_bytes: u64,
    /// The duration of every step, seconds.
    pub seconds: Vec<f64>,
}

/// Trains `plan` for `steps` steps on `cores` cores, writing nothing but its token cache, and returns what every rank held, sent and took.
/// Ranks are told apart by their number, so nothing else may train in this process meanwhile; what is left of earlier runs does not count.
/// All zero where [`Counting`](annulus_memory::Counting) is not the program's allocator.
///
/// # Errors
/// Bad data or weights, and any failure of a rank.
pub fn measure(plan: &Plan, steps: u64, cores: usize) -> Result<Vec<Measured>> {
    Ok(measure_over(&World::alone(), plan, steps, cores)?.ranks)
}

/// What ranks held, sent and took, and what the processes that share them held.
#[derive(Clone, Debug)]
pub struct OfProcesses {
    /// Measurements by rank.
    pub ranks: Vec<Measured>,
    /// Memory by process; empty where the system does not say.
    pub processes: Vec<ProcessMemory>,
}

/// [`measure`] over the processes of a world, with `cores` cores of this one; every process gets the results of all. `plan` must be for as
/// many processes.
///
/// # Errors
/// Those of [`measure`], and processes that cannot share the ranks evenly.
pub fn measure_over(world: &World, plan: &Plan, steps: u64, cores: usize) -> Result<OfProcesses> {
    let setup = Arc::new(Setup::new(plan, cores).over(world));
    let data = open_data(plan, Opening::default(), &mut |_| {})?;
    let start = Start::fresh(&plan.experiment, initial_weights(plan, &setup.config)?);
    let process = OfProcess::before();
    let (cores, here) = (cores * world.beside().len(), ranks_here(world, setup.world())?);
    let room = Room::of(plan, cores, here.clone(), process.base);
    let first = here.start;
    let before: Vec<Bytes> = here.clone().map(current).collect();
    let store = Store::new(&setup, &start.weights, here.clone())?;
    let start = Handout::new(start, here);
    let program = |rank: Rank| {
        let (comm, owner) = (rank.comm.clone(), rank.comm.rank());
        let start = start.take(owner);
        let (rank, source) = (rank.within(&room), data.train.clone());
        let mut trainer = Trainer::new(rank, plan, source, &start, &store)?;
        drop(start);
        return_what_was_freed();
        let (seconds, handed_over) = stepped(&mut trainer, steps, owner)?;
        let held = beyond(peaks(owner), before[owner - first]);
        let numbers = Class::ALL.map(|class| held[class]).into_iter();
        let numbers = numbers.chain([held.together, handed_over]).map(|bytes| bytes as f64);
        let process = process.now().counts().map(|bytes| bytes as f64);
        let own: Vec<f64> = numbers.chain(process).chain(seconds).collect();
        let label = Label { pass: "measured", ..Label::default() };
        Ok(all_gather_values(&*comm, label, &own)?)
    };
    let (planned, found) = (plan.with_cores(cores), setup.run(program)?);
    let at = Class::ALL.len() + 2;
    let processes = found.iter().filter_map(|found| found.get(at..)?.first_chunk());
    let processes: Vec<OfProcess> =
        processes.map(|both: &[f64; 2]| OfProcess::of(&both.map(|bytes| bytes as i64))).collect();
    let last = logged(&processes, &setup.rank_hosts()).into_iter().collect();
    let ranks = found.iter().zip(&planned).map(|(found, plan)| measured(found, plan)).collect();
    Ok(OfProcesses { ranks, processes: process_memory_of(plan, &planned, &last) })
}

/// What was held beyond what earlier runs in this process left: tables of locks and queues, which grow with threads and are never freed.
fn beyond(held: Bytes, before: Bytes) -> Bytes {
    let classes = ByClass::new(|class| held[class].saturating_sub(before[class]));
    Bytes { classes, together: held.together.saturating_sub(before.together) }
}

/// The seconds of each of this rank's `steps` steps, and the bytes that it sent in the last.
fn stepped(trainer: &mut Trainer, steps: u64, owner: usize) -> Result<(Vec<f64>, u64)> {
    let (mut seconds, mut handed_over) = (Vec::new(), 0);
    for _ in 0..steps {
        reset_peaks(owner);
        trainer.rank.meter.take();
        let begun = Instant::now();
        trainer.step()?;
        seconds.push(begun.elapsed().as_secs_f64());
        handed_over = trainer.rank.meter.take().bytes.values().sum();
    }
    Ok((seconds, handed_over))
}

/// What a rank measured, decoded: its bytes by class, at once and sent, then the seconds of its steps.
fn measured(found: &[f64], plan: &RankPlan) -> Measured {
    let (bytes, rest) = found.split_at(Class::ALL.len() + 2);
    let seconds = rest.get(2..).unwrap_or_default();
    let mut bytes = bytes.iter().map(|bytes| *bytes as u64);
    let mut next = || bytes.next().unwrap_or_default();
    let memory = Memory {
        rank: plan.rank,
        measured: ByClass::new(|_| next()),
        planned: plan.peak_by_class,
        together: next(),
        planned_together: plan.peak,
    };
    Measured { memory, bytes: next(), planned_bytes: plan.sent(), seconds: seconds.to_vec() }
}
