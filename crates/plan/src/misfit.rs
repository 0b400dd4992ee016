//! Whether a plan fits into memory: one verdict for `plan`, `check` and `train`.

use std::fmt;

use annulus_experiment::{ClusterDevices, Device, Offload};
use annulus_machine::{By, Limit, memory};
use annulus_text::size;

use crate::Plan;

/// The memory that a plan needs, and the memory that it may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Bytes that all ranks hold together; on GPUs, bytes of the fullest GPU; on a described cluster, of its fullest device or node.
    pub needed: u64,
    /// The memory limit, and what sets it; of a device of a described cluster, the budget: what may be used of its memory.
    pub limit: Limit,
    /// Whether it is the memory of a described cluster's devices, or of its nodes, instead of this machine's.
    pub of_cluster: bool,
    /// What GPUs offload to this memory of their host or node; none: it is the memory of the ranks.
    pub offload: Offload,
    /// Sequences that a rank computes at once.
    pub micro_batch: usize,
}

/// A plan that needs more memory than there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misfit(MemoryNeed);

impl Plan {
    /// Peak bytes that all ranks on this machine hold together; on GPUs, bytes of the fullest GPU.
    pub fn needed(&self) -> u64 {
        if self.experiment.host.cluster.is_none() {
            return self.fullest(|rank| self.ranks[rank].peak);
        }
        // Ranks are planned for devices of a described cluster, and would share memory here.
        self.fullest_with(self.memory, &self.rank_kinds())
    }

    /// The memory that this plan needs here, and the least of `memory.budget` and what exists. `None`: unknown, for an absent GPU, or a
    /// system that does not report its memory.
    pub fn memory_need(&self) -> Option<MemoryNeed> {
        let (memory, host) = (&self.experiment.memory, &self.experiment.host);
        let elsewhere =
            matches!(self.experiment.device, Device::Cuda(_)) && host.gpu_memory.is_none();
        let budget = memory.budget.map(|_| Limit { bytes: memory.budget(host), by: By::Budget });
        let there = if elsewhere { None } else { host.there() };
        let limit = [budget, there].into_iter().flatten().min()?;
        Some(MemoryNeed {
            needed: self.needed(),
            limit,
            of_cluster: false,
            offload: Offload::None,
            micro_batch: self.micro_batch,
        })
    }

    /// The memory of this machine that its GPUs offload to, page-locked. `None`: they offload nothing to it, or the system does not report
    /// its memory.
    pub fn offload_need(&self) -> Option<MemoryNeed> {
        let space = self.offload_space().filter(|_| self.experiment.host.cluster.is_none())?;
        let [_, needed] = self.offloaded_at_once(space.devices);
        if needed == 0 {
            return None;
        }
        Some(self.offloading(needed, memory()?, false))
    }

    fn offloading(&self, needed: u64, limit: Limit, of_cluster: bool) -> MemoryNeed {
        let offload = self.experiment.memory.offload;
        MemoryNeed { needed, limit, of_cluster, offload, micro_batch: self.micro_batch }
    }

    /// The memory that this plan needs, and what is offloaded: of the devices and nodes of the cluster that its file names, else here. None:
    /// it is not limited, unknown, or not used.
    pub fn needs_of_file(&self) -> [Option<MemoryNeed>; 2] {
        let Some(ClusterDevices { memory, offload, .. }) = self.experiment.host.cluster else {
            return [self.memory_need(), self.offload_need()];
        };
        let of_device = self.experiment.memory.of_device(memory).map(|bytes| MemoryNeed {
            needed: self.held_on_cluster(self.memory),
            limit: Limit { bytes, by: By::Budget },
            of_cluster: true,
            offload: Offload::None,
            micro_batch: self.micro_batch,
        });
        let of_node = offload.and_then(|space| {
            let [_, needed] = self.offloaded_at_once(space.devices);
            let limit = Limit { bytes: space.bytes, by: By::Machine };
            (needed > 0).then(|| self.offloading(needed, limit, true))
        });
        [of_device, of_node]
    }

