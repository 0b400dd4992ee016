//! Models as config.json has them: every family, in the words of both generations of `transformers`, and written so that both can read it.

use std::fs;
use std::path::{Path, PathBuf};

use annulus_experiment::{
    Dtype, Family, LayerType, Rope, Scaling, Shape, Yarn, parse_config, read_config, write_config,
};

/// The folder of reference implementations that some checkouts have beside them.
#[expect(clippy::print_stderr, reason = "what is skipped is said")]
pub(crate) fn golden() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden/A");
    if root.is_dir() {
        return Some(root);
    }
    eprintln!("skipped: {} is not there", root.display());
    None
}

#[test]
fn every_reference_model_is_read_and_means_the_same_in_both_styles() {
    let Some(golden) = golden() else { return };
    let mut answers = Vec::new();
    for folder in ["models", "training"] {
        for entry in fs::read_dir(golden.join(folder)).expect("a folder") {
            let folder = entry.expect("an entry").path();
            let shape = read_config(&folder).unwrap_or_else(|problems| panic!("{problems}"));
            if let Ok(text) = fs::read_to_string(folder.join("config.v4.json")) {
                assert_eq!(parse_config("config.v4.json", &text).expect("the older style"), shape);
            }
            let written = write_config(&shape, Dtype::F32);
            assert_eq!(parse_config("config.json", &written).expect("ours"), shape, "{written}");
            let name = folder.file_name().expect("it has one").to_string_lossy().into_owned();
            let (family, scaling) = (shape.model_type, shape.rope.scaling);
            answers.push(format!(
                "{name}: {family:?}, window {:?}, {scaling:?}",
                shape.sliding_window
            ));
        }
    }
    answers.sort();
    insta::assert_snapshot!(answers.join("\n"));
}

/// A shape in which no key has its default.
pub(crate) fn shape() -> Shape {
    Shape {
        model_type: Family::Llama,
        hidden_size: 48,
        intermediate_size: 44,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 16,
        vocab_size: Some(261),
        max_position_embeddings: Some(12 * 1024),
        rms_norm_eps: 1e-6,
        rope: Rope { theta: 5e5, scaling: Scaling::Default },
        sliding_window: None,
        layer_types: vec![LayerType::Full; 2],
        nope_layers: Vec::new(),
        tie_word_embeddings: true,
        attention_bias: true,
        mlp_bias: false,
        initializer_range: 0.2,
        special_tokens: [("eos_token_id".to_owned(), serde_json::json!([3, 7]))].into(),
    }
}

/// A shape of another family, without what that family does not have.
fn of(model_type: Family) -> Shape {
    Shape { model_type, attention_bias: false, ..shape() }
}

