//! The settings of a plan that trade time for memory, as process 0 tells them to the others.

use std::fmt;

use annulus_experiment::{Recompute, Settled, State};
use annulus_plan::Plan;
use serde::{Deserialize, Serialize};

use crate::{Result, TrainError};

/// [`Settled`], with words for what is a word in the experiment's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// `parallel.state`.
    state: String,
    /// `memory.recompute`.
    recompute: String,
    /// `memory.loss_chunk`.
    loss_chunk: usize,
    /// `memory.mlp_chunk`.
    mlp_chunk: usize,
}

impl Settings {
    /// Those of a plan; of one of several phases, of that phase.
    pub(crate) fn of(plan: &Plan) -> Settings {
        let Settled { state, recompute, loss_chunk, mlp_chunk } = plan.memory;
        let (state, recompute) = (state.word().to_owned(), recompute.word().to_owned());
        Settings { state, recompute, loss_chunk, mlp_chunk }
    }

    /// What they mean.
    ///
    /// # Errors
    /// A word that this version does not know.
    pub(crate) fn settled(&self) -> Result<Settled> {
        let Settings { state, recompute, loss_chunk, mlp_chunk } = self;
        let words = State::from_word(state).zip(Recompute::from_word(recompute));
        let unknown = || TrainError::Internal(format!("unknown settings: {self}"));
        let (state, recompute) = words.ok_or_else(unknown)?;
        Ok(Settled { state, recompute, loss_chunk: *loss_chunk, mlp_chunk: *mlp_chunk })
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { state, recompute, loss_chunk, mlp_chunk } = self;
        write!(
            f,
            "parallel.state {state}, memory.recompute {recompute}, memory.loss_chunk {loss_chunk}, memory.mlp_chunk {mlp_chunk}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_mean_what_they_were_made_of() {
        let settings = |state: &str| Settings {
            state: state.to_owned(),
            recompute: "layer".to_owned(),
            loss_chunk: 128,
            mlp_chunk: 1024,
        };
        let (state, recompute) = (State::Zero3, Recompute::Layer);
        let wanted = Settled { state, recompute, loss_chunk: 128, mlp_chunk: 1024 };
        assert_eq!(settings("zero3").settled().unwrap(), wanted);
        let unknown = settings("zero4").settled().unwrap_err().to_string();
        assert!(unknown.contains("parallel.state zero4"), "{unknown}");
    }
}
