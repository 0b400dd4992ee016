//! The speed of this machine, measured in a moment: `strategy: auto` chooses by it where no cluster is described.
//!
//! All ranks compute at once, each with its share of the cores, as in training, and a try lasts until the last rank is done: ranks that
//! share a core take turns. The fastest of a few tries counts, because disturbances only ever slow down. Threads hand tensors over without
//! copying them, so a link's time is that of waking up. If there are many ranks to a core, only some are measured: with all of them each
//! would be proportionally slower, and every message would wait for proportionally more wake-ups.

use std::sync::Arc;
use std::time::{Duration, Instant};

use annulus_attention::{Attention, CallSite, Qkv};
use annulus_comm::{Communicator, Label, P2pOp, Reduce, World, threads};
use annulus_ops::{Backend, Key, linear, normal};
use annulus_sequence::{Heads, Mask, Setting, Strategy};
use annulus_simulate::{Cluster, Link, Rates};
use candle_core::{DType, Device, Tensor};

use crate::Result;
use crate::setup::assemble::kernel;
use crate::setup::processors::Processors;
use crate::setup::shared::DEADLINE;

/// Rows of queries and of keys, and rows and columns of a matrix product.
const ROWS: usize = 512;
/// The same on a GPU: fewer would measure launches, and leave multiprocessors idle.
const GPU_ROWS: usize = 4096;
/// Heads that are measured of a rank with one worker, and, for a rank with several, heads per worker: enough to be worth sharing.
const HEADS: [usize; 2] = [2, 16];
/// Heads on a GPU.
const GPU_HEADS: usize = 16;
/// How many tries count, after one that does not.
const TRIES: usize = 5;
/// The least duration of a try: a shorter one would measure how ranks meet.
const TRY: Duration = Duration::from_millis(20);
/// The most repetitions of the work in a try.
const MOST: f64 = 64.0;
/// How many messages are timed together.
const MESSAGES: usize = 32;
/// The most time that the messages timed together take, unless two take longer.
const SLOW: Duration = Duration::from_millis(500);
/// How many rounds of messages are timed.
const FEW: usize = 3;
/// How many bytes a large message has.
const LARGE: usize = 4 << 20;
/// How many ranks are measured, if there are so many, even on fewer cores; each takes some 10 MB.
const LEAST_RANKS: usize = 8;

/// How the speed of a machine is measured: attention and products of these sizes on these devices, and messages between their ranks.
#[derive(Clone, Debug)]
pub struct SpeedProbe {
    /// Elements of an attention head.
    pub head_dim: usize,
    /// The dtype of activations.
    pub dtype: DType,
    /// The attention kernel.
    pub kernel: annulus_experiment::Kernel,
    /// Whether the kernel gives the same bits every time, on a GPU too.
    pub deterministic: bool,
    /// The number of cores, split over the ranks.
    pub cores: usize,
    /// The GPUs that compute, if the cores do not.
    pub processors: Processors,
}

/// How much one rank computes while it is measured.
#[derive(Clone, Copy)]
struct Size {
    /// Rows of queries and of keys, and columns of the product.
    rows: usize,
    heads: usize,
    /// Rows of the product.
    product: usize,
}

impl Size {
    fn of(workers: usize, device: &Device) -> Size {
        if device.is_cuda() {
            return Size { rows: GPU_ROWS, heads: GPU_HEADS, product: GPU_ROWS };
        }
        let [alone, of_each] = HEADS;
        let heads = if workers == 1 { alone } else { of_each * workers };
        Size { rows: ROWS, heads, product: workers * ROWS }
    }
}

/// The times of one rank's work, seconds.
#[derive(Clone, Copy)]
struct Seconds {
    forward: f64,
    backward: f64,
    product: f64,
    small: f64,
    large: f64,
}

