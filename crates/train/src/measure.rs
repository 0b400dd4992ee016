//! What a step cost every rank.

use std::time::{Duration, Instant};

use annulus_comm::Label;
use candle_core::{Device, Tensor};

use crate::rank::Rank;
use crate::{Result, memory};

/// Counts of one step, by rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Costs {
    /// Payload handed to the communicator.
    pub(crate) bytes: Vec<u64>,
    /// The most memory in large blocks.
    pub(crate) memory: Vec<u64>,
}

/// Starts a step's counts from zero.
pub(crate) fn begin(rank: &Rank) {
    rank.meter.take();
    memory::reset_peak(rank.uncounted.rank());
}

/// The counts of every rank since [`begin`], everywhere; not counted themselves.
pub(crate) fn costs(rank: &Rank, step: u64) -> Result<Costs> {
    let bytes: u64 = rank.meter.take().bytes.values().sum();
    let own = [bytes, memory::peak(rank.uncounted.rank())];
    if rank.uncounted.world() == 1 {
        return Ok(Costs { bytes: vec![own[0]], memory: vec![own[1]] });
    }
    let label = Label { step, pass: "measure", hop: 0, layer: 0 };
    let own = Tensor::new(&own.map(|count| count as i64), &Device::Cpu)?;
    let mut costs = Costs::default();
    for all in rank.uncounted.all_gather(label, &own)? {
        let counts: Vec<i64> = all.to_vec1()?;
        costs.bytes.push(counts[0] as u64);
        costs.memory.push(counts[1] as u64);
    }
    Ok(costs)
}

/// Speed since the last logged step; evaluation and saving do not count.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    steps: u64,
    time: Duration,
}

impl Clock {
    /// Runs a step and counts its time.
    pub(crate) fn time<T>(&mut self, step: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = step();
        self.steps += 1;
        self.time += start.elapsed();
        result
    }

    /// Tokens per second, of `tokens` per step, since the last call.
    pub(crate) fn speed(&mut self, tokens: usize) -> f64 {
        let Clock { steps, time } = std::mem::take(self);
        steps as f64 * tokens as f64 / time.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}
