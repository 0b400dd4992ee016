//! What stages keep for backward, in memory or offloaded.

use candle_core::Tensor;

use crate::step::backward::Trace;
use crate::step::rank::Rank;
use crate::step::state::offload::{Away, IN_FLIGHT};
use crate::{Result, TrainError};

/// How many stages at the end are never offloaded: both of the last layer, and the loss.
const LAST: usize = 3;

/// What a stage kept for backward.
#[derive(Debug)]
pub(crate) enum Kept {
    Here(Vec<Tensor>),
    Away(Away),
}

impl Rank {
    /// Drops everything that is offloaded: it is not wanted any more.
    pub(crate) fn forget_what_is_away(&self) {
        if let Some(offload) = &self.offload {
            offload.forget();
        }
    }

    /// Offloads what stage number `index` kept, if the experiment asks for it; never of the last layer, which backward reads at once, nor
    /// of the loss.
    pub(crate) fn put_away<'a>(&self, index: usize, trace: Trace<'a>) -> Result<Trace<'a>> {
        let last = self.model.stages.len() - LAST;
        let Some(offload) = self.offload.as_ref().filter(|_| index < last) else {
            return Ok(trace);
        };
        let put = |(kept, back)| match kept {
            Kept::Here(tensors) if !tensors.is_empty() => {
                Ok((Kept::Away(offload.put(tensors, &|| self.progress())?), back))
            }
            kept => Ok((kept, back)),
        };
        trace.into_iter().map(put).collect()
    }

    /// Begins to read back what the last stages of `traces`, the next in backward, have offloaded.
    pub(crate) fn ask_for(&self, traces: &[Trace<'_>]) {
        let Some(offload) = &self.offload else { return };
        for (kept, _) in traces.iter().rev().take(IN_FLIGHT).flatten() {
            if let Kept::Away(away) = kept {
                offload.ask(away);
            }
        }
    }

    /// The tensors that a stage kept, read back if they were offloaded.
    pub(crate) fn brought_back(&self, kept: Kept) -> Result<Vec<Tensor>> {
        match (kept, &self.offload) {
            (Kept::Here(tensors), _) => Ok(tensors),
            (Kept::Away(away), Some(offload)) => offload.take(&away, &|| self.progress()),
            (Kept::Away(_), None) => Err(nowhere()),
        }
    }

    /// A copy of the tensors that a stage kept; offloaded ones stay offloaded.
    pub(crate) fn looked_at(&self, kept: &Kept) -> Result<Vec<Tensor>> {
        match (kept, &self.offload) {
            (Kept::Here(tensors), _) => Ok(tensors.clone()),
            (Kept::Away(away), Some(offload)) => offload.look(away, &|| self.progress()),
            (Kept::Away(_), None) => Err(nowhere()),
        }
    }
}

fn nowhere() -> TrainError {
    TrainError::Internal("activations are nowhere".to_owned())
}
