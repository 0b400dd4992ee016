//! Chooses the pieces of a tile that are computed, from its visibility.
//!
//! A tile is cut into blocks of query rows and blocks of key columns of fixed size. A piece is a block without the columns at its edges
//! that the mask hides from all of its rows. Forward and backward compute the same pieces in the same order, whatever the number of
//! workers, so that their sums have the same bits.

use std::ops::Range;

use annulus_sequence::Spans;

use crate::vector::PANEL;
use crate::vector::product;

pub(super) use annulus_machine::blocks::{ATTENTION_COLUMNS as COLUMNS, ATTENTION_ROWS as ROWS};
/// Pieces begin and end at multiples of this, and so of a panel and of the rows of a micro-tile.
pub(super) const GRAIN: usize = 48;

/// The columns of a block that a block of rows sees. Pieces are made when they are computed: a list of them would grow with the square of
/// the tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The first and last column that any row sees, and all between them, in whole grains: the last may not exist.
    pub(super) columns: Range<usize>,
    /// The first and last column that any row sees, and all between them, exactly.
    pub(super) seen: Range<usize>,
    /// How much of these columns the rows see.
    pub(super) sight: Sight,
}

/// How much of a piece its rows see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// Every row sees all columns.
    All,
    /// Every row sees the same columns, without a gap: at the end of the keys, or of a document.
    Same,
    /// Rows see different columns.
    Differ,
}

/// Rows of a block and columns of a piece, both from 0, that one product computes. Both begin at whole units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
}

impl Extent {
    fn meets(&self, columns: &Range<usize>) -> bool {
        self.columns.start < columns.end && columns.start < self.columns.end
    }
}

impl Piece {
    /// What `rows` see of a block of columns; `None`: nothing.
    fn new(rows: &[Spans], block: usize) -> Option<Piece> {
        Piece::of(rows, block * COLUMNS..(block + 1) * COLUMNS, GRAIN)
    }

    /// What `rows` see of some columns, in whole grains counted from the first of them; `None`: nothing.
    pub(super) fn of(rows: &[Spans], whole: Range<usize>, grain: usize) -> Option<Piece> {
        let (mut first, mut end, mut seen) = (whole.end, whole.start, 0);
        for span in rows.iter().flatten() {
            let start = whole.start.max(span.start as usize);
            let stop = whole.end.min(span.end as usize);
            if start < stop {
                (first, end, seen) = (first.min(start), end.max(stop), seen + stop - start);
            }
        }
        let from = whole.start;
        let columns =
            from + (first - from) / grain * grain..from + (end - from).next_multiple_of(grain);
        let sight = match seen {
            0 => return None,
            _ if seen == rows.len() * columns.len() => Sight::All,
            _ if seen == rows.len() * (end - first) => Sight::Same,
            _ => Sight::Differ,
        };
        Some(Piece { columns, seen: first..end, sight })
    }

    /// Whether some row does not see some of the columns.
    pub(super) fn is_masked(&self) -> bool {
        self.sight != Sight::All
    }

    /// The number of columns up to the last that some row sees, in whole panels.
    pub(super) fn width(&self) -> usize {
        (self.seen.end - self.columns.start).next_multiple_of(PANEL)
    }

    /// The extents that products compute, which leave out unseen columns as far as they can: one where every row sees the same, and along
    /// the edge of a mask one for every few rows.
    pub(super) fn extents(&self, spans: &[Spans]) -> impl Iterator<Item = Extent> {
        let together = if self.sight == Sight::Differ { product::ROWS } else { ROWS };
        spans.chunks(together).enumerate().map(move |(index, spans)| {
            let start = index * together;
            let rows = start..start + spans.len().next_multiple_of(product::ROWS);
            let same = || Some(self.seen.clone());
            let seen = if self.sight == Sight::Differ { self.seen_by(spans) } else { same() };
            Extent { rows, columns: self.in_panels(seen) }
        })
    }

    /// The transposed extents: columns, a few together along the edge of a mask, with the rows of `extents` that see some of them.
    pub(super) fn transposed(&self, extents: &[Extent]) -> impl Iterator<Item = Extent> {
        let together = if self.sight == Sight::Differ { product::ROWS } else { COLUMNS };
        let start = (self.seen.start - self.columns.start) / product::ROWS * product::ROWS;
        let end = (self.seen.end - self.columns.start).next_multiple_of(product::ROWS);
        (start..end).step_by(together).map(move |start| {
            let columns = start..end.min(start + together);
            let rows = extents
                .iter()
                .filter(|extent| extent.meets(&columns))
                .map(|extent| extent.rows.clone())
                .reduce(|all, one| all.start.min(one.start)..all.end.max(one.end));
            Extent { rows: rows.unwrap_or(0..0), columns }
        })
    }

    /// The columns from the first to the last that some of these rows sees.
    fn seen_by(&self, spans: &[Spans]) -> Option<Range<usize>> {
        let Range { start, end } = self.columns;
        let seen = spans.iter().flatten().map(|span| {
            (span.start as usize).clamp(start, end)..(span.end as usize).clamp(start, end)
        });
        seen.filter(|seen| !seen.is_empty())
            .reduce(|all, one| all.start.min(one.start)..all.end.max(one.end))
    }

