//! `evaluation:` what is asked of a model, at which lengths.

use std::path::PathBuf;

use crate::{Experiment, Problem};

/// Targets of a window where the file does not say.
const TARGETS: usize = 512;

/// `evaluation:`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evaluation {
    /// A file or folder of texts; none: `data.path`.
    pub path: Option<PathBuf>,
    /// Inputs per sequence; none: `data.tokens` alone.
    pub lengths: Option<Vec<usize>>,
    /// Stretches of the text; default 32.
    pub windows: usize,
    /// Targets at the end of each; default 512, or half of the shortest length.
    pub targets: Option<usize>,
    /// What other lengths are compared with; default the shortest.
    pub against: Option<usize>,
}

impl Experiment {
    /// The lengths that are evaluated, rising, each once.
    pub fn evaluated_lengths(&self) -> Vec<usize> {
        let mut lengths = self.evaluation.lengths.clone().unwrap_or_default();
        if lengths.is_empty() {
            lengths.push(self.data.tokens);
        }
        lengths.sort_unstable();
        lengths.dedup();
        lengths
    }

    /// The targets at the end of every window.
    pub fn evaluated_targets(&self) -> usize {
        let shortest = self.evaluated_lengths()[0];
        self.evaluation.targets.unwrap_or_else(|| TARGETS.min(shortest.div_ceil(2)))
    }
}

/// What lengths and targets must be to each other.
pub(crate) fn rules(experiment: &Experiment) -> Vec<Problem> {
    let (places, lengths) = (&experiment.places, experiment.evaluated_lengths());
    let (shortest, targets) = (lengths[0], experiment.evaluated_targets());
    let mut problems = Vec::new();
    if targets > shortest {
        let message = format!("{targets} targets, but the shortest length is {shortest} tokens");
        let hint = format!("at most {shortest}, or longer `evaluation.lengths`");
        problems.push(places.problem("evaluation.targets", message).hint(hint));
    }
    let against = experiment.evaluation.against.unwrap_or(shortest);
    if !lengths.contains(&against) {
        let message = format!("{against} tokens are none of the lengths that are evaluated");
        let listed: Vec<_> = lengths.iter().map(usize::to_string).collect();
        let hint = format!("one of {}", listed.join(", "));
        problems.push(places.problem("evaluation.against", message).hint(hint));
    }
    problems
}
