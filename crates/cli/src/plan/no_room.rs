//! Why nothing fits on a described cluster, and what would help.

use annulus_experiment::{Offload, Recompute, Resolved};
use annulus_simulate::{Choice, Cluster, Meshes};
use annulus_text::size;
use annulus_train::Exit;

use crate::failure::Failure;

/// A comparison whose answer does not fit.
pub(super) struct NoRoom<'a> {
    pub(super) choice: &'a Choice,
    /// Other meshes of as many ranks.
    pub(super) meshes: &'a Meshes,
    /// The experiment with the written or chosen strategies.
    pub(super) split: &'a Resolved,
    pub(super) cluster: &'a Cluster,
}

impl NoRoom<'_> {
    /// The error, with what would help.
    pub(super) fn failure(&self) -> Failure {
        if let Some([taken, room]) = self.choice.offload_beyond_node() {
            let message = format!(
                "no strategy fits: {} are offloaded from the devices of a node, which has {} for that (`offload.memory` in the cluster's file)",
                size(taken),
                size(room)
            );
            return Failure::new(Exit::DoesNotFit, message, Some(self.of_offload()));
        }
        let message = "no strategy fits into the memory that may be used of a device: three quarters, or `memory.budget`";
        let hint = match self.choice.state_beyond_budget() {
            Some(state) => self.of_state(state),
            None => self.of_activations(),
        };
        Failure::new(Exit::DoesNotFit, message, Some(hint))
    }

    /// What helps where a node has too little room for what its devices offload.
    fn of_offload(&self) -> String {
        let lower = match self.at_once() {
            1 => "`data.tokens`",
            _ => "`memory.micro_batch` or `data.tokens`",
        };
        let again = match self.split.experiment.memory.recompute {
            Recompute::None => "set `memory.recompute=layer`, ",
            Recompute::Layer | Recompute::Auto => "",
        };
        let wider = self.wider();
        format!("{again}lower {lower}, raise {wider}, or offload less (`memory.offload`)")
    }

    /// Sequences that a replica computes at once.
    fn at_once(&self) -> usize {
        let experiment = &self.split.experiment;
        let whole = experiment.data.batch / experiment.mesh.data;
        experiment.memory.micro_batch.unwrap_or(whole)
    }

    /// What helps where the state alone takes more than a device has.
    fn of_state(&self, state: u64) -> String {
        let experiment = &self.split.experiment;
        let raised = if experiment.mesh.ranks() == 1 {
            "raise `mesh.sequence` or `mesh.data`, whose ranks can share them (`parallel.state`), or `memory.budget`".to_owned()
        } else {
            format!(
                "leave `parallel.state` at `auto`, which shares them as far as it must, raise {} or `memory.budget`",
                self.wider()
            )
        };
        let moments = match experiment.memory.offload {
            Offload::None => ", offload moments (`memory.offload=optimizer`)",
            Offload::Activations => ", offload moments, too (`memory.offload=both`)",
            Offload::Optimizer | Offload::Both => "",
        };
        format!(
            "weights, gradients and optimizer state alone take {} of every device, at any length: {raised}{moments}, take larger devices, or train adapters (`lora`)",
            size(state)
        )
    }

    /// What helps where activations take too much: first what is known to be enough.
    fn of_activations(&self) -> String {
        let mut settings = Vec::new();
        let at_once = self.at_once();
        if at_once > 1 {
            settings.push(format!(
                "set `memory.micro_batch=1`: {at_once} sequences are computed at once"
            ));
        }
        settings.extend(self.offloading());
        if let Some([sequence, tensor]) = self.meshes.fitting() {
            settings
                .push(format!("set `mesh.sequence={sequence} mesh.tensor={tensor}`, which fits"));
        }
        let rest = format!("lower `data.tokens`, or raise {} or `memory.budget`", self.wider());
        settings.push(rest);
        settings.join("; or ")
            + "; the plan above already recomputes and uses chunks as far as `memory:` allows"
    }

    /// The advice to offload activations, where they are not.
    fn offloading(&self) -> Option<String> {
        let (mut resolved, offload) = (self.split.clone(), self.split.experiment.memory.offload);
        if offload.activations() {
            return None;
        }
        let (more, word) = match offload {
            Offload::Optimizer => (Offload::Both, "both"),
            _ => (Offload::Activations, "activations"),
        };
        resolved.experiment.memory.offload = more;
        let fits = if self.choice.would_fit(&resolved) { ", which fits" } else { "" };
        Some(format!(
            "offload activations to memory of the host or a disk (`memory.offload={word}`){fits}"
        ))
    }

    /// The keys that split a sequence further: `mesh.tensor` only where the model can be divided by more ranks of a node.
    fn wider(&self) -> &'static str {
        let tensor = self.split.experiment.mesh.tensor;
        let divides = self.split.shape().is_ok_and(|shape| {
            let sizes =
                [shape.num_attention_heads, shape.num_key_value_heads, shape.intermediate_size];
            let mut more = tensor + 1..=self.cluster.devices_per_node;
            more.any(|ranks| sizes.iter().all(|size| size.is_multiple_of(ranks)))
        });
        if divides { "`mesh.sequence`, `mesh.tensor`" } else { "`mesh.sequence`" }
    }
}

