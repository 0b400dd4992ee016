//! What the ranks of all processes compute, and what the links between processes carry, as a file
//! for `mesh.cluster`: every process stands for a node.

use annulus_comm::World;
use annulus_experiment::Kernel;
use annulus_simulate::Cluster;
use annulus_train::Sample;
use anyhow::Result;
use candle_core::DType;
use serde_json::json;

use super::Arguments;
use crate::subject::{Fields, fields};

/// Measured at once in all processes.
pub(super) fn measure(arguments: &Arguments, world: &World) -> Result<Fields> {
    let sample = Sample {
        head_dim: arguments.shape.head_dim,
        dtype: DType::F32,
        kernel: Kernel::Fused,
        deterministic: true,
        cores: arguments.threads * world.beside().len(),
        processor: None,
    };
    let cluster = sample.measure_over(world, arguments.ranks)?;
    let text = file(&cluster);
    Cluster::parse(NAME, &text)?;
    let Cluster { rates, between, .. } = cluster;
    Ok(fields(json!({
        "bench": "rates", "cluster": text, "forward": rates.forward, "backward": rates.backward,
        "bandwidth": between.bandwidth, "latency": between.latency,
    })))
}

/// What the cluster is called.
const NAME: &str = "measured";

/// A cluster's file: so many nodes with so many devices each, their rates, and the links inside a node and between nodes.
fn file(cluster: &Cluster) -> String {
    let Cluster { nodes, devices_per_node: devices, rates, inside, between, .. } = cluster;
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
