//! Dropout of a piece's weights.
#![expect(
    clippy::inline_always,
    reason = "inlined, a loop is compiled for the caller's instructions"
)]

use std::ops::Range;

use super::scores::STEP;
use crate::attention::Dropped;
use crate::attention::dropout::{Drawn, Draws, Row};
use crate::vector::{Leaf, Machine, PANEL};

/// The dropout of a piece's weights: its rows, and its columns by their draws.
#[derive(Debug)]
pub(super) struct Drop {
    draws: Draws,
    rows: Vec<Row>,
    columns: Drawn,
}

/// Multiplies rows of values, [`STEP`] apart, by their factors.
#[derive(Debug)]
pub(super) struct Dropping<'a> {
    drop: &'a Drop,
    values: &'a mut [f32],
}

impl Drop {
    /// The dropout of query rows and key columns of a batch row and query head. Columns beyond the keys have no draws.
    pub(super) fn new(
        dropped: &Dropped<'_>,
        batch: usize,
        head: usize,
        rows: Range<usize>,
        columns: Range<usize>,
    ) -> Drop {
        let existing = columns.start..columns.end.min(dropped.keys.tokens());
        let queries = dropped.queries.rows(rows);
        let rows = queries.iter().map(|query| dropped.row(batch, head, query)).collect();
        let mut columns = Drawn::new(dropped.keys.rows(existing).iter());
        columns.groups.resize(columns.groups.len().next_multiple_of(PANEL), 0);
        Drop { draws: dropped.dropout.draws(), rows, columns }
    }

    /// The dropout applied to the piece's columns of these rows.
    pub(super) fn of<'a>(&'a self, values: &'a mut [f32]) -> Dropping<'a> {
        Dropping { drop: self, values }
    }
}

impl Leaf for Dropping<'_> {
    #[inline(always)]
    fn run<M: Machine>(self, _: M) {
        let Drop { draws, rows, columns } = self.drop;
        // The index of a key's group is at most that of its column.
        let mut words = [[0; STEP]; 4];
        for (values, row) in self.values.chunks_mut(STEP).zip(rows) {
            for (index, groups) in columns.groups.as_chunks::<PANEL>().0.iter().enumerate() {
                let drawn = draws.words(*row, *groups);
                for (words, drawn) in words.iter_mut().zip(drawn) {
                    words[index * PANEL..(index + 1) * PANEL].copy_from_slice(&drawn);
                }
            }
            for (value, (group, word)) in values.iter_mut().zip(&columns.words) {
                *value *= draws.drops.factor(words[*word as usize][*group as usize]);
            }
        }
    }
}
