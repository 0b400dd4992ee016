//! Rotary frequencies equal those of `transformers`, however a config.json writes them; and extensions of them.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use annulus_experiment::{
    Dtype, Frequencies, Problems, Resolved, Rope, Scaling, Shape, parse, parse_config, write_config,
};
use annulus_plan::Plan;
use serde_json::{Value, json};

use crate::models::golden;

/// The relative tolerance; both sides are rounded to f32, theirs more than once.
const CLOSE: f64 = 3e-7;

/// A config.json around a rotary embedding, in the style of transformers 5 or 4.
fn config(parameters: &Value, head_dim: usize, longest: &Value, newer: bool) -> String {
    let mut config = json!({
        "model_type": "llama", "hidden_size": 16, "intermediate_size": 8, "vocab_size": 8,
        "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": head_dim,
        "max_position_embeddings": longest,
    });
    if newer {
        config["rope_parameters"] = parameters.clone();
    } else {
        let mut scaling = parameters.clone();
        let section = scaling.as_object_mut().expect("an object");
        config["rope_theta"] = section.remove("rope_theta").expect("there is one");
        section.retain(|key, _| key != "rope_type");
        scaling["type"] = parameters["rope_type"].clone();
        config["rope_scaling"] = scaling;
    }
    config.to_string()
}

#[track_caller]
fn check(found: &Frequencies, case: &Value, name: &str) {
    let expected = case["inv_freq"].as_array().expect("a list");
    assert_eq!(found.inverse.len(), expected.len(), "{name}");
    for (found, expected) in found.inverse.iter().zip(expected) {
        let expected = expected.as_f64().expect("a number");
        let error = (f64::from(*found) - expected).abs() / expected;
        assert!(error < CLOSE, "{name}: {found} is {error:.1e} from {expected}");
    }
    let expected = case["attention_factor"].as_f64().expect("a number");
    assert!((found.factor / expected - 1.0).abs() < CLOSE, "{name}: {}", found.factor);
}

#[track_caller]
fn check_case(case: &Value, head_dim: usize, name: &str) {
    for newer in [true, false] {
        let longest = &case["max_position_embeddings"];
        let text = config(&case["rope_parameters"], head_dim, longest, newer);
        let shape = parse_config("config.json", &text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let tokens = case["seq_len"].as_u64().unwrap_or(1) as usize;
        check(&shape.frequencies(tokens), case, name);
    }
}

#[test]
fn frequencies_are_those_that_transformers_has_computed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/rope.json");
    let cases: Vec<Value> =
        serde_json::from_str(&fs::read_to_string(path).expect("the fixture")).expect("JSON");
    assert_eq!(cases.len(), 10);
    for case in cases {
        check_case(&case, 8, case["name"].as_str().expect("a name"));
    }
}

#[test]
fn reference_frequencies_are_ours() {
    let Some(golden) = golden() else { return };
    let mut cases = 0;
    for entry in fs::read_dir(golden.join("rope")).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let text = fs::read_to_string(&path).expect("readable");
            let case: Value = serde_json::from_str(&text).expect("JSON");
            let head_dim = case["head_dim"].as_u64().expect("a number") as usize;
            check_case(&case, head_dim, &path.display().to_string());
            cases += 1;
        }
    }
    assert_eq!(cases, 12);
}

const MODEL: &str = "
name: longer
model:
  hidden_size: 32
  intermediate_size: 32
  num_hidden_layers: 1
  num_attention_heads: 4
  vocab_size: 260
  max_position_embeddings: 1k
";
const REST: &str = "
data: { tokens: 4k }
optimizer: { learning_rate: 1e-3 }
schedule: { steps: 1 }
";

/// The shape of a file with `more` keys.
fn extended(more: &str) -> Result<Shape, Problems> {
    let experiment = parse("longer.yaml", &format!("{MODEL}{more}{REST}"), &[])?;
    let again = parse("resolved.yaml", &experiment.to_yaml(), &[])?;
    assert_eq!(experiment, again);
    Ok(Resolved::read(experiment, None).and_then(|resolved| Plan::new(&resolved))?.shape)
}

