//! Whether what a plan holds fits: the one verdict of `plan`, `check` and `train`.

use std::fmt;

use annulus_experiment::Device;
use annulus_machine::{By, Limit};

use crate::{Plan, size};

/// What a plan needs of the memory that there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes that all ranks hold together, or on GPUs those of the one that holds most.
    pub needed: u64,
    /// What there is, or may be taken.
    pub there: Limit,
}

/// A plan that needs more memory than there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misfit(Room);

impl Plan {
    /// Bytes that all ranks on this machine hold at their fullest, together, or on GPUs those of the one that holds most.
    pub fn needed(&self) -> u64 {
        self.fullest(|rank| self.ranks[rank].together)
    }

    /// What it needs here, where all ranks share this machine, or some a GPU of it, and the least of
    /// `memory.budget` and what there is. `None`: nobody knows: what an absent GPU has, or a system
    /// that does not say.
    pub fn room(&self) -> Option<Room> {
        let (memory, host) = (&self.experiment.memory, &self.experiment.host);
        let elsewhere = matches!(self.experiment.device, Device::Cuda(_)) && host.device.is_none();
        let budget = memory.budget.map(|_| Limit { bytes: memory.budget(host), by: By::Budget });
        let there = if elsewhere { None } else { host.there() };
        let there = [budget, there].into_iter().flatten().min()?;
        Some(Room { needed: self.needed(), there })
    }

    /// Why it cannot run here: it needs more than there is.
    pub fn misfit(&self) -> Option<Misfit> {
        self.room().filter(|room| room.needed > room.there.bytes).map(Misfit)
    }
}

impl Misfit {
    /// The way out.
    pub fn hint(self) -> String {
        let lower = "lower `data.tokens` or `memory.micro_batch`, or put what waits on a disk (`memory.offload`)";
        let shows = "`annulus plan` shows what takes how much, and with `--cluster` what other devices would need";
        match self.0.there.by {
            By::Budget => {
                let least = self.0.needed.div_ceil(1 << 20);
                format!("raise `memory.budget` to {least}M, or {lower}; {shows}")
            }
            By::Machine | By::Gpu => format!("{lower}; {shows}"),
            By::Group | By::AddressSpace | By::Data => {
                format!("{lower}, or raise that limit; {shows}")
            }
        }
    }
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Room { needed, there: Limit { bytes, by } } = *self;
        let fits = if needed > bytes { "does not fit" } else { "fits" };
        let (needed, bytes) = (size(needed), size(bytes));
        write!(f, "this needs {needed} of memory, {by} {bytes}: it {fits}")
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Misfit {}
