//! Whether what a plan holds fits: the one verdict of `plan`, `check` and `train`.

use std::fmt;

use annulus_experiment::Device;
use annulus_machine::{By, Limit};

use crate::{Plan, size};

/// A plan that needs more memory than there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// Bytes that all ranks hold together.
    pub needed: u64,
    /// What there is, or may be taken.
    pub there: Limit,
}

impl Plan {
    /// Bytes that all ranks hold at their fullest, together.
    pub fn needed(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.together).fold(0, u64::saturating_add)
    }

    /// Why it cannot run here, where all ranks share this machine or its GPU: it needs more than
    /// `memory.budget`, or than there is. `None`: it fits, or nobody knows: what an absent GPU has,
    /// or a system that does not say.
    pub fn misfit(&self) -> Option<Misfit> {
        let (memory, host) = (&self.experiment.memory, &self.experiment.host);
        let elsewhere = matches!(self.experiment.device, Device::Cuda(_)) && host.device.is_none();
        let budget = memory.budget.map(|bytes| Limit { bytes, by: By::Budget });
        let there = if elsewhere { None } else { host.there() };
        let least = [budget, there].into_iter().flatten().min()?;
        let needed = self.needed();
        (needed > least.bytes).then_some(Misfit { needed, there: least })
    }
}

impl Misfit {
    /// The way out.
    pub fn hint(self) -> String {
        let lower = "lower `data.tokens` or `memory.micro_batch`";
        let shows = "`annulus plan` shows what takes how much";
        match self.there.by {
            By::Budget => format!("raise `memory.budget`, or {lower}; {shows}"),
            By::Machine | By::Gpu => format!("{lower}; {shows}"),
            By::Group | By::AddressSpace | By::Data => {
                format!("{lower}, or raise that limit; {shows}")
            }
        }
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Misfit { needed, there: Limit { bytes, by } } = *self;
        let (needed, bytes) = (size(needed), size(bytes));
        write!(f, "this needs {needed} of memory, {by} {bytes}: it does not fit")
    }
}

impl std::error::Error for Misfit {}
