//! The shape of a Llama, as plain numbers under Hugging Face's names.

use candle_core::DType;

/// The shape of a Llama.
#[derive(Clone, Debug, PartialEq)]
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
    /// The base of the rotary frequencies.
    pub rope_theta: f64,
    /// Whether the embedding is also the last projection.
    pub tie_word_embeddings: bool,
    /// Whether q, k, v, o have biases.
    pub attention_bias: bool,
    /// Whether gate, up, down have biases.
    pub mlp_bias: bool,
    /// The standard deviation of fresh matrices.
    pub initializer_range: f64,
    /// What weights are computed in: f32 or bf16.
    pub dtype: DType,
}
