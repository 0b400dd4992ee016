//! Arguments of attention kernels: the structs of `kernels/attention/arguments.h`, byte by byte.
#![expect(clippy::struct_field_names, reason = "fields are called as in C")]

use std::ops::Range;

use annulus_sequence::{Run, Spans as Pair};
use bytemuck::{NoUninit, Pod, Zeroable};
use candle_core::Result;

use super::TensorMap;
use super::table::Kernel;

/// Two intervals of one row: starts, then ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, NoUninit)]
#[repr(C)]
pub(super) struct Spans {
    pub(super) start: [i32; 2],
    pub(super) end: [i32; 2],
}

impl From<&Pair> for Spans {
    fn from(pair: &Pair) -> Spans {
        Spans { start: pair.map(|span| span.start as i32), end: pair.map(|span| span.end as i32) }
    }
}

/// What any row of a block sees lies in `reach`, what all see holds `full`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, NoUninit)]
#[repr(C)]
pub(super) struct Reach {
    pub(super) reach_start: [i32; 2],
    pub(super) reach_end: [i32; 2],
    pub(super) full_start: [i32; 2],
    pub(super) full_end: [i32; 2],
}

impl Reach {
    /// Of each block of `block` rows.
    pub(super) fn of_blocks(rows: &[Pair], block: usize) -> Vec<Reach> {
        rows.chunks(block).map(Reach::new).collect()
    }

    /// How many blocks of `block` columns any of the rows sees.
    pub(super) fn visits(&self, block: usize) -> usize {
        self.visited(block).into_iter().map(|blocks| blocks.len()).sum()
    }

    /// The blocks of `block` columns that any of the rows sees, each once: those of the kernel's `BlockWalk`.
    pub(super) fn visited(&self, block: usize) -> [Range<usize>; 2] {
        let blocks = |index: usize| {
            let (start, end) = (self.reach_start[index], self.reach_end[index]);
            if start >= end { 0..0 } else { start as usize / block..(end as usize).div_ceil(block) }
        };
        let (mut early, mut late) = (blocks(0), blocks(1));
        if early.is_empty() || !late.is_empty() && late.start < early.start {
            std::mem::swap(&mut early, &mut late);
        }
        let start = late.start.max(early.end);
        let late = start..late.end.max(start);
        [early, late]
    }

    fn new(rows: &[Pair]) -> Reach {
        let mut reach = Reach::default();
        for index in 0..2 {
            let spans = || rows.iter().map(|pair| pair[index]);
            let seen = || spans().filter(|span| span.start < span.end);
            let [start, end] =
                [seen().map(|span| span.start).min(), seen().map(|span| span.end).max()];
            reach.reach_start[index] = start.unwrap_or(0) as i32;
            reach.reach_end[index] = end.unwrap_or(0) as i32;
            // A row that sees nothing leaves nothing that all see.
            if spans().all(|span| span.start < span.end) {
                let [start, end] =
                    [seen().map(|span| span.start).max(), seen().map(|span| span.end).min()];
                reach.full_start[index] = start.unwrap_or(0) as i32;
                reach.full_end[index] = end.unwrap_or(0) as i32;
            }
        }
        reach
    }
}

/// Elements from one batch row, head, row to the next.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Strides {
    pub(super) batch: i64,
    pub(super) head: i64,
    pub(super) row: i64,
}

/// A run of positions below 2^32: of `kernels/operators/positions.h`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
pub(super) struct ShortRun {
    pub(super) start: u32,
    pub(super) step: u32,
    pub(super) len: u32,
    pub(super) width: u32,
}

impl From<&Run> for ShortRun {
    fn from(run: &Run) -> ShortRun {
        let [start, step, len, width] =
            [run.start, run.step, run.len, run.width].map(|number| number as u32);
        ShortRun { start, step, len, width }
    }
}

/// The weights of a tile that are left out.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
pub(super) struct Dropped {
    pub(super) queries: u64,
    pub(super) keys: u64,
    pub(super) key: [u32; 2],
    pub(super) threshold: u32,
    pub(super) scale: f32,
    pub(super) stream: u32,
    pub(super) sequence: u32,
}

