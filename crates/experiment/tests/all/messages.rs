//! Messages for wrong files, arguments and config.json files: the expected messages are the tests.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::small::{SMALL, edited};
use annulus_experiment::{Override, Problems, parse, parse_config};

/// Reads every case, each quickly, and shows its message.
pub(crate) fn answers<T>(cases: &[(&str, T)], read: impl Fn(&T) -> Result<(), Problems>) -> String {
    let mut text = String::new();
    for (title, case) in cases {
        let start = Instant::now();
        let problems = read(case).expect_err(title);
        assert!(start.elapsed() < Duration::from_secs(20), "{title} took {:?}", start.elapsed());
        writeln!(text, "## {title}\n\n{problems}\n").expect("strings take all");
    }
    text
}

fn read(text: &str) -> Result<(), Problems> {
    parse("small.yaml", text, &[]).map(|_| ())
}

#[test]
fn wrong_keys_and_types() {
    let cases = [
        ("nearly a key", edited("strategy: striped", "stratgy: striped")),
        ("nearly a section", edited("optimizer:", "optimiser:")),
        ("a key of another section", edited("batch: 4", "micro_batch: 4")),
        ("a key from nowhere", edited("seed: 7", "colour: blue")),
        ("a number with a letter", edited("tokens: 12k", "tokens: 12q")),
        ("a number in quotes", edited("tokens: 12k", "tokens: \"12k\"")),
        ("no tokens at all", edited("tokens: 12k", "tokens: 0")),
        ("more tokens than there are", edited("tokens: 12k", "tokens: 99999999999999999999")),
        ("a suffix that overflows", edited("tokens: 12k", "tokens: 18446744073709551615M")),
        ("a negative count", edited("batch: 4", "batch: -4")),
        ("half a sequence", edited("batch: 4", "batch: 1.5")),
        ("k where steps are counted", edited("steps: 1_000", "steps: 1k")),
        ("a word that is no strategy", edited("striped", "stripped")),
        ("a layout for a strategy", edited("striped", "zigzag")),
        ("a word far from all others", edited("decay: cosine", "decay: 42")),
        ("a list for a word", edited("mask: causal", "mask: [causal]")),
        ("a mapping for a number", edited("seed: 7", "seed: {a: 1}")),
        (
            "a number for a section",
            edited("data:\n  tokens: 12k   ", "data: 5\nfoo:\n  tokens: 12k"),
        ),
        (
            "a list for a section",
            edited("mesh: { sequence: 4, data: 2, deadline: 90s }", "mesh: [4, 2]"),
        ),
        ("one beta", edited("[0.9, 0.95]", "[0.9]")),
        ("a beta of one", edited("[0.9, 0.95]", "[0.9, 1]")),
        ("a learning rate of nothing", edited("3e-4", "0")),
        ("a learning rate that is no number", edited("3e-4", ".nan")),
        ("an infinite learning rate", edited("3e-4", "1e999")),
        ("a deadline in light years", edited("90s", "90ly")),
        ("a value left out", edited("tokens: 12k  ", "tokens:      ")),
        ("null for a default", edited("mask: causal", "mask: null")),
        ("a name that leaves the folder", edited("name: small", "name: ../../etc")),
        ("no name", edited("name: small\n", "")),
        (
            "no data",
            edited("data:\n  tokens: 12k                 # inputs per sequence\n  batch: 4\n", ""),
        ),
        ("no learning rate", edited("  learning_rate: 3e-4\n", "")),
        ("records as text", edited("batch: 4", "batch: 4\n  path: records.jsonl")),
        ("a key twice", edited("batch: 4", "batch: 4\n  batch: 8")),
        ("a section twice", edited("every:", "schedule: { steps: 5 }\nevery:")),
        ("a bound that is no bound", edited("max: 2.5", "maximum: 2.5")),
        (
            "several at once",
            SMALL.replace("seed", "sed").replace("12k", "x").replace("causal", "casual"),
        ),
    ];
    insta::assert_snapshot!(answers(&cases, |text| read(text)));
}

