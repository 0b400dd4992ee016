//! Shift targets, then shard: under stripes the next token lives on another rank.

use annulus_sequence::Positions;

/// One sequence: inputs and the targets shifted by one, of the same length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Ids.
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

/// The inputs and targets at `positions`, sequence by sequence, flattened [B, S].
///
/// # Panics
/// When a sequence is shorter than the positions reach.
pub fn shard(sequences: &[Sequence], positions: &Positions) -> (Vec<u32>, Vec<i64>) {
    let capacity = sequences.len() * positions.tokens();
    let (mut inputs, mut targets) = (Vec::with_capacity(capacity), Vec::with_capacity(capacity));
    for sequence in sequences {
        inputs.extend(positions.iter().map(|position| sequence.inputs[position]));
        targets.extend(positions.iter().map(|position| sequence.targets[position]));
    }
    (inputs, targets)
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
        let (inputs, targets) = shard(&sequences, &stripe);
        assert_eq!(inputs, [1, 3, 5, 9, 9, 9]);
        assert_eq!(targets, [2, 4, 6, 9, 9, 9]);
    }

    #[test]
    fn fewer_than_two_ids_are_no_sequence() {
        for ids in [&[][..], &[7]] {
            let sequence = Sequence::shifted(ids);
            assert!(sequence.inputs.is_empty() && sequence.targets.is_empty());
        }
    }
}
