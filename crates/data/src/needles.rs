//! Recall with few facts, anywhere: what a model that answers needles at every depth has learned from.
//!
//! Ids are those of `recall.rs`. In a sequence to learn from, every key's fact is told between once and T/32 times, as many
//! times as the others', at random places; T/8 questions stand at random places, and those behind a fact of their key have its
//! value for a target. Sequences with many facts teach soon, those with one teach to look far.
//!
//! ```text
//! . . 7=b . . 3? . 3=k . . . . 7? . . 3? . . .        . the filler
//!              -              b      k               targets; none elsewhere
//! ```

use crate::random::{Draws, Key};
use crate::recall::{ANSWERS, FILLER, KEYS, QUESTIONS, VALUES};
use crate::shard::Row;
use crate::{DataError, Question};

/// A sequence has a question for so many tokens.
const TOKENS_PER_QUESTION: usize = 8;

/// The most often that a fact is told: once for so many tokens.
const TOKENS_PER_FACT: usize = 32;

/// The fewest tokens of a sequence.
pub(crate) const FEWEST: usize = KEYS * TOKENS_PER_FACT;

/// One fact at `depth` (0: the first token, 1: the last before the question), one of every other key at random places, and a
/// question in the end: `tokens` ids, and the answer. A pure function of what is given.
///
/// # Errors
/// When all that does not fit into so many tokens.
pub fn needle(tokens: usize, depth: f64, sample: u64, seed: u64) -> Result<Question, DataError> {
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

/// Tells facts and asks for them in a sequence of fillers. All places are shuffled before any is known, on every rank.
pub(crate) fn tell(tokens: usize, values: [usize; KEYS], mut draws: Draws, mut made: Row<'_>) {
    let mut places: Vec<usize> = (0..tokens).collect();
    draws.shuffle(&mut places);
    let most = (tokens / TOKENS_PER_FACT / KEYS).max(1).ilog2() + 1;
    let told = 1 << draws.below(u64::from(most) + 1).min(u64::from(most) - 1);
    let (facts, rest) = places.split_at(told * KEYS);
    let mut first = [tokens; KEYS];
    for (index, &place) in facts.iter().enumerate() {
        let key = index % KEYS;
        made.set(place, (key * VALUES + values[key]) as u32, None);
        first[key] = first[key].min(place);
    }
    for &place in &rest[..tokens / TOKENS_PER_QUESTION] {
        let key = draws.below(KEYS as u64) as usize;
        let answer = (first[key] < place).then_some((ANSWERS + values[key]) as i64);
        made.set(place, (QUESTIONS + key) as u32, answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IGNORED, MadeUp, Sequence, Source, Synthetic};

    /// The value that the last fact of `key` before `place` gives it.
    fn told(inputs: &[u32], key: usize, place: usize) -> Option<usize> {
        let of_key = |id: &u32| (key * VALUES..(key + 1) * VALUES).contains(&(*id as usize));
        inputs[..place].iter().rev().find(|id| of_key(id)).map(|id| *id as usize % VALUES)
    }

    #[test]
    fn every_answer_follows_from_a_fact_before_it() {
        let needles = MadeUp::new(Synthetic::Needles, 512, 40, 3).unwrap();
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
            let Question { prompt, answer, .. } = needle(200, depth, 4, 1).unwrap();
            let key = prompt[199] as usize - QUESTIONS;
            assert_eq!(prompt[place] as usize / VALUES, key);
            assert_eq!(answer, [(ANSWERS + prompt[place] as usize % VALUES) as u32]);
            let facts = prompt.iter().filter(|&&id| (id as usize) < QUESTIONS).count();
            assert_eq!(facts, KEYS);
        }
        let of = |sample| needle(200, 0.5, sample, 1).unwrap();
        assert_eq!(of(4), of(4));
        assert_ne!(of(4), of(5));
        assert!(needle(4, 0.5, 0, 0).is_err());
    }
}
