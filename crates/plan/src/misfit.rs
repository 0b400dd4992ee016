//! Whether a plan fits into memory: one verdict for `plan`, `check` and `train`.

use std::fmt;

use annulus_experiment::{Device, Offload};
use annulus_machine::{By, Limit, memory};
use annulus_text::size;

use crate::Plan;

/// The memory that a plan needs, and the memory that it may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Bytes that all ranks hold together; on GPUs, bytes of the fullest GPU.
    pub needed: u64,
    /// The memory limit, and what sets it.
    pub limit: Limit,
    /// What GPUs offload to this memory of their host; none: it is the memory of the ranks.
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
        let (limit, micro_batch) = (memory()?, self.micro_batch);
        Some(MemoryNeed { needed, limit, offload: self.experiment.memory.offload, micro_batch })
    }

    /// The verdict that this plan cannot run here; `None`: it fits, or nobody knows.
    pub fn misfit(&self) -> Option<Misfit> {
        let needs = [self.memory_need(), self.offload_need()];
        needs.into_iter().flatten().find(|need| need.needed > need.limit.bytes).map(Misfit)
    }
}

/// What makes a plan smaller, and what says where its memory goes.
const SIZES: &str = "`data.tokens` or `memory.micro_batch`";
const OFFLOAD: &str = "offload activations or optimizer moments (`memory.offload`)";
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
        let MemoryNeed { needed, limit: Limit { bytes, by }, offload, .. } = *self;
        // The program itself, the system and others need memory, too; a budget was chosen with them in mind.
        let is_tight = by != By::Budget && needed > bytes / 4 * 3;
        let fits = match needed > bytes {
            true => "does not fit",
            false if is_tight => "fits only if other programs leave it that much",
            false => "fits",
        };
        let (needed, bytes) = (size(needed), size(bytes));
        let what = if offload == Offload::None { "this" } else { "offloading" };
        write!(f, "{what} needs {needed} of memory, {by} {bytes}: it {fits}")
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Misfit {}
