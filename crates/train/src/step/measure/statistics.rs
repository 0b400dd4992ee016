//! What a step cost every rank: time, bytes and memory.

use std::time::{Duration, Instant};

use annulus_comm::{Label, Traffic, all_gather_values};
use annulus_experiment::tags::{COMM_BYTES, MEMORY_OF_CLASSES, MEMORY_PEAK};
use annulus_memory::{Class, is_installed, peaks, reset_peaks};

use crate::Result;
use crate::sink::Value;
use crate::step::measure::hosts::{HostCosts, Spent};
use crate::step::measure::resident::{OfProcess, logged};
use crate::step::rank::Rank;

/// Bytes and memory of one step, by rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Costs {
    /// Payload bytes handed to the communicator, by rank.
    bytes: Vec<u64>,
    /// By rank, what it counts of the visible pairs of all steps of the lap.
    pairs: Vec<u64>,
    /// By rank, peak memory in large blocks, of all classes at the same moment; of a rank on a GPU, of the GPU's.
    peak: Vec<u64>,
    /// Whether ranks hold their tensors in a GPU's memory, of which no classes are counted.
    is_on_gpus: bool,
    /// By class and rank, peak memory.
    classes: [Vec<u64>; Class::ALL.len()],
    /// Resident memory of processes, with its tags.
    resident: Vec<(String, f64)>,
    /// Traffic and time by host, where the ranks are in several processes.
    hosts: Option<HostCosts>,
}

/// How many counts every rank has: bytes, visible pairs, peak memory, and the peak of every class.
const CLASSED: usize = 3 + Class::ALL.len();

impl Costs {
    /// Everything that is logged, by tag: memory only where the program's allocator counts it, or a GPU's driver.
    pub(crate) fn values(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        let of_host = !self.is_on_gpus && is_installed();
        let of_gpus = self.is_on_gpus && self.peak.iter().all(|bytes| *bytes > 0);
        let peak = (of_host || of_gpus).then_some((MEMORY_PEAK, &self.peak));
        let classes = MEMORY_OF_CLASSES.into_iter().zip(&self.classes).filter(move |_| of_host);
        let counts = [(COMM_BYTES, &self.bytes)].into_iter().chain(peak).chain(classes);
        let counts = counts.map(|(tag, counts)| (tag, Value::PerRank(counts)));
        let resident =
            self.resident.iter().map(|(tag, bytes)| (tag.as_str(), Value::Number(*bytes)));
        counts.chain(resident).chain(self.hosts.iter().flat_map(HostCosts::values))
    }

    /// The visible pairs of all steps of the lap, over all sequences and layers; 0 where the mask has no documents of the data.
    pub(crate) fn pairs(&self) -> u64 {
        self.pairs.iter().sum()
    }

    fn push(&mut self, counts: &[i64]) {
        let lists = [&mut self.bytes, &mut self.pairs, &mut self.peak];
        let lists = lists.into_iter().chain(&mut self.classes);
        lists.zip(counts).for_each(|(list, count)| list.push(*count as u64));
    }
}

/// Starts a step's counts from zero.
pub(crate) fn begin(rank: &Rank) {
    rank.meter.take();
    reset_peaks(rank.comm.rank());
    if let Some(processor) = rank.setup.processors.at(rank.device) {
        processor.forget_pool_peak();
    }
}

/// The part of its GPU's peak that counts for a rank, bytes: the ranks of a process that share a GPU have equal parts, as its pool is one.
/// `None`: the rank's tensors are the host's.
fn peak_on_gpu(rank: &Rank) -> Option<u64> {
    let (setup, device) = (&rank.setup, rank.device);
    let peak = setup.processors.at(device)?.pool_peak()?;
    let here = setup.world() / setup.processes.processes();
    Some(peak.div_ceil((here / setup.processors.devices()).max(1) as u64))
}

