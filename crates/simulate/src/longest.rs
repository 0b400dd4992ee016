//! The longest sequences that fit into memory.

use annulus_experiment::Resolved;
use annulus_plan::Plan;

use crate::table::fits;
use crate::{Cluster, Estimate};

/// The most ranks of a sequence for which this is computed: more take long to walk.
const MOST_RANKS: usize = 256;
/// The resolution of lengths, in tokens per rank.
const GRAIN: usize = 1024;
/// The longest sequence that is tried.
const MOST_TOKENS: usize = 1 << 28;

/// The longest sequence that fits into memory, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Longest {
    /// This many, to 1024 tokens per rank.
    Tokens(usize),
    /// This many fit, and longer ones are not tried.
    AtLeast(usize),
    /// Not even short ones fit, memory has no limit, or there are too many ranks to tell.
    Unknown,
}

impl Longest {
    /// The number of tokens where it is known; `None` also where all lengths that are tried fit.
    pub fn tokens(self) -> Option<usize> {
        match self {
            Longest::Tokens(tokens) => Some(tokens),
            Longest::AtLeast(_) | Longest::Unknown => None,
        }
    }

    /// The length in a line, if something is known of it.
    pub fn to_text(self) -> Option<String> {
        // In units of 1024, such as `64k`.
        let (tokens, how) = match self {
            Longest::Tokens(tokens) => (format!("{}k tokens", tokens / 1024), "to 1k of each rank"),
            Longest::AtLeast(tokens) => {
                (format!("at least {}k tokens", tokens / 1024), "longer ones are not tried")
            }
            Longest::Unknown => return None,
        };
        Some(format!("longest sequences that fit: {tokens} ({how})"))
    }
}

/// The longest sequence that fits on `cluster` for an experiment that names its strategies.
pub fn longest(resolved: &Resolved, cluster: &Cluster) -> Longest {
    let experiment = &resolved.experiment;
    let ranks = experiment.mesh.sequence;
    let cluster = &cluster.budgeted(&experiment.memory);
    // Without a memory limit there is no longest sequence.
    if cluster.budget.is_none() || ranks > MOST_RANKS {
        return Longest::Unknown;
    }
    let grain = GRAIN.next_multiple_of(experiment.mesh.tensor) * ranks;
    let fitting = |grains: usize| {
        let mut experiment = experiment.clone();
        experiment.data.tokens = grains * grain;
        experiment.extend = None;
        let plan = Plan::new(&resolved.with(cluster.place(experiment))).ok();
        let estimate = plan.and_then(|plan| Estimate::of(&plan, cluster).ok());
        estimate.is_some_and(|estimate| fits(&estimate, cluster))
    };
    let (mut least, mut most) = (0, 1);
    while fitting(most) {
        (least, most) = (most, 2 * most);
        if most * grain > MOST_TOKENS {
            return Longest::AtLeast(least * grain);
        }
    }
    while most - least > 1 {
        let middle = least.midpoint(most);
        if fitting(middle) { least = middle } else { most = middle }
    }
    if least > 0 { Longest::Tokens(least * grain) } else { Longest::Unknown }
}
