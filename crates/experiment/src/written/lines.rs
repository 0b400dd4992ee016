//! Sections of an experiment as lines.

use annulus_sequence::{Exchange, Strategy, Wire};

use super::{Line, list, path_text, ranges, real};
use crate::attention::AUTOMATIC;
use crate::stages::SECTION;
use crate::table::AUTO;
use crate::typed::{DATA, Typed};
use crate::wire::wire_key;
use crate::{
    Attention, Bound, Element, Evaluation, Extension, Lora, Packed, Parameters, Pattern, Scaling,
    Shape, Sliding, Stage, return_word,
};

/// Keys and their values, as far as they were put together.
pub(super) struct Lines(pub(super) Vec<Line>);

impl Lines {
    /// A key, if it has a value.
    pub(super) fn push(&mut self, key: &str, value: &[impl ToString]) {
        if let [value] = value {
            self.0.push((key.split('.').map(str::to_owned).collect(), value.to_string()));
        }
    }

    /// A strategy, and what is written beside it.
    pub(super) fn strategy(&mut self, section: &str, strategy: Strategy, automatic: bool) {
        let (mut exchange, mut shape, mut groups) = (None, None, None);
        match strategy {
            Strategy::Megatron { exchange: way } => {
                exchange = Some(way.name());
                if let Exchange::Both { shape: written } = way {
                    shape = written;
                }
            }
            Strategy::Usp { shape: written } | Strategy::DoubleRing { shape: written } => {
                shape = written;
            }
            Strategy::AllGather { groups: written } => groups = Some(written),
            _ => {}
        }
        let mut push = |key: &str, value: Option<String>| {
            self.push(&format!("{section}.{key}"), value.as_slice());
        };
        let name = if automatic { AUTO } else { strategy.name() };
        push("strategy", Some(name.to_owned()));
        push("exchange", exchange.map(str::to_owned));
        push("shape", shape.map(|[first, second]| format!("[{first}, {second}]")));
        push("groups", groups.map(|groups: usize| groups.to_string()));
    }

    pub(super) fn sliding(&mut self, sliding: &Sliding) {
        let Sliding { ref layers, window, strategy, automatic, backward } = *sliding;
        self.push("attention.sliding.layers", &[ranges(layers)]);
        self.push("attention.sliding.window", &[window]);
        self.strategy("attention.sliding", strategy, automatic);
        self.push("attention.sliding.backward", &[backward.map_or(AUTOMATIC, return_word)]);
    }

    pub(super) fn mask(&mut self, attention: &Attention) {
        self.push("attention.mask", &[attention.mask.word()]);
        self.push("attention.prefix", attention.prefix.as_slice());
        let documents = attention.documents.as_ref().map(|packed| match packed {
            Packed::Lengths(lengths) => list(lengths.iter().map(usize::to_string)),
            Packed::ByData => String::from(DATA),
        });
        self.push("attention.documents", documents.as_slice());
        self.push("attention.padding", attention.padding.as_slice());
        self.push("attention.window", attention.window.as_slice());
        self.push("attention.pattern", attention.pattern.map(Pattern::word).as_slice());
        self.push("attention.stride", attention.stride.as_slice());
        self.push("attention.columns", attention.columns.as_slice());
        self.push("attention.sinks", attention.sinks.as_slice());
        let global = attention.global.as_deref().map(ranges);
        self.push("attention.global", global.as_slice());
    }

    pub(super) fn wire(&mut self, wire: Wire<Option<Element>>) {
        let lines = wire.map(|part, element| (wire_key(part), element.map(Element::word)));
        for (key, word) in lines.all() {
            self.push(&format!("attention.wire.{key}"), word.as_slice());
        }
    }

