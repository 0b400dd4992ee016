//! The inputs of a tile's jobs: queries, keys and values, and which pieces of them meet.
#![expect(
    clippy::inline_always,
    reason = "inlined, a loop is compiled for the caller's instructions"
)]

use std::ops::Range;

use annulus_sequence::{Spans, Visibility};
use candle_core::{CpuStorage, DType, Result, Storage, StorageRef, Tensor};
use half::bf16;

use super::drop::Drop;
use super::pieces::{COLUMNS, Piece, ROWS, Reach};
use crate::attention::sizes::{Keys, Queries, wrong};
use crate::attention::{Dropped, Tile};
use crate::vector::{Leaf, Machine, PANEL};

/// A tensor's contiguous elements, locked against writers.
pub(super) struct Held<'a> {
    storage: StorageRef<'a>,
    range: Range<usize>,
}

/// A tensor's elements, f32 or bf16.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
}

/// Keys or values as [`contiguous`] returns them; they may be f16, in which nothing is computed.
pub(super) fn guests(tensor: &Tensor) -> Result<Tensor> {
    match tensor.dtype() {
        DType::F16 => contiguous(&tensor.to_dtype(DType::F32)?),
        _ => contiguous(tensor),
    }
}

/// The tensor off the tape and contiguous; the same storage where it already is.
pub(super) fn contiguous(tensor: &Tensor) -> Result<Tensor> {
    match tensor.dtype() {
        DType::F32 | DType::BF16 => tensor.detach().contiguous(),
        other => wrong(&format!(
            "a tensor of {other:?}, expected F32 or BF16 (keys and values may be F16): `to_dtype` converts it, and the kernel \
             `Reference` takes any float"
        )),
    }
}

impl Held<'_> {
    /// Locks a tensor; refuses all but contiguous f32 or bf16 on the CPU.
    pub(super) fn new(tensor: &Tensor) -> Result<Held<'_>> {
        let (storage, layout) = tensor.storage_and_layout();
        let known = matches!(&*storage, Storage::Cpu(CpuStorage::F32(_) | CpuStorage::BF16(_)));
        match layout.contiguous_offsets() {
            Some((start, end)) if known => Ok(Held { storage, range: start..end }),
            _ => wrong(&format!(
                "a tensor of {:?} with strides {:?} on {:?}, expected contiguous F32 or BF16 on the CPU",
                tensor.dtype(),
                layout.stride(),
                tensor.device().location()
            )),
        }
    }

    pub(super) fn source(&self) -> Source<'_> {
        match &*self.storage {
            Storage::Cpu(CpuStorage::F32(all)) => Source::F32(&all[self.range.clone()]),
            Storage::Cpu(CpuStorage::BF16(all)) => Source::Bf16(&all[self.range.clone()]),
            _ => unreachable!("`new` saw f32 or bf16 on the CPU"),
        }
    }
}

impl<'a> Source<'a> {
    /// Fills `into` with rows of `dim` elements from row `rows.start` on, widened and padded with zeros to whole panels; zeros follow the
    /// last row.
    pub(super) fn copy<M: Machine>(
        self,
        machine: M,
        rows: Range<usize>,
        dim: usize,
        into: &mut [f32],
    ) {
        let width = dim.next_multiple_of(PANEL);
        let (filled, rest) = into.split_at_mut(rows.len() * width);
        rest.fill(0.0);
        let elements = rows.start * dim..rows.end * dim;
        if width == dim {
            return machine.call(Widen(self.of(elements), filled));
        }
        for (row, into) in rows.zip(filled.chunks_exact_mut(width)) {
            let (values, rest) = into.split_at_mut(dim);
            machine.call(Widen(self.of(row * dim..(row + 1) * dim), values));
            rest.fill(0.0);
        }
    }

    /// The f32 elements in place, where rows of `dim` are whole panels.
    pub(super) fn rows_in_place(self, dim: usize) -> Option<&'a [f32]> {
        match self {
            Source::F32(all) if dim.is_multiple_of(PANEL) => Some(all),
            _ => None,
        }
    }

    fn of(self, elements: Range<usize>) -> Source<'a> {
        match self {
            Source::F32(all) => Source::F32(&all[elements]),
            Source::Bf16(all) => Source::Bf16(&all[elements]),
        }
    }
}

/// Copies elements as f32.
struct Widen<'a>(Source<'a>, &'a mut [f32]);

impl Leaf for Widen<'_> {
    #[inline(always)]
    fn run<M: Machine>(self, _: M) {
        match self.0 {
            Source::F32(from) => self.1.copy_from_slice(from),
            Source::Bf16(from) => {
                for (to, from) in self.1.iter_mut().zip(from) {
                    *to = f32::from_bits(u32::from(from.to_bits()) << 16);
                }
            }
        }
    }
}

