//! The machine or cluster that a plan is made for.

use std::ops::Range;

use annulus_machine::{By, Core, Limit, memory};

/// The machine or cluster that a plan is made for, which no key describes.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// Bytes of each GPU's memory; `None`: ranks compute on the CPU.
    pub gpu_memory: Option<u64>,
    /// Devices that the ranks of a process share evenly, neighbouring ranks one; several only for a single process.
    pub devices: usize,
    /// The caches and vector instructions of a core.
    pub core: Core,
    /// Workers per rank that a plan counts with.
    pub workers: usize,
    /// The devices of a described cluster, one per rank; `None`: the ranks share this machine, or its GPUs.
    pub cluster: Option<ClusterDevices>,
    /// The ranks of the world that are on this machine; `None`: all.
    pub here: Option<Range<usize>>,
    /// The number of processes that share the ranks of the world evenly.
    pub processes: usize,
}

/// A cluster's devices, one for each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterDevices {
    /// The number of ranks, so of devices.
    pub ranks: usize,
    /// Bytes of memory per device; `None`: not limited.
    pub memory: Option<u64>,
    /// Where the devices of a node offload to; `None`: not limited.
    pub offload: Option<OffloadSpace>,
    /// Whether the devices are GPUs; otherwise they are processors.
    pub are_gpus: bool,
}

/// A node's memory or disk for what `memory.offload` moves out of its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadSpace {
    /// The number of devices that share it.
    pub devices: usize,
    /// Its bytes.
    pub bytes: u64,
}

impl Default for Host {
    /// A single process with one worker per rank, on this machine's CPU.
    fn default() -> Host {
        Host {
            gpu_memory: None,
            devices: 1,
            core: Core::here(),
            workers: 1,
            cluster: None,
            here: None,
            processes: 1,
        }
    }
}

impl Host {
    /// Whether ranks compute on this machine's CPU, in its memory: neither on its GPUs nor on a described cluster.
    pub fn computes_on_this_cpu(&self) -> bool {
        self.gpu_memory.is_none() && self.cluster.is_none()
    }

    /// Whether ranks compute on GPUs: on those of a described cluster, or on this machine's where none is described.
    pub fn computes_on_gpus(&self) -> bool {
        self.cluster.map_or(self.gpu_memory.is_some(), |cluster| cluster.are_gpus)
    }

    /// The number of memories that ranks share evenly: one per process, or one per GPU.
    pub fn sharing(&self) -> usize {
        self.processes * self.devices
    }

    /// Bytes of memory that exist: of the GPU, or for this process on this machine. `None`: the system does not say.
    pub fn there(&self) -> Option<Limit> {
        let of_gpu = self.gpu_memory.map(|bytes| Limit { bytes, by: By::Gpu });
        of_gpu.or_else(memory)
    }
}