impl SpeedProbe {
    /// Measures this machine with `ranks` ranks on it.
    ///
    /// # Errors
    /// A kernel that cannot run it.
    pub fn measure(&self, ranks: usize) -> Result<Cluster> {
        let world = ranks.min(self.cores.max(LEAST_RANKS));
        let options = threads::Options { world, deadline: DEADLINE, stop: Arc::default() };
        let all = World::alone().with_device_copy(self.processors.device_copy(world));
        let all = all.run(&options, |comm| self.rank(&comm))?;
        let mean = |of: fn(&Seconds) -> f64| all.iter().map(of).sum::<f64>() / world as f64;
        let workers = self.workers(world);
        let Size { rows, heads, product } = Size::of(workers, &self.processors.device(0));
        let pairs = (rows * rows * heads * self.head_dim) as f64;
        let typical = Cluster::threads(ranks, self.cores);
        let turns = ranks as f64 / world as f64;
        let speed = |operations: f64, of: fn(&Seconds) -> f64| operations / mean(of) / turns;
        let rates = Rates {
            forward: speed(4.0 * pairs, |all| all.forward),
            backward: speed(10.0 * pairs, |all| all.backward),
            products: speed(2.0 * (product * rows * rows) as f64, |all| all.product),
            ..typical.rates
        };
        if ranks == 1 {
            return Ok(typical.clone().with_rates(rates, typical.inside));
        }
        let link = joined([mean(|all| all.small), mean(|all| all.large)].map(|s| turns * s));
        Ok(Cluster { between: link, ..typical.with_rates(rates, link) })
    }

    /// The worker threads of each rank.
    fn workers(&self, world: usize) -> usize {
        if self.processors.is_empty() { (self.cores / world).max(1) } else { 1 }
    }

    fn rank(&self, comm: &Arc<dyn Communicator>) -> Result<Seconds> {
        let workers = self.workers(comm.world_size());
        let backend = match self.processors.of(comm.rank(), comm.world_size()) {
            Some(processor) => Backend::Gpu(processor.clone()),
            None => Backend::cpu(workers),
        };
        let device = backend.device();
        let random = |name: &str, shape: &[usize]| -> Result<Tensor> {
            let key = Key { seed: 0, purpose: "measuring", name };
            let values = normal(key, 0, shape.iter().product());
            let tensor = Tensor::from_vec(values, shape, &Device::Cpu)?;
            Ok(tensor.to_dtype(self.dtype)?.to_device(&device)?)
        };
        let Size { rows, heads, product } = Size::of(workers, &device);
        let shape = [1, heads, rows, self.head_dim];
        let qkv = Qkv { q: random("q", &shape)?, k: random("k", &shape)?, v: random("v", &shape)? };
        let gradient = random("dout", &shape)?;
        let alone = comm.split(label(0), comm.rank(), 0)?;
        let setting = Setting::new(Strategy::Local, rows, 1, Heads::equal(heads));
        let schedules = Arc::new(setting.schedules(&Mask::full())?);
        let scale = 1.0 / (self.head_dim as f64).sqrt();
        let kernel = kernel(self.kernel, self.deterministic, false, &backend);
        let attention = Attention::new(schedules, scale, alone, kernel);
        let attended = attention.forward(CallSite::default(), &qkv)?;
        let (x, weight) = (random("x", &[product, rows])?, random("w", &[rows, rows])?);
        let timed = |work: &dyn Fn() -> Result<()>| fastest(comm.as_ref(), &device, work);
        Ok(Seconds {
            forward: timed(&|| Ok(attention.forward(CallSite::default(), &qkv).map(drop)?))?,
            backward: timed(&|| {
                let (qkv, attended) = (qkv.clone(), attended.clone());
                let back = attention.backward(CallSite::default(), qkv, attended, gradient.clone());
                Ok(back.map(drop)?)
            })?,
            product: timed(&|| Ok(linear(&backend, &x, &weight, None).map(drop)?))?,
            small: messages(comm.as_ref(), &device, 1)?,
            large: messages(comm.as_ref(), &device, LARGE)?,
        })
    }
}

/// The link between the ranks of `comm`, measured by messages around their ring.
pub(crate) fn link(comm: &dyn Communicator) -> Result<Link> {
    let one = |bytes| messages(comm, &Device::Cpu, bytes);
    Ok(joined([one(1)?, one(LARGE)?]))
}