#[test]
fn wrong_models() {
    let inline = "  hidden_size: 128\n";
    let cases = [
        ("a path and a shape", edited(inline, "  path: checkpoints/llama\n  hidden_size: 128\n")),
        ("weights without a path", edited(inline, "  hidden_size: 128\n  weights: pretrained\n")),
        ("half a shape", edited(inline, "")),
        (
            "an empty model",
            "name: a\nmodel: {}\ndata: { tokens: 8 }\noptimizer: { learning_rate: 1 }\n\
             schedule: { steps: 1 }\n"
                .to_owned(),
        ),
        ("another family", edited(inline, "  hidden_size: 128\n  model_type: mixtral\n")),
        ("heads that do not divide", edited("num_attention_heads: 4", "num_attention_heads: 6")),
        ("heads that cannot share", edited("num_key_value_heads: 2", "num_key_value_heads: 3")),
        ("an odd head", edited(inline, "  hidden_size: 128\n  head_dim: 7\n")),
        ("absurdly many layers", edited("num_hidden_layers: 2", "num_hidden_layers: 1000000000")),
        ("a window for a llama", edited(inline, "  hidden_size: 128\n  sliding_window: 64\n")),
        (
            "no window that slides",
            edited(inline, "  hidden_size: 128\n  model_type: qwen3\n  use_sliding_window: true\n"),
        ),
        (
            "types of too few layers",
            edited(
                inline,
                "  hidden_size: 128\n  model_type: qwen3\n  layer_types: [full_attention]\n",
            ),
        ),
        (
            "types that are none",
            edited(inline, "  hidden_size: 128\n  layer_types: [full_attention, chunked]\n"),
        ),
        (
            "a bias that the family has not",
            edited(inline, "  hidden_size: 128\n  model_type: mistral\n  mlp_bias: true\n"),
        ),
        (
            "frequencies of no kind",
            edited(inline, "  hidden_size: 128\n  rope_parameters: { factor: 2 }\n"),
        ),
        ("a bias that is a word", edited(inline, "  hidden_size: 128\n  mlp_bias: yes\n")),
    ];
    insta::assert_snapshot!(answers(&cases, |text| read(text)));
}

#[test]
fn keys_that_contradict() {
    let cases = [
        ("local on four ranks", edited("striped", "local")),
        ("no strategy on four ranks", edited("  strategy: striped\n", "")),
        ("an odd batch on two replicas", edited("batch: 4", "batch: 3")),
        (
            "micro-batches that do not divide",
            edited("batch: 4", "batch: 6").replace("micro_batch: 1", "micro_batch: 2"),
        ),
        ("a warm-up beyond the end", edited("warmup: 20", "warmup: 2000")),
        ("a cool-down of a cosine", edited("warmup: 20", "warmup: 20, cooldown: 0.5")),
        ("a stop beyond the end", edited("warmup: 20", "stop: 1001")),
        (
            "a trace of what is not run",
            edited("expect:", "trace: { steps: [3, 999-1001] }\nexpect:"),
        ),
        ("a trace of step 0", edited("expect:", "trace: { steps: [0-2] }\nexpect:")),
        ("lines without a file", edited("batch: 4", "format: jsonl")),
        ("recall from a file", edited("batch: 4", "format: recall\n  path: a.txt\n  batch: 2")),
        (
            "batches held out",
            edited("batch: 4", "format: batches\n  path: a\n  evaluate: 3\n  batch: 2"),
        ),
        ("evaluation of nothing", edited("batch: 4", "batch: 4\n  evaluate: 0")),
        ("expecting nothing", edited("{ max: 2.5, of_first: 0.5 }", "{}")),
        ("expecting what no run logs", edited("evaluate/loss:", "evaluate/los:")),
        ("expecting something far from all tags", edited("evaluate/loss:", "bleu:")),
        ("expecting the impossible", edited("max: 2.5", "max: 2.5, min: 3")),
        ("long documents where none is whole", edited("batch: 4", "batch: 4\n  longer: drop")),
        ("a column of plain text", edited("batch: 4", "batch: 4\n  path: a\n  column: body")),
        (
            "columns of one source alone",
            edited(
                "batch: 4",
                "batch: 4\n  path: [{ path: a, column: b }, { path: c, format: jsonl, column: d }]\n  column: e",
            ),
        ),
        ("a floor for a rate that never falls", edited("decay: cosine", "floor: 0")),
        (
            "a folder for nothing",
            edited("recompute: layer", "recompute: layer, offload_folder: away"),
        ),
        ("too many ranks", edited("sequence: 4, data: 2", "sequence: 256, data: 4096")),
        ("too many tokens a step", edited("12k", "1024M").replace("batch: 4", "batch: 1048576")),
    ];
    insta::assert_snapshot!(answers(&cases, |text| read(text)));
}

