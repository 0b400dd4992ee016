//! Experiments as text again: the resolved file, what a run must keep, the schema.

use std::fs;
use std::path::Path;

use annulus_experiment::{Override, differences, parse, schema};
use serde_json::Value;

use crate::small::{SMALL, edited};

/// Every key there is, none at its default.
const FULL: &str = r#"
name: "a full one"
seed: 18446744073709551615
model: { hidden_size: 48, intermediate_size: 44, num_hidden_layers: 3, num_attention_heads: 6,
  num_key_value_heads: 2, head_dim: 16, vocab_size: 261, max_position_embeddings: 1k,
  rms_norm_eps: 1.0e-6, rope_theta: 500000, tie_word_embeddings: true, attention_bias: true,
  mlp_bias: true, initializer_range: 0.3, dtype: bf16, model_type: llama, hidden_act: silu }
data: { path: "a: b #c", format: jsonl, tokenizer: "t/tokenizer.json",
  tokens: 96, batch: 6, evaluate: 3, pack: documents, longer: cut }
mesh: { data: 3, sequence: 4, weights: [4, 3, 2, 0], deadline: 1500ms, cluster: clusters/a.yaml }
attention: { strategy: megatron, exchange: a2a+p2p, shape: [2, 2], layout: balanced, stripe: 3,
  backward: queries, mask: causal, prefix: 5,
  documents: [90, 6], padding: 95, window: 17, pattern: fixed, stride: 8, columns: 2, sinks: 3,
  global: [0-3, 9], kernel: reference, dropout: 0.125, wire: { query: bf16, key_value: bf16,
  output: bf16, query_gradient: f16, gradient: bf16 },
  sliding: { layers: [0, 2], window: 11, strategy: megatron, exchange: a2a+p2p, shape: [4, 1],
    backward: travelling } }
memory: { recompute: none, budget: 3G, micro_batch: 2, loss_chunk: 7, mlp_chunk: 9 }
optimizer: { name: adamw, learning_rate: 1.0e-30, betas: [0.1, 0.2], epsilon: 0.1234567890123456789,
  weight_decay: 0, clip: 0 }
schedule: { steps: 9, stop: 8, warmup: 7, decay: wsd, floor: 0.5 }
every: { log: 2, evaluate: 3, checkpoint: 4 }
trace: { steps: [2, 5-7] }
keep: 5
output: /tmp/über/alles
expect:
  validation/loss: { min: -1, max: 2, of_first: 0.25 }
  "odd: tag": { max: 1.0e+300 }
"#;

const FOLDER: &str = "name: folder
model: { path: checkpoints/llama, weights: random, rope_theta: 8.0e6 }
data: { tokens: 8 }
attention: { strategy: all-gather, groups: 1, mask: full, documents: data, pattern: strided, stride: 4,
  sliding: { layers: [1-3], window: 2, strategy: all-gather, groups: 1 } }
optimizer: { learning_rate: 1 }
schedule: { steps: 1 }
";

#[test]
fn what_is_written_out_reads_back_the_same() {
    for text in [SMALL, FULL, FOLDER] {
        let first = parse("given.yaml", text, &[]).unwrap_or_else(|problems| panic!("{problems}"));
        let written = first.to_yaml();
        let second = parse("written.yaml", &written, &[])
            .unwrap_or_else(|problems| panic!("{written}\n{problems}"));
        assert_eq!(first, second);
        assert_eq!(written, second.to_yaml());
    }
}

#[test]
fn the_resolved_file_reads_well() {
    insta::assert_snapshot!(parse("small.yaml", SMALL, &[]).expect("right").to_yaml());
}

/// The paths of all keys that the schema describes.
fn described(schema: &Value, path: &str, paths: &mut Vec<String>) {
    let Some(properties) = schema["properties"].as_object() else {
        paths.push(path.to_owned());
        return;
    };
    for (name, property) in properties {
        let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        described(property, &below, paths);
    }
}

#[test]
fn no_key_is_forgotten() {
    let mut keys = Vec::new();
    described(&schema(), "", &mut keys);
    assert!(keys.len() > 50, "{} keys", keys.len());
    let mut written: Vec<String> = Vec::new();
    for text in [FULL, FOLDER] {
        let experiment = parse("given.yaml", text, &[]).expect("right");
        let lines = parse("given.yaml", &experiment.to_yaml(), &[]).expect("right");
        written.extend(keys.iter().filter(|key| lines.places.contains(key)).cloned());
    }
    let forgotten: Vec<&String> = keys.iter().filter(|key| !written.contains(key)).collect();
    assert_eq!(forgotten, [""; 0], "keys of the schema that are never written out");
}

#[test]
fn the_schema_is_the_one_that_files_name() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/schema.json");
    let kept = fs::read_to_string(&path).expect("the schema is kept");
    let now = format!("{:#}\n", schema());
    assert_eq!(kept, now, "write the output of `annulus schema` to experiments/schema.json");
}

#[test]
fn what_may_differ_when_a_run_goes_on_is_listed() {
    let old = parse("small.yaml", SMALL, &[]).expect("right");
    let free = [
        "mesh={ sequence: 2 }",
        "attention.strategy=ring",
        "memory={ recompute: none }",
        "every={ log: 5 }",
        "output=elsewhere",
        "schedule.stop=500",
    ];
    let overrides: Vec<Override> = free.iter().filter_map(|free| Override::split(free)).collect();
    let free = parse("small.yaml", SMALL, &overrides).expect("right");
    assert_eq!(differences(&old, &free), []);

    let text = edited("3e-4", "1e-3").replace("max: 2.5, ", "").replace("small\n", "large\n");
    let new = parse("small.yaml", &text, &[Override::split("attention.window=64").expect("=")]);
    let difference = |key: &str, old: &str, new: &str| (key.into(), old.into(), new.into());
    let expected = [
        difference("name", "small", "large"),
        difference("attention.window", "nothing", "64"),
        difference("optimizer.learning_rate", "0.0003", "0.001"),
        difference("expect.validation/loss.max", "2.5", "nothing"),
    ];
    assert_eq!(differences(&old, &new.expect("right")), expected);
}