/// The link for the seconds of a small message and of a large one.
fn joined([latency, large]: [f64; 2]) -> Link {
    // No faster than a clock can tell.
    let moving = (large - latency).max(latency / MESSAGES as f64);
    Link { bandwidth: LARGE as f64 / moving, latency }
}

/// Seconds of `work` in the fastest of a few tries, in which all ranks begin together and the last one's end counts.
fn fastest(comm: &dyn Communicator, device: &Device, work: &dyn Fn() -> Result<()>) -> Result<f64> {
    // The try that does not count says how often the others repeat the work.
    let first = attempt(comm, device, 1, work)?;
    let times = (TRY.as_secs_f64() / first).ceil().clamp(1.0, MOST) as usize;
    let mut best = f64::INFINITY;
    for _ in 0..TRIES {
        best = best.min(attempt(comm, device, times, work)? / times as f64);
    }
    Ok(best)
}

/// Seconds of `times` times `work` on all ranks at once, until the last is done: the same number on all of them.
fn attempt(
    comm: &dyn Communicator,
    device: &Device,
    times: usize,
    work: &dyn Fn() -> Result<()>,
) -> Result<f64> {
    comm.barrier(label(0))?;
    let start = Instant::now();
    for _ in 0..times {
        work()?;
    }
    device.synchronize()?;
    comm.barrier(label(1))?;
    // A rank that started late, because others had its core, saw less of the try than passed.
    let seen = Tensor::new(start.elapsed().as_secs_f64(), &Device::Cpu)?;
    Ok(comm.all_reduce(label(2), &seen, Reduce::Max)?.to_scalar::<f64>()?)
}

/// Seconds of one message of `bytes` bytes on a device around the ring, in the fastest of a few rounds.
fn messages(comm: &dyn Communicator, device: &Device, bytes: usize) -> Result<f64> {
    let (rank, world) = (comm.rank(), comm.world_size());
    if world == 1 {
        return Ok(0.0);
    }
    let tensor = Tensor::zeros(bytes, DType::U8, device)?;
    let round = |messages: usize| -> Result<()> {
        for hop in 0..messages {
            let to = (rank + 1) % world;
            let send = P2pOp::Send { tensor: tensor.clone(), to };
            let receive = P2pOp::Receive { from: (rank + world - 1) % world, form: None };
            comm.exchange(label(hop), vec![send, receive])?.wait()?;
        }
        Ok(())
    };
    let alone = attempt(comm, device, 1, &|| round(1))?;
    if alone * MESSAGES as f64 <= SLOW.as_secs_f64() {
        return Ok(fastest(comm, device, &|| round(MESSAGES))? / MESSAGES as f64);
    }
    // A link between hosts: a clock can time a few messages that take so long.
    let few = (SLOW.as_secs_f64() / alone).clamp(2.0, MESSAGES as f64) as usize;
    let mut best = f64::INFINITY;
    for _ in 0..FEW {
        best = best.min(attempt(comm, device, 1, &|| round(few))? / few as f64);
    }
    Ok(best)
}

fn label(hop: usize) -> Label {
    Label { step: 0, layer: 0, pass: "measuring", hop }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_measured_can_be_divided_by() {
        let probe = SpeedProbe {
            head_dim: 16,
            dtype: DType::F32,
            kernel: annulus_experiment::Kernel::Fused,
            deterministic: true,
            cores: 2,
            processors: Processors::default(),
        };
        for ranks in [1, 3, 200] {
            let Cluster { rates, inside, between, .. } = probe.measure(ranks).unwrap();
            let speeds = [rates.forward, rates.backward, rates.products];
            let links = [inside.bandwidth, inside.latency, between.bandwidth];
            let fine = |value: &f64| value.is_finite() && *value > 0.0;
            assert!(speeds.iter().chain(&links).all(fine), "{rates:?} {inside:?} {between:?}");
        }
    }
}
