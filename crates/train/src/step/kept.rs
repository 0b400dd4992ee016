//! What stages keep for backward, in memory or away from it.

use candle_core::Tensor;

use crate::step::backward::Trace;
use crate::step::offload::{Away, IN_FLIGHT};
use crate::step::rank::Rank;
use crate::{Result, TrainError};

/// The stages of the last layer, and the loss.
const LAST: usize = 3;

/// What a stage kept.
#[derive(Debug)]
pub(crate) enum Kept {
    Here(Vec<Tensor>),
    Away(Away),
}

impl Rank {
    /// Nothing that is away is wanted any more.
    pub(crate) fn forget_what_is_away(&self) {
        if let Some(offload) = &self.offload {
            offload.forget();
        }
    }

    /// Puts away what stage number `index` kept, if it is to be: not of the last layer, which backward reads at once, nor of the loss.
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

    /// Begins to read back what the next stages of backward, the last of these, have away.
    pub(crate) fn ask_for(&self, traces: &[Trace<'_>]) {
        let Some(offload) = &self.offload else { return };
        for (kept, _) in traces.iter().rev().take(IN_FLIGHT).flatten() {
            if let Kept::Away(away) = kept {
                offload.ask(away);
            }
        }
    }

    /// What was kept, here.
    pub(crate) fn brought_back(&self, kept: Kept) -> Result<Vec<Tensor>> {
        match (kept, &self.offload) {
            (Kept::Here(tensors), _) => Ok(tensors),
            (Kept::Away(away), Some(offload)) => offload.take(&away, &|| self.progress()),
            (Kept::Away(_), None) => Err(nowhere()),
        }
    }

    /// The same, to look at.
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
