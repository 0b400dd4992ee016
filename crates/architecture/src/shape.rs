//! The shape of a model, as config.json has it: the family, sizes, windows and the rotary embedding.

use std::collections::BTreeMap;

use annulus_yaml::{Places, Problem, words};

use crate::config::ids;
use crate::{Frequencies, FullyTrained, Rope, Scaling};

/// The shape of a model, read strictly.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// `model_type`; inline default llama
    pub model_type: Family,
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
    /// `rms_norm_eps`; default 1e-5, and 1e-6 in a config.json, as `transformers` has it
    pub rms_norm_eps: f64,
    /// `rope_parameters`, or `rope_scaling` and `rope_theta`
    pub rope: Rope,
    /// `sliding_window`: keys that a query of a sliding layer sees, itself included; `None` where no
    /// layer is one.
    pub sliding_window: Option<usize>,
    /// `layer_types`, one for each layer; or what `use_sliding_window` and `max_window_layers` say.
    pub layer_types: Vec<LayerType>,
    /// The layers without rotary embedding (NoPE: Kazemnejad et al., arXiv 2305.19466), ascending: the zeros of `no_rope_layers`.
    pub nope_layers: Vec<usize>,
    /// `tie_word_embeddings`; default false, and true for SmolLM3
    pub tie_word_embeddings: bool,
    /// `attention_bias`; default false
    pub attention_bias: bool,
    /// `mlp_bias`; default false
    pub mlp_bias: bool,
    /// `initializer_range`; default 0.02
    pub initializer_range: f64,
    /// `bos_token_id`, `eos_token_id`, `pad_token_id` where a config.json has them: handed on, so
    /// that a trained model still knows where to stop.
    pub special_tokens: BTreeMap<String, serde_json::Value>,
}

/// The key `model_type`: the family of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama 1 to 3, and what has its shape: TinyLlama, SmolLM.
    Llama,
    /// Mistral: all layers have a sliding window, or none.
    Mistral,
    /// Qwen 2 and 2.5: biases of queries, keys and values.
    Qwen2,
    /// Qwen 3: norms of the heads of queries and keys.
    Qwen3,
    /// SmolLM3: every fourth layer, or those that are named, has no rotary embedding.
    SmolLm3,
}

words!(Family {
    Llama = "llama",
    Mistral = "mistral",
    Qwen2 = "qwen2",
    Qwen3 = "qwen3",
    SmolLm3 = "smollm3",
});

impl Family {
    /// The class in `transformers` that has the weights.
    pub(crate) fn architecture(self) -> &'static str {
        match self {
            Family::Llama => "LlamaForCausalLM",
            Family::Mistral => "MistralForCausalLM",
            Family::Qwen2 => "Qwen2ForCausalLM",
            Family::Qwen3 => "Qwen3ForCausalLM",
            Family::SmolLm3 => "SmolLM3ForCausalLM",
        }
    }

    /// Whether the family has the key `attention_bias`.
    pub(crate) fn has_attention_bias(self) -> bool {
        matches!(self, Family::Llama | Family::Qwen3 | Family::SmolLm3)
    }

    /// Whether the family has the key `mlp_bias`.
    pub(crate) fn has_mlp_bias(self) -> bool {
        matches!(self, Family::Llama | Family::SmolLm3)
    }

    /// Whether each layer may have a type of its own.
    pub(crate) fn has_layer_types(self) -> bool {
        matches!(self, Family::Qwen2 | Family::Qwen3 | Family::SmolLm3)
    }

    /// Whether layers may have no rotary embedding.
    pub(crate) fn has_nope_layers(self) -> bool {
        self == Family::SmolLm3
    }

    /// Whether the embedding is the output projection, too, where nothing says it.
    pub(crate) fn ties_embeddings(self) -> bool {
        self == Family::SmolLm3
    }

    /// The base of the rotary frequencies where nothing says it.
    pub(crate) fn rope_theta(self) -> f64 {
        if self == Family::SmolLm3 { 2e6 } else { Rope::THETA }
    }

    /// Whether the family's config.json can give a sliding window to exactly these layers.
    pub fn can_slide(self, slides: &[bool]) -> bool {
        self.has_layer_types() || self == Family::Mistral && slides.iter().all(|slides| *slides)
    }

    /// The keys that a config.json must have because their defaults differ from a Llama's.
    pub(crate) fn wants(self) -> &'static [&'static str] {
        match self {
            Family::Llama => &[],
            Family::Mistral => &["num_key_value_heads", "sliding_window"],
            Family::Qwen2 | Family::SmolLm3 => &["num_key_value_heads"],
            Family::Qwen3 => &["num_key_value_heads", "head_dim"],
        }
    }
}

/// An item of `layer_types`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerType {
    /// Queries see every key that the mask shows.
    Full,
    /// Queries see the nearest `sliding_window` of these keys.
    Sliding,
}

words!(LayerType { Full = "full_attention", Sliding = "sliding_attention" });

impl Shape {
    /// The ids of a special token, such as `eos_token_id`, which may be one or a list.
    pub fn special(&self, name: &str) -> Vec<u32> {
        self.special_tokens.get(name).map(ids).unwrap_or_default()
    }

    /// The rotary frequencies for sequences of `tokens`.
    pub fn frequencies(&self, tokens: usize) -> Frequencies {
        self.rope.frequencies(self.head_dim, tokens)
    }

