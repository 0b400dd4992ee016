//! A synthetic task of long-range recall: facts early, questions late, nothing in between.
//!
//! ```text
//! 0        T/8                                   5T/8      3T/4                 T
//! | facts  | filler                              | questions | filler           |
//! | 3=k 7=b …                                    | 7? 3? 3? …
//!                                                  b  k  k      targets; none elsewhere
//! ```
//!
//! A fact is one id that stands for a (key, value) pair, a question an id that stands for a key, and its
//! target the id of the key's value in this sequence: values are drawn anew for every sequence, so that
//! nothing can be known by heart. The facts are told again and again until their part is full, so that
//! how soon attention finds them does not depend on the length; every question has a target, so that
//! every sequence teaches much. One layer of attention can do it: a question looks for the facts of its
//! key.
//!
//! Between a question and the facts lie at least T/2 tokens. Two layers whose windows are below T/4, a
//! rank's share of four, cannot carry a fact that far, and are left with a guess. On two
//! ranks or four, contiguous or zigzag (where rank 0 holds both ends), no rank holds facts and
//! questions; striped, all hold some of both.

use crate::random::Draws;
use crate::shard::Row;

/// Keys, all told and asked in every sequence.
pub(crate) const KEYS: usize = 4;

/// Values a key can have.
pub(crate) const VALUES: usize = 16;

/// Ids of facts are `key * VALUES + value`, followed by those of questions, answers and the filler.
pub(crate) const QUESTIONS: usize = KEYS * VALUES;
pub(crate) const ANSWERS: usize = QUESTIONS + KEYS;
pub(crate) const FILLER: usize = ANSWERS + VALUES;

/// A sequence has this many parts; one holds facts, one questions.
const PARTS: usize = 8;

/// The part of the questions.
const ASKED: usize = 5;

/// The fewest tokens of a sequence.
pub(crate) const FEWEST: usize = KEYS * PARTS;

/// Tells facts and asks for them in a sequence of fillers.
pub(crate) fn tell(tokens: usize, values: [usize; KEYS], mut draws: Draws, mut made: Row<'_>) {
    let part = tokens / PARTS;
    let mut keys: [usize; KEYS] = std::array::from_fn(|key| key);
    for first in (0..part / KEYS).map(|group| group * KEYS) {
        draws.shuffle(&mut keys);
        for (place, &key) in (first..).zip(&keys) {
            made.set(place, (key * VALUES + values[key]) as u32, None);
        }
    }
    for place in ASKED * part..(ASKED + 1) * part {
        let key = draws.below(KEYS as u64) as usize;
        made.set(place, (QUESTIONS + key) as u32, Some((ANSWERS + values[key]) as i64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataError, IGNORED, MadeUp, Source, Synthetic, Tokens};

    fn recall(tokens: usize, batch: usize, seed: u64) -> Result<MadeUp, DataError> {
        MadeUp::new(Synthetic::Recall, tokens, batch, seed)
    }

    #[test]
    fn every_answer_follows_from_facts_half_a_sequence_earlier() {
        let tokens = 200;
        let recall = recall(tokens, 3, 7).unwrap();
        for sequence in recall.batch(5).unwrap() {
            let asked = sequence.targets.iter().filter(|&&target| target != IGNORED).count();
            assert_eq!(asked, tokens / PARTS);
            for (place, &target) in sequence.targets.iter().enumerate() {
                let input = sequence.inputs[place] as usize;
                let question = (QUESTIONS..ANSWERS).contains(&input);
                assert_eq!(question, target != IGNORED);
                if question {
                    let fact = (input - QUESTIONS) * VALUES + target as usize - ANSWERS;
                    let told = sequence.inputs.iter().rposition(|&id| id as usize == fact);
                    assert!(place - told.unwrap() > tokens / 2);
                }
            }
        }
    }

    #[test]
    fn no_rank_of_two_or_four_holds_facts_and_questions() {
        use annulus_sequence::Layout;
        let recall = recall(512, 1, 0).unwrap();
        for layout in [Layout::Contiguous, Layout::Zigzag] {
            for world in [2, 4] {
                for positions in layout.shard(512, world).unwrap() {
                    let mut held = Tokens::default();
                    recall.read(0, 0..1, &positions, &mut held).unwrap();
                    let facts = held.inputs.iter().any(|&id| (id as usize) < QUESTIONS);
                    let questions = held.targets.iter().any(|&target| target != IGNORED);
                    assert!(!(facts && questions), "{layout:?} over {world}");
                }
            }
        }
    }

    #[test]
    fn sequences_depend_on_seed_step_and_row_alone() {
        let batch = |seed, step| recall(64, 2, seed).unwrap().batch(step).unwrap();
        assert_eq!(batch(1, 9), batch(1, 9));
        assert_ne!(batch(1, 9), batch(2, 9));
        assert_ne!(batch(1, 9), batch(1, 10));
        assert_ne!(batch(1, 9)[0], batch(1, 9)[1]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let error = recall(31, 1, 0).unwrap_err();
        assert_eq!(error.to_string(), "data.tokens is 31, expected at least 32");
        assert!(recall(32, 0, 0).is_err());
    }
}
