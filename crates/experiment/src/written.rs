//! An experiment as text again: one line per key, in the order of the table. The resolved file, and
//! what must not change when a run goes on, come from this list.

use std::ops::Range;
use std::path::Path;

use annulus_sequence::{Exchange, Strategy, Wire};

use crate::attention::AUTOMATIC;
use crate::sliding::listed;
use crate::table::AUTO;
use crate::typed::{DATA, Typed};
use crate::wire::wire_key;
use crate::{
    Attention, Bound, Dealt, Element, Evaluation, Experiment, Extension, Lora, ModelSource, Pack,
    Packed, Parameters, Pattern, Scaling, Shape, Sliding, return_word,
};

/// A key's path and its value as one writes it.
type Line = (Vec<String>, String);

/// What may differ when a run goes on: sections as a whole, and single keys.
const FREE: &[&str] = &[
    "device",
    "mesh",
    "attention.strategy",
    "attention.exchange",
    "attention.shape",
    "attention.groups",
    "attention.layout",
    "attention.stripe",
    "attention.backward",
    "attention.sliding.strategy",
    "attention.sliding.exchange",
    "attention.sliding.shape",
    "attention.sliding.groups",
    "attention.sliding.backward",
    "attention.deterministic",
    "memory",
    "every",
    "evaluation",
    "trace",
    "output",
    "schedule.stop",
];

impl Experiment {
    /// The experiment with every default written out. Reads back as the same experiment.
    pub fn to_yaml(&self) -> String {
        let mut text = String::new();
        let mut open: &[String] = &[];
        let lines = self.lines();
        for (path, value) in &lines {
            let (key, sections) = path.split_last().unwrap_or((value, &[]));
            let shared = open.iter().zip(sections).take_while(|(open, own)| open == own).count();
            if shared == 0 && (!sections.is_empty() || !open.is_empty()) {
                text.push('\n');
            }
            for (depth, section) in sections.iter().enumerate().skip(shared) {
                text.extend(["  ".repeat(depth), quoted(section), String::from(":\n")]);
            }
            text.extend([&"  ".repeat(sections.len()), &quoted(key), ": ", value, "\n"]);
            open = sections;
        }
        text
    }

    /// The keys and values that a run which goes on must share with the run that began: all but
    /// where and how it is computed (`device`, `mesh`, `attention.strategy`, `memory`), how often it reports
    /// (`every`, `trace`, `evaluation`), `output` and `schedule.stop`.
    pub fn identity(&self) -> Vec<(String, String)> {
        let free = |key: &str| {
            FREE.iter().any(|free| {
                key.strip_prefix(free).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            })
        };
        let lines = self.lines().into_iter().map(|(path, value)| (path.join("."), value));
        lines.filter(|(key, _)| !free(key)).collect()
    }

    /// Every key and its value, in the order of the documentation.
    fn lines(&self) -> Vec<Line> {
        let mut lines = Lines(Vec::new());
        lines.push("name", &[quoted(&self.name)]);
        lines.push("seed", &[self.seed]);
        lines.push("device", &[self.device.word()]);
        self.model(&mut lines);
        lines.extend(self.extend.as_ref());
        self.lora.iter().for_each(|lora| lines.lora(lora));
        self.data_and_mesh(&mut lines);
        self.attention_and_memory(&mut lines);
        self.optimizer_and_schedule(&mut lines);
        lines.push("every.log", &[self.every.log]);
        lines.push("every.evaluate", &[self.every.evaluate]);
        lines.push("every.checkpoint", &[self.every.checkpoint]);
        lines.evaluation(&self.evaluation);
        let traced = Some(&self.trace.steps).filter(|steps| !steps.is_empty());
        lines.push("trace.steps", traced.map(|steps| ranges(steps)).as_slice());
        lines.push("keep", &[self.keep]);
        lines.push("output", &[path_text(&self.output)]);
        for (tag, bound) in &self.expect {
            lines.bound(tag, bound);
        }
        lines.0
    }

    fn model(&self, lines: &mut Lines) {
        match &self.model.source {
            ModelSource::Folder { path, hub, weights } => {
                let path = hub.as_ref().map_or_else(|| path_text(path), |hub| quoted(hub));
                lines.push("model.path", &[path]);
                lines.push("model.weights", &[weights.word()]);
                lines.push("model.rope_theta", self.model.rope_theta.map(real).as_slice());
            }
            ModelSource::Inline(shape) => lines.shape(shape),
        }
        lines.push("model.dtype", &[self.model.dtype.word()]);
    }