    /// Keys that a query of layer `layer` sees at most, itself included; `None`: all that the mask
    /// lets be seen.
    pub fn window_of(&self, layer: usize) -> Option<usize> {
        let slides = self.layer_types.get(layer) == Some(&LayerType::Sliding);
        self.sliding_window.filter(|_| slides)
    }

    /// The layers by their window in sequences of `tokens`, those without one first; a window no shorter than the sequence counts as none.
    pub fn windows(&self, tokens: usize) -> BTreeMap<Option<usize>, Vec<usize>> {
        let mut windows: BTreeMap<Option<usize>, Vec<usize>> = BTreeMap::new();
        for layer in 0..self.num_hidden_layers {
            let window = self.window_of(layer).filter(|window| *window < tokens);
            windows.entry(window).or_default().push(layer);
        }
        windows
    }

    /// Whether queries, keys and values are projected with a bias.
    pub fn has_query_key_value_bias(&self) -> bool {
        self.attention_bias || self.model_type == Family::Qwen2
    }

    /// Whether the heads of queries and keys have norms.
    pub fn has_query_key_norm(&self) -> bool {
        self.model_type == Family::Qwen3
    }

    /// `max_position_embeddings` of a model that is trained on sequences of `tokens`. It grows with
    /// them, unless frequencies are made from it.
    pub fn longest(&self, tokens: usize) -> usize {
        let written = self.max_position_embeddings.unwrap_or(tokens);
        if self.follows_length() { written } else { written.max(tokens) }
    }

    /// Tokens of the longest sequence that the model was trained for; `None` where its config.json does not say, or frequencies follow
    /// the length.
    pub fn trained_for(&self) -> Option<usize> {
        self.max_position_embeddings.filter(|_| !self.follows_length())
    }

    /// Whether rotary frequencies follow the length of each sequence.
    fn follows_length(&self) -> bool {
        matches!(self.rope.scaling, Scaling::Dynamic { .. })
    }

    /// The table that hidden states are projected to logits with: where weights are tied, the embedding.
    pub fn projects_with(&self) -> FullyTrained {
        if self.tie_word_embeddings { FullyTrained::Embeddings } else { FullyTrained::Head }
    }
}

/// Contradictions between sizes, whose keys begin with `prefix`.
pub(crate) fn consistent(shape: &Shape, places: &Places, prefix: &str) -> Vec<Problem> {
    let key = |name: &str| format!("{prefix}{name}");
    let (hidden, heads) = (shape.hidden_size, shape.num_attention_heads);
    let mut problems = Vec::new();
    if !places.contains(&key("head_dim")) && !hidden.is_multiple_of(heads) {
        let message = format!("`hidden_size` {hidden} is not divisible by {heads} heads");
        let problem = places.problem(&key("num_attention_heads"), message);
        problems.push(problem.hint("choose a divisor, or give `head_dim`"));
    } else if !shape.head_dim.is_multiple_of(2) {
        let message = format!(
            "`{}` is {}, but must be even: rotary embeddings rotate pairs of elements",
            key("head_dim"),
            shape.head_dim
        );
        let at = if places.contains(&key("head_dim")) { "head_dim" } else { "num_attention_heads" };
        problems.push(places.problem(&key(at), message).hint("make it even"));
    } else {
        let sections = ["rope_parameters", "rope_scaling"].map(key);
        let section = sections.into_iter().find(|section| places.contains(section));
        let section = section.unwrap_or_else(|| key("rope_theta"));
        problems.extend(check_frequencies(shape, places, &section));
    }
    let groups = shape.num_key_value_heads;
    if !heads.is_multiple_of(groups) {
        let message = format!("{heads} query heads cannot share {groups} KV heads evenly");
        let problem = places.problem(&key("num_key_value_heads"), message);
        problems.push(problem.hint(format!("choose a divisor of {heads}")));
    }
    if shape.initializer_range > 1.0 {
        let found = shape.initializer_range;
        let message =
            format!("`initializer_range` is {found}, and transformers takes no more than 1");
        problems.push(places.problem(&key("initializer_range"), message));
    }
    problems
}

/// Checks the rotary frequencies that `section` defines, for heads with an even number of elements; `None`: they can be used.
pub fn check_frequencies(shape: &Shape, places: &Places, section: &str) -> Option<Problem> {
    let (pairs, head_dim) = (shape.head_dim / 2, shape.head_dim);
    match &shape.rope.scaling {
        Scaling::LongRope { short, long, .. } => {
            let wrong = [("short_factor", short), ("long_factor", long)];
            let (key, found) = wrong.into_iter().find(|(_, factors)| factors.len() != pairs)?;
            let message = format!(
                "`{section}.{key}` has {} factors, but heads of {head_dim} have {pairs} pairs",
                found.len()
            );
            return Some(places.problem(&format!("{section}.{key}"), message));
        }
        Scaling::Llama3 { low, high, .. } if low >= high => {
            let message = format!("`{section}.high_freq_factor` is {high}, no more than {low}");
            return Some(places.problem(&format!("{section}.high_freq_factor"), message));
        }
        _ => {}
    }
    let Frequencies { inverse, factor } = shape.frequencies(shape.longest(2));
    let mut found = inverse.into_iter().chain([factor as f32, shape.rope.theta as f32]);
    let sound = found.all(|f| f.is_finite() && f > 0.0);
    let message = format!("`{section}` makes frequencies that are not numbers above 0");
    (!sound).then(|| places.problem(section, message))
}
