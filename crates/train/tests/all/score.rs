//! Loss, logits and gradients of a model match those of `transformers`, on any ranks.

use std::collections::HashMap;
use std::path::Path;

use crate::common::golden;
use annulus_data::Sequence;
use annulus_experiment::{Dtype, read_config};
use annulus_model::{Llama, load};
use annulus_plan::heads_of;
use annulus_sequence::{Setting, Strategy};
use annulus_train::{ScoreOutputs, Setup, model_config, score};
use candle_core::{DType, Device, Tensor};

/// Tokens of every sequence in the reference outputs.
const TOKENS: usize = 96;

/// Rows of ids and labels, as the reference outputs have them: labels are not shifted.
fn sequences(golden: &HashMap<String, Tensor>) -> Vec<Sequence> {
    let inputs: Vec<Vec<i64>> = golden["input_ids"].to_vec2().unwrap();
    let labels: Vec<Vec<i64>> = golden["labels"].to_vec2().unwrap();
    let rows = inputs.into_iter().zip(labels);
    rows.map(|(inputs, labels)| Sequence {
        inputs: inputs.into_iter().map(|id| id as u32).collect(),
        targets: labels[1..].iter().copied().chain([-100]).collect(),
        documents: Vec::new(),
    })
    .collect()
}

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// The error of `a` against `b`: max|a - b| / max|b|.
fn error(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.dims(), b.dims());
    let (a, b) = (values(a), values(b));
    let largest = b.iter().fold(0.0_f64, |most, b| most.max(b.abs()));
    a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max) / largest
}

/// The error of `a` against `b` in the Euclidean norm: |a - b| / |b|.
fn error_l2(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.dims(), b.dims());
    let (a, b) = (values(a), values(b));
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(&b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied())
}

fn setup(folder: &Path, strategy: Strategy, ranks: usize) -> Setup {
    let shape = read_config(folder).unwrap_or_else(|e| panic!("{e}"));
    let setting = Setting::new(strategy, TOKENS, ranks, heads_of(&shape));
    let config = model_config(&shape, Dtype::F32).unwrap();
    // Chunks that do not divide the sequence.
    let (loss_chunk, mlp_chunk) = (50, Some(40));
    Setup { loss_chunk, mlp_chunk, ..Setup::of_model(config, &setting, 4).unwrap() }
}

/// The largest allowed errors of logits, loss and the worst gradient.
const LIMITS: [f64; 3] = [2e-5, 1e-5, 1e-4];

fn errors(folder: &Path, strategy: Strategy, ranks: usize) -> [f64; 3] {
    let tensors = folder.join("golden.safetensors");
    let golden = candle_core::safetensors::load(tensors, &Device::Cpu).unwrap();
    let setup = setup(folder, strategy, ranks);
    let weights = load(folder, &Llama::specification(&setup.config), DType::F32).unwrap();
    let want = ScoreOutputs { logits: true, gradients: true };
    let scored = score(&setup, &weights, &sequences(&golden), want).unwrap();
    let loss = f64::from(golden["loss"].to_vec1::<f32>().unwrap()[0]);
    let gradients = scored.gradients.unwrap();
    let wanted = golden.keys().filter(|key| key.starts_with("grad.")).count();
    assert_eq!(gradients.len(), wanted);
    let off = gradients.iter().map(|(name, own)| error_l2(own, &golden[&format!("grad.{name}")]));
    [
        error(&scored.logits.unwrap(), &golden["logits"]),
        (scored.loss - loss).abs() / loss,
        off.fold(0.0, f64::max),
    ]
}

#[test]
fn models_are_those_of_transformers() {
    let Some(folder) = golden("models") else {
        eprintln!("skipped: no reference outputs here");
        return;
    };
    let mut models: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    models.sort();
    assert!(models.len() >= 14, "{models:?}");
    for model in models {
        for (strategy, ranks) in
            [(Strategy::Local, 1), (Strategy::STRIPED, 4), (Strategy::MEGATRON, 3)]
        {
            let found = errors(&model, strategy, ranks);
            let name = model.file_name().unwrap().to_string_lossy();
            let [logits, loss, gradient] = found;
            println!(
                "{name}, {} on {ranks}: logits {logits:.1e}, loss {loss:.1e}, gradients {gradient:.1e}",
                strategy.name()
            );
            // Not `>=`: NaN must not pass.
            let holds = found.iter().zip(LIMITS).all(|(found, limit)| *found < limit);
            assert!(holds, "{name} {strategy:?}: {found:?}");
        }
    }
}
