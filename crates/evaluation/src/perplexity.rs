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

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use annulus_experiment::EvaluationWindows;
use annulus_train::{Result, Setup, Verdict, judge};
use serde::{Deserialize, Deserializer, Serialize};

use crate::statistics::Mean;
use crate::windows::Windows;
use crate::{Progress, Subject};

/// The number of position buckets of a curve.
const BUCKETS: usize = 32;

/// Losses by length and by position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Perplexity {
    /// The experiment's name.
    pub name: String,
    /// Where the weights were read from.
    pub weights: String,
    /// The number of steps that the weights were trained for.
    pub step: u64,
    /// The number of ranks that shared a sequence.
    pub ranks: usize,
    /// The strategies of the layers, in words.
    pub strategy: String,
    /// The number of windows over the text.
    pub windows: usize,
    /// The number of targets in each window.
    pub targets: usize,
    /// Losses by sequence length, ascending.
    pub lengths: Vec<Length>,
    /// Losses by position, in sequences of the greatest length; none where windows follow each other without gaps.
    pub positions: Vec<Bucket>,
    /// Losses by text in the order of windows, where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub texts: Vec<TextLoss>,
}

/// The loss of one text of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TextLoss {
    /// Its path in `data.path`.
    pub path: PathBuf,
    /// The number of its windows.
    pub windows: usize,
    /// The loss of their targets in sequences of the greatest length, mean and error over its windows.
    pub loss: Mean,
}

/// The loss of the targets in sequences of one length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Length {
    /// Input tokens of a sequence.
    pub tokens: usize,
    /// Negative log-likelihood of a target in nats, mean and error over windows.
    pub loss: Mean,
    /// `exp(loss)`; infinite where that is, which JSON writes as `null`.
    #[serde(deserialize_with = "or_infinite")]
    pub perplexity: f64,
    /// The difference to the loss at another length.
    pub difference: Option<Difference>,
    /// The mean loss of every window.
    pub by_window: Vec<f64>,
}

/// The loss at one length minus the loss at another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// The length that is compared with.
    pub against: usize,
    /// Mean and error of the differences by window: negative where more context helps.
    pub loss: Mean,
}

/// The loss over a range of positions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// The first position.
    pub from: usize,
    /// One past the last position.
    pub to: usize,
    /// The loss, mean and error over windows.
    pub loss: Mean,
}

/// Measures the losses of `subject` at every length of its experiment's `evaluation`.
///
/// # Errors
/// A text that is too short, a length that cannot be split, a loss that is not a number.
pub fn perplexity(subject: &Subject, progress: Progress<'_>) -> Result<Perplexity> {
    let experiment = &subject.plan.experiment;
    let lengths = experiment.evaluated_lengths();
    let (windows, setups) = subject.shared(|| {
        let windows = Windows::open(subject, progress)?;
        Ok((windows, setups(subject, &lengths)?))
    })?;
    subject.check_processes_agree("the texts", windows.fingerprints())?;
    let longest = lengths[lengths.len() - 1];
    // Windows without gaps overlap: each position but the last ones would be computed many times.
    let overlap = experiment.evaluation.windows == Some(EvaluationWindows::All);
    let mut found = Vec::new();
    let mut positions = Vec::new();
    for (&tokens, setup) in lengths.iter().zip(&setups) {
        let all = tokens == longest && !overlap;
        let verdicts = ask(subject, setup, &windows, all, progress)?;
        found.push(Length::of(tokens, windows.targets, &verdicts));
        if all {
            positions = by_position(&verdicts, longest);
        }
    }
    let texts = by_text(&windows, found.last());
    compare(&mut found, experiment.evaluation.against.unwrap_or(lengths[0]));
    Ok(Perplexity {
        name: experiment.name.clone(),
        weights: subject.folder.display().to_string(),
        step: subject.step,
        ranks: experiment.mesh.sequence,
        strategy: subject.plan.strategies(|strategy| strategy.name().to_owned()),
        windows: windows.count(),
        targets: windows.targets,
        lengths: found,
        positions,
        texts,
    })
}

impl Length {
    /// The losses of the last `targets` tokens of windows of `tokens`.
    fn of(tokens: usize, targets: usize, verdicts: &[Vec<Verdict>]) -> Length {
        let first = tokens - targets;
        let asked = |verdicts: &Vec<Verdict>| {
            mean(verdicts.iter().filter(|verdict| verdict.position >= first))
        };
        let by_window: Vec<f64> = verdicts.iter().filter_map(asked).collect();
        let loss = Mean::of(&by_window);
        Length { tokens, loss, perplexity: loss.mean.exp(), difference: None, by_window }
    }
}

/// The subject's setup for sequences of every length.
fn setups(subject: &Subject, lengths: &[usize]) -> Result<Vec<Setup>> {
    lengths.iter().map(|&tokens| subject.setup(tokens)).collect()
}

/// The losses and predictions at the targets, by window.
fn ask(
    subject: &Subject,
    setup: &Setup,
    windows: &Windows,
    all: bool,
    progress: Progress<'_>,
) -> Result<Vec<Vec<Verdict>>> {
    let (tokens, count) = (setup.tokens, windows.count());
    let what = format!("loss behind {tokens} tokens");
    progress(&what, 0, count);
    let done = AtomicUsize::new(0);
    let told = || progress(&what, done.fetch_add(1, Ordering::Relaxed) + 1, count);
    let sequence = |index| windows.sequence(index, tokens, all);
    judge(setup, &subject.weights, count, &sequence, &told)
}

/// The losses of the greatest length by text; nothing where there is one text.
fn by_text(windows: &Windows, longest: Option<&Length>) -> Vec<TextLoss> {
    let mut losses = longest.map_or(&[][..], |length| &length.by_window[..]);
    let of_text = |(path, count): (&PathBuf, usize)| {
        let (own, others) = losses.split_at(count);
        losses = others;
        TextLoss { path: path.clone(), windows: count, loss: Mean::of(own) }
    };
    let texts: Vec<TextLoss> = windows.by_text().map(of_text).collect();
    if texts.len() == 1 { Vec::new() } else { texts }
}

/// The mean loss; `None` without verdicts.
fn mean<'a>(verdicts: impl Iterator<Item = &'a Verdict>) -> Option<f64> {
    let (sum, count) =
        verdicts.fold((0.0, 0_usize), |(sum, count), verdict| (sum + verdict.loss, count + 1));
    (count > 0).then(|| sum / count as f64)
}

/// Losses by range of positions, without ranges that have no target in any window.
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

/// A number that JSON writes as `null` where it is infinite.
pub(crate) fn or_infinite<'de, D: Deserializer<'de>>(
    from: D,
) -> std::result::Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::INFINITY))
}

/// Compares every length with `against` tokens, window by window.
fn compare(lengths: &mut [Length], against: usize) {
    let Some(base) = lengths.iter().find(|length| length.tokens == against) else { return };
    let base = base.by_window.clone();
    for length in lengths.iter_mut().filter(|length| length.tokens != against) {
        let pairs = length.by_window.iter().zip(&base);
        let differences: Vec<f64> = pairs.map(|(own, base)| own - base).collect();
        length.difference = Some(Difference { against, loss: Mean::of(&differences) });
    }
}
