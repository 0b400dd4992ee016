//! A tiny model, alone on its rank.

use std::collections::BTreeMap;
use std::sync::Arc;

use annulus_attention::Attention;
use annulus_model::{Attentions, Config, Keep, Llama, Shard, Weights};
use annulus_ops::attention::{AttentionKernel, Fused, Reference};
use annulus_ops::{Backend, IGNORED, Key, Pool, Rotary, normal, uniform};
use annulus_sequence::{Heads, Mask, Rule, Setting, Strategy};
use candle_core::{DType, Device, Result, Tensor, Var};

/// The base of the rotary frequencies.
pub(crate) const THETA: f64 = 10_000.0;

/// Groups of three query heads, elements per head unequal to hidden size by heads, untied, no
/// biases.
pub(crate) fn tiny() -> Config {
    Config {
        hidden_size: 20,
        intermediate_size: 28,
        num_hidden_layers: 2,
        num_attention_heads: 6,
        num_key_value_heads: 2,
        head_dim: 8,
        vocab_size: 37,
        rms_norm_eps: 1e-5,
        tie_word_embeddings: false,
        query_key_value_bias: false,
        output_bias: false,
        query_key_norm: false,
        mlp_bias: false,
        initializer_range: 0.2,
        dtype: DType::F32,
        lora: None,
    }
}

/// The fast kernel and the slow one.
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

/// Tokens u32 and targets i64 [b, s], some of them left out.
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

/// All of the sequences on one rank, causal.
pub(crate) fn shard(
    config: &Config,
    (inputs, targets): (Tensor, Tensor),
    kernel: Arc<dyn AttentionKernel>,
) -> Shard {
    sliding(config, (inputs, targets), kernel, &vec![None; config.num_hidden_layers])
}

/// The same where a query of each layer sees so many keys.
pub(crate) fn sliding(
    config: &Config,
    (inputs, targets): (Tensor, Tensor),
    kernel: Arc<dyn AttentionKernel>,
    windows: &[Option<usize>],
) -> Shard {
    let heads = Heads { query: config.num_attention_heads, key_value: config.num_key_value_heads };
    let setting = Setting::new(Strategy::Local, inputs.dims()[1], 1, heads);
    let mask = |window: &Option<usize>| {
        window.map(Rule::Window).into_iter().fold(Mask::causal(), Mask::and)
    };
    let masks: Vec<Mask> = windows.iter().map(mask).collect();
    let mut schedules = setting.schedules_of(&masks).unwrap().into_iter().map(Arc::new);
    let scale = 1.0 / (config.head_dim as f64).sqrt();
    let comm = annulus_comm::threads::solo();
    let attention = Attention::new(schedules.next().unwrap(), scale, comm, kernel);
    let others = schedules.map(|schedules| attention.beside(schedules));
    let kinds = [attention.clone()].into_iter().chain(others);
    let kinds = kinds.enumerate().map(|(layer, attention)| (attention, vec![layer]));
    let attentions = Attentions::new(windows.len(), kinds);
    let frequencies = Rotary::frequencies(config.head_dim, THETA);
    let rotary = Rotary::new(attention.positions(), &frequencies, 1.0);
    Shard {
        inputs,
        targets,
        attention: attentions,
        rotary: Arc::new(rotary),
        backend: Backend::serial(),
        step: 0,
        keep: Keep::Nothing,
        dropping: None,
    }
}

/// The same with frequencies of another base.
pub(crate) fn turned(shard: Shard, theta: f64) -> Shard {
    let positions = shard.attention.positions();
    let [cos, _] = shard.rotary.cos_and_sin();
    let frequencies = Rotary::frequencies(2 * cos.len() / positions.tokens(), theta);
    let rotary = Arc::new(Rotary::new(positions, &frequencies, 1.0));
    Shard { rotary, ..shard }
}

/// The same weights, on the tape.
pub(crate) fn variables(weights: &Weights) -> Weights {
    let variable = |weight| Var::from_tensor(weight).unwrap().as_tensor().clone();
    weights.iter().map(|(name, weight)| (name.clone(), variable(weight))).collect()
}

/// The gradient of `loss` by every one of `variables`.
pub(crate) fn gradients(loss: &Tensor, variables: &Weights) -> BTreeMap<String, Tensor> {
    let all = loss.backward().unwrap();
    let gradient = |name: &str, variable: &Tensor| {
        let gradient = all.get(variable);
        gradient.unwrap_or_else(|| panic!("`{name}` got no gradient")).clone()
    };
    variables.iter().map(|(name, variable)| (name.clone(), gradient(name, variable))).collect()
}