#[cfg(test)]
mod tests {
    use annulus_experiment::{Override, parse};

    use super::*;

    /// Long sequences through many thin layers: activations take most of the memory.
    const LONG: &str = "\
name: long
model:
  hidden_size: 1024
  intermediate_size: 2816
  num_hidden_layers: 32
  num_attention_heads: 16
  num_key_value_heads: 4
  vocab_size: 1k
  dtype: bf16
data: { tokens: 1M }
mesh: { sequence: 8 }
attention: { strategy: megatron }
optimizer: { learning_rate: 3e-4 }
schedule: { steps: 10 }
";
    const CLUSTER: &str = "\
name: tight
devices_per_node: 8
memory: 20GB
compute: { forward: 600TFLOP/s }
inside: { bandwidth: 450GB/s }
";

    /// The error with its hint; `None`: it fits.
    fn said(arguments: &[&str], more: &str) -> Option<String> {
        let overrides: Vec<Override> =
            arguments.iter().map(|one| Override::split(one).expect("cases have a `=`")).collect();
        let experiment = parse("long.yaml", LONG, &overrides).unwrap_or_else(|p| panic!("{p}"));
        let split = Resolved::read(experiment, None).unwrap_or_else(|p| panic!("{p}"));
        let text = CLUSTER.to_owned() + more;
        let cluster = Cluster::parse("tight.yaml", &text).unwrap_or_else(|p| panic!("{p}"));
        let choice = Choice::among(&split, &cluster).unwrap_or_else(|p| panic!("{p}"));
        let meshes = Meshes::of(&split, &cluster, &choice);
        let no_room = NoRoom { choice: &choice, meshes: &meshes, split: &split, cluster: &cluster };
        (!choice.has_room()).then(|| no_room.failure().problems.to_string())
    }

    #[test]
    fn what_does_not_fit_is_told_what_would() {
        let found = said(&[], "").expect("it does not fit");
        let offload = "offload activations to memory of the host or a disk (`memory.offload=activations`), which fits";
        assert!(found.contains(offload), "{found}");
        assert!(
            found.contains("raise `mesh.sequence`, `mesh.tensor` or `memory.budget`"),
            "{found}"
        );
        assert_eq!(said(&["memory.offload=activations"], ""), None);
        // What is not enough is no promise, and what is on already is not advised.
        let found = said(&["data.tokens=16M"], "").expect("it does not fit");
        assert!(found.contains("`memory.offload=activations`);"), "{found}");
        let found = said(&["data.tokens=16M", "memory.offload=activations"], "");
        assert!(!found.expect("it does not fit").contains("memory.offload"));
        // Key/value heads that more ranks of a node cannot share.
        let found = said(
            &["model.num_key_value_heads=1", "model.num_attention_heads=15", "model.head_dim=64"],
            "",
        );
        let found = found.expect("it does not fit");
        assert!(found.contains("raise `mesh.sequence` or `memory.budget`"), "{found}");
    }

    #[test]
    fn a_node_that_cannot_hold_what_is_offloaded_is_to_blame() {
        let offload = ["memory.offload=activations"];
        let found = said(&offload, "offload: { memory: 20GB }\n").expect("it does not fit");
        let room =
            "of a node, which has 18.6 GiB for that (`offload.memory` in the cluster's file)";
        assert!(found.contains(room) && found.contains("offload less"), "{found}");
        assert!(!found.contains("memory.recompute") && !found.contains("micro_batch"), "{found}");
        let kept = ["memory.offload=activations", "memory.recompute=none", "data.batch=2"];
        let found = said(&kept, "offload: { memory: 20GB }\n").expect("it does not fit");
        let hint =
            "set `memory.recompute=layer`, lower `memory.micro_batch` or `data.tokens`, raise";
        assert!(found.contains(hint), "{found}");
        assert_eq!(said(&offload, "offload: { memory: 2TB }\n"), None);
    }
}
