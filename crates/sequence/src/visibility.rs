//! Visibility, the form of a mask for kernels: for every query row the key columns that it sees, and the reverse, as local intervals.

use std::ops::Range;

use crate::mask::Piece;
use crate::{Coverage, Mask, Positions, View};

/// A half-open interval `start .. end`; empty when `start >= end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Span {
    /// The first index.
    pub start: u32,
    /// One past the last.
    pub end: u32,
}

/// Up to two disjoint increasing intervals; an unused one is empty, and the first is used first.
pub type Spans = [Span; 2];

impl Span {
    /// The number of indices.
    pub fn tokens(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    fn is_empty(self) -> bool {
        self.start >= self.end
    }
}

/// The visible pairs of a tile of `queries` rows by `keys` columns, in local indices.
///
/// The spans of a row that sees nothing are empty, and so are those of a column that no row sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visibility {
    /// For every query row, the key columns it sees.
    pub queries: Vec<Spans>,
    /// For every key column, the query rows that see it.
    pub keys: Vec<Spans>,
    /// How much of the whole tile is visible.
    pub coverage: Coverage,
}

impl Visibility {
    /// The visibility of `k` from `q` under a mask that takes one view and tells no batch rows
    /// apart: linear in the rows and columns. [`View::all`] is for every mask.
    ///
    /// # Panics
    /// When the mask needs several views, or a side has more rows than a [`Span`] can number.
    pub fn new(mask: &Mask, q: &Positions, k: &Positions) -> Visibility {
        assert_eq!(mask.rows(), 1, "one visibility is for batch rows that are alike");
        let mut views = View::all(mask, q, k);
        let whole = |view: &View| {
            view.queries.rows.are_all_of(q.tokens()) && view.keys.rows.are_all_of(k.tokens())
        };
        assert!(views.len() <= 1 && views.iter().all(whole), "{mask:?} takes several views");
        let only = views.pop().and_then(|mut view| view.visibility.pop());
        only.unwrap_or_else(|| Visibility::nothing(q.tokens(), k.tokens()))
    }

    /// The visibility of a tile of which nothing is visible.
    pub(crate) fn nothing(rows: usize, columns: usize) -> Visibility {
        assert!(rows.max(columns) < u32::MAX as usize, "rows of a tile are numbered in 32 bits");
        Visibility {
            queries: vec![Spans::default(); rows],
            keys: vec![Spans::default(); columns],
            coverage: Coverage::Empty,
        }
    }
    /// Adds a piece's pairs between these shards, which must be new; false, and nothing changes, where there is no room for them.
    pub(crate) fn add(&mut self, piece: &Piece, q: &Positions, k: &Positions) -> bool {
        let rows = q.rows_within(piece.queries.clone());
        let columns = k.rows_within(piece.keys.clone());
        let seen = |query| local(k, &piece.band.seen_from(query, &piece.keys));
        let seeing = |key| local(q, &piece.band.seeing(key, &piece.queries));
        let queries: Option<Vec<Spans>> =
            with_more(&self.queries[rows.clone()], q.rows(rows.clone()).iter().map(seen));
        let keys: Option<Vec<Spans>> =
            with_more(&self.keys[columns.clone()], k.rows(columns.clone()).iter().map(seeing));
        let (Some(queries), Some(keys)) = (queries, keys) else { return false };
        self.queries[rows].copy_from_slice(&queries);
        self.keys[columns].copy_from_slice(&keys);
        true
    }
    /// Settles the coverage of the whole tile, once everything is added.
    pub(crate) fn settle(&mut self) {
        let visible: usize = self.queries.iter().flatten().map(|span| span.tokens()).sum();
        self.coverage = match visible {
            0 => Coverage::Empty,
            _ if visible == self.queries.len() * self.keys.len() => Coverage::Full,
            _ => Coverage::Partial,
        };
    }
}

/// The local indices of the positions in `range`.
fn local(positions: &Positions, range: &Range<usize>) -> Span {
    let rows = positions.rows_within(range.clone());
    Span { start: rows.start as u32, end: rows.end as u32 }
}

/// Each row's spans with one more; `None` when a row has no room.
fn with_more(rows: &[Spans], more: impl Iterator<Item = Span>) -> Option<Vec<Spans>> {
    std::iter::zip(rows, more).map(|(spans, span)| inserted(*spans, span)).collect()
}

/// The spans with one that is disjoint from them, joined where they touch.
fn inserted([first, second]: Spans, more: Span) -> Option<Spans> {
    let none = |at: Span| Span { start: at.end, end: at.end };
    let touching = |a: Span, b: Span| a.end == b.start;
    let join = |a: Span, b: Span| Span { start: a.start, end: b.end };
    if more.is_empty() {
        return Some([first, second]);
    }
    if first.is_empty() {
        return Some([more, none(more)]);
    }
    let all = if second.is_empty() { vec![first, more] } else { vec![first, second, more] };
    let mut sorted = all;
    sorted.sort_unstable_by_key(|span| span.start);
    sorted.dedup_by(|later, earlier| {
        let joins = touching(*earlier, *later);
        if joins {
            *earlier = join(*earlier, *later);
        }
        joins
    });
    match sorted[..] {
        [one] => Some([one, none(one)]),
        [one, two] => Some([one, two]),
        _ => None,
    }
}