/// Keys and values of one tile.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct Keys {
    pub(super) k: u64,
    pub(super) v: u64,
    pub(super) strides: Strides,
    pub(super) rows: i32,
    pub(super) visibilities: i32,
    pub(super) queries: u64,
    pub(super) query_blocks: u64,
    pub(super) keys: u64,
    pub(super) key_blocks: u64,
    pub(super) dk: u64,
    pub(super) dv: u64,
    pub(super) dropped: u64,
    pub(super) fresh: i32,
    pub(super) _gap: i32,
    pub(super) key_starts: u64,
    pub(super) query_starts: u64,
    pub(super) k_map: TensorMap,
    pub(super) v_map: TensorMap,
}

/// `FEW_TILES`.
const FEW_TILES: usize = 4;

/// The tiles of a launch.
#[derive(Clone, Copy, Debug, NoUninit, Zeroable)]
#[repr(C)]
pub(super) struct Tiles {
    few: [Keys; FEW_TILES],
    many: u64,
    count: i32,
    _gap: [i32; 13],
}

impl Tiles {
    /// In the arguments where they are few and `kernel` looks there; else where `put` has them.
    pub(super) fn new(
        kernel: &Kernel,
        all: &[Keys],
        put: impl FnOnce(&[Keys]) -> Result<u64>,
    ) -> Result<Tiles> {
        let mut tiles = Tiles { count: all.len() as i32, ..Zeroable::zeroed() };
        match tiles.few.get_mut(..all.len()).filter(|_| kernel.takes_few_tiles()) {
            Some(few) => few.copy_from_slice(all),
            None => tiles.many = put(all)?,
        }
        Ok(tiles)
    }
}

/// In which order blocks of rows are worked on.
#[derive(Clone, Copy, Debug, Default, NoUninit, Zeroable)]
#[repr(C)]
pub(super) struct Order {
    pub(super) blocks: u64,
    pub(super) lists: i32,
    pub(super) heads: i32,
    pub(super) last: i32,
    pub(super) _gap: i32,
    pub(super) taken: u64,
}

/// Forward.
#[derive(Clone, Copy, Debug, NoUninit, Zeroable)]
#[repr(C, align(64))]
pub(super) struct ForwardArguments {
    pub(super) q_map: TensorMap,
    pub(super) q: u64,
    pub(super) q_strides: Strides,
    pub(super) batch: i32,
    pub(super) heads: i32,
    pub(super) group: i32,
    pub(super) rows: i32,
    pub(super) dim: i32,
    pub(super) scale_log2: f32,
    pub(super) _gap: [i32; 2],
    pub(super) tiles: Tiles,
    pub(super) out: u64,
    pub(super) maximum: u64,
    pub(super) sum: u64,
    pub(super) order: Order,
    pub(super) result: u64,
    pub(super) lse: u64,
    pub(super) first: i32,
    pub(super) last: i32,
    pub(super) scale: f32,
    pub(super) _end: [i32; 11],
}

/// After the last tile of forward.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
pub(super) struct FinishArguments {
    pub(super) out: u64,
    pub(super) maximum: u64,
    pub(super) sum: u64,
    pub(super) result: u64,
    pub(super) lse: u64,
    pub(super) rows: i64,
    pub(super) dim: i32,
    pub(super) scale: f32,
}

/// Before the first tile of backward.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
pub(super) struct PrepareArguments {
    pub(super) out: u64,
    pub(super) gradient: u64,
    pub(super) out_strides: Strides,
    pub(super) gradient_strides: Strides,
    pub(super) lse: u64,
    pub(super) lse_log2: u64,
    pub(super) delta: u64,
    pub(super) batch: i32,
    pub(super) heads: i32,
    pub(super) rows: i32,
    pub(super) dim: i32,
}