/// The sizes of a tile's queries, and of its keys and values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dims {
    pub(super) queries: Queries,
    pub(super) keys: Keys,
}

impl Dims {
    /// Elements of a row, in whole panels.
    pub(super) fn width(self) -> usize {
        self.queries.dim.next_multiple_of(PANEL)
    }

    /// The number of query heads over all batch rows.
    pub(super) fn heads(self) -> usize {
        self.queries.batch * self.queries.heads
    }

    /// The number of KV heads over all batch rows.
    pub(super) fn kv_heads(self) -> usize {
        self.queries.batch * self.keys.heads
    }

    /// The number of query heads per KV head.
    pub(super) fn group(self) -> usize {
        self.queries.heads / self.keys.heads
    }
}

/// The inputs of a tile's jobs.
#[derive(Debug)]
pub(super) struct Inputs<'a> {
    pub(super) dims: Dims,
    pub(super) q: Source<'a>,
    pub(super) k: Source<'a>,
    pub(super) v: Source<'a>,
    /// Visibility by batch row, or one for all.
    visibility: &'a [Visibility],
    /// Reaches by block of query rows, by batch row or one for all.
    reaches: Vec<Vec<Reach>>,
    /// The dropout of weights, if any.
    dropped: Option<Dropped<'a>>,
}

/// The place of a piece of scores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    /// The query head, counted over all batch rows.
    pub(super) head: usize,
    /// The block of query rows.
    pub(super) block: usize,
    pub(super) piece: &'a Piece,
}

impl<'a> Inputs<'a> {
    pub(super) fn new(
        sizes: Queries,
        keys: Keys,
        [q, k, v]: [Source<'a>; 3],
        &Tile { visibility, dropped, .. }: &Tile<'a>,
    ) -> Inputs<'a> {
        let of = |one: &Visibility| one.queries.chunks(ROWS).map(Reach::new).collect();
        let reaches = visibility.iter().map(of).collect();
        Inputs { dims: Dims { queries: sizes, keys }, q, k, v, visibility, reaches, dropped }
    }

    /// The number of blocks of query rows per head.
    pub(super) fn row_blocks(&self) -> usize {
        self.dims.queries.rows.div_ceil(ROWS)
    }

    /// The number of blocks of key columns per head.
    pub(super) fn column_blocks(&self) -> usize {
        self.dims.keys.rows.div_ceil(COLUMNS)
    }

    /// The blocks of key columns from the first to the last that a block of query rows sees.
    pub(super) fn reach(&self, head: usize, block: usize) -> Range<usize> {
        self.reach_of(head, block).blocks.clone()
    }

    /// What a block of query rows sees of a block of key columns; `None`: nothing.
    pub(super) fn piece(&self, head: usize, block: usize, column: usize) -> Option<Piece> {
        self.reach_of(head, block).piece(self.spans(head, block), column)
    }

    fn reach_of(&self, head: usize, block: usize) -> &Reach {
        &of_batch(&self.reaches, head / self.dims.queries.heads)[block]
    }

    /// The query rows of a block, within its head.
    pub(super) fn block_rows(&self, block: usize) -> Range<usize> {
        block * ROWS..self.dims.queries.rows.min((block + 1) * ROWS)
    }

    /// The query rows of a block, among those of all heads.
    pub(super) fn rows(&self, head: usize, block: usize) -> Range<usize> {
        let rows = self.block_rows(block);
        let start = head * self.dims.queries.rows;
        start + rows.start..start + rows.end
    }

    /// The key columns of a block, among those of all KV heads.
    pub(super) fn columns(&self, kv_head: usize, block: usize) -> Range<usize> {
        let start = kv_head * self.dims.keys.rows;
        let end = self.dims.keys.rows.min((block + 1) * COLUMNS);
        start + block * COLUMNS..start + end
    }

    /// The dropout of a piece's weights; `None` without dropout.
    pub(super) fn drop(&self, place: Place<'_>) -> Option<Drop> {
        let Place { head, block, piece } = place;
        let (batch, head) = (head / self.dims.queries.heads, head % self.dims.queries.heads);
        let dropped = self.dropped?;
        Some(Drop::new(&dropped, batch, head, self.block_rows(block), piece.columns.clone()))
    }

    /// The visible columns of each query row of a block.
    pub(super) fn spans(&self, head: usize, block: usize) -> &'a [Spans] {
        let visibility = of_batch(self.visibility, head / self.dims.queries.heads);
        &visibility.queries[self.block_rows(block)]
    }
}

/// The item of a batch row, where all may share one.
pub(super) fn of_batch<T>(items: &[T], index: usize) -> &T {
    &items[index.min(items.len() - 1)]
}
