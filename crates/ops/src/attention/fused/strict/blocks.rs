//! The strict blocks of a tile, and the pieces in which they are computed.

use std::ops::Range;

use annulus_sequence::{Positions, Spans, Visibility};
use candle_core::Result;

use super::super::drop::Drop;
use super::super::inputs::{Dims, Source, of_batch};
use super::super::pieces::Piece;
use crate::attention::sizes::{Keys, Queries, wrong};
use crate::attention::{Dropped, Tile};
use crate::vector::PANEL;

/// The most rows that are multiplied at a time: a block is several such pieces, of which the last may be shorter.
const PIECE: usize = 128;

/// The rows of one side of a tile, in pieces of strict blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    /// The rows of each piece.
    pub(super) rows: Vec<Range<usize>>,
    /// The block that each piece belongs to.
    of: Vec<usize>,
    /// Where each piece begins if every piece is padded to whole panels, and where the last one ends.
    padded: Vec<usize>,
}

impl Blocks {
    fn new(blocks: Vec<Range<usize>>) -> Blocks {
        let (mut rows, mut of, mut padded) = (Vec::new(), Vec::new(), vec![0]);
        for (number, block) in blocks.into_iter().enumerate() {
            for start in block.clone().step_by(PIECE) {
                let piece = start..block.end.min(start + PIECE);
                padded.push(padded[padded.len() - 1] + piece.len().next_multiple_of(PANEL));
                rows.push(piece);
                of.push(number);
            }
        }
        Blocks { rows, of, padded }
    }

    /// Pieces of `together` rows, at most a piece's.
    pub(super) fn even(rows: usize, together: usize) -> Blocks {
        let starts = (0..rows).step_by(together);
        Blocks::new(starts.map(|start| start..rows.min(start + together)).collect())
    }

    /// Pieces of the blocks of `block` neighbours that rows belong to, of which all must be there, or one residue class.
    fn of(positions: &Positions, block: usize) -> Result<Blocks> {
        let all: Vec<usize> = positions.iter().collect();
        let (mut rows, mut start) = (Vec::new(), 0);
        for same in all.chunk_by(|a, b| a / block == b / block) {
            let step = same.get(1).map_or(block, |second| second - same[0]);
            let last = same[same.len() - 1];
            if same[0] % block >= step || (last % block) + step < block {
                return wrong(&format!(
                    "positions {} to {last} are not a whole block of {block}",
                    same[0]
                ));
            }
            rows.push(start..start + same.len());
            start += same.len();
        }
        Ok(Blocks::new(rows))
    }

    /// Some pieces, grouped by block.
    pub(super) fn by_block(&self, pieces: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let (of, mut start) = (&self.of[pieces.clone()], pieces.start);
        of.chunk_by(|a, b| a == b).map(move |same| {
            start += same.len();
            start - same.len()..start
        })
    }

    /// All pieces, grouped by block.
    pub(super) fn all_by_block(&self) -> impl Iterator<Item = Range<usize>> {
        self.by_block(0..self.rows.len())
    }

    /// The rows of every block.
    pub(super) fn blocks(&self) -> Vec<Range<usize>> {
        let rows =
            |pieces: Range<usize>| self.rows[pieces.start].start..self.rows[pieces.end - 1].end;
        self.all_by_block().map(rows).collect()
    }

    pub(super) fn count(&self) -> usize {
        self.rows.len()
    }

    /// The first row of a piece in a copy whose pieces are padded to whole panels.
    pub(super) fn padded(&self, piece: usize) -> usize {
        self.padded[piece]
    }

    /// The number of rows of a copy whose pieces are padded.
    pub(super) fn all_padded(&self) -> usize {
        self.padded[self.rows.len()]
    }

    /// The pieces from the first to the last in which some of these rows see something.
    fn reached(&self, spans: &[Spans]) -> Range<usize> {
        let seen = || spans.iter().flatten().filter(|span| span.start < span.end);
        let Some(first) = seen().map(|span| span.start as usize).min() else { return 0..0 };
        let end = seen().map(|span| span.end as usize).max().unwrap_or(first);
        let before = |row: usize| self.rows.partition_point(|piece| piece.end <= row);
        before(first)..before(end - 1) + 1
    }
}

/// The positions of a tile's queries and keys.
///
/// # Errors
/// When the tile has no positions, or they do not match its rows.
pub(crate) fn sides<'a>(tile: &Tile<'a>, sizes: Queries, keys: Keys) -> Result<[&'a Positions; 2]> {
    let Some(sides) = tile.positions else {
        return wrong("a tile does not say at which positions it is");
    };
    let (found, wanted) = (sides.map(Positions::tokens), [sizes.rows, keys.rows]);
    if found != wanted {
        return wrong(&format!("positions of {found:?} rows and columns, expected {wanted:?}"));
    }
    Ok(sides)
}

/// The rows at which blocks of `block` positions begin, and the end of the last.
///
/// # Errors
/// When a block is incomplete.
pub(crate) fn begun_at(positions: &Positions, block: usize) -> Result<Vec<usize>> {
    let blocks = Blocks::of(positions, block)?.blocks();
    Ok(blocks.iter().map(|rows| rows.start).chain([positions.tokens()]).collect())
}

