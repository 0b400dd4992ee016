//! The stages of a Llama in order, and the parameters that they need.

use annulus_architecture::Lora;
use annulus_machine::cores;
use annulus_ops::{Key, Pool, fill_normal};
use candle_core::{DType, Device, Result, Tensor};

use crate::layer::{AttentionHalf, FeedForwardHalf};
use crate::vocabulary::{Embed, Judged, Loss};
use crate::{Config, Runs, Shard, Specification, Stage, Weights};

/// Elements of a parameter that a core draws at a time: even, as they are drawn in pairs.
const DRAWN: usize = 1 << 16;

/// A Llama model as its stages, in order.
#[derive(Debug)]
pub struct Llama {
    /// Embedding, then attention and feed-forward of every layer, then the loss.
    pub stages: Vec<Box<dyn Stage>>,
    /// The last stage again, for logits, which its forward does not return.
    head: Loss,
}

impl Llama {
    /// The stages of `config`; the loss holds the logits of `loss_chunk` tokens at once.
    pub fn new(config: &Config, loss_chunk: usize) -> Llama {
        let head = Loss::new(config, loss_chunk);
        let mut stages: Vec<Box<dyn Stage>> = vec![Box::new(Embed::new(config))];
        for layer in 0..config.shape.num_hidden_layers {
            stages.push(Box::new(AttentionHalf::new(config, layer)));
            stages.push(Box::new(FeedForwardHalf::new(config, layer)));
        }
        stages.push(Box::new(head.clone()));
        Llama { stages, head }
    }
    /// Every parameter of `config`, ordered by name; without `lm_head.weight` where it is tied.
    pub fn specification(config: &Config) -> Vec<Specification> {
        let mut all = vec![Embed::new(config).specification().clone()];
        for layer in 0..config.shape.num_hidden_layers {
            all.extend(AttentionHalf::new(config, layer).specification().cloned());
            all.extend(FeedForwardHalf::new(config, layer).specification().cloned());
        }
        all.extend(Loss::new(config, 1).specification().cloned());
        all.sort();
        all.dedup();
        all
    }
    /// Names of parameters whose products read the same input, in order: a GPU makes one product of them where they lie one after another
    /// in memory.
    pub fn fused_projections(config: &Config) -> Vec<Vec<String>> {
        let layers = 0..config.shape.num_hidden_layers;
        let halves = layers.flat_map(|layer| {
            let feed_forward = FeedForwardHalf::new(config, layer).fused_projections();
            AttentionHalf::new(config, layer).fused_projections().into_iter().chain(feed_forward)
        });
        halves.collect()
    }
    /// Random weights in `config.dtype`: matrices N(0, initializer_range), norms 1, biases 0; of adapters, a with PEFT's deviation and b 0.
    /// Drawn by counter from (seed, name).
    ///
    /// # Errors
    /// What Candle, or the kernel's device, says.
    pub fn random(config: &Config, seed: u64) -> Result<Weights> {
        Llama::fresh(config, &Llama::specification(config), seed)
    }
    /// Random weights as of [`Llama::random`], of some parameters; all cores draw them.
    ///
    /// # Errors
    /// What Candle, or the kernel's device, says.
    pub fn fresh(config: &Config, parameters: &[Specification], seed: u64) -> Result<Weights> {
        let elements: usize =
            parameters.iter().map(|one| one.shape.iter().product::<usize>()).sum();
        // Threads for a small model would cost more than they save.
        let cores = if elements < 16 * DRAWN { 1 } else { cores() };
        let pool = Pool::new(cores);
        let fresh = parameters.iter().map(|parameter| {
            let whole = [(0, parameter.shape.iter().product())];
            let fresh = drawn(config, parameter, seed, &whole, &pool)?;
            Ok((parameter.name.clone(), fresh.reshape(parameter.shape.as_slice())?))
        });
        fresh.collect()
    }
    /// Some elements, flat, of a parameter's random weights.
    ///
    /// # Errors
    /// What Candle says.
    pub fn fresh_elements(
        config: &Config,
        parameter: &Specification,
        seed: u64,
        runs: &Runs,
    ) -> Result<Tensor> {
        drawn(config, parameter, seed, runs, &Pool::serial())
    }
    /// The weights, in the model's dtype, of the model without adapters that computes the same as `config` with `weights`: adapters are
    /// added to their projections, in f32.
    ///
    /// # Errors
    /// A missing weight, and what Candle says.
    pub fn merged(config: &Config, weights: Weights) -> Result<Weights> {
        let Some(lora) = &config.lora else { return Ok(weights) };
        let (adapters, base): (Weights, Weights) =
            weights.into_iter().partition(|(name, _)| Lora::is_adapter(name));
        let part = |path: &str, end| {
            let part = adapters.get(&format!("{path}{end}"));
            part.map(|part| part.to_dtype(DType::F32)).transpose()
        };
        let merged = base.into_iter().map(|(name, weight)| {
            let path = name.trim_end_matches(".weight");
            let weight = weight.to_dtype(DType::F32)?;
            let merged = match (part(path, Lora::A)?, part(path, Lora::B)?) {
                (Some(a), Some(b)) => (weight + (b.matmul(&a)? * lora.scale())?)?,
                _ => weight,
            };
            Ok((name, merged.to_dtype(config.dtype)?))
        });
        merged.collect()
    }
    /// The logits f32 [B, S, V] of `x` [B, S, D], rows of the output of the last stage but one.
    ///
    /// # Errors
    /// A missing weight, and what operators say.
    pub fn logits(&self, x_bsd: &Tensor, weights: &Weights, shard: &Shard) -> Result<Tensor> {
        self.head.logits(x_bsd, weights, shard)
    }
    /// The loss and prediction at every target of `shard`, in the order of its rows; `x` [B, S, D] is the output of the last stage but one.
    /// Logits of a few rows are held at once.
    ///
    /// # Errors
    /// As [`Llama::logits`].
    pub fn judge(&self, x_bsd: &Tensor, weights: &Weights, shard: &Shard) -> Result<Vec<Judged>> {
        self.head.judge(x_bsd, weights, shard)
    }
}

