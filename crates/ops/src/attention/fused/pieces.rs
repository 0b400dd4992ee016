//! Which pieces of a tile are worth computing, from who sees whom.
//!
//! A tile is cut into blocks of query rows and blocks of key columns of fixed size. What is left of a block after its unseen
//! edges are cut off is a piece. Forward and backward compute the same pieces in the same order, whatever the number of
//! workers, so that their sums have the same bits.

use std::ops::Range;

use annulus_sequence::Spans;

use super::machine::PANEL;
use super::product;

/// Query rows of a block: with a block of columns, what the second cache holds.
pub(super) const ROWS: usize = 96;
/// Key columns of a block.
pub(super) const COLUMNS: usize = 192;
/// Pieces begin and end at multiples of this, and so of a panel and of the rows of a micro-tile.
pub(super) const GRAIN: usize = 48;

/// The columns of a block that a block of rows sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Which block of columns it lies in.
    pub(super) block: usize,
    /// How many pieces of the same rows come before it.
    pub(super) turn: usize,
    /// The first and last that are seen by any row, and all between them, in whole grains: the last may not exist.
    pub(super) columns: Range<usize>,
    /// Whether some row does not see some of them.
    pub(super) masked: bool,
}

impl Piece {
    /// Which of its columns rows see, as far as products can leave others out: rows of the block with columns of the piece,
    /// both from 0. Where every row sees everything that is one product, along the edge of a mask one for every few rows.
    pub(super) fn extents(
        &self,
        spans: &[Spans],
    ) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let together = if self.masked { product::ROWS } else { ROWS };
        spans.chunks(together).enumerate().map(move |(index, spans)| {
            let start = index * together;
            let rows = start..start + spans.len().next_multiple_of(product::ROWS);
            (rows, if self.masked { self.seen_by(spans) } else { 0..self.columns.len() })
        })
    }

    /// From the first that some row sees to the last, in whole panels.
    fn seen_by(&self, spans: &[Spans]) -> Range<usize> {
        let Range { start, end } = self.columns;
        let seen = spans.iter().flatten().map(|span| {
            (span.start as usize).clamp(start, end)..(span.end as usize).clamp(start, end)
        });
        let all = seen
            .filter(|seen| !seen.is_empty())
            .reduce(|all, one| all.start.min(one.start)..all.end.max(one.end))
            .unwrap_or(start..start);
        (all.start - start) / PANEL * PANEL..(all.end - start).next_multiple_of(PANEL)
    }
}

/// The pieces of a tile, by block of query rows, in the order of their columns.
#[derive(Debug)]
pub(super) struct Pieces(Vec<Vec<Piece>>);

impl Pieces {
    /// The pieces of the tile whose query rows see `spans`.
    pub(super) fn new(spans: &[Spans]) -> Pieces {
        Pieces(spans.chunks(ROWS).map(pieces_of).collect())
    }

    /// Those of a block of query rows.
    pub(super) fn of(&self, block: usize) -> &[Piece] {
        &self.0[block]
    }

    /// The same by block of key columns: the blocks of rows that see some of it, with the piece each sees.
    pub(super) fn by_columns(&self, columns: usize) -> Vec<Vec<(usize, &Piece)>> {
        let mut by_columns = vec![Vec::new(); columns.div_ceil(COLUMNS)];
        for (rows, pieces) in self.0.iter().enumerate() {
            for piece in pieces {
                by_columns[piece.block].push((rows, piece));
            }
        }
        by_columns
    }
}

fn pieces_of(rows: &[Spans]) -> Vec<Piece> {
    let seen = || rows.iter().flatten().filter(|span| span.start < span.end);
    let first = seen().map(|span| span.start as usize).min().unwrap_or(0);
    let end = seen().map(|span| span.end as usize).max().unwrap_or(0);
    let pieces = (first / COLUMNS..end.div_ceil(COLUMNS)).filter_map(|block| piece_of(rows, block));
    pieces.enumerate().map(|(turn, piece)| Piece { turn, ..piece }).collect()
}

fn piece_of(rows: &[Spans], block: usize) -> Option<Piece> {
    let whole = block * COLUMNS..(block + 1) * COLUMNS;
    let (mut first, mut end, mut seen) = (whole.end, whole.start, 0);
    for span in rows.iter().flatten() {
        let start = whole.start.max(span.start as usize);
        let stop = whole.end.min(span.end as usize);
        if start < stop {
            (first, end, seen) = (first.min(start), end.max(stop), seen + stop - start);
        }
    }
    let columns = first / GRAIN * GRAIN..end.next_multiple_of(GRAIN);
    let masked = seen < rows.len() * columns.len();
    (seen > 0).then_some(Piece { block, turn: 0, columns, masked })
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
        let pieces = Pieces::new(&rows);
        let expected = [
            Piece { block: 0, turn: 0, columns: 0..192, masked: true },
            Piece { block: 2, turn: 1, columns: 480..576, masked: true },
        ];
        assert_eq!(pieces.of(0), expected);
        let by_columns = pieces.by_columns(800);
        assert_eq!(by_columns[0], [(0, &expected[0])]);
        assert!(by_columns[1].is_empty() && by_columns[3].is_empty());
    }

    #[test]
    fn rows_along_an_edge_leave_out_what_they_do_not_see() {
        let rows: Vec<Spans> = (100..160).map(|row| sees(&[(0, row + 1)])).collect();
        let pieces = Pieces::new(&rows);
        let extents: Vec<_> = pieces.of(0)[0].extents(&rows).collect();
        assert_eq!(extents.len(), 5);
        assert_eq!(extents[0], (0..12, 0..112));
        assert_eq!(extents[4], (48..60, 0..160));
        let window = [sees(&[(70, 100)]), sees(&[])];
        let pieces = Pieces::new(&window);
        assert_eq!(pieces.of(0)[0].columns, 48..144);
        assert_eq!(pieces.of(0)[0].extents(&window).next(), Some((0..12, 16..64)));
    }

    #[test]
    fn what_every_row_sees_is_not_masked() {
        let touching = sees(&[(0, 100), (100, 300)]);
        let pieces = Pieces::new(&[sees(&[(0, 300)]), touching]);
        let masked: Vec<bool> = pieces.of(0).iter().map(|piece| piece.masked).collect();
        assert_eq!(masked, [false, true], "the last columns do not exist");
        let none = Pieces::new(&[sees(&[]), sees(&[(7, 7)])]);
        assert!(none.of(0).is_empty());
    }
}
