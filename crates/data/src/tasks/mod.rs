//! Questions about long texts that are made up, and their answers: what they are is in `text.rs`, which words they are made of in
//! `words.rs`.
//!
//! A question is a pure function of (task, length, depth, sample, seed) and the tokenizer. Its text is as long as fits, is never
//! cut, and begins with the one token that begins a document, where the tokenizer has one.

mod text;
mod words;

use crate::random::Key;
use crate::{DataError, Question, Tokenizer};
use text::Draft;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    /// A number that one sentence tells, at a given depth of a text about other things.
    Needle,
    /// The one pass key that is told at a given depth of a text (Mohtashami and Jaggi, arXiv 2305.16300).
    Passkey,
    /// What one of many lines says that are all alike (LongEval; Li et al., 2023).
    Lines,
    /// A number somewhere. This one and those below are six of RULER's (Hsieh et al., arXiv 2404.06654), their texts our own.
    Single,
    /// One of four numbers, each of something else.
    MultiKey,
    /// All four numbers of one thing.
    MultiValue,
    /// Variables that are set to each other, five in a chain.
    Variables,
    /// The ten words of a list that come often.
    CommonWords,
    /// The three most frequent of words whose frequencies fall with the square of their rank.
    FrequentWords,
}

impl Task {
    /// All tasks.
    pub const ALL: [Task; 9] = [
        Task::Needle,
        Task::Passkey,
        Task::Lines,
        Task::Single,
        Task::MultiKey,
        Task::MultiValue,
        Task::Variables,
        Task::CommonWords,
        Task::FrequentWords,
    ];

    /// The name, as it is written in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Task::Needle => "needle",
            Task::Passkey => "passkey",
            Task::Lines => "lines",
            Task::Single => "single",
            Task::MultiKey => "multi-key",
            Task::MultiValue => "multi-value",
            Task::Variables => "variables",
            Task::CommonWords => "common-words",
            Task::FrequentWords => "frequent-words",
        }
    }

    /// The task of this name; `None`: there is none.
    pub fn from_name(name: &str) -> Option<Task> {
        Task::ALL.into_iter().find(|task| task.name() == name)
    }

    /// Whether it is asked at given depths; otherwise places are random.
    pub fn has_depth(self) -> bool {
        matches!(self, Task::Needle | Task::Passkey | Task::Lines)
    }

    /// A question of this task that needs at most `tokens` inputs, and nearly as many. `depth` is from 0, the beginning, to 1.
    ///
    /// # Errors
    /// When not even the question alone fits, or the tokenizer cannot read it.
    pub fn question(
        self,
        tokens: usize,
        depth: f64,
        sample: u64,
        seed: u64,
        tokenizer: &Tokenizer,
    ) -> Result<Question, DataError> {
        let numbers = [seed, self as u64, tokens as u64, depth.to_bits(), sample];
        let key = Key::new("annulus task", &numbers);
        let ask = |filler| asked(&self.draft(filler, depth, &mut key.draws()), tokenizer);
        let (mut best, mut fits) = (ask(0)?, 0);
        if best.tokens() > tokens {
            let (task, wanted) = (self.name(), best.tokens());
            return Err(DataError::TaskTooLong { task, found: tokens, wanted });
        }
        // What a piece of filler takes is nearly the same everywhere: a few looks are enough.
        let mut per_piece = 16.0;
        let mut beyond = usize::MAX;
        while fits + 1 < beyond {
            let more = ((tokens - best.tokens()) as f64 / per_piece) as usize;
            let guess = (fits + more).clamp(fits + 1, beyond - 1);
            let next = ask(guess)?;
            let grown = next.tokens().saturating_sub(best.tokens()) as f64;
            per_piece = (grown / (guess - fits) as f64).max(1.0);
            if next.tokens() > tokens {
                beyond = guess;
            } else {
                (best, fits) = (next, guess);
            }
        }
        Ok(best)
    }
}

/// A draft in tokens.
fn asked(draft: &Draft, tokenizer: &Tokenizer) -> Result<Question, DataError> {
    let encode = |text: &str| {
        let mut ids = tokenizer.before().to_vec();
        tokenizer.encode(text, &mut |more| ids.extend_from_slice(more)).map(|()| ids)
    };
    let (mut prompt, whole) = (encode(&draft.prompt)?, encode(&draft.whole())?);
    // Where a token has a part in both, it belongs to the answer.
    let shared = prompt.iter().zip(&whole).take_while(|(a, b)| a == b).count();
    prompt.truncate(shared.min(whole.len() - 1));
    let answer = whole[prompt.len()..].to_vec();
    Ok(Question { prompt, answer, parts: draft.parts.clone() })
}