    /// Whole panels of columns, from 0, that contain these.
    fn in_panels(&self, seen: Option<Range<usize>>) -> Range<usize> {
        let start = self.columns.start;
        let seen = seen.unwrap_or(start..start);
        (seen.start - start) / PANEL * PANEL..(seen.end - start).next_multiple_of(PANEL)
    }
}

/// What a block of query rows sees of a tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reach {
    /// The blocks of key columns from the first to the last that some row sees.
    pub(super) blocks: Range<usize>,
    /// The columns that every row sees, without a gap.
    all: Range<usize>,
}

impl Reach {
    pub(super) fn new(rows: &[Spans]) -> Reach {
        let seen = || rows.iter().flatten().filter(|span| span.start < span.end);
        let first = seen().map(|span| span.start as usize).min().unwrap_or(0);
        let end = seen().map(|span| span.end as usize).max().unwrap_or(0);
        let all = rows.iter().fold(first..end, |all, [span, _]| {
            all.start.max(span.start as usize)..all.end.min(span.end as usize)
        });
        Reach { blocks: first / COLUMNS..end.div_ceil(COLUMNS), all }
    }

    /// What `rows`, whose reach this is, see of a block of columns; `None`: nothing.
    pub(super) fn piece(&self, rows: &[Spans], block: usize) -> Option<Piece> {
        let columns = block * COLUMNS..(block + 1) * COLUMNS;
        if self.all.start <= columns.start && columns.end <= self.all.end {
            return Some(Piece { seen: columns.clone(), columns, sight: Sight::All });
        }
        Piece::new(rows, block)
    }
}

#[cfg(test)]
mod tests {
    use annulus_sequence::Span;

    use super::*;

    fn sees(spans: &[(u32, u32)]) -> Spans {
        let mut all = spans.iter().map(|&(start, end)| Span { start, end });
        [all.next().unwrap_or_default(), all.next().unwrap_or_default()]
    }

    #[test]
    fn unseen_edges_and_blocks_are_cut_off() {
        let rows = [sees(&[(3, 10), (500, 530)]), sees(&[(50, 150), (520, 540)]), sees(&[])];
        let reach = Reach::new(&rows);
        assert_eq!(reach.blocks, 0..3);
        let pieces: Vec<_> = (0..4).map(|block| reach.piece(&rows, block)).collect();
        let differ = |columns, seen| Some(Piece { columns, seen, sight: Sight::Differ });
        assert_eq!(pieces[0], differ(0..192, 3..150));
        assert_eq!(pieces[2], differ(480..576, 500..540));
        assert!(pieces[1].is_none() && pieces[3].is_none());
    }

    #[test]
    fn rows_along_an_edge_leave_out_what_they_do_not_see() {
        let rows: Vec<Spans> = (100..160).map(|row| sees(&[(0, row + 1)])).collect();
        let extent = |rows, columns| Extent { rows, columns };
        let piece = Piece::new(&rows, 0).unwrap();
        let extents: Vec<_> = piece.extents(&rows).collect();
        assert_eq!(extents.len(), 5);
        assert_eq!(extents[0], extent(0..12, 0..112));
        assert_eq!(extents[4], extent(48..60, 0..160));
        let columns: Vec<_> = piece.transposed(&extents).collect();
        assert_eq!(columns.len(), 14, "nobody sees those behind");
        assert_eq!([&columns[0], &columns[9]], [&extent(0..60, 0..12), &extent(0..60, 108..120)]);
        assert_eq!(columns[11], extent(24..60, 132..144));
        let window = [sees(&[(70, 100)]), sees(&[])];
        let piece = Piece::new(&window, 0).unwrap();
        assert_eq!(piece.columns, 48..144);
        assert_eq!(piece.extents(&window).next(), Some(extent(0..12, 16..64)));
    }

    #[test]
    fn what_every_row_sees_is_not_masked() {
        let rows = [sees(&[(0, 300)]), sees(&[(0, 100), (100, 300)])];
        let piece = |block| Reach::new(&rows).piece(&rows, block).unwrap();
        assert!(!piece(0).is_masked());
        let last = piece(1);
        assert_eq!(last.columns, 192..336, "the last ones do not exist");
        assert_eq!((last.sight, last.is_masked(), last.width()), (Sight::Same, true, 112));
        let extents: Vec<_> = last.extents(&rows).collect();
        assert_eq!(extents, [Extent { rows: 0..12, columns: 0..112 }]);
        let columns: Vec<_> = last.transposed(&extents).collect();
        assert_eq!(columns, [Extent { rows: 0..12, columns: 0..108 }]);
        let document = [sees(&[(70, 100)]), sees(&[(70, 100)])];
        let piece = Piece::new(&document, 0).unwrap();
        let extents: Vec<_> = piece.extents(&document).collect();
        assert_eq!(extents, [Extent { rows: 0..12, columns: 16..64 }]);
        let columns: Vec<_> = piece.transposed(&extents).collect();
        assert_eq!(columns, [Extent { rows: 0..12, columns: 12..60 }]);
        let none = [sees(&[]), sees(&[(7, 7)])];
        assert!(Reach::new(&none).blocks.is_empty() && Piece::new(&none, 0).is_none());
        let alike = [sees(&[(5, 600)]), sees(&[(0, 590)])];
        let reach = Reach::new(&alike);
        assert_eq!(reach.all, 5..590);
        for block in reach.blocks.clone() {
            assert_eq!(reach.piece(&alike, block), Piece::new(&alike, block));
        }
    }
}
