//! Measures the speed of the ranks of all processes, and of the links between processes.

use annulus_comm::World;
use annulus_experiment::Kernel;
use annulus_simulate::Cluster;
use annulus_train::{Processors, SpeedProbe};
use anyhow::Result;
use candle_core::DType;

use super::Arguments;

/// Measures rates in all processes at the same time.
pub(super) fn measure(arguments: &Arguments, world: &World) -> Result<Cluster> {
    let probe = SpeedProbe {
        head_dim: arguments.shape.head_dim,
        dtype: DType::F32,
        kernel: Kernel::Fused,
        deterministic: true,
        cores: arguments.threads * world.beside().len(),
        processors: Processors::default(),
    };
    Ok(probe.measure_over(world, arguments.ranks)?)
}
