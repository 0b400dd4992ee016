//! A tiny model, alone on its rank.

use std::collections::BTreeMap;
use std::sync::Arc;

use annulus_architecture::{Family, Rope, Scaling, Shape};
use annulus_attention::Attention;
use annulus_model::{
    Attentions, Config, Forward, GradientSink, Keep, Llama, Pullback, Rotaries, Shard, Stage,
    TensorRanks, Weights,
};
use annulus_ops::attention::{AttentionKernel, Fused, Reference};
use annulus_ops::{Backend, IGNORED, Key, Pool, normal, uniform};
use annulus_sequence::{Heads, Mask, Rule, Setting, Strategy};
use candle_core::{DType, Device, Result, Tensor, Var};

/// A tiny config: groups of three query heads, elements per head unequal to hidden size by heads, untied, no biases.
pub(crate) fn tiny() -> Config {
    let shape = Shape {
        model_type: Family::Llama,
        hidden_size: 20,
        intermediate_size: 28,
        num_hidden_layers: 2,
        num_attention_heads: 6,
        num_key_value_heads: 2,
        head_dim: 8,
        vocab_size: Some(37),
        max_position_embeddings: None,
        rms_norm_eps: 1e-5,
        rope: Rope { theta: Rope::THETA, scaling: Scaling::Default },
        sliding_window: None,
        layer_types: Vec::new(),
        nope_layers: Vec::new(),
        tie_word_embeddings: false,
        attention_bias: false,
        mlp_bias: false,
        initializer_range: 0.2,
        special_tokens: BTreeMap::new(),
    };
    of(shape)
}

/// The f32 model of a shape.
pub(crate) fn of(shape: Shape) -> Config {
    Config { vocab_size: shape.vocab_size.unwrap(), shape, dtype: DType::F32, lora: None }
}

/// `config` with its shape changed.
pub(crate) fn shaped(mut config: Config, change: impl Fn(&mut Shape)) -> Config {
    change(&mut config.shape);
    Config { vocab_size: config.shape.vocab_size.unwrap(), ..config }
}

/// Adds norms of heads, and biases of all attention projections.
pub(crate) fn normed(shape: &mut Shape) {
    (shape.model_type, shape.attention_bias) = (Family::Qwen3, true);
}

/// The fast kernel and the reference.
pub(crate) fn kernels() -> [Arc<dyn AttentionKernel>; 2] {
    [Arc::new(Fused::new(Pool::serial())), Arc::new(Reference)]
}

/// Weights of `config` among which no norm is 1 and no bias is 0.
pub(crate) fn uneven(config: &Config) -> Weights {
    let mut weights = Llama::random(config, 7).unwrap();
    for (name, weight) in &mut weights {
        if let [len] = *weight.dims() {
            let noise = normal(Key { seed: 7, purpose: "test", name }, 0, len);
            let noise = Tensor::from_vec(noise, len, &Device::Cpu).unwrap();
            *weight = (&*weight + (noise * 0.2).unwrap()).unwrap();
        }
    }
    weights
}

/// Random tokens u32 and targets i64 [b, s], some of them ignored.
pub(crate) fn tokens(config: &Config, b: usize, s: usize) -> (Tensor, Tensor) {
    let draw = |name, index: usize| {
        uniform(Key { seed: 7, purpose: "test", name }, index as u64, config.vocab_size as u64)
    };
    let inputs: Vec<u32> = (0..b * s).map(|index| draw("inputs", index) as u32).collect();
    let target = |index| if index % 5 == 3 { IGNORED } else { draw("targets", index) as i64 };
    let targets: Vec<i64> = (0..b * s).map(target).collect();
    let shaped = |tensor: Result<Tensor>| tensor.unwrap();
    (
        shaped(Tensor::from_vec(inputs, (b, s), &Device::Cpu)),
        shaped(Tensor::from_vec(targets, (b, s), &Device::Cpu)),
    )
}

/// All sequences on one rank, with a causal mask.
pub(crate) fn shard(
    config: &Config,
    (inputs, targets): (Tensor, Tensor),
    kernel: Arc<dyn AttentionKernel>,
) -> Shard {
    sliding(config, (inputs, targets), kernel, &vec![None; config.shape.num_hidden_layers])
}

