//! Attention over the ranks of all processes: all of it, and its parts alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use annulus_attention::{Attention, CallSite, Qkv};
use annulus_comm::{Communicator, Label, MpiProgress, Reduce, World, threads};
use annulus_experiment::parse;
use annulus_ops::attention::Fused;
use annulus_ops::{Cores, Pool};
use annulus_plan::Plan;
use annulus_sequence::{Schedules, Strategy};
use annulus_simulate::Estimate;
use anyhow::{Result, anyhow};
use candle_core::{DType, Device, Tensor};
use serde_json::json;

use super::tape::{Mode, Taped};
use super::{Arguments, Measure, here, rates};
use crate::attention::Inputs;
use crate::llama::planned;
use crate::subject::{Fields, fields};

/// The time that a rank waits for another that shows no progress.
const DEADLINE: Duration = Duration::from_secs(300);

/// Seconds of the slowest rank, by sample.
#[derive(Default)]
struct Seconds {
    together: Vec<f64>,
    compute: Vec<f64>,
    messages: Vec<f64>,
    /// Seconds of everything, with MPI's progress in waits only.
    waiting: Vec<f64>,
}

impl Seconds {
    fn join(&mut self, Seconds { together, compute, messages, waiting }: Seconds) {
        self.together.extend(together);
        self.compute.extend(compute);
        self.messages.extend(messages);
        self.waiting.extend(waiting);
    }
}

/// Measures one strategy; returns its line.
pub(super) fn measure(arguments: &Arguments, strategy: Strategy, world: &World) -> Result<Fields> {
    let plan = plan(arguments, strategy)?;
    let (mut seconds, mut planned) = (Seconds::default(), Vec::new());
    if arguments.planned {
        // Alternating: what slows the machine for a while slows both.
        for _ in 0..arguments.samples {
            let cluster = rates::measure(arguments, world)?;
            let Estimate { forward, backward, .. } = Estimate::of(&plan, &cluster)?;
            planned.push(forward + backward);
            seconds.join(samples(arguments, &plan, world, 1)?);
        }
    } else {
        seconds = samples(arguments, &plan, world, arguments.samples)?;
    }
    let Seconds { together, compute, messages, waiting } = seconds;
    let mut line = fields(json!({
        "bench": "engine", "strategy": strategy.name(), "tokens": arguments.tokens,
        "ranks": arguments.ranks, "threads": arguments.threads, "together": together,
    }));
    if arguments.measure == Measure::Parts {
        line.extend(fields(
            json!({ "compute": compute, "messages": messages, "waiting": waiting }),
        ));
    }
    if arguments.planned {
        line.insert("planned".into(), json!(planned));
    }
    Ok(line)
}

/// Takes samples of a plan's attention.
fn samples(arguments: &Arguments, plan: &Plan, world: &World, many: usize) -> Result<Seconds> {
    let here = here(arguments, world)?;
    let cores = Cores::from(arguments.threads).among(world.beside().len());
    let arguments = &Arguments { samples: many, ..arguments.clone() };
    let member = |comm| rank(arguments, world, &plan.schedules[0], &cores, here, &comm);
    let run = world.run(&options(arguments.ranks), member);
    let mut seconds = run.map_err(|failure| anyhow!("{failure:#}"))?;
    // All ranks know the times of the slowest.
    Ok(seconds.swap_remove(0))
}

pub(super) fn options(world: usize) -> threads::Options {
    threads::Options { world, deadline: DEADLINE, stop: Arc::default() }
}

/// The plan of an experiment with this attention, whose schedules are run and estimated.
fn plan(arguments: &Arguments, strategy: Strategy) -> Result<Plan> {
    let Arguments { tokens, ranks, shape, .. } = arguments;
    let (heads, groups, head_dim) = (shape.heads, shape.groups(), shape.head_dim);
    let strategy = strategy.name();
    let mask = match shape.mask.name.split_once(':') {
        Some((_, window)) => format!("window: {window}"),
        None => format!("mask: {}", shape.mask.name),
    };
    let text = format!(
        "\
name: engine
model:
  hidden_size: {hidden}
  intermediate_size: {hidden}
  num_hidden_layers: 1
  num_attention_heads: {heads}
  num_key_value_heads: {groups}
  head_dim: {head_dim}
  vocab_size: 258
data: {{ format: recall, tokens: {tokens}, batch: 1, evaluate: 0 }}
mesh: {{ sequence: {ranks} }}
attention: {{ strategy: {strategy}, {mask} }}
optimizer: {{ learning_rate: 1e-4 }}
schedule: {{ steps: 1 }}
",
        hidden = heads * head_dim,
    );
    planned(parse("engine", &text, &[])?, None)
}

/// One rank: its part of the threads, and its own queries, keys and values.
fn rank(
    arguments: &Arguments,
    world: &World,
    schedules: &Arc<Schedules>,
    cores: &Cores,
    here: usize,
    comm: &Arc<dyn Communicator>,
) -> Result<Seconds> {
    let scale = 1.0 / (arguments.shape.head_dim as f64).sqrt();
    let kernel = Arc::new(Fused::new(Pool::share(cores, here, || ())));
    let taped = Taped::new(comm.clone());
    let attention = Attention::new(schedules.clone(), scale, taped.clone(), kernel);
    let own = attention.positions().tokens();
    let Inputs { q, k, v, gradient } = Inputs::random(&arguments.shape, own, DType::F32)?;
    let qkv = Qkv { q, k, v };
    let pass = || -> Result<()> {
        let attended = attention.forward(CallSite::default(), &qkv)?;
        attention.backward(CallSite::default(), qkv.clone(), attended, gradient.clone())?;
        Ok(())
    };
    sampled(arguments, world, comm.as_ref(), &taped, &pass)
}

/// The samples of `pass`, whose messages go through `taped`; ranks meet by `comm` itself.
fn sampled(
    arguments: &Arguments,
    world: &World,
    comm: &dyn Communicator,
    taped: &Taped,
    pass: &dyn Fn() -> Result<()>,
) -> Result<Seconds> {
    let timed = |work: &dyn Fn() -> Result<()>| timed(comm, work);
    let mut seconds = Seconds::default();
    timed(pass)?;
    if arguments.measure == Measure::Parts {
        taped.turn(Mode::Record);
        timed(pass)?;
        taped.turn(Mode::Through);
        timed(&|| Ok(taped.play()?))?;
    }
    for _ in 0..arguments.samples {
        seconds.together.push(timed(pass)?);
        if arguments.measure != Measure::Parts {
            continue;
        }
        taped.turn(Mode::Answer);
        seconds.compute.push(timed(&|| {
            taped.turn(Mode::Answer);
            pass()
        })?);
        taped.turn(Mode::Through);
        seconds.messages.push(timed(&|| Ok(taped.play()?))?);
        seconds.waiting.push(timed(&|| {
            world.set_mpi_progress(MpiProgress::WhileWaiting);
            pass()
        })?);
        world.set_mpi_progress(MpiProgress::Always);
    }
    Ok(seconds)
}

/// Seconds of the slowest rank, where all begin at once.
pub(super) fn timed(comm: &dyn Communicator, work: &dyn Fn() -> Result<()>) -> Result<f64> {
    let label = Label { pass: "measuring", ..Label::default() };
    comm.barrier(label)?;
    let start = Instant::now();
    work()?;
    let own = Tensor::new(start.elapsed().as_secs_f64(), &Device::Cpu)?;
    Ok(comm.all_reduce(label, &own, Reduce::Max)?.to_scalar::<f64>()?)
}
