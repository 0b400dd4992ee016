//! An experiment as text again: one line per key, in the order of the table. The resolved file, and
//! what must not change when a run goes on, come from this list.

mod lines;

use std::ops::Range;
use std::path::Path;

use annulus_sequence::Strategy;

use self::lines::Lines;
use crate::attention::AUTOMATIC;
use crate::sliding::listed;
use crate::stages::SECTION;
use crate::{Dealt, Experiment, ModelSource, Pack, return_word};

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
        let order = list(self.stages.iter().map(|stage| stage.name.clone()));
        let order = Some((String::from(SECTION), order)).filter(|_| !self.stages.is_empty());
        order.into_iter().chain(lines.filter(|(key, _)| !free(key))).collect()
    }

    /// Every key and its value, in the order of the documentation.
    fn lines(&self) -> Vec<Line> {
        let mut lines = Lines(Vec::new());
        lines.push("name", &[quoted(&self.name)]);
        lines.push("seed", &[self.seed]);
        lines.push("device", &[self.device.word()]);
        self.model(&mut lines);
        self.extend.iter().for_each(|extension| lines.extend("extend", extension));
        self.lora.iter().for_each(|lora| lines.lora(lora));
        self.data_and_mesh(&mut lines);
        self.attention_and_memory(&mut lines);
        self.optimizer_and_schedule(&mut lines);
        for (number, stage) in self.stages.iter().enumerate() {
            lines.stage(stage, number == 0);
        }
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
        if self.stages.is_empty() {
            lines.push("data.tokens", &[data.tokens]);
        }
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
        if self.stages.is_empty() {
            lines.push("schedule.steps", &[schedule.steps]);
        }
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
