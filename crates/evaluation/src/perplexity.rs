//! The loss of the same targets behind more and more context, and of every position of the longest sequences.
//!
//! ```text
//!                    begin moves            the last `targets` tokens: the same at every length
//! 8k  |─────────────────────────────────────▒▒▒▒|
//! 2k                             |──────────▒▒▒▒|
//! 1k                                   |────▒▒▒▒|
//! ```
//!
//! So what two lengths differ by is context alone, and differences are taken window by window: most of what makes one window
//! harder than another is in both.

use std::sync::atomic::{AtomicUsize, Ordering};

use annulus_train::{Result, Setup, Verdict, judge};
use serde::{Deserialize, Deserializer, Serialize};

use crate::statistics::Mean;
use crate::windows::Windows;
use crate::{Progress, Subject};

/// Stretches of positions that a curve has.
const BUCKETS: usize = 32;

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Perplexity {
    /// The experiment.
    pub name: String,
    /// Where the weights are from.
    pub weights: String,
    /// Steps they were trained for in their run.
    pub step: u64,
    /// How many ranks shared a sequence.
    pub ranks: usize,
    /// The strategies of the layers.
    pub strategy: String,
    /// Windows over the text.
    pub windows: usize,
    /// Targets in each.
    pub targets: usize,
    /// By length, rising.
    pub lengths: Vec<Length>,
    /// By position, in sequences of the greatest length.
    pub positions: Vec<Bucket>,
}

/// The targets behind sequences of one length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Length {
    /// Inputs.
    pub tokens: usize,
    /// Negative log-likelihood of a target in nats, mean and error over windows.
    pub loss: Mean,
    /// `exp(loss)`; infinite where that is, which JSON writes as `null`.
    #[serde(deserialize_with = "or_infinite")]
    pub perplexity: f64,
    /// How it differs from another length.
    pub difference: Option<Difference>,
    /// The mean of every window.
    pub by_window: Vec<f64>,
}

/// The loss at a length less that at another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// The other length.
    pub against: usize,
    /// Of the differences of windows: negative where more context helps.
    pub loss: Mean,
}

/// Neighbouring positions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// The first.
    pub from: usize,
    /// One past the last.
    pub to: usize,
    /// Mean and error over windows.
    pub loss: Mean,
}

/// Asks `subject` at every length of its experiment's `evaluation`.
///
/// # Errors
/// A text that is too short, a length that cannot be split, a loss that is no number.
pub fn perplexity(subject: &Subject, progress: Progress<'_>) -> Result<Perplexity> {
    let experiment = &subject.plan.experiment;
    let lengths = experiment.evaluated_lengths();
    let (windows, setups) = subject.shared(|| {
        let windows = Windows::open(subject, progress)?;
        Ok((windows, setups(subject, &lengths)?))
    })?;
    let longest = lengths[lengths.len() - 1];
    let mut found = Vec::new();
    let mut positions = Vec::new();
    for (&tokens, setup) in lengths.iter().zip(&setups) {
        let verdicts = ask((subject, setup), &windows, tokens == longest, progress)?;
        let first = tokens - windows.targets;
        let asked = |verdicts: &Vec<Verdict>| {
            mean(verdicts.iter().filter(|verdict| verdict.position >= first))
        };
        let by_window: Vec<f64> = verdicts.iter().filter_map(asked).collect();
        let loss = Mean::of(&by_window);
        let perplexity = loss.mean.exp();
        found.push(Length { tokens, loss, perplexity, difference: None, by_window });
        if tokens == longest {
            positions = by_position(&verdicts, longest);
        }
    }
    compare(&mut found, experiment.evaluation.against.unwrap_or(lengths[0]));
    let mut strategies: Vec<_> =
        subject.plan.groups.iter().map(|group| group.strategy.name()).collect();
    strategies.dedup();
    Ok(Perplexity {
        name: experiment.name.clone(),
        weights: subject.folder.display().to_string(),
        step: subject.step,
        ranks: experiment.mesh.sequence,
        strategy: strategies.join(" and "),
        windows: windows.ends.len(),
        targets: windows.targets,
        lengths: found,
        positions,
    })
}

/// How sequences of every length are split.
fn setups(subject: &Subject, lengths: &[usize]) -> Result<Vec<Setup>> {
    lengths.iter().map(|&tokens| subject.setup(tokens)).collect()
}

/// Verdicts by window.
fn ask(
    (subject, setup): (&Subject, &Setup),
    windows: &Windows,
    all: bool,
    progress: Progress<'_>,
) -> Result<Vec<Vec<Verdict>>> {
    let (tokens, count) = (setup.tokens, windows.ends.len());
    let what = format!("loss behind {tokens} tokens");
    progress(&what, 0, count);
    let done = AtomicUsize::new(0);
    let told = || progress(&what, done.fetch_add(1, Ordering::Relaxed) + 1, count);
    let sequence = |index| windows.sequence(index, tokens, all);
    judge(setup, &subject.weights, count, &sequence, &told)
}

/// The mean loss; of none there is none.
fn mean<'a>(verdicts: impl Iterator<Item = &'a Verdict>) -> Option<f64> {
    let (sum, count) =
        verdicts.fold((0.0, 0_usize), |(sum, count), verdict| (sum + verdict.loss, count + 1));
    (count > 0).then(|| sum / count as f64)
}

/// Stretches of positions, without those that no window has a target in.
fn by_position(verdicts: &[Vec<Verdict>], tokens: usize) -> Vec<Bucket> {
    let width = tokens.div_ceil(BUCKETS);
    let bucket = |from: usize| {
        let to = (from + width).min(tokens);
        let of = |window: &Vec<Verdict>| {
            mean(window.iter().filter(|verdict| (from..to).contains(&verdict.position)))
        };
        let losses = verdicts.iter().filter_map(of).collect::<Vec<_>>();
        (!losses.is_empty()).then(|| Bucket { from, to, loss: Mean::of(&losses) })
    };
    (0..tokens).step_by(width).filter_map(bucket).collect()
}

fn or_infinite<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::INFINITY))
}

/// Every length against the one of `against` tokens, window by window.
fn compare(lengths: &mut [Length], against: usize) {
    let Some(base) = lengths.iter().find(|length| length.tokens == against) else { return };
    let base = base.by_window.clone();
    for length in lengths.iter_mut().filter(|length| length.tokens != against) {
        let pairs = length.by_window.iter().zip(&base);
        let differences: Vec<f64> = pairs.map(|(own, base)| own - base).collect();
        length.difference = Some(Difference { against, loss: Mean::of(&differences) });
    }
}
