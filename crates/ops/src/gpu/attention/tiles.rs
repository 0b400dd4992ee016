//! Tiles in the form for kernels: addresses, strides, and visible intervals by rows and by blocks of rows.

use std::sync::Arc;

use annulus_sequence::{Positions, Spans as Pair};
use candle_core::{DType, Result, Tensor};

use super::super::arguments::{self, Keys, Reach, ShortRun, Spans, Strides};
use super::super::table::Kernel;
use super::super::{Boxes, Processor, TensorMap, Uploaded};
use super::in_rows;
use super::order::Order;
use crate::attention::{Dropped, Tile, wrong};

/// Keys and values in rows with the same strides.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) k: Tensor,
    pub(super) v: Tensor,
}

impl Rows {
    pub(super) fn new(tile: &Tile<'_>, dtype: DType) -> Result<Rows> {
        let (k, v) = (in_rows(tile.k, dtype)?, in_rows(tile.v, dtype)?);
        if k.stride() == v.stride() {
            return Ok(Rows { k, v });
        }
        Ok(Rows { k: k.contiguous()?, v: v.contiguous()? })
    }
}

/// Uploads of a launch, kept alive until it has started.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    sent: Vec<Uploaded>,
    kept: Vec<Arc<Uploaded>>,
}

/// The visibility of rows, on the device by rows and by blocks of rows, and the latter also on the host, for every batch row with its own.
#[derive(Debug)]
struct Seen {
    rows: u64,
    blocks: u64,
    reaches: Vec<Vec<Reach>>,
}

impl Uploads {
    /// Uploads a copy of `values`; returns its address.
    pub(super) fn put<T: bytemuck::NoUninit>(
        &mut self,
        processor: &dyn Processor,
        values: &[T],
    ) -> Result<u64> {
        let uploaded = processor.upload(bytemuck::cast_slice(values))?;
        let address = uploaded.address;
        self.sent.push(uploaded);
        Ok(address)
    }

    /// Uploads `values` to stay on the device for launches that need the same; returns the address.
    pub(super) fn keep<T: bytemuck::NoUninit>(
        &mut self,
        processor: &dyn Processor,
        values: &[T],
    ) -> Result<u64> {
        let kept = processor.kept().upload(processor, bytemuck::cast_slice(values))?;
        let address = kept.address;
        self.kept.push(kept);
        Ok(address)
    }

    /// The tile in the form for `kernel`, with keys and values at `at`; and the blocks that each staying block reaches, for all batch rows
    /// or for each.
    pub(super) fn tile(
        &mut self,
        processor: &dyn Processor,
        kernel: &Kernel,
        tile: &Tile<'_>,
        rows: &Rows,
        at: [u64; 2],
    ) -> Result<(Keys, Vec<Vec<Reach>>)> {
        let mut one = keys(rows, at, tile.visibility.len());
        one.dropped = self.dropped(processor, kernel, tile.dropped.as_ref())?;
        one.k_map = map(processor, kernel, &rows.k, at[0], kernel.key_block)?;
        one.v_map = map(processor, kernel, &rows.v, at[1], kernel.key_block)?;
        let mut reaches = Vec::new();
        if kernel.reads_queries() {
            let queries = tile.visibility.iter().map(|one| &*one.queries);
            let seen = self.seen(processor, queries, kernel.query_block)?;
            [one.queries, one.query_blocks] = [seen.rows, seen.blocks];
            reaches = seen.reaches;
        }
        if kernel.keeps_keys() {
            let keys = tile.visibility.iter().map(|one| &*one.keys);
            let seen = self.seen(processor, keys, kernel.key_block)?;
            [one.keys, one.key_blocks] = [seen.rows, seen.blocks];
            reaches = seen.reaches;
        }
        Ok((one, reaches))
    }

