//! The keys of a config.json, and the shape that they mean.

use std::collections::BTreeMap;

use annulus_yaml::Absent::{Is, Means, Required};
use annulus_yaml::Interval::AboveZero;
use annulus_yaml::Kind::{Count, Counts, Real, Section, Tokens, Truth, Word, Words};
use annulus_yaml::{Places, Problem, section};

use crate::rope::{RopeKeysAsWritten, WORDS};
use crate::{Family, LayerType, Parameters, Rope, Scaling, Shape, shape};

/// The most layers that a model may have.
pub const MOST_LAYERS: u64 = 1 << 12;
/// The most positions that a model may be said to have.
pub const MOST_POSITIONS: u64 = 1 << 40;
/// The number of layers before the first with a sliding window, where nothing says it.
const WINDOW_LAYERS: usize = 28;
/// Every how many layers one has no rotary embedding, where nothing says it.
const NOPE_INTERVAL: usize = 4;

section! {
    /// The keys of a config.json that make a model, inline or in the file itself.
    #[derive(Clone, Debug, PartialEq)]
    pub struct ShapeKeys {
        model_type: Family = Word(Family::WORDS), Is("llama"), "the family";
        hidden_size: usize = Count(1, 1 << 20), Required, "width of the residual stream";
        intermediate_size: usize = Count(1, 1 << 22), Required, "width of the feed-forward layer";
        num_hidden_layers: usize = Count(1, MOST_LAYERS), Required, "layers";
        num_attention_heads: usize = Count(1, 1 << 12), Required, "query heads";
        num_key_value_heads: Option<usize> = Count(1, 1 << 12), Means("num_attention_heads"),
            "KV heads";
        head_dim: Option<usize> = Count(1, 1 << 10), Means("hidden_size / num_attention_heads"),
            "elements per head";
        vocab_size: Option<usize> = Tokens(1, 1 << 28), Means("what the tokenizer has"),
            "tokens in the vocabulary";
        max_position_embeddings: Option<usize> = Tokens(1, MOST_POSITIONS), Means("data.tokens"),
            "longest sequence the model was trained for; `extend` starts from it";
        rope_parameters: Option<RopeKeys> = Section(RopeKeys::KEYS), Means("frequencies as they are"),
            "how the rotary frequencies are scaled";
        rope_scaling: Option<RopeKeys> = Section(RopeKeys::KEYS), Means("rope_parameters"),
            "the same in the words of transformers 4, beside rope_theta";
        sliding_window: Option<usize> = Count(1, MOST_POSITIONS), Means("no layer slides"),
            "sliding window in keys: mistral, qwen2, qwen3, smollm3";
        use_sliding_window: Option<bool> = Truth, Means("false"), "whether layers have the sliding window: qwen2, qwen3; of smollm3, those without rotary embedding";
        max_window_layers: Option<usize> = Count(0, 1 << 12), Means("28"),
            "layers with full attention before the first with the window: qwen2, qwen3";
        layer_types: Option<Vec<LayerType>> = Words(LayerType::WORDS),
            Means("what the window's keys say"), "`full_attention` or `sliding_attention` for each layer";
        no_rope_layers: Option<Vec<usize>> = Counts(0, 1), Means("what no_rope_layer_interval says"),
            "for each layer 1, or 0 for one without rotary embedding (NoPE): smollm3";
        no_rope_layer_interval: Option<usize> = Count(1, MOST_LAYERS), Means("4"),
            "every how many layers one has no rotary embedding: smollm3";
        rms_norm_eps: f64 = Real(AboveZero), Is("1e-5"), "epsilon of RMSNorm";
        tie_word_embeddings: Option<bool> = Truth, Means("false; true for smollm3"), "whether the output projection shares the embedding's weights";
        attention_bias: bool = Truth, Is("false"), "whether q, k, v and o have a bias";
        mlp_bias: bool = Truth, Is("false"), "whether gate, up and down have a bias";
        hidden_act: String = Word(&["silu"]), Is("silu"), "activation of the feed-forward gate";
        initializer_range: f64 = Real(AboveZero), Is("0.02"), "standard deviation of random initial weights";
    }
}

section! {
    /// `rope_parameters` (transformers 5) and `rope_scaling` (4).
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct RopeKeys {
        rope_type: Option<String> = Word(WORDS), Means("default"), "how the rotary frequencies are scaled";
        r#type: Option<String> = Word(WORDS), Means("rope_type"), "its older name";
        rope_theta: Option<f64> = Real(AboveZero), Means("10000; 2000000 for smollm3"), "base of the frequencies";
        partial_rotary_factor: Option<f64> = Real(AboveZero), Means("1"),
            "fraction of the head dimension with rotary embedding";
        ..parameters: Parameters;
    }
}

