//! The loss of conversations over what the assistant says in them, and how many of its answers the model gives.
//!
//! They are rendered, masked and packed as in training, so their loss is its validation loss: the mean over all tokens of the assistant, however
//! many each answer has. An answer is judged as those of tasks are: by the most likely token behind the right ones before it.
//! One that is not whole in a sequence is not judged.

use std::collections::BTreeMap;
use std::iter::zip;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use annulus_data::{Cache, PackingStats};
use annulus_train::{HeldOut, Result, Setup, judge, packing_notes};
use serde::{Deserialize, Serialize};

use crate::answers::Piece;
use crate::perplexity::or_infinite;
use crate::statistics::{Mean, Rate};
use crate::tasks::Answer;
use crate::texts::{Chats, reading};
use crate::{Progress, Subject};

/// What was found about conversations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conversations {
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
    /// Losses and answers by sequence length, ascending.
    pub lengths: Vec<ConversationScores>,
}

/// Conversations in sequences of one length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConversationScores {
    /// Input tokens of a sequence, which several conversations may share.
    pub tokens: usize,
    /// The conversations that are scored.
    pub conversations: usize,
    /// How many of them are scored in part, as they are longer than a sequence.
    pub cut: usize,
    /// The conversations that are not scored: too long, or without a token of the assistant in what fits.
    pub left_out: usize,
    /// The tokens of the assistant that are scored.
    pub targets: usize,
    /// Negative log-likelihood of a token of the assistant in nats: the mean over all of them, and its error over conversations.
    pub loss: Mean,
    /// `exp(loss)`; infinite where that is, which JSON writes as `null`.
    #[serde(deserialize_with = "or_infinite")]
    pub perplexity: f64,
    /// The rate of answers of which every token is right, up to the one that ends an answer; `None`: none is whole in a sequence.
    pub right: Option<Rate>,
    /// The answers that are not scored, as they are not whole in a sequence, also those of conversations that are left out. What is there of
    /// them counts in the loss.
    #[serde(default)]
    pub not_whole: usize,
    /// Losses by source, where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<ConversationLoss>,
    /// Every answer of the assistant that is whole in a sequence, in the order of the data.
    pub answers: Vec<Answer>,
}

/// The loss of the conversations of one source of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConversationLoss {
    /// Its path in `data.path`.
    pub path: PathBuf,
    /// The conversations that are scored.
    pub conversations: usize,
    /// The tokens of the assistant that are scored.
    pub targets: usize,
    /// As in [`ConversationScores::loss`].
    pub loss: Mean,
}

/// Scores the conversations of `evaluation.path`, or those that training held out, at every length of the experiment's `evaluation`.
///
/// # Errors
/// A record that is no conversation with an answer, one that is too long where `data.longer` refuses it, a length that cannot be split, a loss
/// that is not a number.
pub fn conversations(subject: &Subject, progress: Progress<'_>) -> Result<Conversations> {
    let experiment = &subject.plan.experiment;
    let (chats, ends) = subject
        .shared(|| Ok((Chats::open_all(subject, &mut reading(progress))?, subject.ends()?)))?;
    let read = chats.iter().flat_map(|one| one.cache.fingerprint().bytes()).collect();
    subject.check_processes_agree("the conversations", read)?;
    let at = |tokens| scores(subject, &chats, &ends, tokens, progress);
    let lengths = experiment.evaluated_lengths().into_iter().map(at).collect::<Result<_>>()?;
    Ok(Conversations {
        name: experiment.name.clone(),
        weights: subject.folder.display().to_string(),
        step: subject.step,
        ranks: experiment.mesh.sequence,
        strategy: subject.plan.strategies(|strategy| strategy.name().to_owned()),
        lengths,
    })
}

/// What was found in the conversations of one source.
struct Scored {
    stats: PackingStats,
    /// The sum of losses and the number of targets, by conversation.
    losses: Vec<(f64, usize)>,
    /// Those that are whole in a sequence.
    answers: Vec<Answer>,
}

impl Scored {
    fn targets(&self) -> usize {
        self.losses.iter().map(|(_, targets)| targets).sum()
    }
}

