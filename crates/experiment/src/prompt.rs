//! An experiment for a prompt that grows token by token: what is written for whole sequences of training does not hold for it.

use std::ops::Range;

use annulus_architecture::Shape;
use annulus_yaml::Problems;

use crate::sliding::with_windows;
use crate::{DocumentBounds, Experiment};

impl Experiment {
    /// This experiment for sequences of `tokens`, which may be shorter than global positions reach.
    #[must_use]
    pub fn of_tokens(mut self, tokens: usize) -> Experiment {
        self.data.tokens = tokens;
        let within = |range: Range<usize>| range.start..range.end.min(tokens);
        let global = self.attention.masking.global.take().into_iter().flatten().map(within);
        let global: Vec<Range<usize>> = global.filter(|range| !range.is_empty()).collect();
        self.attention.masking.global = Some(global).filter(|global| !global.is_empty());
        self
    }

    /// This experiment for a prompt of `prompt` tokens that grows to `all`: one document without padding, under the windows that the layers
    /// of `model` have over the whole length.
    ///
    /// # Errors
    /// When the experiment contradicts the model.
    pub fn of_prompt(
        mut self,
        model: &Shape,
        prompt: usize,
        all: usize,
    ) -> Result<Experiment, Problems> {
        let masking = &mut self.attention.masking;
        masking.padding = None;
        if matches!(masking.documents, Some(DocumentBounds::Lengths(_))) {
            masking.documents = None;
        }
        self.data.tokens = all;
        Ok(with_windows(self, model)?.of_tokens(prompt))
    }
}