section! {
    /// The keys of a config.json beside those of a shape.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct TopLevelKeys {
        rope_theta: Option<f64> = Real(AboveZero), Means("rope_parameters.rope_theta"),
            "base of the frequencies";
        original_max_position_embeddings: Option<usize> = Tokens(2, MOST_POSITIONS),
            Means("rope_parameters.original_max_position_embeddings"),
            "the length before any scaling";
    }
}

/// The shape that keys under `prefix` mean, with those beside them.
///
/// # Errors
/// Keys that contradict each other, are missing, or do not go together.
pub fn shape_of(
    keys: &ShapeKeys,
    top_level: &TopLevelKeys,
    prefix: &str,
    places: &Places,
) -> Result<Shape, Vec<Problem>> {
    let sections = [&keys.rope_parameters, &keys.rope_scaling];
    let rope =
        RopeKeysAsWritten { prefix, sections, top_level, longest: keys.max_position_embeddings }
            .rope(keys.model_type.rope_theta(), places);
    let reading = Reading { keys, prefix, places };
    let (layers, mut problems) = (reading.layers(), reading.biases());
    match (rope, layers) {
        (Ok(rope), Ok(layers)) if problems.is_empty() => {
            let shape = keys.shape(rope, layers);
            problems = shape::consistent(&shape, places, prefix);
            if problems.is_empty() { Ok(shape) } else { Err(problems) }
        }
        (rope, layers) => {
            let rope = rope.err().into_iter().flatten();
            Err(rope.chain(layers.err()).chain(problems).collect())
        }
    }
}

/// What layers differ by.
struct Layers {
    sliding_window: Option<usize>,
    types: Vec<LayerType>,
    without_rope: Vec<usize>,
}

impl ShapeKeys {
    /// The shape with this rotary embedding and these layers.
    fn shape(&self, rope: Rope, layers: Layers) -> Shape {
        let Layers { sliding_window, types: layer_types, without_rope: nope_layers } = layers;
        let heads = self.num_attention_heads;
        Shape {
            model_type: self.model_type,
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            num_hidden_layers: self.num_hidden_layers,
            num_attention_heads: heads,
            num_key_value_heads: self.num_key_value_heads.unwrap_or(heads),
            head_dim: self.head_dim.unwrap_or(self.hidden_size / heads),
            vocab_size: self.vocab_size,
            max_position_embeddings: self.max_position_embeddings,
            rms_norm_eps: self.rms_norm_eps,
            rope,
            sliding_window,
            layer_types,
            nope_layers,
            tie_word_embeddings: self
                .tie_word_embeddings
                .unwrap_or_else(|| self.model_type.ties_embeddings()),
            attention_bias: self.attention_bias,
            mlp_bias: self.mlp_bias,
            initializer_range: self.initializer_range,
            special_tokens: BTreeMap::new(),
        }
    }
}

struct Reading<'a> {
    keys: &'a ShapeKeys,
    prefix: &'a str,
    places: &'a Places,
}

