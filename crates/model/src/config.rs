//! The shape of a model, as plain numbers. What families call their differences is resolved: they are flags here.

use candle_core::DType;

use crate::Lora;

/// The shape of a model of the Llama family.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "what families do or do not have, each by itself"
)]
pub struct Config {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key/value heads.
    pub num_key_value_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Added under the root of RMSNorm.
    pub rms_norm_eps: f64,
    /// Whether the embedding is also the last projection.
    pub tie_word_embeddings: bool,
    /// Whether q, k, v have biases.
    pub query_key_value_bias: bool,
    /// Whether o has a bias.
    pub output_bias: bool,
    /// Whether queries and keys go through a norm of their own, head by head, before they are rotated.
    pub query_key_norm: bool,
    /// Whether gate, up, down have biases.
    pub mlp_bias: bool,
    /// The standard deviation of fresh matrices.
    pub initializer_range: f64,
    /// What weights are computed in: f32 or bf16.
    pub dtype: DType,
    /// What is trained; `None`: everything.
    pub lora: Option<Lora>,
}