    /// The order of blocks in the form for the kernel.
    pub(super) fn order(
        &mut self,
        processor: &dyn Processor,
        order: &Order,
    ) -> Result<arguments::Order> {
        let taken = processor.counter()?;
        let address = taken.address;
        self.sent.push(taken);
        let blocks = order.lists.concat();
        Ok(arguments::Order {
            blocks: self.keep(processor, &blocks)?,
            lists: order.lists.len() as i32,
            heads: order.heads as i32,
            last: order.last as i32,
            _gap: 0,
            taken: address,
        })
    }

    /// The dropout of weights in the form for `kernel`; 0: none.
    fn dropped(
        &mut self,
        processor: &dyn Processor,
        kernel: &Kernel,
        dropped: Option<&Dropped<'_>>,
    ) -> Result<u64> {
        let Some(dropped) = dropped else { return Ok(0) };
        if kernel.uses_tma() {
            return wrong(
                "the sm_90a and sm_100 attention kernels do not support dropout: set `Kernels::generation` to `sm80` or lower",
            );
        }
        let mut runs = |positions: &Positions| {
            self.keep(processor, &positions.runs().iter().map(ShortRun::from).collect::<Vec<_>>())
        };
        let (queries, keys) = (runs(dropped.queries)?, runs(dropped.keys)?);
        let draws = dropped.dropout.draws();
        let row = dropped.row(0, 0, 0);
        let one = arguments::Dropped {
            queries,
            keys,
            key: draws.drops.key,
            threshold: draws.drops.threshold,
            scale: draws.drops.scale,
            stream: draws.layer << 16 | row.head,
            sequence: row.sequence,
        };
        self.put(processor, &[one])
    }

    /// The visible intervals by rows and by blocks of rows, of every batch row with its own.
    fn seen<'a>(
        &mut self,
        processor: &dyn Processor,
        rows: impl Iterator<Item = &'a [Pair]> + Clone,
        block: usize,
    ) -> Result<Seen> {
        let spans: Vec<Spans> = rows.clone().flatten().map(Spans::from).collect();
        let reaches: Vec<Vec<Reach>> = rows.map(|rows| Reach::of_blocks(rows, block)).collect();
        Ok(Seen {
            rows: self.keep(processor, &spans)?,
            blocks: self.keep(processor, &reaches.concat())?,
            reaches,
        })
    }
}

/// A tile without its visibility.
fn keys(rows: &Rows, [k, v]: [u64; 2], visibilities: usize) -> Keys {
    Keys {
        k,
        v,
        strides: strides(&rows.k),
        rows: rows.k.dims()[2] as i32,
        visibilities: visibilities as i32,
        queries: 0,
        query_blocks: 0,
        keys: 0,
        key_blocks: 0,
        dk: 0,
        dv: 0,
        dropped: 0,
        fresh: 0,
        _gap: 0,
        key_starts: 0,
        query_starts: 0,
        k_map: TensorMap::NONE,
        v_map: TensorMap::NONE,
    }
}

/// Elements between neighbouring batch rows, heads and rows.
pub(super) fn strides(tensor: &Tensor) -> Strides {
    let stride = tensor.stride();
    Strides { batch: stride[0] as i64, head: stride[1] as i64, row: stride[2] as i64 }
}

/// The map by which TMA fetches `block` rows of `tensor`, for kernels that use it.
pub(super) fn map(
    processor: &dyn Processor,
    kernel: &Kernel,
    tensor: &Tensor,
    address: u64,
    block: usize,
) -> Result<TensorMap> {
    if !kernel.uses_tma() {
        return Ok(TensorMap::NONE);
    }
    let (sizes, stride) = (tensor.dims(), tensor.stride());
    processor.tensor_map(&Boxes {
        address,
        bf16: tensor.dtype() == DType::BF16,
        sizes: [sizes[0], sizes[1], sizes[2], sizes[3]],
        strides: [stride[0], stride[1], stride[2]],
        rows: block,
    })
}
