//! Forward: the running state in device memory, folded in place.

use std::any::Any;

use candle_core::{DType, Result, Tensor};

use super::super::arguments::{FinishArguments, ForwardArguments};
use super::super::table::{Kernel, Pass, between};
use super::super::{Processor, addresses};
use super::tiles::{Rows, Uploads, keys, map, strides};
use super::{Kernels, in_rows};
use crate::attention::sizes::Queries;
use crate::attention::{Attended, State, Tile};

/// Queries, and what was folded so far.
#[derive(Debug)]
pub(super) struct Forward {
    kernel: &'static Kernel,
    sizes: Queries,
    scale: f64,
    q: Tensor,
    /// Unnormalised, f32 [B, Hq, Sq, D].
    out: Tensor,
    /// Of raw scores, f32 [B, Hq, Sq].
    maximum: Tensor,
    /// Likewise.
    sum: Tensor,
}

impl State for Forward {
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

impl Forward {
    pub(super) fn new(kernels: &Kernels, q: &Tensor, scale: f64) -> Result<Forward> {
        let sizes = Queries::new(q, scale)?;
        let kernel = kernels.kernel(Pass::Forward, q.dtype(), sizes.dim)?;
        let q = in_rows(q, q.dtype())?;
        let per_row = (sizes.batch, sizes.heads, sizes.rows);
        let device = q.device();
        Ok(Forward {
            kernel,
            sizes,
            scale,
            out: Tensor::zeros(sizes.shape(), DType::F32, device)?,
            maximum: Tensor::full(f32::NEG_INFINITY, per_row, device)?,
            sum: Tensor::zeros(per_row, DType::F32, device)?,
            q,
        })
    }

    /// Folds all tiles in one launch.
    pub(super) fn fold(&mut self, processor: &dyn Processor, tiles: &[Tile<'_>]) -> Result<()> {
        for tile in tiles {
            self.sizes.keys(tile)?;
        }
        let rows = tiles.iter().map(|tile| Rows::new(tile, self.q.dtype()));
        let rows = rows.collect::<Result<Vec<_>>>()?;
        let Some(first) = rows.first() else { return Ok(()) };
        let group = self.sizes.heads / first.k.dims()[1];
        let reads: Vec<&Tensor> =
            [&self.q].into_iter().chain(rows.iter().flat_map(|rows| [&rows.k, &rows.v])).collect();
        addresses(&reads, &[&self.out, &self.maximum, &self.sum], &mut |at| {
            let mut uploads = Uploads::default();
            let mut all = Vec::with_capacity(tiles.len());
            for ((tile, rows), at) in tiles.iter().zip(&rows).zip(at.reads[1..].chunks(2)) {
                let mut one = keys(rows, [at[0], at[1]], tile.visibility.len());
                [one.queries, one.query_blocks] =
                    uploads.queries(processor, self.kernel, tile.visibility)?;
                one.dropped = uploads.dropped(processor, self.kernel, tile.dropped.as_ref())?;
                one.k_map = map(processor, self.kernel, &rows.k, at[0], self.kernel.key_block)?;
                one.v_map = map(processor, self.kernel, &rows.v, at[1], self.kernel.key_block)?;
                all.push(one);
            }
            let mut arguments = self.arguments(processor, at.reads[0], group)?;
            arguments.tile_count = all.len() as i32;
            arguments.tiles = uploads.put(processor, &all)?;
            [arguments.out, arguments.maximum, arguments.sum] =
                [at.writes[0], at.writes[1], at.writes[2]];
            let blocks = self.sizes.rows.div_ceil(self.kernel.query_block);
            let items = [blocks, self.sizes.heads, self.sizes.batch];
            let launch = self.kernel.launch(self.kernel.blocks_for(items, processor))?;
            // SAFETY: sizes were checked; addresses hold until the launch is in the stream.
            unsafe { processor.launch(&launch, bytemuck::bytes_of(&arguments)) }
        })
    }

    fn arguments(
        &self,
        processor: &dyn Processor,
        q: u64,
        group: usize,
    ) -> Result<ForwardArguments> {
        let Queries { batch, heads, rows, dim } = self.sizes;
        Ok(ForwardArguments {
            q_map: map(processor, self.kernel, &self.q, q, self.kernel.query_block)?,
            q,
            q_strides: strides(&self.q),
            batch: batch as i32,
            heads: heads as i32,
            group: group as i32,
            rows: rows as i32,
            dim: dim as i32,
            scale_log2: (self.scale * std::f64::consts::LOG2_E) as f32,
            tile_count: 0,
            tiles: 0,
            out: 0,
            maximum: 0,
            sum: 0,
            _gap: 0,
            _end: [0; 4],
        })
    }

    /// The only division and the only cast.
    pub(super) fn finish(self, processor: &dyn Processor) -> Result<Attended> {
        let Queries { batch, heads, rows, dim } = self.sizes;
        let device = self.q.device();
        let result = Tensor::zeros(self.sizes.shape(), self.q.dtype(), device)?;
        let lse = Tensor::zeros((batch, heads, rows), DType::F32, device)?;
        let rows = batch * heads * rows;
        let kernel = between("finish", "rows", self.q.dtype())?;
        let launch = kernel.launch([rows.div_ceil(kernel.query_block), 1, 1])?;
        addresses(&[&self.out, &self.maximum, &self.sum], &[&result, &lse], &mut |at| {
            let arguments = FinishArguments {
                out: at.reads[0],
                maximum: at.reads[1],
                sum: at.reads[2],
                result: at.writes[0],
                lse: at.writes[1],
                rows: rows as i64,
                dim: dim as i32,
                scale: self.scale as f32,
            };
            // SAFETY: as above.
            unsafe { processor.launch(&launch, bytemuck::bytes_of(&arguments)) }
        })?;
        Ok(Attended { out: result, lse })
    }
}