fn turned(more: &str) -> Rope {
    extended(more).unwrap_or_else(|problems| panic!("{more}\n{problems}")).rope
}

#[test]
fn an_extension_rewrites_the_rotary_embedding_for_the_new_length() {
    let linear = turned("extend: { rope: linear, tokens: 4k }");
    assert_eq!(linear, Rope { theta: 1e4, scaling: Scaling::Linear { factor: 4.0 } });
    let abf = turned("extend: { rope: abf, tokens: 4k, theta: 500000 }");
    assert_eq!(abf, Rope { theta: 5e5, scaling: Scaling::Default });
    let Scaling::Yarn(yarn) = turned("extend: { rope: yarn, tokens: 8k, beta_fast: 16 }").scaling
    else {
        panic!("it is yarn")
    };
    assert_eq!((yarn.factor, yarn.original, yarn.beta_fast), (8.0, 1024, 16.0));
    let llama3 = turned("extend: { rope: llama3, tokens: 8k, factor: 4 }").scaling;
    assert_eq!(llama3, Scaling::Llama3 { factor: 4.0, low: 1.0, high: 4.0, original: 1024 });
    let longrope =
        turned("extend: { rope: longrope, tokens: 4k, long_factor: [1, 2, 4, 4] }").scaling;
    let attention_factor = (1.0 + 4.0_f64.ln() / 1024.0_f64.ln()).sqrt();
    let (short, long) = (vec![1.0; 4], vec![1.0, 2.0, 4.0, 4.0]);
    let wanted = Scaling::LongRope { short, long, factor: 4.0, attention_factor, original: 1024 };
    assert_eq!(longrope, wanted);
}

/// With factor 1, dynamic scaling gives at a length the frequencies of the base for that length.
#[test]
fn ntk_is_what_dynamic_comes_to_at_the_new_length() {
    let ntk = turned("extend: { rope: ntk, tokens: 4k }");
    let dynamic = turned("extend: { rope: dynamic, tokens: 4k }");
    assert_eq!(dynamic.scaling, Scaling::Dynamic { factor: 1.0, original: 1024 });
    assert_eq!(ntk.scaling, Scaling::Default);
    let [found, wanted] = [&dynamic, &ntk].map(|rope| rope.frequencies(8, 4096).inverse);
    for (found, wanted) in found.iter().zip(&wanted) {
        assert!((found / wanted - 1.0).abs() < 1e-6, "{found} is not {wanted}");
    }
    // The slowest pair turns four times slower, the fastest as before.
    let before = Rope { theta: 1e4, scaling: Scaling::Default }.frequencies(8, 1).inverse;
    assert!((before[3] / wanted[3] - 4.0).abs() < 1e-5, "{wanted:?}");
    assert_eq!(before[0].to_bits(), wanted[0].to_bits());
}

/// A checkpoint says how it was extended, and is extended again from the original length.
#[test]
fn the_original_length_is_kept() {
    let shape = extended("extend: { rope: yarn, tokens: 4k }").expect("right");
    assert_eq!(shape.max_position_embeddings, Some(4096));
    let saved = parse_config("config.json", &write_config(&shape, Dtype::F32)).expect("ours");
    assert_eq!((saved.rope.original(), &saved.rope), (Some(1024), &shape.rope));

    let folder = tempfile::tempdir().expect("a scratch folder");
    fs::write(folder.path().join("config.json"), write_config(&saved, Dtype::F32))
        .expect("writable");
    let path = folder.path().display();
    let text = format!(
        "name: more\nmodel: {{ path: {path} }}\nextend: {{ rope: yarn, tokens: 16k }}{REST}"
    );
    let experiment = parse("more.yaml", &text, &[]).expect("right");
    let Scaling::Yarn(yarn) = Resolved::read(experiment, None)
        .and_then(|resolved| Plan::new(&resolved))
        .expect("right")
        .shape
        .rope
        .scaling
    else {
        panic!("it is yarn")
    };
    assert_eq!((yarn.factor, yarn.original), (16.0, 1024));

    let dynamic = extended("extend: { rope: dynamic, tokens: 4k }").expect("right");
    assert_eq!(dynamic.max_position_embeddings, Some(1024), "from there on the base grows");
    let scaled = "  rope_parameters: { rope_type: dynamic, factor: 2 }\nextend: { rope: abf, tokens: 4k, theta: 500000 }";
    let other = extended(scaled).expect("right");
    let saved = parse_config("config.json", &write_config(&other, Dtype::F32)).expect("ours");
    assert_eq!((saved.frequencies(4096), other.rope.theta), (other.frequencies(4096), 5e5));
}

