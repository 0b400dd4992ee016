//! Experiments written as text: the resolved file, what a resumed run must keep, the schema.

use std::fs;
use std::path::Path;

use annulus_experiment::{
    KeyDifference, Override, differences, page, parse, schema, what_may_differ,
};
use serde_json::Value;

use crate::small::{SMALL, edited};
use crate::stages::small_staged;

/// A file with every key, none at its default.
const FULL: &str = r#"
name: "a full one"
seed: 18446744073709551615
model: { hidden_size: 48, intermediate_size: 44, num_hidden_layers: 3, num_attention_heads: 6,
  num_key_value_heads: 2, head_dim: 16, vocab_size: 261, max_position_embeddings: 1k,
  rms_norm_eps: 1.0e-6, rope_theta: 500000, tie_word_embeddings: true, attention_bias: true,
  mlp_bias: true, initializer_range: 0.3, dtype: bf16, model_type: llama, hidden_act: silu }
data: { path: ["a: b #c", { path: b, weight: 2.5, format: parquet, column: body }], format: jsonl, tokenizer: "t/tokenizer.json",
  tokens: 96, batch: 6, evaluate: 3, pack: documents, longer: cut }
mesh: { data: 3, sequence: 4, weights: [4, 3, 2, 0], deadline: 1500ms, cluster: clusters/a.yaml }
attention: { strategy: megatron, exchange: a2a+p2p, shape: [2, 2], layout: balanced, stripe: 3,
  backward: queries, mask: causal, prefix: 5,
  documents: [90, 6], padding: 95, window: 17, pattern: fixed, stride: 8, columns: 2, sinks: 3,
  global: [0-3, 9], kernel: reference, dropout: 0.125, wire: { query: bf16, key_value: bf16,
  output: bf16, query_gradient: f16, gradient: bf16 },
  sliding: { layers: [0, 2], window: 11, strategy: megatron, exchange: a2a+p2p, shape: [4, 1],
    backward: travelling } }
memory: { recompute: none, offload: both, offload_folder: /scratch/away, budget: 3G, micro_batch: 2, loss_chunk: 7, mlp_chunk: 9 }
optimizer: { name: adamw, learning_rate: 1.0e-30, betas: [0.1, 0.2], epsilon: 0.1234567890123456789,
  weight_decay: 0, clip: 0 }
schedule: { steps: 9, stop: 8, warmup: 7, decay: wsd, floor: 0.5, cooldown: 0.3 }
every: { log: 2, evaluate: 3, evaluate_on_start: true, checkpoint: 4, checkpoint_after: 30m, hash: 5 }
evaluation: { path: moby dick.txt, format: chat, tasks: [needle, multi-key], depths: 3, samples: 2,
  lengths: [4k, 1k], windows: 3, targets: 100, against: 4k }
trace: { steps: [2, 5-7] }
sample: { prompt: "once: ", tokens: 9 }
keep: 5
keep_best: true
background_saves: true
output: /tmp/über/alles
expect:
  evaluate/loss: { min: -1, max: 2, of_first: 0.25 }
  "memory/resident/host-odd: tag": { max: 1.0e+300 }
"#;

const FOLDER: &str = "name: folder
model: { path: checkpoints/llama, weights: random, rope_theta: 8.0e6 }
data: { tokens: 8 }
attention: { strategy: all-gather, groups: 1, mask: full, documents: data, window: 6, dilation: 2, pattern: strided, stride: 4,
  sliding: { layers: [1-3], window: 2, strategy: all-gather, groups: 1 } }
optimizer: { learning_rate: 1 }
schedule: { steps: 1 }
";

/// Families and rotary embeddings, each with the keys that only it has.
const MODELS: [&str; 4] = [
    "model_type: qwen2, sliding_window: 24, use_sliding_window: true,
     layer_types: [full_attention, sliding_attention, full_attention],
     rope_parameters: { rope_type: longrope, factor: 2, original_max_position_embeddings: 512,
     attention_factor: 1.25, short_factor: [1, 2.5], long_factor: [3, 4] }",
    "model_type: mistral, sliding_window: 24, rope_parameters: { rope_type: yarn, factor: 2,
     original_max_position_embeddings: 512, attention_factor: 1.25, beta_fast: 30, beta_slow: 2,
     mscale: 0.5, mscale_all_dim: 0.25, truncate: false }",
    "model_type: qwen3, attention_bias: true, rope_parameters: { rope_type: llama3, factor: 2,
     original_max_position_embeddings: 512, low_freq_factor: 2, high_freq_factor: 5 }",
    "model_type: smollm3, no_rope_layers: [0, 1, 0]",
];

/// Keys of a config.json that repeat others: they are read, so that one can be pasted, but never written.
const ALIASES: [&str; 6] = [
    "model.rope_scaling.",
    "model.rope_parameters.type",
    "model.rope_parameters.rope_theta",
    "model.rope_parameters.partial_rotary_factor",
    "model.max_window_layers",
    "model.no_rope_layer_interval",
];

/// The section of a sweep, which makes a file many runs, and which no run has.
const SWEEP: &str = "sweep.";

