//! What a kernel is told of a mask: for every query row the key columns it sees, and the reverse,
//! as local intervals.

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

impl Span {
    /// How many indices there are.
    pub fn tokens(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// The interval `start .. end`, and an empty one where it ends.
    pub(crate) fn alone(start: usize, end: usize) -> Spans {
        let [start, end] = [start, end].map(|index| u32::try_from(index).unwrap_or(u32::MAX));
        [Span { start, end }, Span { start: end, end }]
    }
}

/// Who sees whom in a tile of `queries` rows by `keys` columns, in local indices.
///
/// A row that sees nothing has an empty span where a key would be inserted for it; likewise a
/// column that nobody sees. The second span of a row is empty until a mask needs it.
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
    /// The visibility of `k` from `q` under `mask`: linear in the rows and columns.
    ///
    /// # Panics
    /// When a side has more rows than a [`Span`] can number.
    pub fn new(mask: &Mask, q: &Positions, k: &Positions) -> Visibility {
        let (rows, columns) = (q.tokens(), k.tokens());
        assert!(rows.max(columns) < u32::MAX as usize, "rows of a tile are numbered in 32 bits");
        let queries: Vec<Spans> = q
            .iter()
            .map(|position| {
                let seen = mask.interval(position);
                Span::alone(k.rank_of(seen.start), k.rank_of(seen.end))
            })
            .collect();
        let visible: usize = queries.iter().map(|[span, _]| span.tokens()).sum();
        let coverage = match visible {
            0 => Coverage::Empty,
            _ if visible == rows * columns => Coverage::Full,
            _ => Coverage::Partial,
        };
        Visibility { keys: seen_by(&queries, columns), queries, coverage }
    }
}

/// The reverse. Neither end of a row's span falls from row to row, so the rows that see a column
/// are those between the first whose span ends past it and the first whose span starts past it.
fn seen_by(queries: &[Spans], columns: usize) -> Vec<Spans> {
    let (mut first, mut past) = (0, 0);
    (0..columns)
        .map(|column| {
            let column = column as u32;
            while first < queries.len() && queries[first][0].end <= column {
                first += 1;
            }
            while past < queries.len() && queries[past][0].start <= column {
                past += 1;
            }
            Span::alone(first, past)
        })
        .collect()
}