/// Backward.
#[derive(Clone, Copy, Debug, NoUninit, Zeroable)]
#[repr(C, align(64))]
pub(super) struct BackwardArguments {
    pub(super) q_map: TensorMap,
    pub(super) gradient_map: TensorMap,
    pub(super) q: u64,
    pub(super) gradient: u64,
    pub(super) q_strides: Strides,
    pub(super) gradient_strides: Strides,
    pub(super) batch: i32,
    pub(super) heads: i32,
    pub(super) group: i32,
    pub(super) rows: i32,
    pub(super) padded: i32,
    pub(super) dim: i32,
    pub(super) scale: f32,
    pub(super) scale_log2: f32,
    pub(super) _gap: [i32; 8],
    pub(super) tiles: Tiles,
    pub(super) lse_log2: u64,
    pub(super) delta: u64,
    pub(super) dq: u64,
    pub(super) order: Order,
    pub(super) visitors: u64,
    pub(super) turns: u64,
    pub(super) _end: [u64; 7],
}

/// After the last tile of backward.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
pub(super) struct FinishQueriesArguments {
    pub(super) accumulated: u64,
    pub(super) dq: u64,
    pub(super) batch: i32,
    pub(super) heads: i32,
    pub(super) rows: i32,
    pub(super) padded: i32,
    pub(super) dim: i32,
    pub(super) scale: f32,
    pub(super) columns: i32,
    pub(super) _gap: i32,
}

/// Forward with order-free sums.
#[derive(Clone, Copy, Debug, NoUninit, Zeroable)]
#[repr(C, align(64))]
pub(super) struct StrictForwardArguments {
    pub(super) q: u64,
    pub(super) q_strides: Strides,
    pub(super) batch: i32,
    pub(super) heads: i32,
    pub(super) group: i32,
    pub(super) rows: i32,
    pub(super) dim: i32,
    pub(super) scale_log2: f32,
    pub(super) _gap: [i32; 2],
    pub(super) tiles: Tiles,
    pub(super) out: u64,
    pub(super) sum: u64,
    pub(super) _end: [u64; 6],
}

/// After the last tile of that.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
pub(super) struct StrictFinishArguments {
    pub(super) out: u64,
    pub(super) sum: u64,
    pub(super) result: u64,
    pub(super) lse: u64,
    pub(super) rows: i64,
    pub(super) dim: i32,
    pub(super) _gap: i32,
}

/// Backward with order-free sums.
#[derive(Clone, Copy, Debug, NoUninit, Zeroable)]
#[repr(C, align(64))]
pub(super) struct StrictBackwardArguments {
    pub(super) q: u64,
    pub(super) gradient: u64,
    pub(super) q_strides: Strides,
    pub(super) gradient_strides: Strides,
    pub(super) batch: i32,
    pub(super) heads: i32,
    pub(super) group: i32,
    pub(super) rows: i32,
    pub(super) dim: i32,
    pub(super) scale: f32,
    pub(super) scale_log2: f32,
    pub(super) _gap: [i32; 9],
    pub(super) tiles: Tiles,
    pub(super) lse_log2: u64,
    pub(super) delta: u64,
    pub(super) dq: u64,
    pub(super) _end: [u64; 5],
}

#[cfg(test)]
mod tests {
    use annulus_sequence::Span;

    use super::*;

    fn row(start: u32, end: u32) -> Pair {
        [Span { start, end }, Span { start: end, end }]
    }

    #[test]
    fn blocks_reach_what_any_row_sees_and_are_full_where_all_do() {
        let rows = [row(0, 3), row(1, 5), row(2, 6), row(4, 4)];
        let [seeing, with_empty] = [&rows[..3], &rows[1..]].map(Reach::new);
        assert_eq!((seeing.reach_start[0], seeing.reach_end[0]), (0, 6));
        assert_eq!((seeing.full_start[0], seeing.full_end[0]), (2, 3));
        assert_eq!((with_empty.reach_start[0], with_empty.reach_end[0]), (1, 6));
        assert_eq!((with_empty.full_start[0], with_empty.full_end[0]), (0, 0));
        assert_eq!(seeing.reach_end[1], 0);
        assert_eq!(Reach::of_blocks(&rows, 3).len(), 2);
    }
}