/// The model on one rank, where a query of each layer sees at most its window of keys.
pub(crate) fn sliding(
    config: &Config,
    (inputs, targets): (Tensor, Tensor),
    kernel: Arc<dyn AttentionKernel>,
    windows: &[Option<usize>],
) -> Shard {
    let shape = &config.shape;
    let heads = Heads { query: shape.num_attention_heads, key_value: shape.num_key_value_heads };
    let setting = Setting::new(Strategy::Local, inputs.dims()[1], 1, heads);
    let mask = |window: &Option<usize>| {
        window.map(Rule::Window).into_iter().fold(Mask::causal(), Mask::and)
    };
    let masks: Vec<Mask> = windows.iter().map(mask).collect();
    let mut schedules = setting.schedules_of(&masks).unwrap().into_iter().map(Arc::new);
    let scale = 1.0 / (shape.head_dim as f64).sqrt();
    let comm = annulus_comm::threads::solo();
    let attention = Attention::new(schedules.next().unwrap(), scale, comm, kernel);
    let others = schedules.map(|schedules| attention.with_schedules(schedules).unwrap());
    let kinds = [attention.clone()].into_iter().chain(others);
    let kinds = kinds.enumerate().map(|(layer, attention)| (attention, vec![layer]));
    let attentions = Attentions::new(windows.len(), kinds).unwrap();
    let frequencies = shape.frequencies(inputs.dims()[1]);
    let rotary = Rotaries::new(shape, &frequencies, attention.positions());
    Shard {
        inputs,
        targets,
        attention: attentions,
        tensor: TensorRanks::new(annulus_comm::threads::solo()),
        rotary,
        backend: Backend::serial(),
        step: 0,
        keep: Keep::Nothing,
        dropout: None,
    }
}

/// The weights as variables on the tape.
pub(crate) fn variables(weights: &Weights) -> Weights {
    let variable = |weight| Var::from_tensor(weight).unwrap().as_tensor().clone();
    weights.iter().map(|(name, weight)| (name.clone(), variable(weight))).collect()
}

/// Runs `stages` forward; returns their output and pullbacks.
fn forward<'a>(
    stages: &'a [Box<dyn Stage>],
    weights: &Weights,
    shard: &'a Shard,
) -> (Tensor, Vec<(Vec<Tensor>, Pullback<'a>)>) {
    let mut pullbacks = Vec::new();
    let output = stages.iter().fold(shard.inputs.clone(), |x, stage| {
        let Forward { output, kept, back } = stage.forward(&x, weights, shard).unwrap();
        pullbacks.push((kept, back));
        output
    });
    (output, pullbacks)
}

/// The scalar f64 sum of losses over `shard.targets`.
pub(crate) fn loss(model: &Llama, weights: &Weights, shard: &Shard) -> Tensor {
    forward(&model.stages, weights, &Shard { keep: Keep::Nothing, ..shard.clone() }).0
}

/// All logits f32 [B, S, V].
pub(crate) fn logits(model: &Llama, weights: &Weights, shard: &Shard) -> Tensor {
    let stages = &model.stages[..model.stages.len() - 1];
    let (x_bsd, _) = forward(stages, weights, shard);
    model.logits(&x_bsd, weights, shard).unwrap()
}

/// The loss and its gradients with respect to all `weights`, f32; `shard` must keep what they need.
pub(crate) fn gradients(model: &Llama, weights: &Weights, shard: &Shard) -> (Tensor, Weights) {
    let keep = if shard.keep == Keep::Nothing { Keep::Attention } else { shard.keep };
    let shard = Shard { keep, ..shard.clone() };
    let (loss, pullbacks) = forward(&model.stages, weights, &shard);
    let mut gradients = Summed::default();
    let mut dx = loss.ones_like().unwrap();
    for (kept, pullback) in pullbacks.into_iter().rev() {
        dx = pullback(kept, &dx, weights, &mut gradients).unwrap();
    }
    (loss, gradients.0)
}

/// Sums of gradients by name: a tied matrix has two, and a stage of a few rows at a time several.
#[derive(Default)]
pub(crate) struct Summed(pub(crate) Weights);

impl GradientSink for Summed {
    fn sum(&self, name: &str) -> Option<Tensor> {
        self.0.get(name).cloned()
    }
    fn add(&mut self, name: &str, gradient: Tensor) -> Result<()> {
        let sum = self.0.get(name).map_or(Ok(gradient.clone()), |sum| sum + gradient)?;
        self.0.insert(name.to_owned(), sum);
        Ok(())
    }
}

/// The gradient of `loss` with respect to each of `variables`, by the tape.
pub(crate) fn taped(loss: &Tensor, variables: &Weights) -> BTreeMap<String, Tensor> {
    let all = loss.backward().unwrap();
    let gradient = |name: &str, variable: &Tensor| {
        let gradient = all.get(variable);
        gradient.unwrap_or_else(|| panic!("`{name}` got no gradient")).clone()
    };
    variables.iter().map(|(name, variable)| (name.clone(), gradient(name, variable))).collect()
}
