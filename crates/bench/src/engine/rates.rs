//! What the ranks of all processes compute, and what the link between processes carries, as a file
//! for `mesh.cluster`: every process stands for a node.

use std::time::Instant;

use annulus_comm::{Communicator, Hold, Label, Move, World};
use annulus_experiment::Kernel;
use annulus_simulate::{Cluster, Link, Rates};
use annulus_train::Sample;
use anyhow::{Result, anyhow};
use candle_core::{DType, Device, Tensor};
use serde_json::json;

use super::parts::options;
use super::{Arguments, here};
use crate::statistics::Quartiles;
use crate::subject::{Fields, fields};

/// Measured at once in all processes.
pub(super) fn measure(arguments: &Arguments, world: &World) -> Result<Fields> {
    let here = here(arguments, world)?;
    let sample = Sample {
        head_dim: arguments.shape.head_dim,
        dtype: DType::F32,
        kernel: Kernel::Fused,
        deterministic: true,
        cores: arguments.threads,
        processor: None,
    };
    // Processes begin together.
    world.gather(&[])?;
    let own = sample.measure(here)?;
    let (rates, between) = (mean(world, own.rates)?, link(arguments, world)?);
    let text = file((world.processes(), here), rates, [own.inside, between]);
    Cluster::parse(NAME, &text)?;
    Ok(fields(json!({
        "bench": "rates", "cluster": text, "forward": rates.forward, "backward": rates.backward,
        "bandwidth": between.bandwidth, "latency": between.latency,
    })))
}

/// What the cluster is called.
const NAME: &str = "measured";

/// A cluster's file: so many nodes with so many devices each, their rates, and the links inside a node and between nodes.
fn file((nodes, devices): (usize, usize), rates: Rates, [inside, between]: [Link; 2]) -> String {
    format!(
        "\
name: {NAME}
nodes: {nodes}
devices_per_node: {devices}
compute:
  forward: {:.3}GFLOP/s
  backward: {:.3}GFLOP/s
  products: {:.3}GFLOP/s
  tile: {}
inside: {{ bandwidth: {:.3}GB/s, latency: {:.1}us }}
between: {{ bandwidth: {:.6}GB/s, latency: {:.1}us, per: node }}
",
        rates.forward / 1e9,
        rates.backward / 1e9,
        rates.products / 1e9,
        rates.tile,
        inside.bandwidth / 1e9,
        inside.latency * 1e6,
        between.bandwidth / 1e9,
        between.latency * 1e6,
    )
}

/// The mean over processes.
fn mean(world: &World, own: Rates) -> Result<Rates> {
    let numbers = [own.forward, own.backward, own.products];
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let all = world.gather(&bytes)?;
    let number = |index: usize| {
        let of = |said: &Vec<u8>| {
            let place = said.get(8 * index..8 * index + 8)?.try_into().ok()?;
            Some(f64::from_le_bytes(place))
        };
        all.iter().filter_map(of).sum::<f64>() / all.len() as f64
    };
    Ok(Rates { forward: number(0), backward: number(1), products: number(2), ..own })
}

/// The link between neighbours, by a small and a large message around the ring of processes.
fn link(arguments: &Arguments, world: &World) -> Result<Link> {
    let member = |comm: std::sync::Arc<dyn Communicator>| -> Result<[f64; 2]> {
        let mut seconds = [Vec::new(), Vec::new()];
        for _ in 0..=arguments.samples {
            for (list, bytes) in seconds.iter_mut().zip([1, arguments.bytes]) {
                list.push(around(comm.as_ref(), bytes)?);
            }
        }
        Ok(seconds.map(|list| Quartiles::of(&list[1..]).median))
    };
    let seconds =
        world.run(&options(world.processes()), member).map_err(|failure| anyhow!("{failure:#}"))?;
    let [small, large] = seconds[0];
    Ok(Link { bandwidth: arguments.bytes as f64 / (large - small).max(1e-9), latency: small })
}

/// Messages that are timed together.
const MESSAGES: usize = 4;

fn around(comm: &dyn Communicator, bytes: usize) -> Result<f64> {
    let (rank, world) = (comm.rank(), comm.world());
    let tensor = Tensor::zeros(bytes, DType::U8, &Device::Cpu)?;
    let label = Label { pass: "measuring", ..Label::default() };
    comm.barrier(label)?;
    let start = Instant::now();
    for hop in 0..MESSAGES {
        let to = (rank + 1) % world;
        let send = Move::Send { tensor: tensor.clone(), to, hold: Hold::Lend };
        let receive = Move::Receive { from: (rank + world - 1) % world, form: None };
        comm.exchange(Label { hop, ..label }, vec![send, receive])?.wait()?;
    }
    Ok(start.elapsed().as_secs_f64() / MESSAGES as f64)
}
