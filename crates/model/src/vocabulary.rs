//! The two stages that know the vocabulary: tokens in, loss out.
//!
//! Axes: b sequences, s positions of this rank, d hidden size, v vocabulary.

use annulus_ops::{embedding, linear_cross_entropy};
use candle_core::{DType, Result, Tensor};

use crate::parameters::{Norm, Projection, linear, names};
use crate::{Config, Shard, Specification, Stage, Weights};

/// Tokens to rows of the embedding.
#[derive(Debug)]
pub(crate) struct Embed {
    table: Specification,
    parameters: Vec<String>,
}

impl Embed {
    pub(crate) fn new(config: &Config) -> Embed {
        let table = embedding_table(config);
        Embed { parameters: names([&table]), table }
    }
    /// Its parameter.
    pub(crate) fn specification(&self) -> &Specification {
        &self.table
    }
}

impl Stage for Embed {
    fn parameters(&self) -> &[String] {
        &self.parameters
    }
    fn forward(&self, _: &Tensor, weights: &Weights, shard: &Shard) -> Result<Tensor> {
        embedding(&shard.pool, &shard.inputs, self.table.of(weights)?)
    }
}

/// The last norm, the projection to the vocabulary (tied: the embedding), and the cross entropy,
/// the last two in one.
#[derive(Clone, Debug)]
pub(crate) struct Loss {
    chunk: usize,
    norm: Norm,
    head: Projection,
    parameters: Vec<String>,
}

impl Loss {
    /// `chunk` tokens of logits are held at once.
    pub(crate) fn new(config: &Config, chunk: usize) -> Loss {
        let norm = Norm::new("model.norm", config.hidden_size, config.rms_norm_eps);
        let head = if config.tie_word_embeddings {
            Projection { weight: embedding_table(config), bias: None }
        } else {
            Projection::new("lm_head", [config.vocab_size, config.hidden_size], false)
        };
        let parameters = names(std::iter::once(&norm.weight).chain(head.parameters()));
        Loss { chunk, norm, head, parameters }
    }
    /// Its parameters; tied: the embedding once more.
    pub(crate) fn specification(&self) -> impl Iterator<Item = &Specification> {
        std::iter::once(&self.norm.weight).chain(self.head.parameters())
    }
    /// `x` [B, S, D] to logits f32 [B, S, V], all at once.
    pub(crate) fn logits(
        &self,
        x_bsd: &Tensor,
        weights: &Weights,
        shard: &Shard,
    ) -> Result<Tensor> {
        let normed_bsd = self.norm.apply(x_bsd, weights, &shard.pool)?;
        linear(&self.head, &normed_bsd, weights, &shard.pool)?.to_dtype(DType::F32)
    }
}

impl Stage for Loss {
    fn parameters(&self) -> &[String] {
        &self.parameters
    }
    fn forward(&self, x_bsd: &Tensor, weights: &Weights, shard: &Shard) -> Result<Tensor> {
        let normed_bsd = self.norm.apply(x_bsd, weights, &shard.pool)?;
        let head_vd = self.head.weight.of(weights)?;
        linear_cross_entropy(&shard.pool, &normed_bsd, head_vd, &shard.targets, self.chunk)
    }
}

fn embedding_table(config: &Config) -> Specification {
    let shape = [config.vocab_size, config.hidden_size];
    Specification::new("model.embed_tokens.weight".to_owned(), &shape)
}
