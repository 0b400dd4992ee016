//! Whether the answer of a comparison on a described cluster fits, why it does not, and what would help.

use annulus_experiment::{Experiment, Offload, Recompute, Resolved, State};
use annulus_simulate::{Choice, Estimate, Meshes};
use annulus_text::size;
use annulus_train::Exit;

use super::phases::{Estimated, Phases};
use crate::failure::Failure;

/// The answer of a comparison.
pub(super) struct Answer<'a> {
    /// The comparison of the longest phase.
    pub(super) choice: &'a Choice,
    /// Other meshes of as many ranks, for the longest phase.
    pub(super) meshes: &'a Meshes,
    /// All phases with the written or chosen strategies.
    pub(super) phases: &'a Phases,
    /// These strategies in words.
    pub(super) strategies: String,
}

/// A phase that does not fit.
struct NoRoom<'a> {
    answer: &'a Answer<'a>,
    of: &'a Estimated<'a>,
}

/// A written key that trades time for memory, and what leaves it to the plan.
type Written = (&'static str, fn(&mut Experiment));

impl Answer<'_> {
    /// Checks that all phases fit, the longest with this estimate. Returns a remark on a phase that needs more memory than the longest.
    ///
    /// # Errors
    /// When a phase does not fit, with what would help, or cannot run.
    pub(super) fn check(&self, longest: &Estimate) -> Result<Option<String>, Failure> {
        let estimated = self.phases.estimated(self.choice, longest)?;
        let fullest = |one: &&Estimated<'_>| (one.estimate.fullest(), one.is_longest);
        let unfitting = estimated.iter().filter(|one| !self.choice.fits(&one.estimate));
        if let Some(of) = unfitting.max_by_key(fullest) {
            return Err(NoRoom { answer: self, of }.failure());
        }
        Ok(estimated.iter().max_by_key(fullest).and_then(Estimated::remark))
    }
}

