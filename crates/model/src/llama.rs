//! Embedding, layers, loss.

use candle_core::{Result, Tensor};

use crate::{Config, Shard, Stage, Weights};

/// A parameter as it must be: its name and shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Specification {
    /// As in a Hugging Face file.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
}

/// A Llama: its stages, in order.
#[derive(Debug)]
pub struct Llama {
    /// Embedding, then attention and feed-forward of every layer, then the loss.
    pub stages: Vec<Box<dyn Stage>>,
}

impl Llama {
    /// The stages of `config`; `loss_chunk` tokens of logits are held at once.
    pub fn new(_config: &Config, _loss_chunk: usize) -> Llama {
        todo!()
    }
    /// Every parameter of `config`, ordered by name. Tied: no `lm_head.weight`.
    pub fn specification(_config: &Config) -> Vec<Specification> {
        todo!()
    }
    /// Fresh weights in `config.dtype`: matrices N(0, initializer_range), norms 1, biases 0, by counter from (seed, name).
    pub fn random(_config: &Config, _seed: u64) -> Result<Weights> {
        todo!()
    }
    /// All logits f32 [B, S, V] of this rank's positions, off the tape.
    pub fn logits(&self, _weights: &Weights, _shard: &Shard) -> Result<Tensor> {
        todo!()
    }
    /// Floating-point operations of one training step over `tokens` tokens whose masks leave `pairs` pairs visible in total:
    /// 6 per weight and token (embedding lookups excluded), 12 · head_dim · heads per pair and layer.
    pub fn flops(_config: &Config, _tokens: u64, _pairs: u64) -> f64 {
        todo!()
    }
}
