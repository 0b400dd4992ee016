//! A model and clusters that tests share.

use annulus_experiment::{ClusterDevices, Experiment, Override, Resolved, parse};
use annulus_plan::Plan;
use annulus_simulate::{Cluster, Link};

/// 32 heads of 128 over 8 KV heads, one layer's worth of a Llama of 8 billion parameters.
pub(crate) const MODEL: &str = "\
name: long
model:
  hidden_size: 4096
  intermediate_size: 14336
  num_hidden_layers: 4
  num_attention_heads: 32
  num_key_value_heads: 8
  vocab_size: 128k
  dtype: bf16
data: { tokens: 128k }
mesh: { sequence: 8 }
attention: { strategy: ring }
memory: { recompute: layer, mlp_chunk: 4k, loss_chunk: 1k }
optimizer: { learning_rate: 3e-4 }
schedule: { steps: 10 }
";

/// Two nodes of eight devices like an H100 on NVLink and InfiniBand.
pub(crate) const CLUSTER: &str = "\
name: h100
nodes: 2
devices_per_node: 8
memory: 80GB
compute: { forward: 600TFLOP/s, backward: 450TFLOP/s, products: 500TFLOP/s, tile: 128 }
inside: { bandwidth: 450GB/s, latency: 3us }
between: { bandwidth: 50GB/s, latency: 8us }
";

pub(crate) fn cluster() -> Cluster {
    Cluster::parse("h100.yaml", CLUSTER).unwrap_or_else(|problems| panic!("{problems}"))
}

/// A cluster whose devices do `operations` a second and whose links move `bytes` a second.
pub(crate) fn plain(devices: usize, operations: f64, bytes: f64) -> Cluster {
    let mut cluster = Cluster::threads(devices, devices);
    (cluster.helping, cluster.are_gpus) = (false, true);
    let link = Link { bandwidth: bytes, latency: 0.0 };
    (cluster.inside, cluster.between) = (link, link);
    cluster.rates.forward = operations;
    cluster.rates.backward = operations;
    cluster.rates.products = operations;
    cluster.rates.tile = 1;
    cluster
}

pub(crate) fn experiment(arguments: &[&str]) -> Experiment {
    let overrides: Vec<Override> =
        arguments.iter().map(|a| Override::split(a).expect("cases have a `=`")).collect();
    parse("long.yaml", MODEL, &overrides).unwrap_or_else(|problems| panic!("{problems}"))
}

pub(crate) fn plan(arguments: &[&str]) -> Plan {
    Resolved::read(experiment(arguments), None)
        .and_then(|resolved| annulus_simulate::plan(&resolved))
        .unwrap_or_else(|problems| panic!("{problems}"))
}

/// An experiment whose model gives its own vocabulary.
pub(crate) fn resolved(experiment: Experiment) -> Resolved {
    Resolved::read(experiment, None).unwrap_or_else(|problems| panic!("{problems}"))
}

/// The plan of ranks with a device each.
pub(crate) fn plan_apart(arguments: &[&str]) -> Plan {
    let mut experiment = experiment(arguments);
    let ranks = experiment.mesh.ranks();
    experiment.host.cluster =
        Some(ClusterDevices { ranks, memory: None, offload: None, are_gpus: true });
    annulus_simulate::plan(&resolved(experiment)).unwrap_or_else(|problems| panic!("{problems}"))
}
