//! Logits, loss and gradients as transformers computed them, where the stored outputs are at hand.

use std::fs;
use std::path::{Path, PathBuf};

use annulus_model::{Config, Llama, load};
use annulus_ops::IGNORED;
use annulus_ops::testing::{error, error_l2};
use candle_core::{DType, Device, Tensor};

use super::support::{kernels, shard, turned};

const MODELS: [&str; 9] = [
    "llama-gqa",
    "llama-mha-tied",
    "llama-mqa",
    "llama-sharded",
    "llama-head-dim",
    "llama-bias",
    "llama-bf16",
    "qwen2",
    "qwen3",
];

/// The numbers of config.json, and the base of its frequencies.
fn config(folder: &Path) -> (Config, f64) {
    let text = fs::read_to_string(folder.join("config.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let size = |key: &str| json[key].as_u64().unwrap() as usize;
    let flag = |key: &str| json[key].as_bool().unwrap_or_default();
    let family = json["model_type"].as_str().unwrap();
    let config = Config {
        hidden_size: size("hidden_size"),
        intermediate_size: size("intermediate_size"),
        num_hidden_layers: size("num_hidden_layers"),
        num_attention_heads: size("num_attention_heads"),
        num_key_value_heads: size("num_key_value_heads"),
        head_dim: json["head_dim"]
            .as_u64()
            .map_or(size("hidden_size") / size("num_attention_heads"), |size| size as usize),
        vocab_size: size("vocab_size"),
        rms_norm_eps: json["rms_norm_eps"].as_f64().unwrap(),
        tie_word_embeddings: flag("tie_word_embeddings"),
        query_key_value_bias: flag("attention_bias") || family == "qwen2",
        output_bias: flag("attention_bias"),
        query_key_norm: family == "qwen3",
        mlp_bias: flag("mlp_bias"),
        initializer_range: json["initializer_range"].as_f64().unwrap(),
        dtype: DType::F32,
        lora: None,
    };
    (config, json["rope_parameters"]["rope_theta"].as_f64().unwrap())
}

/// `labels` i64 [b, s] one to the left, with no target at the end; and how many targets there are.
fn shifted(labels: &Tensor) -> (Tensor, usize) {
    let (b, s) = labels.dims2().unwrap();
    let end = Tensor::full(IGNORED, (b, 1), &Device::Cpu).unwrap();
    let targets = Tensor::cat(&[&labels.narrow(1, 1, s - 1).unwrap(), &end], 1).unwrap();
    let all = targets.flatten_all().unwrap().to_vec1::<i64>().unwrap();
    (targets, all.into_iter().filter(|&target| target != IGNORED).count())
}

/// Compares a model with both kernels; how far each is off.
fn check(folder: &Path) -> Vec<String> {
    let mut said = Vec::new();
    let golden =
        candle_core::safetensors::load(folder.join("golden.safetensors"), &Device::Cpu).unwrap();
    let (config, theta) = config(folder);
    let weights = load(folder, &Llama::specification(&config), DType::F32).unwrap();
    let inputs = golden["input_ids"].to_dtype(DType::U32).unwrap();
    let (targets, count) = shifted(&golden["labels"]);
    let model = Llama::new(&config, 50);
    for kernel in kernels() {
        let shard =
            turned(shard(&config, (inputs.clone(), targets.clone()), kernel.clone()), theta);
        let logits = model.logits(&weights, &shard).unwrap();
        let logits_error = error(&logits, &golden["logits"]).unwrap();
        assert!(logits_error < 2e-5, "{}: logits {logits_error:e}", folder.display());

        let (loss, gradients) = model.gradients(&weights, &shard).unwrap();
        let loss = (loss / count as f64).unwrap();
        let loss_error = error(&loss, &golden["loss"].squeeze(0).unwrap()).unwrap();
        assert!(loss_error < 1e-5, "{}: loss {loss_error:e}", folder.display());

        let mut worst: f64 = 0.0;
        for (name, gradient) in gradients {
            let gradient = (gradient / count as f64).unwrap();
            let error = error_l2(&gradient, &golden[&format!("grad.{name}")]).unwrap();
            assert!(error < 1e-4, "{}: gradient of {name} {error:e}", folder.display());
            worst = worst.max(error);
        }
        let stored = golden.keys().filter(|name| name.starts_with("grad.")).count();
        assert_eq!(stored, weights.len());
        said.push(format!(
            "{}, {kernel:?}: logits {logits_error:.1e}, loss {loss_error:.1e}, gradients {worst:.1e}",
            folder.display()
        ));
    }
    said
}

#[test]
fn outputs_are_those_of_transformers() {
    let models = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden/A/models");
    if !models.is_dir() {
        eprintln!("skipped: no stored outputs at `{}`", models.display());
        return;
    }
    for model in MODELS {
        for line in check(&models.join(model)) {
            println!("{line}");
        }
    }
}
