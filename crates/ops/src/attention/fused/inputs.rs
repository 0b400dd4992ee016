//! What the jobs of a tile read: queries, keys, values, and which pieces of them meet.
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

/// A tensor's elements, contiguous, held against writers.
pub(super) struct Held<'a> {
    storage: StorageRef<'a>,
    range: Range<usize>,
}

/// Elements in rows.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
}

/// Keys or values, which may be f16 though nothing is computed with that: as [`contiguous`] has them.
pub(super) fn guests(tensor: &Tensor) -> Result<Tensor> {
    match tensor.dtype() {
        DType::F16 => contiguous(&tensor.to_dtype(DType::F32)?),
        _ => contiguous(tensor),
    }
}

/// The tensor off the tape and contiguous; the same storage where it is that already.
pub(super) fn contiguous(tensor: &Tensor) -> Result<Tensor> {
    match tensor.dtype() {
        DType::F32 | DType::BF16 => tensor.detach().contiguous(),
        other => wrong(&format!("a tensor of {other:?}, wanted F32 or BF16")),
    }
}

impl Held<'_> {
    /// Refuses what is not contiguous f32 or bf16 on the CPU.
    pub(super) fn new(tensor: &Tensor) -> Result<Held<'_>> {
        let (storage, layout) = tensor.storage_and_layout();
        let known = matches!(&*storage, Storage::Cpu(CpuStorage::F32(_) | CpuStorage::BF16(_)));
        match layout.contiguous_offsets() {
            Some((start, end)) if known => Ok(Held { storage, range: start..end }),
            _ => wrong(&format!(
                "a tensor of {:?} with strides {:?} on {:?}, wanted contiguous F32 or BF16 on the CPU",
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
    /// Fills `into` with rows of `dim` elements, widened and followed by zeros up to whole panels, from row `rows.start` on;
    /// what follows the last row is 0.
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

/// Copies elements, as f32.
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

/// What the jobs of a tile read.
#[derive(Debug)]
pub(super) struct Inputs<'a> {
    pub(super) sizes: Queries,
    pub(super) keys: Keys,
    pub(super) q: Source<'a>,
    pub(super) k: Source<'a>,
    pub(super) v: Source<'a>,
    /// By batch row, or one for all.
    visibility: &'a [Visibility],
    /// Likewise, by block of query rows.
    reaches: Vec<Vec<Reach>>,
    /// Which weights are left out.
    dropped: Option<Dropped<'a>>,
}

/// A piece of one query head's scores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    /// Of all batch rows' query heads.
    pub(super) head: usize,
    /// The block of query rows.
    pub(super) block: usize,
    pub(super) piece: &'a Piece,
}

impl<'a> Inputs<'a> {
    pub(super) fn new(
        (sizes, keys): (Queries, Keys),
        [q, k, v]: [Source<'a>; 3],
        &Tile { visibility, dropped, .. }: &Tile<'a>,
    ) -> Inputs<'a> {
        let of = |one: &Visibility| one.queries.chunks(ROWS).map(Reach::new).collect();
        let reaches = visibility.iter().map(of).collect();
        Inputs { sizes, keys, q, k, v, visibility, reaches, dropped }
    }

    /// Elements of a row, in whole panels.
    pub(super) fn width(&self) -> usize {
        self.sizes.dim.next_multiple_of(PANEL)
    }

    /// Query heads of all batch rows.
    pub(super) fn heads(&self) -> usize {
        self.sizes.batch * self.sizes.heads
    }

    /// Key/value heads of all batch rows.
    pub(super) fn kv_heads(&self) -> usize {
        self.sizes.batch * self.keys.heads
    }

    /// Query heads per key/value head.
    pub(super) fn group(&self) -> usize {
        self.sizes.heads / self.keys.heads
    }

    /// Blocks of query rows per head.
    pub(super) fn row_blocks(&self) -> usize {
        self.sizes.rows.div_ceil(ROWS)
    }

    /// Blocks of key columns per head.
    pub(super) fn column_blocks(&self) -> usize {
        self.keys.rows.div_ceil(COLUMNS)
    }

    /// The blocks of key columns from the first that a block of query rows sees to the last.
    pub(super) fn reach(&self, head: usize, block: usize) -> Range<usize> {
        self.reach_of(head, block).blocks.clone()
    }

    /// What a block of query rows sees of a block of key columns.
    pub(super) fn piece(&self, head: usize, block: usize, column: usize) -> Option<Piece> {
        self.reach_of(head, block).piece(self.spans(head, block), column)
    }

    fn reach_of(&self, head: usize, block: usize) -> &Reach {
        &of_batch(&self.reaches, head / self.sizes.heads)[block]
    }

    /// A block's query rows, of its head's.
    pub(super) fn block_rows(&self, block: usize) -> Range<usize> {
        block * ROWS..self.sizes.rows.min((block + 1) * ROWS)
    }

    /// Where they lie among those of all heads.
    pub(super) fn rows(&self, head: usize, block: usize) -> Range<usize> {
        let rows = self.block_rows(block);
        let start = head * self.sizes.rows;
        start + rows.start..start + rows.end
    }

    /// Where a block's key columns lie among those of all key/value heads.
    pub(super) fn columns(&self, kv_head: usize, block: usize) -> Range<usize> {
        let start = kv_head * self.keys.rows;
        let end = self.keys.rows.min((block + 1) * COLUMNS);
        start + block * COLUMNS..start + end
    }

    /// What leaves weights of a piece out; none where nothing does.
    pub(super) fn drop(&self, place: Place<'_>) -> Option<Drop> {
        let Place { head, block, piece } = place;
        let (batch, head) = (head / self.sizes.heads, head % self.sizes.heads);
        let dropped = self.dropped?;
        Some(Drop::new(&dropped, (batch, head), self.block_rows(block), piece.columns.clone()))
    }

    /// What a block's query rows see.
    pub(super) fn spans(&self, head: usize, block: usize) -> &'a [Spans] {
        let visibility = of_batch(self.visibility, head / self.sizes.heads);
        &visibility.queries[self.block_rows(block)]
    }
}

/// What belongs to a batch row, where all may share one.
pub(super) fn of_batch<T>(items: &[T], index: usize) -> &T {
    &items[index.min(items.len() - 1)]
}
