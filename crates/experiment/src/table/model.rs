//! The keys of `model:`, and those of a config.json, which are a model's shape.

use super::Absent::{Is, Means, Required};
use super::Kind::{Count, Real, Section, Text, Tokens, Truth, Word, Words};
use super::{Interval, Key, MOST_LAYERS, MOST_POSITIONS, ROPE, key};
use crate::experiment::{Dtype, WeightsFrom};
use crate::{Family, LayerType};

pub(crate) const MODEL: &[Key] = &[
    key(
        "path",
        Text,
        Means("config.json's keys stand here"),
        "a Hugging Face folder (config.json, *.safetensors), or a model of the hub: `hf://owner/name@revision`",
    ),
    key(
        "weights",
        Word(WeightsFrom::WORDS),
        Means("pretrained"),
        "whether the folder's weights are read",
    ),
    key("dtype", Word(Dtype::WORDS), Is("f32"), "type of weights and activations; masters are f32"),
    key(
        "rope_theta",
        Real(Interval::AboveZero),
        Means("the folder's, or 10000"),
        "base of the rotary frequencies",
    ),
];

/// The keys of a config.json that make a model, inline or in the file itself.
pub(crate) const SHAPE: &[Key] = &[
    key("model_type", Word(Family::WORDS), Is("llama"), "the family"),
    key("hidden_size", Count(1, 1 << 20), Required, "width of the residual stream"),
    key("intermediate_size", Count(1, 1 << 22), Required, "width of the feed-forward layer"),
    key("num_hidden_layers", Count(1, MOST_LAYERS), Required, "layers"),
    key("num_attention_heads", Count(1, 1 << 12), Required, "query heads"),
    key("num_key_value_heads", Count(1, 1 << 12), Means("num_attention_heads"), "key/value heads"),
    key(
        "head_dim",
        Count(1, 1 << 10),
        Means("hidden_size / num_attention_heads"),
        "elements per head",
    ),
    key(
        "vocab_size",
        Tokens(1, 1 << 28),
        Means("what the tokenizer has"),
        "tokens in the vocabulary",
    ),
    key(
        "max_position_embeddings",
        Tokens(1, MOST_POSITIONS),
        Means("data.tokens"),
        "longest sequence: what frequencies are stretched from, else a note to other programs",
    ),
    key(
        "rope_parameters",
        Section(&[ROPE]),
        Means("frequencies as they are"),
        "how frequencies are stretched",
    ),
    key(
        "rope_scaling",
        Section(&[ROPE]),
        Means("rope_parameters"),
        "its name in transformers 4, beside rope_theta",
    ),
    key(
        "sliding_window",
        Count(1, MOST_POSITIONS),
        Means("no layer slides"),
        "keys that a query of a sliding layer sees: mistral, qwen2, qwen3",
    ),
    key("use_sliding_window", Truth, Means("false"), "whether layers slide: qwen2, qwen3"),
    key(
        "max_window_layers",
        Count(0, 1 << 12),
        Means("28"),
        "layers before the first that slides: qwen2, qwen3",
    ),
    key(
        "layer_types",
        Words(LayerType::WORDS),
        Means("what the window's keys say"),
        "which layers slide, one word for each",
    ),
    key("rms_norm_eps", Real(Interval::AboveZero), Is("1e-5"), "added under the root of RMSNorm"),
    key("tie_word_embeddings", Truth, Is("false"), "whether the output layer is the embedding"),
    key("attention_bias", Truth, Is("false"), "whether q, k, v and o have a bias"),
    key("mlp_bias", Truth, Is("false"), "whether gate, up and down have a bias"),
    key("hidden_act", Word(&["silu"]), Is("silu"), "the gate's activation"),
    key(
        "initializer_range",
        Real(Interval::AboveZero),
        Is("0.02"),
        "standard deviation of fresh weights",
    ),
];

/// The keys of a config.json beside a shape's.
pub(crate) const CONFIG: &[Key] = &[
    key(
        "rope_theta",
        Real(Interval::AboveZero),
        Means("rope_parameters.rope_theta"),
        "base of the frequencies",
    ),
    key(
        "original_max_position_embeddings",
        Tokens(2, MOST_POSITIONS),
        Means("rope_parameters.original_max_position_embeddings"),
        "the length before it was stretched",
    ),
];