impl Reading<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Problems of biases that the family does not have.
    fn biases(&self) -> Vec<Problem> {
        let (keys, family) = (self.keys, self.keys.model_type);
        let biases = [
            ("attention_bias", keys.attention_bias, family.has_attention_bias()),
            ("mlp_bias", keys.mlp_bias, family.has_mlp_bias()),
        ];
        let strays = biases.into_iter().filter(|(_, given, known)| *given && !known);
        let problem = |(name, ..): (&str, bool, bool)| {
            let key = self.key(name);
            let message = format!("`{key}` is true, but no `{}` has it", family.word());
            self.places.problem(&key, message).hint(format!("remove `{name}`"))
        };
        strays.map(problem).collect()
    }

    fn layers(&self) -> Result<Layers, Problem> {
        let without_rope = self.nope_layers()?;
        let (sliding_window, types) = self.windows(&without_rope)?;
        Ok(Layers { sliding_window, types, without_rope })
    }

    /// The layers without rotary embedding.
    fn nope_layers(&self) -> Result<Vec<usize>, Problem> {
        let (family, layers) = (self.keys.model_type, self.keys.num_hidden_layers);
        let written = &self.keys.no_rope_layers;
        let names = ["no_rope_layers", "no_rope_layer_interval"];
        let given = [written.is_some(), self.keys.no_rope_layer_interval.is_some()];
        if !family.has_nope_layers() {
            let Some((name, _)) = names.into_iter().zip(given).find(|(_, given)| *given) else {
                return Ok(Vec::new());
            };
            let key = self.key(name);
            let message = format!(
                "`{key}` is given, but every layer of a `{}` has a rotary embedding",
                family.word()
            );
            return Err(self
                .places
                .problem(&key, message)
                .hint("`model_type: smollm3` may have layers without"));
        }
        let Some(written) = written else {
            let interval = self.keys.no_rope_layer_interval.unwrap_or(NOPE_INTERVAL);
            return Ok((0..layers).filter(|layer| (layer + 1).is_multiple_of(interval)).collect());
        };
        if written.len() < layers {
            let (key, found) = (self.key(names[0]), written.len());
            let message = format!("`{key}` has {found} numbers, but the model has {layers} layers");
            return Err(self.places.problem(&key, message));
        }
        Ok((0..layers).filter(|layer| written[*layer] == 0).collect())
    }

    /// The sliding window, and which layers have it.
    fn windows(&self, nope: &[usize]) -> Result<(Option<usize>, Vec<LayerType>), Problem> {
        let (family, window) = (self.keys.model_type, self.keys.sliding_window);
        let layers = self.keys.num_hidden_layers;
        let slides = if family.has_layer_types() {
            self.keys.use_sliding_window == Some(true)
        } else {
            window.is_some()
        };
        let problem = |name: &str, message: String| self.places.problem(&self.key(name), message);
        let own = self.key("sliding_window");
        if family == Family::Llama && slides {
            let message = format!("`{own}` is given, but no `llama` slides");
            return Err(problem("sliding_window", message).hint("`model_type: mistral` does"));
        }
        if slides && window.is_none() {
            let message = format!("`{own}` is missing beside `use_sliding_window`");
            return Err(problem("use_sliding_window", message));
        }
        let usual = self.usual(slides, nope);
        let Some(written) = &self.keys.layer_types else {
            return Ok((window.filter(|_| usual.contains(&LayerType::Sliding)), usual));
        };
        if written.len() != layers {
            let (types, found) = (self.key("layer_types"), written.len());
            let message = format!("`{types}` has {found} words, but the model has {layers} layers");
            return Err(problem("layer_types", message));
        }
        let any = written.contains(&LayerType::Sliding);
        let fits = if family.has_layer_types() { slides || !any } else { *written == usual };
        if !fits {
            let all = "all layers of the model slide";
            let said = if slides { all } else { "no layer of the model slides" };
            let message = format!("`{}` says otherwise, but {said}", self.key("layer_types"));
            return Err(problem("layer_types", message));
        }
        Ok((window.filter(|_| any), written.clone()))
    }

    /// The types of layers where no list says them; layers `nope` have no rotary embedding.
    fn usual(&self, slides: bool, nope: &[usize]) -> Vec<LayerType> {
        let family = self.keys.model_type;
        let first = self.keys.max_window_layers.unwrap_or(WINDOW_LAYERS);
        let may_slide = |layer| match family {
            Family::SmolLm3 => nope.contains(&layer),
            Family::Qwen2 | Family::Qwen3 => layer >= first,
            Family::Llama | Family::Mistral => true,
        };
        let usual = |layer| {
            if slides && may_slide(layer) { LayerType::Sliding } else { LayerType::Full }
        };
        (0..self.keys.num_hidden_layers).map(usual).collect()
    }
}

impl Shape {
    /// `no_rope_layers`, in families that have it: 1 for each layer with rotary embedding, 0 for each without.
    pub(crate) fn no_rope_layers(&self) -> Option<Vec<usize>> {
        let of = |layer| usize::from(!self.nope_layers.contains(&layer));
        self.model_type.has_nope_layers().then(|| (0..self.num_hidden_layers).map(of).collect())
    }

    /// The keys that mean this shape, except `rope_theta`.
    pub fn keys(&self) -> ShapeKeys {
        let family = self.model_type;
        let lists = self.sliding_window.is_some() && family.has_layer_types();
        let scaled = self.rope.scaling != Scaling::Default;
        let rope = RopeKeys {
            rope_type: Some(self.rope.scaling.word().to_owned()),
            parameters: self.rope.scaling.parameters(),
            ..RopeKeys::default()
        };
        ShapeKeys {
            model_type: family,
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            num_hidden_layers: self.num_hidden_layers,
            num_attention_heads: self.num_attention_heads,
            num_key_value_heads: Some(self.num_key_value_heads),
            head_dim: Some(self.head_dim),
            vocab_size: self.vocab_size,
            max_position_embeddings: self.max_position_embeddings,
            rope_parameters: Some(rope).filter(|_| scaled),
            rope_scaling: None,
            sliding_window: self.sliding_window,
            use_sliding_window: Some(true).filter(|_| lists),
            max_window_layers: None,
            layer_types: Some(self.layer_types.clone()).filter(|_| lists),
            no_rope_layers: self.no_rope_layers(),
            no_rope_layer_interval: None,
            rms_norm_eps: self.rms_norm_eps,
            tie_word_embeddings: Some(self.tie_word_embeddings),
            attention_bias: self.attention_bias,
            mlp_bias: self.mlp_bias,
            hidden_act: String::from("silu"),
            initializer_range: self.initializer_range,
        }
    }
}
