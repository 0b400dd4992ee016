//! What a kernel is told of a mask: for every query row the key columns it sees, and the reverse, as local intervals.

use crate::{Coverage, Mask, Positions};

/// A half-open interval `start .. end`; empty when `start >= end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Span {
    /// The first index.
    pub start: u32,
    /// One past the last.
    pub end: u32,
}

/// Up to two disjoint increasing intervals; an unused one is empty.
pub type Spans = [Span; 2];

/// Who sees whom in a tile of `queries` rows by `keys` columns, in local indices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visibility {
    /// For every query row, the key columns it sees.
    pub queries: Vec<Spans>,
    /// For every key column, the query rows that see it.
    pub keys: Vec<Spans>,
    /// What is visible of the whole tile.
    pub coverage: Coverage,
}

impl Visibility {
    /// The visibility of `k` from `q` under `mask`: linear in the rows.
    pub fn new(_mask: &Mask, _q: &Positions, _k: &Positions) -> Visibility {
        todo!()
    }
}