/// Elements as of [`Llama::fresh_elements`], drawn by `pool`: the same bits by any number of workers, as each follows from its index.
fn drawn(
    config: &Config,
    parameter: &Specification,
    seed: u64,
    runs: &Runs,
    pool: &Pool,
) -> Result<Tensor> {
    let Specification { name, shape, .. } = parameter;
    let all = runs.iter().map(|(_, many)| many).sum();
    let other = if name.ends_with("norm.weight") { 1.0 } else { 0.0 };
    let mut values = vec![other; all];
    if shape.len() == 2 {
        let key = Key { seed, purpose: "init", name };
        let deviation = deviation(config, name, shape);
        let mut rest = values.as_mut_slice();
        for (first, many) in runs {
            let (run, after) = rest.split_at_mut(*many);
            pool.for_chunks(run, DRAWN, |index, piece| {
                fill_normal(key, (first + index * DRAWN) as u64, piece);
                for value in piece {
                    *value *= deviation;
                }
            });
            rest = after;
        }
    }
    Tensor::from_vec(values, all, &Device::Cpu)?.to_dtype(config.dtype)
}

/// The standard deviation of a random matrix. For an adapter's a it is that of Kaiming He's uniform distribution with slope √5, ±1/√I, as
/// in PEFT; b starts at 0, so that nothing changes at first.
fn deviation(config: &Config, name: &str, shape: &[usize]) -> f32 {
    if name.ends_with(Lora::B) {
        return 0.0;
    }
    if name.ends_with(Lora::A) {
        return (1.0 / (3.0 * shape[1] as f64)).sqrt() as f32;
    }
    config.shape.initializer_range as f32
}