impl NoRoom<'_> {
    /// The error, with what would help.
    fn failure(&self) -> Failure {
        let (choice, estimate) = (self.answer.choice, &self.of.estimate);
        let (message, hint) = if let Some(offloaded) = self.offloaded_beyond_node() {
            (self.beyond_node(offloaded), self.of_offload())
        } else {
            let of_state = choice.state_beyond_budget(estimate).map(|state| self.of_state(state));
            (self.beyond_budget(), of_state.unwrap_or_else(|| self.of_activations()))
        };
        let phase = self.experiment().phase();
        let phase = phase.map_or_else(String::new, |phase| format!("phase `{}`: ", phase.name));
        Failure::new(Exit::DoesNotFit, phase + &message, Some(hint))
    }

    /// The phase's experiment, with the written or chosen strategies.
    fn experiment(&self) -> &Experiment {
        &self.of.phase.experiment
    }

    /// The strategies that do not fit; `None`: they were chosen for this phase, so no others fit either.
    fn strategies(&self) -> Option<String> {
        let name = self.answer.strategies.replace(" and ", "` and `");
        match (&self.answer.choice.written, self.of.is_longest) {
            (Some(_), _) => Some(format!("`{name}`")),
            (None, false) => Some(format!("`{name}`, chosen for the longest phase,")),
            (None, true) => None,
        }
    }

    /// Bytes that the devices of a node offload together, and the node's room for them, where that is too little.
    fn offloaded_beyond_node(&self) -> Option<[u64; 2]> {
        self.answer.choice.offload_beyond_node(&self.of.estimate)
    }

    /// What is wrong where a node has too little room for what its devices offload.
    fn beyond_node(&self, [taken, room]: [u64; 2]) -> String {
        let fits = match self.strategies() {
            Some(strategies) => format!("{strategies} does not fit"),
            None => "no strategy fits".to_owned(),
        };
        format!(
            "{fits}: {} are offloaded from the devices of a node, which has {} for that (`offload.memory` in the cluster's file)",
            size(taken),
            size(room)
        )
    }

    /// What is wrong where a device has too little memory.
    fn beyond_budget(&self) -> String {
        let fits = match self.strategies() {
            Some(strategies) => {
                let needed = size(self.of.estimate.fullest());
                format!("{strategies} needs {needed} and does not fit")
            }
            None => "no strategy fits".to_owned(),
        };
        fits + " into the memory that may be used of a device: three quarters, or `memory.budget`"
    }

    /// What helps where a node has too little room for what its devices offload.
    fn of_offload(&self) -> String {
        let tokens = self.tokens();
        let lower = match self.at_once() {
            1 => tokens,
            _ => format!("`memory.micro_batch` or {tokens}"),
        };
        let wider = self.wider();
        let rest = format!("lower {lower}, raise {wider}, or offload less (`memory.offload`)");
        let ways = [self.choosing(), self.left_out(), Some(rest)];
        ways.into_iter().flatten().collect::<Vec<_>>().join("; or ")
    }

    /// The key of the length of sequences.
    fn tokens(&self) -> String {
        match self.experiment().phase() {
            Some(phase) => format!("`stages.{}.tokens`", phase.name),
            None => "`data.tokens`".to_owned(),
        }
    }

    /// Sequences that a replica computes at once.
    fn at_once(&self) -> usize {
        let experiment = self.experiment();
        let whole = experiment.data.batch / experiment.mesh.data;
        experiment.memory.micro_batch.unwrap_or(whole)
    }

    /// What helps where the state alone takes more than a device has.
    fn of_state(&self, state: u64) -> String {
        let experiment = self.experiment();
        let raised = if experiment.mesh.ranks() == 1 {
            "raise `mesh.sequence` or `mesh.data`, whose ranks can share them (`parallel.state`), or `memory.budget`".to_owned()
        } else {
            format!("raise {} or `memory.budget`", self.wider())
        };
        let moments = match experiment.memory.offload {
            Offload::None => ", offload moments (`memory.offload=optimizer`)",
            Offload::Activations => ", offload moments, too (`memory.offload=both`)",
            Offload::Optimizer | Offload::Both => "",
        };
        let shared = self.left_out().map_or_else(String::new, |way| way + "; or ");
        format!(
            "weights, gradients and optimizer state alone take {} of every device, at any length: {shared}{raised}{moments}, take larger devices, or train adapters (`lora`)",
            size(state)
        )
    }

    /// What helps where activations take too much: first what is known to be enough.
    fn of_activations(&self) -> String {
        let left_out = self.left_out();
        let is_smallest =
            left_out.is_none() && self.of.estimate.memory.recompute == Recompute::Layer;
        let rest = format!("lower {}, or raise {} or `memory.budget`", self.tokens(), self.wider());
        let ways = [
            self.choosing(),
            left_out,
            self.one_at_once(),
            self.offloading(),
            self.other_mesh(),
            Some(rest),
        ];
        let ways = ways.into_iter().flatten().collect::<Vec<_>>().join("; or ");
        let end = "; the plan already recomputes and uses chunks as far as `memory:` allows";
        ways + if is_smallest { end } else { "" }
    }

    /// The advice to leave the strategies open, where those that would be chosen fit.
    fn choosing(&self) -> Option<String> {
        let Answer { choice, phases, .. } = self.answer;
        choice.written.as_ref()?;
        let chosen = choice.settled(&phases.longest().experiment)?;
        let of_sliding = match chosen.attention.sliding {
            Some(_) => " attention.sliding.strategy=auto",
            None => "",
        };
        let fit = phases.under(&chosen.attention).fit(choice);
        let advice = || {
            format!(
                "set `attention.strategy=auto{of_sliding}`, which fits (it chooses `exchange`, `shape`, `groups` and `stripe`, too: leave them out)"
            )
        };
        fit.then(advice)
    }

    /// The advice to remove as few as possible of the written keys that the plan would choose so that all fits, or at least less is needed.
    fn left_out(&self) -> Option<String> {
        let now = self.need(&self.of.estimate);
        let mut keys = self.written();
        let fits = self.fits_with(|experiment| leave_out(experiment, &keys));
        let least = self.need_without(&keys);
        if !fits && least.is_none_or(|least| least >= now) {
            return None;
        }
        for key in self.written() {
            let fewer: Vec<Written> = keys.iter().filter(|one| one.0 != key.0).copied().collect();
            let is_enough = if fits {
                self.fits_with(|experiment| leave_out(experiment, &fewer))
            } else {
                self.need_without(&fewer) == least
            };
            if is_enough {
                keys = fewer;
            }
        }
        let names: Vec<&str> = keys.iter().map(|(name, _)| *name).collect();
        let outcome = if fits { "fits" } else { "needs less" };
        Some(format!("remove `{}`, and the plan chooses what {outcome}", names.join("`, `")))
    }

    /// The written ones of the keys that trade time for memory, the costliest first.
    fn written(&self) -> Vec<Written> {
        let Experiment { memory, parallel, .. } = self.experiment();
        let keys: [(bool, Written); 4] = [
            (
                memory.recompute != Recompute::Auto,
                ("memory.recompute", |of| of.memory.recompute = Recompute::Auto),
            ),
            (
                parallel.state != State::Auto,
                ("parallel.state", |of| of.parallel.state = State::Auto),
            ),
            (memory.loss_chunk.is_some(), ("memory.loss_chunk", |of| of.memory.loss_chunk = None)),
            (memory.mlp_chunk.is_some(), ("memory.mlp_chunk", |of| of.memory.mlp_chunk = None)),
        ];
        keys.into_iter().filter_map(|(is_written, key)| is_written.then_some(key)).collect()
    }

    /// Bytes of what there is too little room for: the memory of a device, or what a node offloads.
    fn need(&self, estimate: &Estimate) -> u64 {
        match self.offloaded_beyond_node() {
            Some(_) => estimate.offloaded_bytes[1],
            None => estimate.fullest(),
        }
    }

    /// [`NoRoom::need`] of this phase without some written keys; `None`: it cannot run so.
    fn need_without(&self, keys: &[Written]) -> Option<u64> {
        let mut phase: Resolved = self.of.phase.clone();
        leave_out(&mut phase.experiment, keys);
        Some(self.need(&self.answer.choice.estimate(&phase).ok()?))
    }

    /// Whether all phases fit with a change.
    fn fits_with(&self, change: impl Fn(&mut Experiment)) -> bool {
        self.answer.phases.changed(change).fit(self.answer.choice)
    }

    /// `, which fits` where all phases fit with a change.
    fn promise(&self, change: impl Fn(&mut Experiment)) -> &'static str {
        if self.fits_with(change) { ", which fits" } else { "" }
    }

    /// The advice to compute sequences one by one, where they are not.
    fn one_at_once(&self) -> Option<String> {
        let at_once = self.at_once();
        let fits = || self.promise(|experiment| experiment.memory.micro_batch = Some(1));
        (at_once > 1).then(|| {
            format!(
                "set `memory.micro_batch=1`{} ({at_once} sequences are computed at once)",
                fits()
            )
        })
    }

    /// The advice to offload activations, where they are not.
    fn offloading(&self) -> Option<String> {
        let offload = self.experiment().memory.offload;
        if offload.activations() {
            return None;
        }
        let (more, word) = match offload {
            Offload::Optimizer => (Offload::Both, "both"),
            _ => (Offload::Activations, "activations"),
        };
        let fits = self.promise(|experiment| experiment.memory.offload = more);
        Some(format!(
            "offload activations to memory of the host or a disk (`memory.offload={word}`){fits}"
        ))
    }

    /// The advice to take another mesh, where one fits.
    fn other_mesh(&self) -> Option<String> {
        let [sequence, tensor] = self.answer.meshes.fitting()?;
        let fits = || {
            self.fits_with(|experiment| {
                (experiment.mesh.sequence, experiment.mesh.tensor) = (sequence, tensor);
            })
        };
        // Meshes are compared for the longest phase.
        (self.answer.phases.is_one() || fits())
            .then(|| format!("set `mesh.sequence={sequence} mesh.tensor={tensor}`, which fits"))
    }

    /// The keys that split a sequence further: `mesh.tensor` only where the model can be divided by more ranks of a node.
    fn wider(&self) -> &'static str {
        let tensor = self.experiment().mesh.tensor;
        let divides = self.of.phase.shape().is_ok_and(|shape| {
            let sizes =
                [shape.num_attention_heads, shape.num_key_value_heads, shape.intermediate_size];
            let mut more = tensor + 1..=self.answer.choice.cluster.devices_per_node;
            more.any(|ranks| sizes.iter().all(|size| size.is_multiple_of(ranks)))
        });
        if divides { "`mesh.sequence`, `mesh.tensor`" } else { "`mesh.sequence`" }
    }
}

/// Leaves written keys to the plan.
fn leave_out(experiment: &mut Experiment, keys: &[Written]) {
    for (_, leave_open) in keys {
        leave_open(experiment);
    }
}

#[cfg(test)]
mod tests;
