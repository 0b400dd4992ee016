//! What is said where an answer does not fit, and of phases.

use annulus_experiment::{Override, parse};
use annulus_simulate::Cluster;

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

/// What is said of an experiment on the cluster: the error with its hint, or a remark on a phase.
fn answer(text: &str, arguments: &[&str], more: &str) -> Result<Option<String>, String> {
    let overrides: Vec<Override> =
        arguments.iter().map(|one| Override::split(one).expect("cases have a `=`")).collect();
    let experiment = parse("long.yaml", text, &overrides).unwrap_or_else(|p| panic!("{p}"));
    let resolved = Resolved::read(experiment, None).unwrap_or_else(|p| panic!("{p}"));
    let cluster = Cluster::parse("tight.yaml", &(CLUSTER.to_owned() + more));
    let cluster = cluster.unwrap_or_else(|problems| panic!("{problems}"));
    let phases = Phases::of(&resolved);
    let longest = phases.longest();
    let choice = Choice::among(longest, &cluster).unwrap_or_else(|p| panic!("{p}"));
    let meshes = Meshes::of(longest, &cluster, &choice);
    let phases = phases.settled(&choice).expect("a strategy can run");
    let (strategies, _, estimate) = choice.answered().expect("a strategy can run");
    let answer = Answer { choice: &choice, meshes: &meshes, phases: &phases, strategies };
    answer.check(&estimate).map_err(|failure| failure.problems.to_string())
}

/// The error with its hint; `None`: it fits.
fn said(arguments: &[&str], more: &str) -> Option<String> {
    answer(LONG, arguments, more).err()
}

#[test]
fn what_does_not_fit_is_told_what_would() {
    let found = said(&[], "").expect("it does not fit");
    let offload = "offload activations to memory of the host or a disk (`memory.offload=activations`), which fits";
    assert!(found.contains(offload), "{found}");
    assert!(found.contains("raise `mesh.sequence`, `mesh.tensor` or `memory.budget`"), "{found}");
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
    let room = "of a node, which has 18.6 GiB for that (`offload.memory` in the cluster's file)";
    assert!(found.contains(room) && found.contains("offload less"), "{found}");
    assert!(!found.contains("memory.recompute") && !found.contains("micro_batch"), "{found}");
    let kept = ["memory.offload=activations", "memory.recompute=none", "data.batch=2"];
    let found = said(&kept, "offload: { memory: 20GB }\n").expect("it does not fit");
    let hint = "remove `memory.recompute`, and the plan chooses what needs less; or lower `memory.micro_batch` or `data.tokens`, raise";
    assert!(found.contains(hint), "{found}");
    assert_eq!(said(&offload, "offload: { memory: 2TB }\n"), None);
}

#[test]
fn a_written_strategy_that_does_not_fit_is_named() {
    let auto = "set `attention.strategy=auto`, which fits (it chooses";
    let li_ring = ["attention.strategy=li-ring", "data.tokens=128k"];
    let found = said(&li_ring, "").expect("whole scores do not fit");
    assert!(found.contains("`li-ring` needs ") && found.contains(auto), "{found}");
    assert!(!found.contains("no strategy fits"), "{found}");
    assert_eq!(said(&["attention.strategy=auto", "data.tokens=128k"], ""), None);
    // Where the choice does not fit either, it is not advised.
    let found = said(&["data.tokens=16M"], "").expect("it does not fit");
    assert!(found.contains("`megatron` needs ") && !found.contains("auto"), "{found}");
    let found = said(&["attention.strategy=auto", "data.tokens=16M"], "");
    let found = found.expect("nothing fits");
    assert!(found.contains("no strategy fits into the memory"), "{found}");
}

#[test]
fn keys_are_left_to_the_plan_where_that_helps() {
    let already = "the plan already recomputes";
    let found = said(&[], "").expect("it does not fit");
    assert!(found.contains(already) && !found.contains("remove"), "{found}");
    let kept = ["data.tokens=256k", "memory.recompute=none"];
    let found = said(&kept, "").expect("activations do not fit");
    let removed = "remove `memory.recompute`, and the plan chooses what fits; or ";
    assert!(found.contains(removed) && !found.contains(already), "{found}");
    assert_eq!(said(&kept[..1], ""), None);
    // As few keys as possible: these chunks are small enough.
    let chunks = ["memory.loss_chunk=128", "memory.mlp_chunk=1k"];
    let found = said(&[&kept[..], &chunks].concat(), "").expect("activations do not fit");
    assert!(found.contains(removed), "{found}");
    // What is not enough is no promise.
    let found = said(&["memory.recompute=none"], "").expect("activations do not fit");
    assert!(found.contains("remove `memory.recompute`, and the plan chooses what needs less; or "));
    assert!(!found.contains(already), "{found}");
}

/// The same sequences in phases, the shorter with many at once.
const PHASES: &str = "stages: { many: { tokens: 64k, steps: 5, batch: 256 }, long: { tokens: 128k, steps: 5, batch: 1, reset: [] } }\n";

#[test]
fn every_phase_has_to_fit() {
    let text = LONG.replace("data: { tokens: 1M }\n", "data: {}\n");
    let text = text.replace("schedule: { steps: 10 }\n", PHASES);
    let found = answer(&text, &[], "").expect_err("16M tokens at once do not fit");
    let named = "phase `many`: `megatron` needs ";
    assert!(found.contains(named) && found.contains("lower `stages.many.tokens`"), "{found}");
    let one = "set `memory.micro_batch=1`, which fits (256 sequences are computed at once)";
    assert!(found.contains(one), "{found}");
    let found = answer(&text, &["attention.strategy=auto"], "").expect_err("as before");
    assert!(found.contains("phase `many`: `"), "{found}");
    assert!(found.contains("`, chosen for the longest phase, needs "), "{found}");
    assert_eq!(answer(&text, &["memory.micro_batch=1"], ""), Ok(None));
    let few = text.replace("batch: 256", "batch: 4");
    let remark = answer(&few, &["parallel.state=replicated"], "");
    let remark = remark.expect("it fits").expect("four times half as many tokens");
    assert!(remark.starts_with("phase `many` needs the most memory: "), "{remark}");
}