/// The counts of every rank since [`begin`], with its time in `lap` and the memory of its `process`, the same on all ranks. The messages
/// for it are not counted.
pub(crate) fn costs(rank: &Rank, step: u64, lap: &Lap, process: OfProcess) -> Result<Costs> {
    let (memory, on_gpu) = (peaks(rank.comm.rank()), peak_on_gpu(rank));
    let together = on_gpu.unwrap_or(memory.together);
    let counts = [lap.last.total().bytes, lap.pairs, together].into_iter();
    let counts = counts.chain(Class::ALL.map(|class| memory.classes[class]));
    let process = process.now();
    let own = counts.map(|count| count as i64).chain(process.counts()).chain(lap.counts());
    let own: Vec<i64> = own.collect();
    let mut costs = Costs { is_on_gpus: on_gpu.is_some(), ..Costs::default() };
    let hosts = rank.setup.rank_hosts();
    if rank.comm.world_size() == 1 {
        costs.push(&own);
        costs.resident = logged(&[process], &hosts);
        return Ok(costs);
    }
    let label = Label { step, pass: "measure", hop: 0, layer: 0 };
    let (mut spent, mut processes) = (Vec::new(), Vec::new());
    for all in all_gather_values(&*rank.comm, label, &own)? {
        costs.push(&all);
        processes.extend(all.get(CLASSED..).and_then(<[i64]>::first_chunk).map(OfProcess::of));
        spent.extend(all.last_chunk().map(spent_of));
    }
    costs.resident = logged(&processes, &hosts);
    costs.hosts = (hosts.processes().len() > 1).then(|| HostCosts::of(&spent, &hosts));
    Ok(costs)
}

/// Time and bytes of the steps since the last logged one; evaluation and saving do not count.
#[derive(Debug, Default)]
pub(crate) struct Lap {
    steps: u64,
    time: Duration,
    /// What this rank counts of the steps' visible pairs: see [`MicroBatch::pairs`](crate::step::rank::MicroBatch::pairs).
    pairs: u64,
    /// Time of waiting within a host and between hosts.
    waiting: [Duration; 2],
    /// What this rank sent in the last step.
    last: Traffic,
}

impl Lap {
    /// Runs a step and adds its time.
    pub(crate) fn time<T>(&mut self, step: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = step();
        self.steps += 1;
        self.time += start.elapsed();
        result
    }

    /// Adds the visible pairs that this rank counted of a step.
    pub(crate) fn saw(&mut self, pairs: u64) {
        self.pairs += pairs;
    }

    /// Adds what a step sent, and how long it waited.
    pub(crate) fn handed(&mut self, traffic: Traffic) {
        let links = [traffic.within_host(), traffic.between_hosts];
        self.waiting.iter_mut().zip(links).for_each(|(sum, link)| *sum += link.waiting);
        self.last = traffic;
    }

    /// What is done in a second where a step does so much on average.
    pub(crate) fn per_second(&self, in_a_step: f64) -> f64 {
        self.steps as f64 * in_a_step / self.time.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// The number of steps.
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// The counts for [`spent_of`]: bytes by link, then nanoseconds of the mean step: of waiting by link, and of computing.
    fn counts(&self) -> [i64; 5] {
        let links = [self.last.within_host(), self.last.between_hosts];
        let [within, between] = links.map(|link| link.bytes as i64);
        let mean = |time: Duration| (time.as_nanos() / u128::from(self.steps.max(1))) as i64;
        let computing = self.time.saturating_sub(self.waiting.iter().sum());
        [within, between, mean(self.waiting[0]), mean(self.waiting[1]), mean(computing)]
    }
}

/// The inverse of [`Lap::counts`].
fn spent_of([within, between, times @ ..]: &[i64; 5]) -> Spent {
    let [waiting_within, waiting_between, computing] = times.map(|time| time as f64 / 1e9);
    Spent {
        bytes: [*within as u64, *between as u64],
        waiting: [waiting_within, waiting_between],
        computing,
    }
}
