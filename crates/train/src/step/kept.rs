//! What stages keep for backward, in memory or offloaded.

use candle_core::Tensor;

use crate::Result;
use crate::step::backward::Trace;
use crate::step::rank::Rank;
use crate::step::state::offload::{IN_FLIGHT, Offloaded};

/// How many stages at the end are never offloaded: both of the last layer, and the loss.
const LAST: usize = 3;

/// What a stage kept for backward.
#[derive(Debug)]
pub(crate) enum Kept {
    InMemory(Vec<Tensor>),
    Offloaded(Box<dyn Offloaded>),
}

/// Begins to read what the last stages of `traces`, the next in backward, have offloaded.
pub(crate) fn prefetch(traces: &[Trace<'_>]) -> Result<()> {
    traces.iter().rev().take(IN_FLIGHT).flatten().try_for_each(|(kept, _)| match kept {
        Kept::InMemory(_) => Ok(()),
        Kept::Offloaded(offloaded) => offloaded.prefetch(),
    })
}

impl Rank {
    /// Discards all activations that are offloaded: they are not needed any more.
    pub(crate) fn discard_offloaded(&self) {
        if let Some(offload) = &self.offload {
            offload.discard();
        }
    }

    /// Offloads what stage number `index` kept, if the experiment says so; not of the last layer nor of the loss, with which backward begins.
    pub(crate) fn offload_kept<'a>(&self, index: usize, trace: Trace<'a>) -> Result<Trace<'a>> {
        let last = self.model.stages.len() - LAST;
        let Some(offload) = self.offload.as_ref().filter(|_| index < last) else {
            return Ok(trace);
        };
        let write = |(kept, pullback)| match kept {
            Kept::InMemory(tensors) if !tensors.is_empty() => {
                Ok((Kept::Offloaded(offload.write(tensors, &|| self.progress())?), pullback))
            }
            kept => Ok((kept, pullback)),
        };
        trace.into_iter().map(write).collect()
    }

    /// The tensors that a stage kept, read back if they were offloaded.
    pub(crate) fn restored(&self, kept: Kept) -> Result<Vec<Tensor>> {
        match kept {
            Kept::InMemory(tensors) => Ok(tensors),
            Kept::Offloaded(offloaded) => offloaded.restore(&|| self.progress()),
        }
    }

    /// A copy of the tensors that a stage kept; offloaded ones stay offloaded.
    pub(crate) fn peek(&self, kept: &Kept) -> Result<Vec<Tensor>> {
        match kept {
            Kept::InMemory(tensors) => Ok(tensors.clone()),
            Kept::Offloaded(offloaded) => offloaded.peek(&|| self.progress()),
        }
    }
}
