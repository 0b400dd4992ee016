//! What a step cost every rank.

use std::time::{Duration, Instant};

use annulus_comm::Label;
use annulus_memory::{Class, peaks, reset_peaks};
use candle_core::{Device, Tensor};

use crate::Result;
use crate::run::sink::Value;
use crate::step::rank::Rank;

/// Counts of one step, by rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Costs {
    /// Payload handed to the communicator.
    bytes: Vec<u64>,
    /// The most memory in large blocks, of all classes at once.
    together: Vec<u64>,
    /// The most of every class.
    classes: [Vec<u64>; Class::ALL.len()],
}

/// By class, the tag of its peak.
const TAGS: [&str; Class::ALL.len()] = [
    "memory/weights",
    "memory/gradients",
    "memory/optimizer",
    "memory/activations",
    "memory/key_value",
    "memory/workspace",
    "memory/data",
];

impl Costs {
    /// What is logged, by tag.
    pub(crate) fn values(&self) -> impl Iterator<Item = (&'static str, Value<'_>)> {
        let all = [("comm/bytes", &self.bytes), ("memory/peak", &self.together)];
        let classes = TAGS.into_iter().zip(&self.classes);
        all.into_iter().chain(classes).map(|(tag, counts)| (tag, Value::PerRank(counts)))
    }

    fn push(&mut self, counts: &[i64]) {
        let lists = [&mut self.bytes, &mut self.together].into_iter().chain(&mut self.classes);
        lists.zip(counts).for_each(|(list, count)| list.push(*count as u64));
    }
}

/// Starts a step's counts from zero.
pub(crate) fn begin(rank: &Rank) {
    rank.meter.take();
    reset_peaks(rank.uncounted.rank());
}

/// The counts of every rank since [`begin`], everywhere; not counted themselves.
pub(crate) fn costs(rank: &Rank, step: u64) -> Result<Costs> {
    let bytes: u64 = rank.meter.take().bytes.values().sum();
    let memory = peaks(rank.uncounted.rank());
    let own =
        [bytes, memory.together].into_iter().chain(Class::ALL.map(|class| memory.classes[class]));
    let own: Vec<i64> = own.map(|count| count as i64).collect();
    let mut costs = Costs::default();
    if rank.uncounted.world() == 1 {
        costs.push(&own);
        return Ok(costs);
    }
    let label = Label { step, pass: "measure", hop: 0, layer: 0 };
    let own = Tensor::new(own, &Device::Cpu)?;
    for all in rank.uncounted.all_gather(label, &own)? {
        costs.push(&all.to_vec1()?);
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