const EXTENSIONS: [&str; 4] = [
    "rope: yarn, tokens: 1M, factor: 3, original_max_position_embeddings: 99, attention_factor: 1.5,
     beta_fast: 3, beta_slow: 2, mscale: 0.5, mscale_all_dim: 0.25, truncate: false",
    "rope: llama3, tokens: 16, low_freq_factor: 1.5, high_freq_factor: 5",
    "rope: longrope, tokens: 16, short_factor: [1, 2], long_factor: [3, 4.5]",
    "rope: abf, tokens: 16, theta: 1.5e6",
];

fn with_extension(extension: &str) -> String {
    FOLDER.replace("data:", &format!("extend: {{ {extension} }}\ndata:"))
}

fn with_adapters() -> String {
    let lora =
        "lora: { rank: 4, alpha: 6.5, rslora: true, dropout: 0.25, targets: [down_proj, q_proj],
  train: [norms, embeddings], path: adapters/a }";
    FOLDER.replace("weights: random, ", "").replace("data:", &format!("{lora}\ndata:"))
}

fn texts() -> Vec<String> {
    let given = [SMALL, FULL, FOLDER].map(str::to_owned).into_iter();
    let models = given.chain(MODELS.map(with_model)).chain(EXTENSIONS.map(with_extension));
    models.chain([with_adapters(), small_staged()]).collect()
}

fn with_model(model: &str) -> String {
    format!(
        "name: model
model: {{ hidden_size: 8, intermediate_size: 4, num_hidden_layers: 3, num_attention_heads: 2,
  max_position_embeddings: 1k, {model} }}
data: {{ tokens: 8 }}\noptimizer: {{ learning_rate: 1 }}\nschedule: {{ steps: 1 }}\n"
    )
}

#[test]
fn what_is_written_out_reads_back_the_same() {
    for text in texts() {
        let first = parse("given.yaml", &text, &[]).unwrap_or_else(|problems| panic!("{problems}"));
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
    for text in texts() {
        let experiment = parse("given.yaml", &text, &[]).expect("right");
        let lines = parse("given.yaml", &experiment.to_yaml(), &[]).expect("right");
        written.extend(keys.iter().filter(|key| lines.places.contains(key)).cloned());
    }
    let is_left_out =
        |key: &str| key.starts_with(SWEEP) || ALIASES.iter().any(|alias| key.starts_with(alias));
    let is_forgotten = |key: &&String| !written.contains(key) && !is_left_out(key);
    let forgotten: Vec<&String> = keys.iter().filter(is_forgotten).collect();
    assert_eq!(forgotten, [""; 0], "keys of the schema that are never written out");
}

#[test]
fn schema_and_page_of_keys_are_those_of_the_sections() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    let kept = |file: &str| fs::read_to_string(folder.join(file)).expect("kept");
    let same = kept("schema.json") == format!("{:#}\n", schema());
    assert!(same, "write the output of `annulus schema` to experiments/schema.json");
    let same = kept("KEYS.md").ends_with(&format!("\n{}\n", page()));
    assert!(
        same,
        "write that of `annulus schema --markdown` behind the head of experiments/KEYS.md"
    );
}

#[test]
fn what_may_differ_when_a_run_goes_on_is_listed() {
    let old = parse("small.yaml", SMALL, &[]).expect("right");
    let free = [
        "mesh={ sequence: 2 }",
        "attention.strategy=ring",
        "parallel={ state: zero3, state_axes: sequence }",
        "memory={ recompute: none, offload: both }",
        "every={ log: 5 }",
        "evaluation={ windows: 5 }",
        "output=elsewhere",
        "schedule.stop=500",
    ];
    let overrides: Vec<Override> = free.iter().filter_map(|free| Override::split(free)).collect();
    let free = parse("small.yaml", SMALL, &overrides).expect("right");
    assert_eq!(differences(&old, &free), []);

    let text = edited("3e-4", "1e-3").replace("max: 2.5, ", "").replace("small\n", "large\n");
    let new = parse("small.yaml", &text, &[Override::split("attention.window=64").expect("=")]);
    let difference = |key: &str, old: Option<&str>, new: &str| KeyDifference {
        key: key.into(),
        was: old.map(str::to_owned),
        is: Some(new.into()),
    };
    let expected = [
        difference("attention.window", None, "64"),
        difference("optimizer.learning_rate", Some("0.0003"), "0.001"),
    ];
    assert_eq!(differences(&old, &new.expect("right")), expected);
}

#[test]
fn what_may_differ_is_said_in_the_pages() {
    let page = fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/README.md"),
    );
    let said = what_may_differ();
    let keys = said.split(", ").filter(|word| word.starts_with('`')).collect::<Vec<_>>();
    let page = page.expect("kept");
    let line =
        page.lines().find(|line| line.contains("These keys may differ on resume")).expect("said");
    assert_eq!(keys.iter().filter(|key| !line.contains(**key)).collect::<Vec<_>>(), [&""; 0]);
    assert!(keys.len() > 10, "{said}");
}