/// The plan of a model of `scaled` that was stretched to 4k tokens before.
fn again(scaled: &str, extend: &str) -> Result<Plan, Problems> {
    let model = MODEL.replace("1k", "4k");
    let text = format!("{model}  rope_parameters: {{ {scaled} }}\nextend: {{ {extend} }}{REST}");
    Resolved::read(parse("again.yaml", &text, &[])?, None).and_then(|resolved| Plan::new(&resolved))
}

const YARN: &str = "rope_type: yarn, factor: 4, original_max_position_embeddings: 1k";
const LLAMA3: &str = "rope_type: llama3, factor: 4, original_max_position_embeddings: 1k, low_freq_factor: 2, high_freq_factor: 8";

#[test]
fn a_model_that_was_stretched_is_not_made_shorter() {
    for (scaled, word) in [(YARN, "yarn"), (LLAMA3, "llama3")] {
        for extend in ["rope: yarn, tokens: 4k", "rope: abf, tokens: 4k, theta: 5e5"] {
            let problems = again(scaled, extend).expect_err("no longer").to_string();
            let wanted = format!(
                "4096 tokens are no more than the 4096 that the model has by `rope_type: {word}`"
            );
            assert!(problems.contains(&wanted), "{problems}");
            assert!(problems.contains("more than 4096; or remove `extend`"), "{problems}");
        }
    }
    let said = |scaled: &str, extend: &str| {
        again(scaled, extend).unwrap_or_else(|problems| panic!("{problems}")).extension()
    };
    let anew = "yarn to 8192 tokens, 8 times the 1024 before any scaling; the model has 4096, and its llama3 is replaced";
    assert_eq!(said(LLAMA3, "rope: yarn, tokens: 8k").as_deref(), Some(anew));
    let kept = "abf to 8192 tokens, 2 times the 4096 of the model, whose yarn stays";
    assert_eq!(said(YARN, "rope: abf, tokens: 8k, theta: 5e5").as_deref(), Some(kept));
    let first = "yarn to 8192 tokens, 2 times the 4096 that it was trained for";
    assert_eq!(said("rope_type: default", "rope: yarn, tokens: 8k").as_deref(), Some(first));
}

/// The scaling of such a model after `extend`.
fn scaled_again(scaled: &str, extend: &str) -> Scaling {
    again(scaled, extend).unwrap_or_else(|problems| panic!("{problems}")).shape.rope.scaling
}