    fn data_and_mesh(&self, lines: &mut Lines) {
        let (data, mesh) = (&self.data, &self.mesh);
        lines.push("data.path", data.path.as_deref().map(path_text).as_slice());
        lines.push("data.format", &[data.format.word()]);
        let tokenizer = data.tokenizer_hub.as_ref().unwrap_or(&data.tokenizer);
        lines.push("data.tokenizer", &[quoted(tokenizer)]);
        lines.push("data.tokens", &[data.tokens]);
        lines.push("data.batch", &[data.batch]);
        lines.push("data.evaluate", &[data.evaluate]);
        if data.pack == Pack::Documents {
            lines.push("data.pack", &[data.pack.word()]);
            lines.push("data.longer", &[data.longer.word()]);
        }
        lines.push("mesh.data", &[mesh.data]);
        lines.push("mesh.sequence", &[mesh.sequence]);
        let weights = mesh.weights.as_ref();
        let weights = weights.map(|weights| list(weights.iter().map(usize::to_string)));
        lines.push("mesh.weights", weights.as_slice());
        let (seconds, rest) = (mesh.deadline.as_secs(), mesh.deadline.subsec_nanos());
        let fraction = if rest == 0 { String::new() } else { format!(".{rest:09}") };
        lines.push("mesh.deadline", &[format!("{seconds}{fraction}s")]);
        lines.push("mesh.cluster", mesh.cluster.as_deref().map(path_text).as_slice());
    }

    fn attention_and_memory(&self, lines: &mut Lines) {
        let (attention, memory) = (&self.attention, &self.memory);
        lines.strategy("attention", attention.strategy, attention.automatic);
        let layout = attention.layout;
        let stripes = match attention.strategy {
            Strategy::Striped { width } if !attention.automatic => Some(width),
            _ => layout.and_then(Dealt::stripe),
        };
        lines.push("attention.layout", layout.map(Dealt::word).as_slice());
        lines.push("attention.stripe", stripes.as_slice());
        lines.push("attention.backward", &[attention.backward.map_or(AUTOMATIC, return_word)]);
        lines.mask(attention);
        lines.push("attention.kernel", &[attention.kernel.word()]);
        lines.push("attention.deterministic", &[attention.deterministic]);
        lines.push("attention.dropout", &[real(attention.dropout)]);
        lines.wire(attention.wire);
        attention.sliding.iter().for_each(|sliding| lines.sliding(sliding));
        lines.push("memory.recompute", &[memory.recompute.word()]);
        lines.push("memory.budget", memory.budget.as_slice());
        lines.push("memory.micro_batch", memory.micro_batch.as_slice());
        lines.push("memory.loss_chunk", memory.loss_chunk.as_slice());
        lines.push("memory.mlp_chunk", memory.mlp_chunk.as_slice());
    }

    fn optimizer_and_schedule(&self, lines: &mut Lines) {
        let (optimizer, schedule) = (&self.optimizer, &self.schedule);
        let (first, second) = optimizer.betas;
        lines.push("optimizer.name", &["adamw"]);
        lines.push("optimizer.learning_rate", &[real(optimizer.learning_rate)]);
        lines.push("optimizer.betas", &[format!("[{}, {}]", real(first), real(second))]);
        lines.push("optimizer.epsilon", &[real(optimizer.epsilon)]);
        lines.push("optimizer.weight_decay", &[real(optimizer.weight_decay)]);
        lines.push("optimizer.clip", &[real(optimizer.clip)]);
        lines.push("schedule.steps", &[schedule.steps]);
        lines.push("schedule.stop", schedule.stop.as_slice());
        lines.push("schedule.warmup", &[schedule.warmup]);
        lines.push("schedule.decay", &[schedule.decay.word()]);
        lines.push("schedule.floor", &[real(schedule.floor)]);
    }
}

