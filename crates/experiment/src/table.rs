//! Every key of the experiment file: its type, its default, what it means. Reading, the JSON
//! Schema, the resolved file and the hints of errors all come from here.

mod attention;
mod evaluation;
mod lora;
mod model;
mod rope;
mod stages;

use crate::data::{Format, Longer, Pack};
use crate::experiment::{Decay, Recompute};
use crate::quantity::Unit;
use crate::stages::SECTION as STAGES;
use attention::ATTENTION;
pub(crate) use attention::AUTO;
use evaluation::EVALUATION;
use lora::LORA;
pub(crate) use model::{CONFIG, MODEL, SHAPE};
use rope::EXTEND;
pub(crate) use rope::ROPE;
use stages::STAGE;

/// One key.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) default: Absent,
    pub(crate) about: &'static str,
}

/// What a key takes.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// A word that can be the name of a folder.
    Name,
    /// Any text.
    Text,
    /// `auto`, `cpu`, `cuda` or `cuda:N`.
    Device,
    /// One of these words.
    Word(&'static [&'static str]),
    /// `true` or `false`: config.json's own, nowhere else.
    Truth,
    /// A whole number between two bounds.
    Count(u64, u64),
    /// A count of tokens, where `64k` is 65536 and `1M` is 1048576.
    Tokens(u64, u64),
    /// A number.
    Real(Interval),
    /// Two numbers.
    Pair(Interval),
    /// A list of numbers.
    Reals(Interval),
    /// A list of some of these words.
    Words(&'static [&'static str]),
    /// A list of whole numbers between two bounds.
    Counts(u64, u64),
    /// A list of counts of tokens up to a bound.
    Sizes(u64),
    /// A list of counts of tokens up to a bound, or the word `data`.
    Lengths(u64),
    /// A list of whole numbers up to a bound, and of ranges of them.
    Ranges(u64),
    /// `60`, `60s`, `500ms` or `5m`.
    Seconds,
    /// A number with a unit.
    Quantity(Unit),
    /// Keys of their own. Of two groups, the second is required where the first key of the first is
    /// absent, and refused where it is there.
    Section(&'static [&'static [Key]]),
    /// A section of these keys for every word one likes.
    Each(&'static [Key]),
}

/// Which numbers are meant.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Interval {
    Any,
    AboveZero,
    AtLeastZero,
    ZeroToOne,
    ZeroToBelowOne,
}

