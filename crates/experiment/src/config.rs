//! config.json under its own names.

use std::path::Path;

use crate::Problems;

/// The shape of a Llama as config.json has it, read strictly.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// `hidden_size`
    pub hidden_size: usize,
    /// `intermediate_size`
    pub intermediate_size: usize,
    /// `num_hidden_layers`
    pub num_hidden_layers: usize,
    /// `num_attention_heads`
    pub num_attention_heads: usize,
    /// `num_key_value_heads`; default `num_attention_heads`
    pub num_key_value_heads: usize,
    /// `head_dim`; default `hidden_size / num_attention_heads`
    pub head_dim: usize,
    /// `vocab_size`; inline default: what the tokenizer has
    pub vocab_size: Option<usize>,
    /// `max_position_embeddings`; default: `data.tokens`
    pub max_position_embeddings: Option<usize>,
    /// `rms_norm_eps`; default 1e-5
    pub rms_norm_eps: f64,
    /// `rope_theta`, or `rope_parameters.rope_theta`; default 10000
    pub rope_theta: f64,
    /// `tie_word_embeddings`; default false
    pub tie_word_embeddings: bool,
    /// `attention_bias`; default false
    pub attention_bias: bool,
    /// `mlp_bias`; default false
    pub mlp_bias: bool,
    /// `initializer_range`; default 0.02
    pub initializer_range: f64,
}

/// Reads `folder/config.json`. What a later version will read (other `model_type`s, `rope_type`s, windows) is refused by its key.
pub fn read_config(_folder: &Path) -> Result<Shape, Problems> {
    todo!()
}

/// The text of a config.json for `transformers` 4 and 5: `dtype` is `float32` or `bfloat16`.
pub fn write_config(_shape: &Shape, _dtype: crate::Dtype) -> String {
    todo!()
}