#[test]
fn invalid_yaml() {
    let cases = [
        ("an open bracket", edited("[0.9, 0.95]", "[0.9, 0.95")),
        ("an open quote", edited("name: small", "name: \"small")),
        ("a tab for indentation", edited("  batch: 4", "\tbatch: 4")),
        ("a colon too many", edited("name: small", "name: small: er")),
        ("indented too far", edited("seed: 7", "   seed: 7")),
        ("nothing", String::new()),
        ("only a comment", "# soon\n".to_owned()),
        ("a list", "- name\n- seed\n".to_owned()),
        ("a word", "hello".to_owned()),
        ("two documents", format!("{SMALL}---\nname: other\n")),
        ("an anchor and an alias", edited("seed: 7", "seed: &s 7\nkeep: *s")),
        ("an unknown alias", edited("seed: 7", "seed: *s")),
        ("a tag", edited("seed: 7", "seed: !!int 7")),
        ("a key that is a list", edited("seed: 7", "[a, b]: 7")),
        ("a merge", edited("seed: 7", "<<: {keep: 3}")),
        ("a zero byte", edited("name: small", "name: sm\0all")),
        ("an escape for a terminal", edited("name: small", "na\u{1b}[31mme: small")),
        ("a very long line", edited("name: small", &format!("name: small{}", "er".repeat(5000)))),
        (
            "a caret far to the right",
            format!(
                "{}# {}\n",
                SMALL.replacen(
                    "{ steps: 1_000, warmup: 20, decay: cosine }",
                    &format!("{{ steps: {}{}x }}", " ".repeat(200), 7),
                    1
                ),
                "y".repeat(200)
            ),
        ),
        ("letters of two widths", edited("name: small", "name: größe\nсид: 7")),
        ("windows lines", SMALL.replace('\n', "\r\n").replace("striped", "striqed")),
        ("a mark of the byte order", format!("\u{feff}{}", edited("seed: 7", "seed: x"))),
    ];
    insta::assert_snapshot!(answers(&cases, |text| read(text)));
}

#[test]
fn wrong_arguments() {
    let cases = [
        ("no such key", "data.token=64k"),
        ("no such section", "dato.tokens=64k"),
        ("no number", "data.tokens=64x"),
        ("nothing", "data.tokens="),
        ("no word", "attention.strategy=rings"),
        ("another word for a device", "device=gpu"),
        ("a device without a number", "device=cuda:x"),
        ("GPUs from the last to the first", "device=cuda:3-0"),
        ("a GPU named twice", "device=cuda:0-2,1"),
        ("more GPUs than ranks", "device=cuda:0-63"),
        ("a list too long", "optimizer.betas=[0.9, 0.99, 0.999]"),
        ("a broken list", "optimizer.betas=[0.9, 0.99"),
        ("no key", "=5"),
        ("a key with a hole", "data..tokens=5"),
        ("a key below a value", "seed.x=5"),
        ("a section as a word", "data=5"),
        ("what contradicts the file", "mesh.data=3"),
        ("fewer steps than the file's warm-up", "schedule.steps=2"),
        ("no ranks", "mesh.sequence=0"),
        ("no window, as elsewhere", "attention.window=-1"),
        ("another optimizer", "optimizer.name=sgd"),
        ("weights in f16", "model.dtype=fp16"),
        ("weights in 8 bits", "model.dtype=fp8"),
        ("16 bits between ranks, as elsewhere", "attention.wire.gradient=fp16"),
        ("a key of a mesh elsewhere", "mesh.context=2"),
        ("null for a key that is not in the file", "sampel=null"),
        ("null for a key that must be there", "optimizer.learning_rate=null"),
        ("an alias", "seed=*x"),
        ("a comment behind a value", "data.path=books #1/a.txt"),
        ("nothing but a comment", "data.path=#1/a.txt"),
    ];
    insta::assert_snapshot!(answers(&cases, |argument| {
        let given = Override::split(argument).expect("cases have a `=`");
        parse("small.yaml", SMALL, &[given]).map(|_| ())
    }));
}

const CONFIG: &str = r#"{
  "architectures": ["LlamaForCausalLM"],
  "attention_bias": false,
  "attention_dropout": 0.0,
  "hidden_act": "silu",
  "hidden_size": 48,
  "intermediate_size": 44,
  "max_position_embeddings": 256,
  "model_type": "llama",
  "num_attention_heads": 6,
  "num_hidden_layers": 3,
  "num_key_value_heads": 2,
  "pretraining_tp": 1,
  "rms_norm_eps": 1e-05,
  "rope_parameters": { "rope_theta": 10000.0, "rope_type": "default" },
  "sliding_window": null,
  "tie_word_embeddings": false,
  "vocab_size": 256
}
"#;

fn config(from: &str, to: &str) -> String {
    assert!(CONFIG.contains(from), "`{from}` is not in the file");
    CONFIG.replacen(from, to, 1)
}