/// What `b` has that `a` has not, and the reverse, of [`Experiment::identity`]: key, value in `a`,
/// value in `b`; a key that one of them leaves out is `nothing` there.
pub fn differences(a: &Experiment, b: &Experiment) -> Vec<(String, String, String)> {
    let (old, new) = (a.identity(), b.identity());
    let find = |lines: &[(String, String)], key: &str| {
        let line = lines.iter().find(|line| line.0 == key);
        line.map_or_else(|| String::from("nothing"), |line| line.1.clone())
    };
    let gone = old.iter().filter(|line| !new.iter().any(|other| other.0 == line.0));
    let keys = new.iter().chain(gone).map(|line| &line.0);
    keys.map(|key| (key.clone(), find(&old, key), find(&new, key)))
        .filter(|(_, old, new)| old != new)
        .collect()
}

struct Lines(Vec<Line>);

impl Lines {
    /// A key, if it has a value.
    fn push(&mut self, key: &str, value: &[impl ToString]) {
        if let [value] = value {
            self.0.push((key.split('.').map(str::to_owned).collect(), value.to_string()));
        }
    }

    /// A strategy, and what is written beside it.
    fn strategy(&mut self, section: &str, strategy: Strategy, automatic: bool) {
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

    fn sliding(&mut self, sliding: &Sliding) {
        let Sliding { ref layers, window, strategy, automatic, backward } = *sliding;
        self.push("attention.sliding.layers", &[ranges(layers)]);
        self.push("attention.sliding.window", &[window]);
        self.strategy("attention.sliding", strategy, automatic);
        self.push("attention.sliding.backward", &[backward.map_or(AUTOMATIC, return_word)]);
    }

    fn mask(&mut self, attention: &Attention) {
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

    fn wire(&mut self, wire: Wire<Option<Element>>) {
        let lines = wire.map(|part, element| (wire_key(part), element.map(Element::word)));
        for (key, word) in lines.all() {
            self.push(&format!("attention.wire.{key}"), word.as_slice());
        }
    }

    fn shape(&mut self, shape: &Shape) {
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

    fn extend(&mut self, extension: Option<&Extension>) {
        let Some(Extension { way, tokens, theta, parameters }) = extension else { return };
        self.push("extend.rope", &[way.word()]);
        self.push("extend.tokens", &[tokens]);
        self.push("extend.theta", theta.map(real).as_slice());
        self.parameters("extend", parameters);
    }

    fn lora(&mut self, lora: &Lora) {
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
    fn parameters(&mut self, section: &str, parameters: &Parameters) {
        for (key, value) in parameters.entries() {
            let value = match value {
                Typed::Real(value) => real(value),
                Typed::Reals(values) => list(values.into_iter().map(real)),
                other => other.to_string(),
            };
            self.push(&format!("{section}.{key}"), &[value]);
        }
    }

    fn evaluation(&mut self, evaluation: &Evaluation) {
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
        self.push("evaluation.windows", &[windows]);
        self.push("evaluation.targets", targets.as_slice());
        self.push("evaluation.against", against.as_slice());
    }

    fn bound(&mut self, tag: &str, bound: &Bound) {
        let values = [("min", bound.min), ("max", bound.max), ("of_first", bound.of_first)];
        for (key, value) in values {
            if let Some(value) = value {
                let path = ["expect", tag, key].map(str::to_owned).to_vec();
                self.0.push((path, real(value)));
            }
        }
    }
}

/// The shortest text that reads back as the same number, here and by readers of YAML 1.1: `1.0e-5`,
/// where `1e-5` is text.
fn real(value: f64) -> String {
    let text = format!("{value:?}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    let point = if digits.contains('.') { "" } else { ".0" };
    let sign = if exponent.starts_with('-') { "" } else { "+" };
    format!("{digits}{point}e{sign}{exponent}")
}

/// Numbers and ranges of them: `[0-63, 1000]`.
fn ranges(ranges: &[Range<usize>]) -> String {
    format!("[{}]", listed(ranges))
}

/// A list on one line.
fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

fn path_text(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

/// Text as it stands where YAML reads it as such, else in quotes: JSON's are YAML's.
fn quoted(text: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./+".contains(letter);
    let word = text.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '/');
    let nothing = text.eq_ignore_ascii_case("null");
    if word && !nothing && text.chars().all(plain) {
        text.to_owned()
    } else {
        serde_json::Value::from(text).to_string()
    }
}
