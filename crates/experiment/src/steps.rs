//! The sections `optimizer`, `every`, `trace`, `sample` and `expect`: what a step does, and in which steps more happens.

use std::ops::Range;
use std::time::Duration;

use annulus_yaml::Absent::{Is, Means, Required};
use annulus_yaml::Interval::{AboveZero, Any, AtLeastZero, ZeroToBelowOne};
use annulus_yaml::Kind::{Count, Pair, Ranges, Real, Seconds, Text, Tokens, Truth, Word};
use annulus_yaml::{section, words};

use crate::schedule::MOST_STEPS;

section! {
    /// The section `optimizer`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Optimizer {
        name: Algorithm = Word(Algorithm::WORDS), Is("adamw"), "the optimizer";
        learning_rate: f64 = Real(AboveZero), Required, "peak learning rate";
        betas: (f64, f64) = Pair(ZeroToBelowOne), Is("[0.9, 0.95]"), "decay rates of the two moments";
        epsilon: f64 = Real(AboveZero), Is("1e-8"), "epsilon of AdamW";
        weight_decay: f64 = Real(AtLeastZero), Is("0.1"), "weight decay, of matrices only: also of embeddings and the LM head, not of norms and biases";
        clip: f64 = Real(AtLeastZero), Is("1.0"), "gradient clipping: largest global norm; 0: none";
    }
}

/// The key `optimizer.name`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// AdamW (Loshchilov and Hutter, arXiv 1711.05101).
    #[default]
    AdamW,
}

words!(Algorithm { AdamW = "adamw" });

section! {
    /// The section `every`: what happens every so many steps, 0 meaning never, and how much is drawn.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Every {
        log: u64 = Count(0, MOST_STEPS), Is("1"), "steps between log lines; 0: never";
        evaluate: u64 = Count(0, MOST_STEPS), Is("0"), "steps between evaluations; there is always one at the end; 0: only that one";
        evaluate_on_start: bool = Truth, Is("false"),
            "also evaluate before the first step, which is logged as step 0, of a fork as the step that it begins after";
        checkpoint: u64 = Count(0, MOST_STEPS), Is("0"), "steps between checkpoints; there is always one at the end; 0: only that one";
        checkpoint_after: Option<Duration> = Seconds, Means("steps alone decide"),
            "a checkpoint is also written at the end of the step in which so much time has passed since the last one";
        hash: u64 = Count(0, MOST_STEPS), Is("0"),
            "hash every N-th step: weights, master weights, moments, gradients, the tokens read and intermediate results \
             (`hashes.jsonl`; independent of how ranks share them), and messages between ranks (`messages.jsonl`). `annulus \
             bisect` compares two runs; 0: never";
        ranks: bool = Truth, Is("false"),
            "TensorBoard curves of every rank, beside least, mean and most";
    }
}

section! {
    /// The section `trace`.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Trace {
        steps: Option<Vec<Range<usize>>> = Ranges(MOST_STEPS), Means("none"),
            "optimizer steps, from 1, and ranges of them; each becomes `trace-STEP.json` in the run's folder";
    }
}

section! {
    /// The section `sample`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Sample {
        prompt: Option<String> = Text, Means("the last held-out text"), "the text that the model continues";
        tokens: usize = Tokens(1, 1 << 20), Is("256"), "number of tokens to generate";
    }
}

impl Trace {
    /// Whether `step` is traced.
    pub fn contains(&self, step: u64) -> bool {
        self.steps.iter().flatten().any(|steps| steps.contains(&(step as usize)))
    }
}

section! {
    /// An item of `expect`: what is asserted of a tag's last value.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    pub struct Bound {
        min: Option<f64> = Real(Any), Means("none"), "the last value is at least this";
        max: Option<f64> = Real(Any), Means("none"), "the last value is at most this";
        of_first: Option<f64> = Real(AboveZero), Means("none"),
            "the last value is at most this share of the first";
    }
}