#[test]
fn wrong_configs() {
    let cases = [
        ("another family", config("\"llama\"", "\"gemma3\"")),
        ("no family", config("  \"model_type\": \"llama\",\n", "")),
        ("another activation", config("silu", "gelu")),
        ("a window", config("\"sliding_window\": null", "\"sliding_window\": 24")),
        ("dropout", config("\"attention_dropout\": 0.0", "\"attention_dropout\": 0.1")),
        ("split matrices", config("\"pretraining_tp\": 1", "\"pretraining_tp\": 2")),
        (
            "a window that nothing says",
            config("\"llama\"", "\"mistral\"").replace("  \"sliding_window\": null,\n", ""),
        ),
        (
            "heads that nothing says",
            config("\"llama\"", "\"qwen3\"").replace("  \"num_key_value_heads\": 2,\n", ""),
        ),
        (
            "layers without rotary embedding in a family that has none",
            config("\"hidden_act\"", "\"no_rope_layers\": [1, 1, 0], \"hidden_act\""),
        ),
        (
            "a list of layers without rotary embedding that ends too soon",
            config("\"llama\"", "\"smollm3\"")
                .replace("\"hidden_act\"", "\"no_rope_layers\": [1, 0], \"hidden_act\""),
        ),
        (
            "half of a head turned",
            config("\"hidden_act\"", "\"partial_rotary_factor\": 0.5, \"hidden_act\""),
        ),
        (
            "mixed layers",
            config(
                "\"hidden_act\"",
                "\"layer_types\": [\"full_attention\", \"sliding_attention\"], \"hidden_act\"",
            ),
        ),
        (
            "quantized weights",
            config("\"hidden_act\"", "\"quantization_config\": {\"bits\": 4}, \"hidden_act\""),
        ),
        ("no width", config("  \"hidden_size\": 48,\n", "")),
        ("no vocabulary", config(",\n  \"vocab_size\": 256", "")),
        ("a width in words", config("\"hidden_size\": 48", "\"hidden_size\": \"48\"")),
        ("a fractional width", config("\"hidden_size\": 48", "\"hidden_size\": 48.5")),
        ("a negative width", config("\"hidden_size\": 48", "\"hidden_size\": -48")),
        (
            "heads that do not divide",
            config("\"num_attention_heads\": 6", "\"num_attention_heads\": 5"),
        ),
        (
            "heads that cannot share",
            config("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 4"),
        ),
        ("an odd head", config("\"hidden_act\"", "\"head_dim\": 9, \"hidden_act\"")),
        (
            "absurdly many layers",
            config("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 1000000000"),
        ),
        ("no heads", config("\"num_attention_heads\": 6", "\"num_attention_heads\": 0")),
        ("a bias in words", config("\"attention_bias\": false", "\"attention_bias\": \"no\"")),
        ("a key twice", config("\"hidden_act\"", "\"hidden_size\": 64, \"hidden_act\"")),
        ("cut off", CONFIG[..120].to_owned()),
        ("not JSON", "hidden_size: 48\n".to_owned()),
        ("a list", "[]".to_owned()),
        ("nothing", String::new()),
        ("nested without end", "[".repeat(1_000_000)),
    ];
    insta::assert_snapshot!(answers(&cases, |text| parse_config("config.json", text).map(|_| ())));
}

#[test]
fn wrong_frequencies_in_configs() {
    let rope = r#""rope_parameters": { "rope_theta": 10000.0, "rope_type": "default" }"#;
    let cases = [
        ("an unknown kind of frequencies", config("\"default\"", "\"mrope\"")),
        ("a kind without what belongs to it", config("\"default\"", "\"llama3\"")),
        (
            "two kinds",
            config(
                rope,
                &format!(r#""rope_scaling": {{ "type": "linear", "factor": 4.0 }}, {rope}"#),
            ),
        ),
        ("a key that no kind has", config("\"default\"", "\"default\", \"sections\": [1, 2]")),
        (
            "too few factors",
            config(
                "\"default\"",
                "\"longrope\", \"original_max_position_embeddings\": 64, \"short_factor\": [1], \"long_factor\": [1, 2, 3, 4]",
            ),
        ),
        (
            "frequencies the wrong way round",
            config(
                "\"default\"",
                "\"llama3\", \"factor\": 8, \"low_freq_factor\": 4, \"high_freq_factor\": 1",
            ),
        ),
        (
            "a base that gives no numbers",
            config(
                "10000.0, \"rope_type\": \"default\"",
                "1, \"rope_type\": \"yarn\", \"factor\": 8",
            ),
        ),
        ("two bases", config(rope, &format!("\"rope_theta\": 500000.0, {rope}"))),
        ("a base in words", config("10000.0", "\"many\"")),
        ("a factor without a kind", config("\"rope_type\": \"default\"", "\"factor\": 4.0")),
        ("a list of frequencies", config(rope, "\"rope_parameters\": [1, 2]")),
    ];
    insta::assert_snapshot!(answers(&cases, |text| parse_config("config.json", text).map(|_| ())));
}
