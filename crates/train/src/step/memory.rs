//! What steps of a plan hold, hand over and take, measured beside what was planned.

use std::sync::Arc;
use std::time::Instant;

use annulus_comm::Label;
use annulus_memory::{ByClass, Class, peaks, reset_peaks};
use annulus_plan::{Plan, RankPlan};
use candle_core::{Device, Tensor};

use crate::setup::initial::initial_weights;
use crate::setup::start::{Handout, Start};
use crate::step::rank::Rank;
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
    let program = |rank: Rank| {
        let comm = rank.uncounted.clone();
        let owner = comm.rank();
        let start = start.take(owner);
        let mut trainer = Trainer::new(rank, plan, data.train.clone(), &start)?;
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
        let held = peaks(owner);
        let numbers = Class::ALL.map(|class| held[class]).into_iter();
        let numbers = numbers.chain([held.together, handed_over]).map(|bytes| bytes as f64);
        let own: Vec<f64> = numbers.chain(seconds).collect();
        let label = Label { pass: "measured", ..Label::default() };
        Ok(comm.all_gather(label, &Tensor::new(own, &Device::Cpu)?)?)
    };
    let planned = plan.with_cores(cores);
    let of_ranks = setup.run(program)?;
    let ranks = of_ranks.iter().zip(&planned);
    ranks.map(|(found, plan)| Ok(measured(&found.to_vec1()?, plan))).collect()
}

/// What a rank found: its bytes by class, at once and handed over, then the seconds of its steps.
fn measured(found: &[f64], plan: &RankPlan) -> Measured {
    let (bytes, seconds) = found.split_at(Class::ALL.len() + 2);
    let mut bytes = bytes.iter().map(|bytes| *bytes as u64);
    let mut next = || bytes.next().unwrap_or_default();
    let memory = Memory {
        rank: plan.rank,
        measured: ByClass::new(|_| next()),
        planned: plan.peak,
        together: next(),
        planned_together: plan.together,
    };
    Measured {
        memory,
        bytes: next(),
        planned_bytes: plan.forward + plan.backward + plan.gradients,
        seconds: seconds.to_vec(),
    }
}