/// The inputs of a tile's jobs.
#[derive(Debug)]
pub(super) struct Inputs<'a> {
    pub(super) dims: Dims,
    pub(super) q: Source<'a>,
    pub(super) k: Source<'a>,
    pub(super) v: Source<'a>,
    pub(super) queries: Blocks,
    pub(super) columns: Blocks,
    visibility: &'a [Visibility],
    /// Reaches by piece of queries, by batch row or one for all.
    reaches: Vec<Vec<Range<usize>>>,
    dropped: Option<Dropped<'a>>,
}

/// A piece of the queries of a query head, counted over all batch rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) head: usize,
    pub(super) block: usize,
}

impl<'a> Inputs<'a> {
    /// Inputs with pieces of `together` queries; `None`: in the blocks of their positions.
    pub(super) fn new(
        sizes: Queries,
        keys: Keys,
        [q, k, v]: [Source<'a>; 3],
        tile: &Tile<'a>,
        block: usize,
        together: Option<usize>,
    ) -> Result<Inputs<'a>> {
        let [rows, columns] = sides(tile, sizes, keys)?;
        let queries = match together {
            Some(together) => Blocks::even(sizes.rows, together),
            None => Blocks::of(rows, block)?,
        };
        let columns = Blocks::of(columns, block)?;
        let Tile { visibility, dropped, .. } = *tile;
        let of = |one: &Visibility| {
            let reached = |rows: &Range<usize>| columns.reached(&one.queries[rows.clone()]);
            queries.rows.iter().map(reached).collect()
        };
        let reaches = visibility.iter().map(of).collect();
        Ok(Inputs {
            dims: Dims { queries: sizes, keys },
            q,
            k,
            v,
            queries,
            columns,
            visibility,
            reaches,
            dropped,
        })
    }

    /// The rows of a piece, among those of all heads.
    pub(super) fn rows(&self, Place { head, block }: Place) -> Range<usize> {
        let (start, rows) = (head * self.dims.queries.rows, &self.queries.rows[block]);
        start + rows.start..start + rows.end
    }

    /// The rows of a piece of columns, among those of all KV heads.
    pub(super) fn columns(&self, kv_head: usize, column: usize) -> Range<usize> {
        let (start, rows) = (kv_head * self.dims.keys.rows, &self.columns.rows[column]);
        start + rows.start..start + rows.end
    }

    /// The pieces of columns from the first to the last that a piece of queries sees.
    pub(super) fn reach(&self, Place { head, block }: Place) -> Range<usize> {
        of_batch(&self.reaches, head / self.dims.queries.heads)[block].clone()
    }

    /// The visible columns of each row of a piece.
    pub(super) fn spans(&self, Place { head, block }: Place) -> &'a [Spans] {
        let visibility = of_batch(self.visibility, head / self.dims.queries.heads);
        &visibility.queries[self.queries.rows[block].clone()]
    }

    /// What a piece of queries sees of a piece of columns; `None`: nothing.
    pub(super) fn piece(&self, place: Place, column: usize) -> Option<Piece> {
        Piece::of(self.spans(place), self.columns.rows[column].clone(), PANEL)
    }

    /// The dropout of a piece's weights; `None` without dropout.
    pub(super) fn drop(&self, Place { head, block }: Place, piece: &Piece) -> Option<Drop> {
        let (batch, head) = (head / self.dims.queries.heads, head % self.dims.queries.heads);
        let rows = self.queries.rows[block].clone();
        Some(Drop::new(&self.dropped?, batch, head, rows, piece.columns.clone()))
    }
}

#[cfg(test)]
mod tests {
    use annulus_sequence::Span;

    use super::*;

    fn of(positions: &[usize], block: usize) -> Result<Blocks> {
        Blocks::of(&Positions::from_list(positions).unwrap(), block)
    }

    #[test]
    fn positions_are_cut_where_another_block_begins() {
        let positions: Vec<usize> = (32..64).chain(96..128).collect();
        let blocks = of(&positions, 32).unwrap();
        assert_eq!(blocks.rows, [0..32, 32..64]);
        let thinned: Vec<usize> = (1..64).step_by(3).collect();
        let blocks = of(&thinned, 32).unwrap();
        assert_eq!(blocks.rows, [0..11, 11..21]);
        assert_eq!((blocks.padded(1), blocks.all_padded()), (16, 32));
        let sees = |start, end| [Span { start, end }, Span::default()];
        assert_eq!(blocks.reached(&[sees(3, 11), sees(5, 5)]), 0..1);
        assert_eq!(blocks.reached(&[sees(10, 12)]), 0..2);
        assert!(blocks.reached(&[sees(7, 7)]).is_empty());
    }

    #[test]
    fn a_block_of_which_some_is_elsewhere_is_refused() {
        for cut in [(0..31).collect::<Vec<usize>>(), (40..64).collect(), vec![0, 3, 6]] {
            let message = of(&cut, 32).unwrap_err().to_string();
            assert!(message.contains("are not a whole block of 32"), "{message}");
        }
    }
}
