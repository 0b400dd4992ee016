//! Sequences whole, and what a rank holds of them. Targets are shifted before positions are picked: under stripes the next token
//! lives on another rank.

use annulus_sequence::Positions;

/// A target that is left out, as in the labels of `transformers`; `annulus_ops::IGNORED` is the same.
pub const IGNORED: i64 = -100;

/// One sequence: inputs and the targets shifted by one, of the same length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// The token ids of the inputs.
    pub inputs: Vec<u32>,
    /// The id that follows, or -100 where none is asked for.
    pub targets: Vec<i64>,
    /// The lengths of the documents in it, where they are told apart; none: it is one.
    pub documents: Vec<usize>,
}

impl Sequence {
    /// From `tokens + 1` ids: inputs are all but the last, targets all but the first.
    pub fn shifted(ids: &[u32]) -> Sequence {
        let inputs = ids[..ids.len().saturating_sub(1)].to_vec();
        let targets = ids.iter().skip(1).map(|&id| i64::from(id)).collect();
        Sequence { inputs, targets, documents: Vec::new() }
    }
}

/// Some sequences at some positions, the same of all: what a rank holds of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// The token ids of the inputs, flattened [B, S].
    pub inputs: Vec<u32>,
    /// The ids that follow, or -100 where none is asked for, [B, S].
    pub targets: Vec<i64>,
    /// The lengths of all documents in every sequence, also of those at no position of these: masks need them.
    pub documents: Vec<Vec<usize>>,
}

impl Tokens {
    /// None yet, with room for `rows` sequences at `positions`.
    pub fn with_room(rows: usize, positions: &Positions) -> Tokens {
        let count = rows * positions.tokens();
        Tokens {
            inputs: Vec::with_capacity(count),
            targets: Vec::with_capacity(count),
            documents: Vec::with_capacity(rows),
        }
    }

    /// One more sequence, which is given whole.
    ///
    /// # Panics
    /// When it is shorter than the positions reach.
    pub fn push(&mut self, sequence: &Sequence, positions: &Positions) {
        self.inputs.extend(positions.iter().map(|position| sequence.inputs[position]));
        self.targets.extend(positions.iter().map(|position| sequence.targets[position]));
        self.documents.push(sequence.documents.clone());
    }

    /// One more sequence, made up place by place: `id` everywhere and no targets, until it is said otherwise.
    pub(crate) fn begin<'a>(&'a mut self, positions: &'a Positions, id: u32) -> Row<'a> {
        let first = self.inputs.len();
        self.inputs.resize(first + positions.tokens(), id);
        self.targets.resize(first + positions.tokens(), IGNORED);
        self.documents.push(Vec::new());
        Row { inputs: &mut self.inputs[first..], targets: &mut self.targets[first..], positions }
    }
}

/// A sequence that is being made up: what is at no wanted position is forgotten.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    inputs: &'a mut [u32],
    targets: &'a mut [i64],
    positions: &'a Positions,
}

impl Row<'_> {
    /// The id at `place`, and its target.
    pub(crate) fn set(&mut self, place: usize, id: u32, target: Option<i64>) {
        let local = self.positions.rank_of(place);
        if self.positions.at(local) == Some(place) {
            self.inputs[local] = id;
            self.targets[local] = target.unwrap_or(IGNORED);
        }
    }
}

#[cfg(test)]
mod tests {
    use annulus_sequence::Run;

    use super::*;

    #[test]
    fn targets_are_shifted_before_they_are_sharded() {
        let sequences = [Sequence::shifted(&[0, 1, 2, 3, 4, 5, 6]), Sequence::shifted(&[9; 7])];
        assert_eq!(sequences[0].targets, [1, 2, 3, 4, 5, 6]);
        let stripe = Positions::new(vec![Run { start: 1, step: 2, len: 3, width: 1 }]);
        let mut tokens = Tokens::with_room(2, &stripe);
        for sequence in &sequences {
            tokens.push(sequence, &stripe);
        }
        assert_eq!(tokens.inputs, [1, 3, 5, 9, 9, 9]);
        assert_eq!(tokens.targets, [2, 4, 6, 9, 9, 9]);
    }

    #[test]
    fn fewer_than_two_ids_are_no_sequence() {
        for ids in [&[][..], &[7]] {
            let sequence = Sequence::shifted(ids);
            assert!(sequence.inputs.is_empty() && sequence.targets.is_empty());
        }
    }
}
