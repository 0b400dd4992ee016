//! The GPUs of this process, and which of its ranks computes on which: neighbouring ranks share one, as they share a process.

use std::sync::Arc;

use annulus_comm::World;
use annulus_comm::threads::{Copied, DeviceCopy};
use annulus_ops::gpu::{self, Handover, Processor};
use candle_core::{Device, DeviceLocation, Tensor};

use crate::Setup;

/// The GPUs of this process, which its ranks share evenly; none: the CPU computes.
#[derive(Clone, Debug, Default)]
pub struct Processors(Vec<Arc<dyn Processor>>);

impl From<Vec<Arc<dyn Processor>>> for Processors {
    fn from(all: Vec<Arc<dyn Processor>>) -> Processors {
        Processors(all)
    }
}

impl From<Arc<dyn Processor>> for Processors {
    fn from(one: Arc<dyn Processor>) -> Processors {
        Processors(vec![one])
    }
}

impl Processors {
    /// The first GPU.
    pub fn first(&self) -> Option<&Arc<dyn Processor>> {
        self.0.first()
    }

    /// All GPUs, in the order of the ranks that compute on them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<dyn Processor>> {
        self.0.iter()
    }

    /// GPU number `device` of this process; `None`: the CPU computes.
    pub(crate) fn at(&self, device: usize) -> Option<&Arc<dyn Processor>> {
        self.0.get(device)
    }

    /// Whether the CPU computes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of devices that the ranks share; the CPU counts as one.
    pub fn devices(&self) -> usize {
        self.0.len().max(1)
    }

    /// The first of these GPUs, as many as `ranks` ranks can share evenly.
    pub(crate) fn shared_by(&self, ranks: usize) -> Processors {
        Processors(self.0[..even_share(self.0.len(), ranks)].to_vec())
    }

    /// The GPU of rank `own` of the process, which has `ranks` ranks.
    pub fn of(&self, own: usize, ranks: usize) -> Option<&Arc<dyn Processor>> {
        self.0.get(own * self.0.len() / ranks)
    }

    /// The peak of all processes' GPUs in bf16, FLOP/s, by their data sheets; `None`: one is not known.
    pub(crate) fn tensor_peak(&self, world: &World) -> Option<f64> {
        let all = gpu::gpus().ok()?;
        let peak = |processor: &Arc<dyn Processor>| match processor.device().location() {
            DeviceLocation::Cuda { gpu_id } => all.get(gpu_id)?.tensor_peak(),
            _ => None,
        };
        let own: Option<f64> = self.0.iter().map(peak).sum();
        // If a host has more processes than GPUs, they share them.
        let beside = world.beside().len().max(1);
        let share = all.len().min(beside) as f64 / beside as f64;
        Some(own? * share * world.processes() as f64)
    }

    /// The Candle device of tensors on GPU number `device`, or the CPU.
    pub fn device(&self, device: usize) -> Device {
        self.0.get(device).map_or(Device::Cpu, |processor| processor.device().clone())
    }

    /// How tensors are copied between the devices of `ranks` ranks that are all of this process; `None`: they compute on one device.
    pub fn device_copy(&self, ranks: usize) -> Option<Arc<dyn DeviceCopy>> {
        let copy =
            || -> Arc<dyn DeviceCopy> { Arc::new(Across { processors: self.clone(), ranks }) };
        (self.0.len() > 1).then(copy)
    }
}

/// The most of `all` devices that `ranks` ranks, at least one, can share evenly; 0 of none.
pub(crate) fn even_share(all: usize, ranks: usize) -> usize {
    (1..=all).rev().find(|devices| ranks.is_multiple_of(*devices)).unwrap_or(0)
}

impl Setup {
    /// This setup with its ranks shared by the processes of `world`.
    pub(crate) fn over(self, world: &World) -> Setup {
        world.computes_on(&self.device());
        let cores = self.cores.among(world.beside().len());
        Setup { processes: world.clone(), cores, ..self }
    }

    /// This setup on other processors, which the ranks of a process share.
    #[must_use]
    pub fn on(self, processors: impl Into<Processors>) -> Setup {
        Setup { processors: processors.into(), ..self }
    }

    /// The processes on which ranks are run; tensors can be copied between the devices of this one.
    pub fn joined(&self) -> World {
        self.processes.clone().with_device_copy(self.processors.device_copy(self.world()))
    }

    /// The Candle device of this process's first ranks.
    pub fn device(&self) -> Device {
        self.processors.device(0)
    }
}

/// Copies tensors between the devices of a process's ranks.
#[derive(Debug)]
struct Across {
    processors: Processors,
    ranks: usize,
}

impl DeviceCopy for Across {
    fn send(&self, from: usize, to: usize, tensor: &Tensor) -> candle_core::Result<Option<Copied>> {
        let [from, to] = [from, to].map(|rank| self.processors.of(rank, self.ranks));
        let Some((from, to)) = from.zip(to) else { return Ok(None) };
        // Every rank can read tensors on the host.
        if from.memory() == to.memory() || !tensor.device().same_device(from.device()) {
            return Ok(None);
        }
        let (handover, to) = (Handover::begin(from, tensor)?, to.clone());
        Ok(Some(Box::new(move || handover.end(&*to))))
    }
}
