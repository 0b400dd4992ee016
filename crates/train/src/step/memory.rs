//! What steps of a plan hold, hand over and take, measured beside what was planned.

use std::sync::Arc;
use std::time::Instant;

use annulus_comm::{Communicator, threads};
use annulus_memory::{ByClass, Bytes, peaks, reset_peaks};
use annulus_plan::{Plan, RankPlan};

use crate::setup::initial::initial_weights;
use crate::setup::start::{Handout, Start};
use crate::step::trainer::Trainer;
use crate::{Opening, Result, Setup, open_data};

/// The memory of one rank over a step, bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Its place in the world.
    pub rank: usize,
    /// The most of every class, whenever that was.
    pub measured: ByClass,
    /// The same, as planned for as many workers as there are cores: ranks lend theirs.
    pub planned: ByClass,
    /// The most of all classes at once.
    pub together: u64,
    /// The same, as planned.
    pub planned_together: u64,
}

/// One rank over a few steps.
#[derive(Clone, Debug)]
pub struct Measured {
    /// What it held in the last step.
    pub memory: Memory,
    /// Bytes that it handed over in the last step.
    pub bytes: u64,
    /// The same, as planned.
    pub planned_bytes: u64,
    /// Seconds of every step.
    pub seconds: Vec<f64>,
}

/// What every rank held in the last of a few steps: see [`measure`].
///
/// # Errors
/// What is wrong with data or weights, and what a rank fails with.
pub fn measure_memory(plan: &Plan, steps: u64, cores: usize) -> Result<Vec<Memory>> {
    Ok(measure(plan, steps, cores)?.into_iter().map(|rank| rank.memory).collect())
}

/// Trains `plan` for `steps` steps on `cores` cores, writing nothing but its token cache, and says
/// what every rank held, handed over and took. Ranks are told apart by their number, so nothing else may
/// train in this process meanwhile. All zero where
/// [`Counting`](annulus_memory::Counting) is not the program's allocator.
///
/// # Errors
/// What is wrong with data or weights, and what a rank fails with.
pub fn measure(plan: &Plan, steps: u64, cores: usize) -> Result<Vec<Measured>> {
    let setup = Arc::new(Setup::new(plan, cores));
    let data = open_data(plan, Opening::default(), &mut |_| {})?;
    let start = Start::fresh(initial_weights(plan, &setup.config)?);
    let start = Handout::new(start, 0..setup.world());
    let options =
        threads::Options { world: setup.world(), deadline: setup.deadline, stop: Arc::default() };
    let rank = |comm: Arc<dyn Communicator>| -> Result<(Bytes, u64, Vec<f64>)> {
        let owner = comm.rank();
        let start = start.take(owner);
        let mut trainer = Trainer::new(setup.rank(comm)?, plan, data.train.clone(), &start)?;
        drop(start);
        let (mut seconds, mut handed_over) = (Vec::new(), 0);
        for _ in 0..steps {
            reset_peaks(owner);
            trainer.rank.meter.take();
            let begun = Instant::now();
            trainer.step()?;
            seconds.push(begun.elapsed().as_secs_f64());
            handed_over = trainer.rank.meter.take().bytes.values().sum();
        }
        Ok((peaks(owner), handed_over, seconds))
    };
    let planned = plan.with_cores(cores);
    let ranks = threads::run(&options, rank)?.into_iter().zip(&planned);
    let measured = |((held, bytes, seconds), plan): ((Bytes, u64, Vec<f64>), &RankPlan)| Measured {
        memory: memory(&held, plan),
        bytes,
        planned_bytes: plan.forward + plan.backward + plan.gradients,
        seconds,
    };
    Ok(ranks.map(measured).collect())
}

fn memory(bytes: &Bytes, plan: &RankPlan) -> Memory {
    Memory {
        rank: plan.rank,
        measured: bytes.classes,
        planned: plan.peak,
        together: bytes.together,
        planned_together: plan.together,
    }
}
