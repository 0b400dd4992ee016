//! The program against outputs of `transformers` and PyTorch: models, attention, where the material is there.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use annulus_tests::{distance, error, run, shared, tensors};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

const LOGITS: f64 = 2e-5;
const LOSS: f64 = 1e-5;
const GRADIENT: f64 = 1e-4;
const ATTENTION: f64 = 5e-6;

/// A model's score on one rank and on several equals what `transformers` computed.
#[track_caller]
fn check_model(folder: &Path, split: &[&str]) {
    let scratch = tempfile::tempdir().unwrap();
    let (model, golden) = (folder.to_string_lossy(), folder.join("golden.safetensors"));
    let tokens = golden.to_string_lossy();
    let arguments =
        ["score", "--model", &model, "--tokens", &tokens, "--out", "out", "--gradients"];
    run(ANNULUS, scratch.path(), &[&arguments, split].concat()).ended(0);
    let (ours, theirs) = (tensors(&scratch.path().join("out")), tensors(&golden));
    let what = format!("{} {split:?}", folder.display());
    assert!(error(&ours["logits"], &theirs["logits"]) < LOGITS, "{what}: logits");
    assert!(error(&ours["loss"], &theirs["loss"]) < LOSS, "{what}: loss");
    let mut gradients = 0;
    for (name, theirs) in theirs.iter().filter(|(name, _)| name.starts_with("grad.")) {
        let off = distance(&ours[name], theirs);
        assert!(off < GRADIENT, "{what}: {name} is {off:.1e} off");
        gradients += 1;
    }
    assert_eq!(gradients, ours.keys().filter(|name| name.starts_with("grad.")).count(), "{what}");
}

#[test]
fn models_score_as_transformers_scores_them() {
    let Some(models) = shared("golden/A/models") else { return };
    for name in ["gqa", "mha-tied", "mqa", "sharded", "head-dim", "bias", "bf16"] {
        let folder = models.join(format!("llama-{name}"));
        check_model(&folder, &[]);
        check_model(&folder, &["--ranks", "4", "--strategy", "striped"]);
    }
    check_model(&models.join("llama-gqa"), &["--ranks", "3", "--strategy", "megatron"]);
    check_model(&models.join("llama-gqa"), &["--ranks", "2", "--strategy", "all-gather"]);
}

#[test]
fn models_of_a_later_version_are_refused_by_their_key() {
    let Some(models) = shared("golden/A/models") else { return };
    let scratch = tempfile::tempdir().unwrap();
    let refused = [
        ("mistral-window", "model_type"),
        ("qwen2", "model_type"),
        ("qwen3", "model_type"),
        ("llama-rope-linear", "rope_type"),
        ("llama-rope-dynamic", "rope_type"),
        ("llama-rope-yarn", "rope_type"),
        ("llama-rope-llama3", "rope_type"),
    ];
    for (name, key) in refused {
        let folder = models.join(name);
        let tokens = folder.join("golden.safetensors");
        let (folder, tokens) = (folder.to_string_lossy(), tokens.to_string_lossy());
        let arguments = ["score", "--model", &folder, "--tokens", &tokens, "--out", "out"];
        let ran = run(ANNULUS, scratch.path(), &arguments);
        ran.ended(3);
        assert!(ran.stderr.contains(key), "{name}: {}", ran.stderr);
        assert!(ran.stderr.contains("config.json"), "{name}: {}", ran.stderr);
    }
}

#[test]
fn attention_equals_dense_attention_in_double_precision() {
    let Some(cases) = shared("golden/A/attention") else { return };
    let names = [
        "full",
        "causal",
        "causal-window",
        "window-two-sided",
        "gqa-causal",
        "mqa-causal",
        "odd-37-causal",
        "odd-61-causal",
        "odd-37-d128-causal",
        "scale-0.3-causal",
        "cross-empty",
        "cross-earlier",
        "cross-striped",
        "cross-striped-window",
    ];
    for name in names {
        let case = cases.join(format!("{name}.safetensors"));
        check_attention(&case, &[]);
        check_attention(&case, &["--kernel", "reference"]);
    }
    for name in ["gqa-causal", "mqa-causal", "causal", "scale-0.3-causal"] {
        let case = cases.join(format!("{name}.safetensors"));
        for strategy in ["ring", "striped", "all-gather"] {
            check_attention(&case, &["--ranks", "4", "--strategy", strategy]);
        }
        check_attention(&case, &["--ranks", "2", "--strategy", "megatron"]);
    }
}

#[track_caller]
fn check_attention(case: &Path, split: &[&str]) {
    let scratch = tempfile::tempdir().unwrap();
    let arguments = ["attend", "--case", &case.to_string_lossy(), "--out", "out"];
    run(ANNULUS, scratch.path(), &[&arguments, split].concat()).ended(0);
    let (ours, theirs) = (tensors(&scratch.path().join("out")), tensors(case));
    for name in ["out", "lse", "dq", "dk", "dv"] {
        let off = error(&ours[name], &theirs[name]);
        assert!(off <= ATTENTION, "{} {split:?}: {name} is {off:.1e} off", case.display());
    }
}
