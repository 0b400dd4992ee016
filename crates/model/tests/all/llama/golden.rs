//! Logits, loss and gradients as transformers computed them, where the stored outputs are at hand.

use std::path::{Path, PathBuf};

use annulus_architecture::read_config;
use annulus_model::{Llama, load};
use annulus_ops::IGNORED;
use annulus_ops::testing::{error, error_l2};
use candle_core::{DType, Device, Tensor};

use super::support::{gradients, kernels, logits, of, shard};

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

/// `labels` i64 [b, s] shifted left by one, with no target at the end; and the number of targets.
fn shifted(labels: &Tensor) -> (Tensor, usize) {
    let (b, s) = labels.dims2().unwrap();
    let end = Tensor::full(IGNORED, (b, 1), &Device::Cpu).unwrap();
    let targets = Tensor::cat(&[&labels.narrow(1, 1, s - 1).unwrap(), &end], 1).unwrap();
    let all = targets.flatten_all().unwrap().to_vec1::<i64>().unwrap();
    (targets, all.into_iter().filter(|&target| target != IGNORED).count())
}

/// Compares a model with both kernels; returns the error of each.
fn check(folder: &Path) -> Vec<String> {
    let mut said = Vec::new();
    let golden =
        candle_core::safetensors::load(folder.join("golden.safetensors"), &Device::Cpu).unwrap();
    let config = of(read_config(folder).unwrap());
    let weights = load(folder, &Llama::specification(&config), DType::F32).unwrap();
    let inputs = golden["input_ids"].to_dtype(DType::U32).unwrap();
    let (targets, count) = shifted(&golden["labels"]);
    let model = Llama::new(&config, 50);
    for kernel in kernels() {
        let shard = shard(&config, (inputs.clone(), targets.clone()), kernel.clone());
        let logits = logits(&model, &weights, &shard);
        let logits_error = error(&logits, &golden["logits"]).unwrap();
        assert!(logits_error < 2e-5, "{}: logits {logits_error:e}", folder.display());

        let (loss, gradients) = gradients(&model, &weights, &shard);
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
