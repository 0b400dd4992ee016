//! Shift targets, then deal: under stripes the next token lives on another rank.

use annulus_sequence::Positions;

/// One sequence: inputs and the targets shifted by one, of the same length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Ids.
    pub inputs: Vec<u32>,
    /// The id that follows, or -100 where none is asked for.
    pub targets: Vec<i64>,
}

impl Sequence {
    /// From `tokens + 1` ids: inputs are all but the last, targets all but the first.
    pub fn shifted(_ids: &[u32]) -> Sequence {
        todo!()
    }
}

/// The inputs and targets at `positions`, sequence by sequence, flattened [B, S].
pub fn deal(_sequences: &[Sequence], _positions: &Positions) -> (Vec<u32>, Vec<i64>) {
    todo!()
}