/// The scores of `chats` in sequences of `tokens`.
fn scores(
    subject: &Subject,
    chats: &[Chats],
    ends: &[u32],
    tokens: usize,
    progress: Progress<'_>,
) -> Result<ConversationScores> {
    let (setup, packed) = subject.shared(|| {
        let packed =
            chats.iter().map(|one| one.packed(subject, tokens)).collect::<Result<Vec<_>>>()?;
        Ok((subject.setup(tokens)?, packed))
    })?;
    let mut all = Vec::new();
    for (chats, (held_out, stats)) in zip(chats, packed) {
        for note in packing_notes(stats, tokens) {
            progress(&format!("note: {note}"), 0, 0);
        }
        let (losses, answers) = scored(subject, &setup, &chats.cache, &held_out, ends, progress)?;
        all.push(Scored { stats, losses, answers });
    }
    Ok(ConversationScores::of(tokens, chats, all))
}

impl ConversationScores {
    /// What was found in all sources.
    fn of(tokens: usize, chats: &[Chats], all: Vec<Scored>) -> ConversationScores {
        let by_source = chats.iter().zip(&all).map(|(chats, scored)| ConversationLoss {
            path: chats.path(),
            conversations: scored.stats.documents as usize,
            targets: scored.targets(),
            loss: Mean::of_tokens(&scored.losses),
        });
        let sources = if all.len() > 1 { by_source.collect() } else { Vec::new() };
        let count = |of: fn(&PackingStats) -> u64| {
            all.iter().map(|scored| of(&scored.stats)).sum::<u64>() as usize
        };
        let (conversations, cut) = (count(|stats| stats.documents), count(|stats| stats.cut));
        let left_out = count(|stats| stats.dropped);
        let targets = all.iter().map(Scored::targets).sum();
        let losses = all.iter().flat_map(|scored| scored.losses.iter().copied());
        let loss = Mean::of_tokens(&losses.collect::<Vec<_>>());
        let all_answers: usize = chats.iter().map(|one| one.answers).sum();
        let answers: Vec<Answer> = all.into_iter().flat_map(|scored| scored.answers).collect();
        let right = answers.iter().filter(|answer| answer.right).count();
        ConversationScores {
            tokens,
            conversations,
            cut,
            left_out,
            targets,
            loss,
            perplexity: loss.mean.exp(),
            right: (!answers.is_empty()).then(|| Rate::of(right, answers.len())),
            not_whole: all_answers - answers.len(),
            sources,
            answers,
        }
    }
}

/// The losses of the conversations in all sequences of a source, and their whole answers.
fn scored(
    subject: &Subject,
    setup: &Setup,
    cache: &Cache,
    held_out: &HeldOut,
    ends: &[u32],
    progress: Progress<'_>,
) -> Result<(Vec<(f64, usize)>, Vec<Answer>)> {
    let (tokens, count) = (setup.tokens, held_out.sequences);
    let what = format!("conversations in {tokens} tokens");
    progress(&what, 0, count);
    let done = AtomicUsize::new(0);
    let told = || progress(&what, done.fetch_add(1, Ordering::Relaxed) + 1, count);
    let sequence = |index| held_out.sequence(index);
    let verdicts = judge(setup, &subject.weights, count, &sequence, &told)?;
    subject.shared(|| {
        let (mut losses, mut answers) = (BTreeMap::<u64, (f64, usize)>::new(), Vec::new());
        for (index, verdicts) in verdicts.iter().enumerate() {
            let sequence = held_out.sequence(index)?;
            for piece in Piece::all(cache, &held_out.extracts(index)?, verdicts) {
                // A conversation may be in several pieces.
                let (loss, targets) = losses.entry(piece.document).or_default();
                *loss += piece.verdicts.iter().map(|verdict| verdict.loss).sum::<f64>();
                *targets += piece.verdicts.len();
                answers.extend(piece.answers(subject, cache, &sequence, ends)?);
            }
        }
        Ok((losses.into_values().collect(), answers))
    })
}