/// Everything that can be in a config.json.
fn all() -> Vec<Shape> {
    let yarn = Scaling::Yarn(Yarn {
        factor: 3.0,
        original: 4096,
        beta_fast: 16.0,
        beta_slow: 2.0,
        truncate: false,
        attention_factor: None,
        mscale: Some(1.0),
        mscale_all_dim: Some(0.5),
    });
    let longrope = Scaling::LongRope {
        short: vec![1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
        long: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
        factor: 3.0,
        attention_factor: 1.25,
        original: 4096,
    };
    let scalings = [
        Scaling::Linear { factor: 3.0 },
        Scaling::Dynamic { factor: 1.0, original: 12 * 1024 },
        Scaling::Llama3 { factor: 3.0, low: 1.0, high: 4.0, original: 4096 },
        yarn,
        longrope,
    ];
    let scaled = |scaling| Shape { rope: Rope { theta: 5e5, scaling }, ..of(Family::Qwen3) };
    let slides =
        |model_type, layer_types| Shape { sliding_window: Some(24), layer_types, ..of(model_type) };
    let (full, sliding) = (LayerType::Full, LayerType::Sliding);
    let more = [
        shape(),
        of(Family::Qwen2),
        of(Family::Mistral),
        slides(Family::Mistral, vec![sliding; 2]),
        slides(Family::Qwen2, vec![full, sliding]),
        slides(Family::Qwen3, vec![sliding, full]),
        Shape { attention_bias: true, ..of(Family::Qwen3) },
    ];
    let nope = [
        Shape { nope_layers: vec![1], mlp_bias: true, ..of(Family::SmolLm3) },
        Shape { nope_layers: vec![0], ..slides(Family::SmolLm3, vec![sliding, full]) },
        of(Family::SmolLm3),
    ];
    more.into_iter().chain(scalings.map(scaled)).chain(nope).collect()
}

/// What is left of its training in the config.json of SmolLM3 3B means nothing.
#[test]
fn smollm3_has_every_fourth_layer_without_rotary_embedding_and_a_tied_table() {
    let of = |more: &str| {
        let text = format!(
            r#"{{ "model_type": "smollm3", "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 9,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64, "max_window_layers": 28,
            "pretraining_tp": 2, "rope_scaling": null, "attention_dropout": 0.0{more} }}"#
        );
        parse_config("config.json", &text).expect("a model")
    };
    let usual = of("");
    assert_eq!(usual.nope_layers, [3, 7]);
    assert!(usual.tie_word_embeddings);
    assert_eq!((usual.rope.theta, usual.sliding_window), (2e6, None));
    assert_eq!(of(r#", "no_rope_layer_interval": 2"#).nope_layers, [1, 3, 5, 7]);
    let written = of(r#", "no_rope_layers": [0, 1, 1, 1, 1, 1, 1, 1, 0, 0], "rope_theta": 5e6"#);
    assert_eq!((written.nope_layers, written.rope.theta), (vec![0, 8], 5e6));
    let slides = of(r#", "use_sliding_window": true, "sliding_window": 5"#);
    assert_eq!([2, 3, 4].map(|layer| slides.window_of(layer)), [None, Some(5), None]);
}

#[test]
fn a_config_survives_writing_and_reading() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let mut texts = Vec::new();
    for shape in all() {
        let text = write_config(&shape, Dtype::Bf16);
        fs::write(folder.path().join("config.json"), &text).expect("writable");
        assert_eq!(read_config(folder.path()).expect("what we write, we read"), shape);
        // Indentation by tabs is JSON too.
        let tabs = text.replace("  ", "\t");
        assert_eq!(parse_config("config.json", &tabs).expect("tabs are JSON"), shape);
        texts.push(text);
    }
    insta::assert_snapshot!(
        [&texts[0], &texts[4], &texts[11], &texts[13]].map(String::as_str).join("\n")
    );
}

/// It is read as YAML, of which whoever writes a config.json knows nothing.
#[test]
fn what_is_wrong_with_a_config_is_said_of_json() {
    let deep = "[".repeat(5000) + &"]".repeat(5000);
    let strange = ("\"\u{7f}\"".to_owned(), "JSON that cannot be read: ");
    for (value, wanted) in [(deep, "lists and keys are nested too deep"), strange] {
        let text = format!("{{ \"model_type\": {value} }}");
        let error = parse_config("config.json", &text).expect_err("nobody reads it").to_string();
        assert!(error.contains(wanted) && error.contains("\nhint: "), "{error}");
        assert!(!error.contains("YAML") && !error.contains("indented"), "{error}");
    }
}

/// What each generation of `transformers` reads from what we write for both.
#[test]
fn a_config_means_the_same_with_the_keys_of_one_generation_alone() {
    for shape in all() {
        let text = write_config(&shape, Dtype::F32);
        let without = |gone: &[&str]| {
            let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            let config = json.as_object_mut().expect("an object");
            config.retain(|key, _| !gone.contains(&key.as_str()));
            parse_config("config.json", &json.to_string()).expect("enough is left")
        };
        assert_eq!(without(&["rope_parameters", "dtype"]), shape, "4");
        let older =
            ["rope_theta", "rope_scaling", "original_max_position_embeddings", "torch_dtype"];
        assert_eq!(without(&older), shape, "5");
    }
}

#[test]
fn a_config_of_version_4_means_the_same() {
    let five = r#"{ "model_type": "llama", "hidden_size": 8, "intermediate_size": 8,
        "vocab_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": null,
        "rope_parameters": { "rope_theta": 5e5, "rope_type": "default" } }"#;
    let four = five.replace("rope_parameters", "rope_scaling").replace(
        r#"{ "rope_theta": 5e5, "rope_type": "default" }"#,
        r#"null, "rope_theta": 500000, "torch_dtype": "float16", "use_cache": true"#,
    );
    let shape = parse_config("config.json", five).expect("version 5");
    assert_eq!(parse_config("config.json", &four).expect("version 4"), shape);
    assert_eq!((shape.rope.theta, shape.rms_norm_eps), (5e5, 1e-6));
}

/// Sliding windows by Qwen's keys, with a first layer that sees all keys.
#[test]
fn layers_slide_as_their_keys_say() {
    let keys = |more: &str| {
        let text = format!(
            r#"{{ "model_type": "qwen2", "hidden_size": 8, "intermediate_size": 8,
            "vocab_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2,
            "num_key_value_heads": 2, {more} }}"#
        );
        let shape = parse_config("config.json", &text).unwrap_or_else(|e| panic!("{more}: {e}"));
        [0, 1, 2].map(|layer| shape.window_of(layer))
    };
    let off = r#""sliding_window": 5, "use_sliding_window": false"#;
    assert_eq!(keys(off), [None; 3]);
    let on = r#""sliding_window": 5, "use_sliding_window": true"#;
    assert_eq!(keys(on), [None; 3], "28 layers come first");
    assert_eq!(keys(&format!(r#"{on}, "max_window_layers": 1"#)), [None, Some(5), Some(5)]);
    assert_eq!(keys(&format!(r#"{on}, "max_window_layers": 0"#)), [Some(5); 3]);
    let types = r#""layer_types": ["sliding_attention", "full_attention", "sliding_attention"]"#;
    assert_eq!(
        keys(&format!(r#"{on}, "max_window_layers": 1, {types}"#)),
        [Some(5), None, Some(5)]
    );
}

#[test]
fn a_window_hides_nothing_of_a_shorter_sequence() {
    let windows = |index: usize, tokens| {
        let windows = all()[index].windows(tokens).into_iter();
        windows.collect::<Vec<(Option<usize>, Vec<usize>)>>()
    };
    assert_eq!(windows(3, 25), [(Some(24), vec![0, 1])], "mistral");
    assert_eq!(windows(3, 24), [(None, vec![0, 1])], "all of it is seen");
    assert_eq!(windows(2, 25), [(None, vec![0, 1])], "nothing slides");
    assert_eq!(windows(4, 25), [(None, vec![0]), (Some(24), vec![1])], "qwen2, mixed");
    assert_eq!(windows(4, 24), [(None, vec![0, 1])], "mixed, but seen");
}

/// A folder of adapters alone is taken for a model easily.
#[test]
fn adapters_are_no_model() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("adapter_config.json"), "{}").expect("a file");
    let problems = read_config(folder.path()).expect_err("no model").to_string();
    assert!(problems.contains("holds adapters without their model"), "{problems}");
    assert!(problems.contains("lora.path"), "{problems}");
}
