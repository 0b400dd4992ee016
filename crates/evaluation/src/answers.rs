//! The answers in conversations: which of them are whole in a sequence, and whether the model gives those.

use annulus_data::{Cache, Extract, Sequence};
use annulus_train::{Result, Verdict};

use crate::Subject;
use crate::tasks::{Answer, Expected};

/// A conversation in a sequence, or what is there of it, with the verdicts on its targets.
pub(crate) struct Piece<'a> {
    /// The conversation's number.
    pub(crate) document: u64,
    pub(crate) verdicts: &'a [Verdict],
    /// The position of its first input in the sequence.
    begin: usize,
    /// The place of that input in the cache.
    place: u64,
}

impl Piece<'_> {
    /// The pieces that have targets, of a sequence of `extracts` with `verdicts`.
    pub(crate) fn all<'a>(
        cache: &Cache,
        extracts: &[Extract],
        verdicts: &'a [Verdict],
    ) -> Vec<Piece<'a>> {
        let (mut begin, mut rest) = (0, verdicts);
        let mut pieces = Vec::new();
        for &Extract { document, first, inputs } in extracts {
            let end = begin + inputs;
            let own;
            (own, rest) = rest.split_at(rest.partition_point(|one| one.position < end));
            if !own.is_empty() {
                let place = cache.documents()[document as usize] + first;
                pieces.push(Piece { document, verdicts: own, begin, place });
            }
            begin = end;
        }
        pieces
    }

    /// What the model says in place of each answer that is whole here: up to the first of `ends`, at which generation stops.
    pub(crate) fn answers(
        &self,
        subject: &Subject,
        cache: &Cache,
        sequence: &Sequence,
        ends: &[u32],
    ) -> Result<Vec<Answer>> {
        let mut answers = Vec::new();
        for said in self.verdicts.chunk_by(|one, next| one.position + 1 == next.position) {
            let wanted = said.iter().map(|one| sequence.targets[one.position] as u32);
            let mut wanted: Vec<u32> = wanted.collect();
            let end = wanted.iter().position(|id| ends.contains(id));
            if !self.is_whole(cache, said, end.is_some()) {
                continue;
            }
            wanted.truncate(end.map_or(wanted.len(), |end| end + 1));
            let said = &said[..wanted.len()];
            let tokens = said.last().map_or(0, |last| last.position + 1 - self.begin);
            let expected = Expected { tokens, wanted: &wanted, parts: &[] };
            answers.push(expected.judged(subject, said)?);
        }
        Ok(answers)
    }

    /// Whether what is `said` here is an answer from its first token to its last, or to the one that ends it, where it `has_end`.
    fn is_whole(&self, cache: &Cache, said: &[Verdict], has_end: bool) -> bool {
        let [Some(first), Some(last)] = [said.first(), said.last()] else { return false };
        let target = |one: &Verdict| self.place + (one.position - self.begin) as u64 + 1;
        let next = target(last) + 1;
        let goes_on = next < end_of(cache, self.document as usize) && cache.learns(next);
        // The first token of a conversation is no target: an answer that begins with it is not whole.
        !cache.learns(target(first) - 1) && (has_end || !goes_on)
    }
}

/// The number of answers in the conversations of `cache` from token `first` on, whole or not.
pub(crate) fn count_answers(cache: &Cache, first: u64) -> usize {
    let starts = cache.documents();
    let begun = starts.partition_point(|start| *start <= first).saturating_sub(1);
    let of = |document: usize| {
        let targets = starts[document].max(first) + 1..end_of(cache, document);
        let begins = |place: &u64| {
            cache.learns(*place) && (*place == targets.start || !cache.learns(place - 1))
        };
        targets.clone().filter(begins).count()
    };
    (begun..starts.len()).map(of).sum()
}

/// One past the last token of a conversation.
fn end_of(cache: &Cache, document: usize) -> u64 {
    cache.documents().get(document + 1).copied().unwrap_or(cache.tokens())
}