/// What a model's own method has besides what follows from the length stays when it stretches the model further.
#[test]
fn a_method_s_own_parameters_are_kept() {
    let yarn = |more: &str, extend: &str| {
        let scaled = format!("{YARN}, {more}");
        let Scaling::Yarn(yarn) = scaled_again(&scaled, extend) else { panic!("it is yarn") };
        assert_eq!((yarn.factor, yarn.original), (8.0, 1024));
        yarn
    };
    let longer = "rope: yarn, tokens: 8k";
    let kept = yarn("beta_fast: 16, truncate: false, mscale: 0.7, mscale_all_dim: 0.6", longer);
    assert_eq!((kept.beta_fast, kept.beta_slow, kept.truncate), (16.0, 1.0, false));
    assert_eq!((kept.mscale, kept.mscale_all_dim), (Some(0.7), Some(0.6)));
    let written = yarn("beta_fast: 16, beta_slow: 2", "rope: yarn, tokens: 8k, beta_fast: 24");
    assert_eq!((written.beta_fast, written.beta_slow), (24.0, 2.0));
    // That of the old factor is computed anew; any other is a choice, unless its coefficients are written now.
    assert_eq!(yarn("attention_factor: 1.13863", longer).attention_factor, None);
    assert_eq!(yarn("attention_factor: 1", longer).attention_factor, Some(1.0));
    let coefficients = "rope: yarn, tokens: 8k, mscale: 1, mscale_all_dim: 0.5";
    assert_eq!(yarn("attention_factor: 1", coefficients).attention_factor, None);

    let llama3 = scaled_again(LLAMA3, "rope: llama3, tokens: 8k");
    assert_eq!(llama3, Scaling::Llama3 { factor: 8.0, low: 2.0, high: 8.0, original: 1024 });
    // Of another method nothing is taken over.
    let Scaling::Yarn(other) = scaled_again(LLAMA3, longer) else { panic!("it is yarn") };
    assert_eq!((other.factor, other.beta_fast), (8.0, 32.0));
}

#[test]
fn factors_of_one_length_are_not_kept() {
    let keys = "short_factor: [1, 1, 1, 2], long_factor: [1, 2, 4, 4]";
    let scaled =
        format!("rope_type: longrope, factor: 4, original_max_position_embeddings: 1k, {keys}");
    let found = scaled_again(&scaled, "rope: longrope, tokens: 8k, long_factor: [1, 2, 8, 8]");
    let attention_factor = (1.0 + 8.0_f64.ln() / 1024.0_f64.ln()).sqrt();
    let (short, long) = (vec![1.0, 1.0, 1.0, 2.0], vec![1.0, 2.0, 8.0, 8.0]);
    let wanted = Scaling::LongRope { short, long, factor: 8.0, attention_factor, original: 1024 };
    assert_eq!(found, wanted);
    let missing = again(&scaled, "rope: longrope, tokens: 8k").expect_err("no long factors");
    assert!(missing.to_string().contains("`extend.long_factor` is missing"), "{missing}");
    // Here the base follows the length, and the factor does not.
    let dynamic = scaled_again("rope_type: dynamic, factor: 2", "rope: dynamic, tokens: 8k");
    assert_eq!(dynamic, Scaling::Dynamic { factor: 2.0, original: 4096 });
}

#[test]
fn wrong_extensions() {
    let cases = [
        ("no way", "extend: { tokens: 4k }"),
        ("an unknown way", "extend: { rope: yarm, tokens: 4k }"),
        ("no length", "extend: { rope: yarn }"),
        (
            "no longer than the model",
            "extend: { rope: yarn, tokens: 4k, original_max_position_embeddings: 8k }",
        ),
        ("shorter than the sequences", "extend: { rope: yarn, tokens: 2k }"),
        ("no base", "extend: { rope: abf, tokens: 4k }"),
        ("heads of one pair", "  head_dim: 2\nextend: { rope: ntk, tokens: 4k }"),
        ("a base for another way", "extend: { rope: yarn, tokens: 4k, theta: 500000 }"),
        ("no factors", "extend: { rope: longrope, tokens: 4k }"),
        ("too few factors", "extend: { rope: longrope, tokens: 4k, long_factor: [1, 2] }"),
        ("factors that are none", "extend: { rope: longrope, tokens: 4k, long_factor: [1, -2] }"),
        ("a key of another way", "extend: { rope: linear, tokens: 4k, beta_fast: 3 }"),
        (
            "linear already",
            "  rope_parameters: { rope_type: linear, factor: 2 }\nextend: { rope: yarn, tokens: 4k }",
        ),
        (
            "yarn already",
            "  rope_parameters: { rope_type: yarn, factor: 2, original_max_position_embeddings: 512 }\n\
             extend: { rope: ntk, tokens: 4k }",
        ),
    ];
    let mut text = String::new();
    for (title, more) in cases {
        let problems = extended(more).expect_err(title);
        writeln!(text, "## {title}\n\n{problems}\n").expect("strings take all");
    }
    insta::assert_snapshot!(text);
}
