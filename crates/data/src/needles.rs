//! Recall with few facts, anywhere: what a model that answers needles at every depth has learned from.
//!
//! Ids are those of [`crate::Recall`]. In a sequence to learn from, every key's fact is told between once and T/32 times, as many
//! times as the others', at random places; T/8 questions stand at random places, and those behind a fact of their key have its
//! value for a target. Sequences with many facts teach soon, those with one teach to look far.
//!
//! ```text
//! . . 7=b . . 3? . 3=k . . . . 7? . . 3? . . .        . the filler
//!              -              b      k               targets; none elsewhere
//! ```

use std::ops::Range;

use annulus_sequence::Positions;

use crate::random::Key;
use crate::recall::{ANSWERS, FILLER, KEYS, QUESTIONS, VALUES};
use crate::{DataError, Question, Source, Tokens};

/// A sequence has a question for so many tokens.
const TOKENS_PER_QUESTION: usize = 8;

/// The most often that a fact is told: once for so many tokens.
const TOKENS_PER_FACT: usize = 32;

/// Facts and questions at random places.
#[derive(Debug)]
pub struct Needles {
    tokens: usize,
    batch: usize,
    seed: u64,
}

impl Needles {
    /// Sequences of `tokens` ids; only answers are targets. Different `seed`s give different sequences.
    ///
    /// # Errors
    /// Too few tokens for a question, or an empty batch.
    pub fn new(tokens: usize, batch: usize, seed: u64) -> Result<Needles, DataError> {
        let limits = [("data.tokens", tokens, KEYS * TOKENS_PER_FACT), ("data.batch", batch, 1)];
        for (what, found, wanted) in limits {
            if found < wanted {
                return Err(DataError::TooFew { what, found, wanted });
            }
        }
        Ok(Needles { tokens, batch, seed })
    }

    /// One fact at `depth` (0: the first token, 1: the last before the question), one of every other key at random places, and a
    /// question in the end: `tokens` ids, and the answer. A pure function of what is given.
    ///
    /// # Errors
    /// When all that does not fit into so many tokens.
    pub fn question(
        tokens: usize,
        depth: f64,
        sample: u64,
        seed: u64,
    ) -> Result<Question, DataError> {
        if tokens < KEYS + 1 {
            let (found, wanted) = (tokens, KEYS + 1);
            return Err(DataError::TooFew { what: "evaluation.lengths", found, wanted });
        }
        let numbers = [seed, tokens as u64, depth.to_bits(), sample];
        let mut draws = Key::new("annulus needle", &numbers).draws();
        let mut prompt = vec![FILLER as u32; tokens];
        let asked = draws.below(KEYS as u64) as usize;
        let mut answer = 0;
        for key in (asked..KEYS).chain(0..asked) {
            let value = draws.below(VALUES as u64) as usize;
            let mut place = (depth * (tokens - 2) as f64).round() as usize;
            if key == asked {
                answer = value;
            } else {
                while prompt[place] != FILLER as u32 {
                    place = draws.below(tokens as u64 - 1) as usize;
                }
            }
            prompt[place] = (key * VALUES + value) as u32;
        }
        prompt[tokens - 1] = (QUESTIONS + asked) as u32;
        Ok(Question { prompt, answer: vec![(ANSWERS + answer) as u32], parts: Vec::new() })
    }

    /// All places are shuffled before any is known, on every rank.
    fn sequence(&self, step: u64, row: u64, positions: &Positions, into: &mut Tokens) {
        let mut draws = Key::new("annulus needles", &[self.seed, step, row]).draws();
        let values: [usize; KEYS] = std::array::from_fn(|_| draws.below(VALUES as u64) as usize);
        let mut places: Vec<usize> = (0..self.tokens).collect();
        draws.shuffle(&mut places);
        let most = (self.tokens / TOKENS_PER_FACT / KEYS).max(1).ilog2() + 1;
        let told = 1 << draws.below(u64::from(most) + 1).min(u64::from(most) - 1);
        let (facts, rest) = places.split_at(told * KEYS);
        let mut made = into.begin(positions, FILLER as u32);
        let mut first = [self.tokens; KEYS];
        for (index, &place) in facts.iter().enumerate() {
            let key = index % KEYS;
            made.set(place, (key * VALUES + values[key]) as u32, None);
            first[key] = first[key].min(place);
        }
        for &place in &rest[..self.tokens / TOKENS_PER_QUESTION] {
            let key = draws.below(KEYS as u64) as usize;
            let answer = (first[key] < place).then_some((ANSWERS + values[key]) as i64);
            made.set(place, (QUESTIONS + key) as u32, answer);
        }
    }
}

impl Source for Needles {
    fn rows(&self) -> usize {
        self.batch
    }

    fn tokens(&self) -> usize {
        self.tokens
    }

    fn read(
        &self,
        step: u64,
        rows: Range<usize>,
        positions: &Positions,
        into: &mut Tokens,
    ) -> Result<(), DataError> {
        rows.for_each(|row| self.sequence(step, row as u64, positions, into));
        Ok(())
    }

    fn batches(&self) -> Option<u64> {
        None
    }

    fn fingerprint(&self) -> String {
        format!("needles 1: {} tokens, {} a batch, seed {}", self.tokens, self.batch, self.seed)
    }

    fn vocabulary(&self) -> usize {
        FILLER + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IGNORED, Sequence};

    /// The value that the last fact of `key` before `place` gives it.
    fn told(inputs: &[u32], key: usize, place: usize) -> Option<usize> {
        let of_key = |id: &u32| (key * VALUES..(key + 1) * VALUES).contains(&(*id as usize));
        inputs[..place].iter().rev().find(|id| of_key(id)).map(|id| *id as usize % VALUES)
    }

    #[test]
    fn every_answer_follows_from_a_fact_before_it() {
        let needles = Needles::new(512, 40, 3).unwrap();
        let (mut fewest, mut most, mut answers) = (usize::MAX, 0, 0);
        for Sequence { inputs, targets, .. } in needles.batch(2).unwrap() {
            let facts = inputs.iter().filter(|&&id| (id as usize) < QUESTIONS).count();
            (fewest, most) = (fewest.min(facts), most.max(facts));
            for (place, &target) in targets.iter().enumerate() {
                let asked =
                    (inputs[place] as usize).checked_sub(QUESTIONS).filter(|key| *key < KEYS);
                let value = asked.and_then(|key| told(&inputs, key, place));
                assert_eq!(value.map_or(IGNORED, |value| (ANSWERS + value) as i64), target);
                answers += usize::from(target != IGNORED);
            }
        }
        assert_eq!((fewest, most), (KEYS, 16), "from one fact of a key to many");
        assert!(answers > 40 * 20, "{answers}");
    }

    #[test]
    fn a_needle_lies_where_it_is_asked_to() {
        for (depth, place) in [(0.0, 0), (0.5, 99), (1.0, 198)] {
            let Question { prompt, answer, .. } = Needles::question(200, depth, 4, 1).unwrap();
            let key = prompt[199] as usize - QUESTIONS;
            assert_eq!(prompt[place] as usize / VALUES, key);
            assert_eq!(answer, [(ANSWERS + prompt[place] as usize % VALUES) as u32]);
            let facts = prompt.iter().filter(|&&id| (id as usize) < QUESTIONS).count();
            assert_eq!(facts, KEYS);
        }
        let of = |sample| Needles::question(200, 0.5, sample, 1).unwrap();
        assert_eq!(of(4), of(4));
        assert_ne!(of(4), of(5));
        assert!(Needles::question(4, 0.5, 0, 0).is_err());
    }
}