    pub(super) fn shape(&mut self, shape: &Shape) {
        let family = shape.model_type;
        self.push("model.model_type", &[family.word()]);
        self.push("model.hidden_size", &[shape.hidden_size]);
        self.push("model.intermediate_size", &[shape.intermediate_size]);
        self.push("model.num_hidden_layers", &[shape.num_hidden_layers]);
        self.push("model.num_attention_heads", &[shape.num_attention_heads]);
        self.push("model.num_key_value_heads", &[shape.num_key_value_heads]);
        self.push("model.head_dim", &[shape.head_dim]);
        self.push("model.vocab_size", shape.vocab_size.as_slice());
        self.push("model.max_position_embeddings", shape.max_position_embeddings.as_slice());
        self.push("model.rms_norm_eps", &[real(shape.rms_norm_eps)]);
        self.push("model.rope_theta", &[real(shape.rope.theta)]);
        if shape.rope.scaling != Scaling::Default {
            let kind = [shape.rope.scaling.word()];
            self.push("model.rope_parameters.rope_type", &kind);
            self.parameters("model.rope_parameters", &shape.rope.scaling.parameters());
        }
        self.push("model.sliding_window", shape.sliding_window.as_slice());
        if shape.sliding_window.is_some() && family.has_layer_types() {
            let words = shape.layer_types.iter().map(|kind| kind.word().to_owned());
            self.push("model.use_sliding_window", &[true]);
            self.push("model.layer_types", &[list(words)]);
        }
        self.push("model.tie_word_embeddings", &[shape.tie_word_embeddings]);
        if family.has_attention_bias() {
            self.push("model.attention_bias", &[shape.attention_bias]);
        }
        if family.has_mlp_bias() {
            self.push("model.mlp_bias", &[shape.mlp_bias]);
        }
        self.push("model.hidden_act", &["silu"]);
        self.push("model.initializer_range", &[real(shape.initializer_range)]);
    }

    /// An extension, in a section.
    pub(super) fn extend(&mut self, section: &str, extension: &Extension) {
        let Extension { way, tokens, theta, parameters } = extension;
        self.push(&format!("{section}.rope"), &[way.word()]);
        self.push(&format!("{section}.tokens"), &[tokens]);
        self.push(&format!("{section}.theta"), theta.map(real).as_slice());
        self.parameters(section, parameters);
    }

    pub(super) fn stage(&mut self, stage: &Stage, first: bool) {
        let Stage { name, tokens, steps, batch, learning_rate, extend, reset } = stage;
        let section = format!("{SECTION}.{name}");
        let key = |key: &str| format!("{section}.{key}");
        self.push(&key("tokens"), &[tokens]);
        self.push(&key("steps"), &[steps]);
        self.push(&key("batch"), batch.as_slice());
        self.push(&key("learning_rate"), learning_rate.map(real).as_slice());
        if let Some(extension) = extend {
            self.extend(&key("extend"), extension);
        }
        if !first {
            self.push(&key("reset"), &[list(reset.iter().map(|what| what.word().to_owned()))]);
        }
    }

    pub(super) fn lora(&mut self, lora: &Lora) {
        let listed = |words: Vec<&str>| list(words.into_iter().map(str::to_owned));
        self.push("lora.rank", &[lora.rank]);
        self.push("lora.alpha", &[real(lora.alpha)]);
        self.push("lora.rslora", &[lora.rslora]);
        self.push("lora.dropout", &[real(lora.dropout)]);
        let targets = lora.targets.iter().map(|target| target.word()).collect();
        self.push("lora.targets", &[listed(targets)]);
        let train = lora.train.iter().map(|what| what.word()).collect();
        self.push("lora.train", &[listed(train)]);
        self.push("lora.path", lora.path.as_deref().map(path_text).as_slice());
    }

    /// What is written beside a kind of rotary embedding.
    pub(super) fn parameters(&mut self, section: &str, parameters: &Parameters) {
        for (key, value) in parameters.entries() {
            let value = match value {
                Typed::Real(value) => real(value),
                Typed::Reals(values) => list(values.into_iter().map(real)),
                other => other.to_string(),
            };
            self.push(&format!("{section}.{key}"), &[value]);
        }
    }

    pub(super) fn evaluation(&mut self, evaluation: &Evaluation) {
        let Evaluation { path, tasks, depths, samples, lengths, windows, targets, against } =
            evaluation;
        let tasks = tasks.as_ref();
        let tasks = tasks.map(|all| list(all.iter().map(|task| task.word().to_owned())));
        let lengths = lengths.as_ref().map(|all| list(all.iter().map(usize::to_string)));
        self.push("evaluation.path", path.as_deref().map(path_text).as_slice());
        self.push("evaluation.tasks", tasks.as_slice());
        self.push("evaluation.depths", &[depths]);
        self.push("evaluation.samples", &[samples]);
        self.push("evaluation.lengths", lengths.as_slice());
        self.push("evaluation.windows", windows.as_slice());
        self.push("evaluation.targets", targets.as_slice());
        self.push("evaluation.against", against.as_slice());
    }

    pub(super) fn bound(&mut self, tag: &str, bound: &Bound) {
        let values = [("min", bound.min), ("max", bound.max), ("of_first", bound.of_first)];
        for (key, value) in values {
            if let Some(value) = value {
                let path = ["expect", tag, key].map(str::to_owned).to_vec();
                self.0.push((path, real(value)));
            }
        }
    }
}