/// What an absent key means.
#[derive(Clone, Copy)]
pub(crate) enum Absent {
    Required,
    /// Required where the file has no section of this name.
    RequiredWithout(&'static str),
    /// As if this were written.
    Is(&'static str),
    /// Something that follows from other keys, in words.
    Means(&'static str),
}

use Absent::{Is, Means, Required, RequiredWithout};
use Kind::{Count, Counts, Each, Name, Pair, Real, Seconds, Section, Text, Tokens, Word};

pub(crate) const fn key(
    name: &'static str,
    kind: Kind,
    default: Absent,
    about: &'static str,
) -> Key {
    Key { name, kind, default, about }
}

/// More tokens than any sequence has; keeps products of sizes within 64 bits.
const MOST_TOKENS: u64 = 1 << 31;
/// More layers than any model has.
const MOST_LAYERS: u64 = 1 << 12;
const MOST_STEPS: u64 = 1 << 40;
/// More positions than a model is ever said to have.
const MOST_POSITIONS: u64 = 1 << 40;

pub(crate) const EXPERIMENT: &[Key] = &[
    key("name", Name, Required, "what the run is called"),
    key("seed", Count(0, u64::MAX), Is("0"), "everything random is a function of it"),
    key("device", Kind::Device, Is("auto"), "what computes: a GPU if there is one, or say which"),
    key(
        "model",
        Section(&[MODEL, SHAPE]),
        Required,
        "a Hugging Face folder, or the keys of a config.json",
    ),
    key(
        "extend",
        Section(&[EXTEND]),
        Means("the model as it is"),
        "longer sequences than the model was trained for",
    ),
    key(
        "lora",
        Section(&[LORA]),
        Means("everything is trained"),
        "adapters that learn beside weights that do not",
    ),
    key("data", Section(&[DATA]), Required, "what is read, and how much of it per step"),
    key(
        "mesh",
        Section(&[MESH]),
        Means("one rank"),
        "the ranks as a grid of replicas by parts of a sequence",
    ),
    key(
        "attention",
        Section(&[ATTENTION]),
        Means("causal attention on one rank"),
        "who sees whom, and how it is split over ranks",
    ),
    key(
        "memory",
        Section(&[MEMORY]),
        Means("the fastest that fits into the machine"),
        "what is traded for memory; changes no result",
    ),
    key("optimizer", Section(&[OPTIMIZER]), Required, "AdamW on f32 masters"),
    key(
        "schedule",
        Section(&[SCHEDULE]),
        RequiredWithout(STAGES),
        "how long, and the learning rate over it",
    ),
    key(
        "stages",
        Each(STAGE),
        Means("the file is the only one"),
        "lengths one after another, by names of one's own: each goes on where the one before ended",
    ),
    key(
        "every",
        Section(&[EVERY]),
        Means("log each step, evaluate and save at the end"),
        "how often something happens, in steps",
    ),
    key(
        "evaluation",
        Section(&[EVALUATION]),
        Means("as below"),
        "what `annulus evaluate` asks of the model; changes no run",
    ),
    key(
        "trace",
        Section(&[TRACE]),
        Means("nothing is recorded"),
        "steps of which every rank records what it does when",
    ),
    key("keep", Count(1, 1 << 20), Is("2"), "checkpoints kept"),
    key("output", Text, Means("runs/NAME"), "the folder of the run"),
    key(
        "expect",
        Each(BOUND),
        Means("nothing is asserted"),
        "bounds by tag that `train --check` asserts",
    ),
];

const DATA: &[Key] = &[
    key("path", Text, Means("the project's own documents"), "a file or folder of texts"),
    key(
        "format",
        Word(Format::WORDS),
        Is("text"),
        "plain text, a JSON object per line, conversations, ready-made batches, or tasks of recall",
    ),
    key(
        "tokenizer",
        Text,
        Means("that of a pretrained model, else `bytes`"),
        "`bytes`, a tokenizer.json, or the tokenizer of a model of the hub: `hf://owner/name@revision`",
    ),
    key("tokens", Tokens(1, MOST_TOKENS), RequiredWithout(STAGES), "inputs per sequence"),
    key("batch", Count(1, 1 << 20), Is("1"), "sequences per optimizer step, whatever the ranks"),
    key(
        "evaluate",
        Count(0, 1 << 30),
        Means("8, or 0 where `format` is batches"),
        "sequences held out at the end of the data",
    ),
    key(
        "pack",
        Word(Pack::WORDS),
        Means("`documents` for conversations, else `stream`"),
        "documents one after the other, cut where a sequence ends, or whole ones and padding",
    ),
    key(
        "longer",
        Word(Longer::WORDS),
        Is("refuse"),
        "what becomes of a document longer than a sequence, where they are packed whole",
    ),
];

const MESH: &[Key] = &[
    key("data", Count(1, 1 << 12), Is("1"), "replicas"),
    key("sequence", Count(1, 1 << 8), Is("1"), "ranks that share one sequence"),
    key(
        "weights",
        Counts(0, 1 << 16),
        Means("all ranks alike"),
        "what the ranks of a sequence hold of it, in proportion: one number for each",
    ),
    key("deadline", Seconds, Is("60s"), "how long a rank waits for one that shows no progress"),
    key(
        "cluster",
        Text,
        Means("the threads of this machine"),
        "the file of the cluster that `strategy: auto` chooses for",
    ),
];

const MEMORY: &[Key] = &[
    key(
        "recompute",
        Word(Recompute::WORDS),
        Is("auto"),
        "what backward computes again; auto: nothing, where that fits into the budget",
    ),
    key(
        "budget",
        Tokens(1, 1 << 60),
        Means("three quarters of the machine's memory, or of the GPU's"),
        "bytes that all ranks may hold together",
    ),
    key(
        "micro_batch",
        Count(1, 1 << 20),
        Means("all of a replica's sequences"),
        "sequences per rank at once",
    ),
    key(
        "loss_chunk",
        Tokens(1, MOST_TOKENS),
        Means("as many as fit into the budget"),
        "tokens of logits held at once",
    ),
    key(
        "mlp_chunk",
        Tokens(1, MOST_TOKENS),
        Means("as many as fit into the budget"),
        "tokens of the feed-forward layer held at once",
    ),
];

const OPTIMIZER: &[Key] = &[
    key("name", Word(&["adamw"]), Is("adamw"), "the method"),
    key("learning_rate", Real(Interval::AboveZero), Required, "the peak"),
    key("betas", Pair(Interval::ZeroToBelowOne), Is("[0.9, 0.95]"), "decay of the two moments"),
    key("epsilon", Real(Interval::AboveZero), Is("1e-8"), "added to the root of the second moment"),
    key("weight_decay", Real(Interval::AtLeastZero), Is("0.1"), "on two-dimensional parameters"),
    key(
        "clip",
        Real(Interval::AtLeastZero),
        Is("1.0"),
        "largest global norm of the gradient; 0: any",
    ),
];

const SCHEDULE: &[Key] = &[
    key("steps", Count(1, MOST_STEPS), RequiredWithout(STAGES), "optimizer steps"),
    key(
        "stop",
        Count(1, MOST_STEPS),
        Means("steps"),
        "ends the run after so many, without touching the schedule",
    ),
    key("warmup", Count(0, MOST_STEPS), Is("0"), "steps of linear warm-up"),
    key("decay", Word(Decay::WORDS), Is("constant"), "the learning rate after warm-up"),
    key("floor", Real(Interval::ZeroToOne), Is("0.1"), "share of the peak that remains at the end"),
];

const EVERY: &[Key] = &[
    key("log", Count(0, MOST_STEPS), Is("1"), "steps between log lines; 0: never"),
    key("evaluate", Count(0, MOST_STEPS), Is("0"), "steps between evaluations; 0: at the end"),
    key("checkpoint", Count(0, MOST_STEPS), Is("0"), "steps between checkpoints; 0: at the end"),
];

const TRACE: &[Key] = &[key(
    "steps",
    Kind::Ranges(MOST_STEPS),
    Means("none"),
    "optimizer steps, from 1, and ranges of them; each becomes `trace-STEP.json` in the run's folder",
)];

const BOUND: &[Key] = &[
    key("min", Real(Interval::Any), Means("none"), "the last value is at least this"),
    key("max", Real(Interval::Any), Means("none"), "the last value is at most this"),
    key(
        "of_first",
        Real(Interval::AboveZero),
        Means("none"),
        "the last value is at most this share of the first",
    ),
];
