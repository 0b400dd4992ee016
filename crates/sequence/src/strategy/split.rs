//! What every generator starts from: who holds what, and who needs whose keys.

use crate::{Buffer, Coverage, Fold, Mask, Move, Positions, TilePlan};

/// A sequence dealt to ranks under a mask.
#[derive(Debug)]
pub(super) struct Split {
    pub(super) positions: Vec<Positions>,
    pub(super) heads: usize,
    /// By rank of the queries, then by owner of the keys.
    needs: Vec<Vec<bool>>,
}

impl Split {
    pub(super) fn new(mask: &Mask, positions: Vec<Positions>, heads: usize) -> Split {
        let needs = |q: &Positions| {
            positions.iter().map(|k| mask.coverage_of(q, k) != Coverage::Empty).collect()
        };
        Split { needs: positions.iter().map(needs).collect(), positions, heads }
    }
    pub(super) fn world(&self) -> usize {
        self.positions.len()
    }
    /// Whether any query of `rank` sees any key of `owner`.
    pub(super) fn needs(&self, rank: usize, owner: usize) -> bool {
        self.needs[rank][owner]
    }
    /// A whole buffer from one rank to another.
    pub(super) fn move_whole(&self, buffer: Buffer, from: usize, to: usize) -> Move {
        let rows = 0..self.positions[buffer.owner].tokens();
        Move { buffer, heads: 0..self.heads, rows, from, to }
    }
}

/// The forward tile of `rank` and `owner`.
pub(super) fn forward_tile(rank: usize, owner: usize) -> TilePlan {
    TilePlan { queries: rank, keys: owner, into: None }
}

/// The backward tile of `rank` and `owner`.
pub(super) fn backward_tile(rank: usize, owner: usize) -> TilePlan {
    TilePlan { queries: rank, keys: owner, into: Some(Buffer::contribution(owner)) }
}

/// A contribution into the gradient of the same owner.
pub(super) fn fold(owner: usize) -> Fold {
    Fold { into: Buffer::gradient(owner), from: Buffer::contribution(owner) }
}
