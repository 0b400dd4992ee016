//! The phases of an experiment on a described cluster: strategies are chosen for the longest, and every phase has to fit.

use annulus_experiment::{Attention, Experiment, Problems, Resolved};
use annulus_simulate::{Choice, Estimate};
use annulus_text::size;

/// The training phases of an experiment; one without `stages` is its only phase.
#[derive(Clone)]
pub(super) struct Phases {
    all: Vec<Resolved>,
    /// The index of the longest.
    longest: usize,
}

/// A phase with the strategies that are written, or chosen for the longest, and the estimate of its step.
pub(super) struct Estimated<'a> {
    pub(super) phase: &'a Resolved,
    pub(super) estimate: Estimate,
    pub(super) is_longest: bool,
}

impl Phases {
    /// The phases of `resolved`.
    pub(super) fn of(resolved: &Resolved) -> Phases {
        let all = resolved.phases();
        let lengths = all.iter().map(|phase| phase.experiment.data.tokens).enumerate();
        let longest = lengths.max_by_key(|(_, tokens)| *tokens);
        let longest = longest.map_or(0, |(number, _)| number);
        Phases { all, longest }
    }

    /// The phase with the longest sequences.
    pub(super) fn longest(&self) -> &Resolved {
        &self.all[self.longest]
    }

    /// Whether the experiment has one phase.
    pub(super) fn is_one(&self) -> bool {
        self.all.len() == 1
    }

    /// These phases with the strategies that are written, or that `choice` takes for the longest; `None`: none can run.
    pub(super) fn settled(&self, choice: &Choice) -> Option<Phases> {
        let experiment = &self.longest().experiment;
        if !experiment.attention.is_open() {
            return Some(self.clone());
        }
        Some(self.under(&choice.settled(experiment)?.attention))
    }

    /// These phases with the section `attention` of an experiment that names its strategies.
    pub(super) fn under(&self, attention: &Attention) -> Phases {
        self.changed(|experiment| experiment.attention = attention.clone())
    }

    /// These phases, each with a change.
    pub(super) fn changed(&self, change: impl Fn(&mut Experiment)) -> Phases {
        let mut all = self.all.clone();
        for phase in &mut all {
            change(&mut phase.experiment);
        }
        Phases { all, longest: self.longest }
    }

    /// The estimate of every phase on the cluster of `choice`, of which that of the longest is known.
    ///
    /// # Errors
    /// What is wrong with a phase.
    pub(super) fn estimated(
        &self,
        choice: &Choice,
        longest: &Estimate,
    ) -> Result<Vec<Estimated<'_>>, Problems> {
        let phases = self.all.iter().enumerate();
        let estimated = phases.map(|(number, phase)| {
            let is_longest = number == self.longest;
            let known = is_longest.then(|| longest.clone());
            let estimate = known.map_or_else(|| choice.estimate(phase), Ok)?;
            Ok(Estimated { phase, estimate, is_longest })
        });
        estimated.collect()
    }

    /// Whether all phases fit on the cluster of `choice`.
    pub(super) fn fit(&self, choice: &Choice) -> bool {
        let mut estimates = self.all.iter().map(|phase| choice.estimate(phase));
        estimates.all(|estimate| estimate.is_ok_and(|estimate| choice.fits(&estimate)))
    }
}

impl Estimated<'_> {
    /// A line on a phase that needs more memory than the longest does; `None` of the longest.
    pub(super) fn remark(&self) -> Option<String> {
        let phase = self.phase.experiment.phase().filter(|_| !self.is_longest)?;
        let needed = size(self.estimate.fullest());
        Some(format!(
            "phase `{}` needs the most memory: {needed} on the fullest device",
            phase.name
        ))
    }
}