    /// The verdict that this plan cannot run here; `None`: it fits, or nobody knows.
    pub fn misfit(&self) -> Option<Misfit> {
        misfit([self.memory_need(), self.offload_need()])
    }

    /// The verdict that this plan cannot run on the cluster that its file names, or else here; `None`: it fits, or nobody knows.
    pub fn misfit_of_file(&self) -> Option<Misfit> {
        misfit(self.needs_of_file())
    }
}

fn misfit(needs: [Option<MemoryNeed>; 2]) -> Option<Misfit> {
    needs.into_iter().flatten().find(|need| need.needed > need.limit.bytes).map(Misfit)
}

/// What makes a plan smaller, and what says where its memory goes.
const SIZES: &str = "`data.tokens` or `memory.micro_batch`";
const OFFLOAD: &str = "offload activations or optimizer moments (`memory.offload`)";
const CLUSTER_SHOWS: &str =
    "`annulus plan` with `--cluster` and the cluster's file shows what would fit";
const SHOWS: &str =
    "`annulus plan` shows what takes how much, and with `--cluster` what other devices would need";

impl Misfit {
    /// What the user can change where memory is full that nothing limits but its size.
    pub fn hint_of_full() -> String {
        format!("lower {SIZES}, or {OFFLOAD}; {SHOWS}")
    }

    /// What the user can change so that the plan fits.
    pub fn hint(self) -> String {
        let sizes = if self.0.micro_batch > 1 { SIZES } else { "`data.tokens`" };
        if self.0.of_cluster {
            let [raise, offload] = match self.0.offload {
                Offload::None => [
                    "raise `mesh.sequence` or `memory.budget` (three quarters of a device where it is not written)",
                    OFFLOAD,
                ],
                _ => ["raise `mesh.sequence`", "offload less (`memory.offload`)"],
            };
            return format!("lower {sizes}, {raise}, or {offload}; {CLUSTER_SHOWS}");
        }
        let less = "offload to a disk (`memory.offload_folder`), or less (`memory.offload`)";
        match self.0.offload {
            Offload::None => {}
            Offload::Optimizer => return format!("{less}; {SHOWS}"),
            _ => return format!("{less}, or lower {sizes}; {SHOWS}"),
        }
        let lower = format!("lower {sizes}, or {OFFLOAD}");
        match self.0.limit.by {
            By::Budget => {
                let least = self.0.needed.div_ceil(1 << 20);
                format!("raise `memory.budget` to {least}M, or {lower}; {SHOWS}")
            }
            By::Machine | By::Gpu => format!("{lower}; {SHOWS}"),
            By::Group | By::AddressSpace | By::Data => {
                format!("{lower}, or raise that limit; {SHOWS}")
            }
        }
    }
}

impl fmt::Display for MemoryNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryNeed { needed, limit: Limit { bytes, by }, of_cluster, offload, .. } = *self;
        // The program itself, the system and others need memory, too; a budget was chosen with them in mind, as is what may be used of a
        // device.
        let is_tight = !of_cluster && by != By::Budget && needed > bytes / 4 * 3;
        let fits = match needed > bytes {
            true => "does not fit",
            false if is_tight => "fits only if other programs leave it that much",
            false => "fits",
        };
        let (needed, bytes) = (size(needed), size(bytes));
        match (of_cluster, offload) {
            (true, Offload::None) => write!(
                f,
                "the fullest device of the cluster needs {needed}, of {bytes} that it may take: it {fits}"
            ),
            (true, _) => write!(
                f,
                "offloading needs {needed} of a node of the cluster, which has {bytes} for that (`offload.memory` in the cluster's file): it {fits}"
            ),
            (false, offload) => {
                let what = if offload == Offload::None { "this" } else { "offloading" };
                write!(f, "{what} needs {needed} of memory, {by} {bytes}: it {fits}")
            }
        }
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Misfit {}
