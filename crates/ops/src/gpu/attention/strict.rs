//! Attention with order-free sums on a GPU: tables in device memory, to which tiles are added in place. The bits do not depend on which
//! rank holds which strict block.

use std::f64::consts::LOG2_E;

use annulus_sequence::Positions;
use bytemuck::Zeroable;
use candle_core::{DType, Result, Tensor};

use super::super::arguments::{
    Keys, StrictBackwardArguments, StrictFinishArguments, StrictForwardArguments, Tiles,
};
use super::super::table::{Kernel, Pass, between};
use super::super::{Addresses, Processor, addresses};
use super::tiles::{Rows, Uploads, strides};
use super::{Kernels, in_rows};
use crate::attention::fused::strict::{begun_at, sides};
use crate::attention::sizes::Queries;
use crate::attention::{Attended, BackwardTile, KeyValueGradients, Prepared, State, Tile, wrong};
use crate::order_free::length;

/// Queries, and their sums so far.
#[derive(Debug)]
pub(super) struct Forward {
    kernel: &'static Kernel,
    block: usize,
    sizes: Queries,
    scale: f64,
    q: Tensor,
    /// The order-free sums of outputs, [B, Hq, Sq, 3 D + 1].
    out: Tensor,
    /// The order-free sums of weights, by which outputs are divided, [B, Hq, Sq, 4].
    sum: Tensor,
}

/// Queries with the gradient of their output, and the sums of the queries' gradient so far.
#[derive(Debug)]
pub(super) struct Backward {
    /// The kernels that add the gradients of keys and values, and that of queries.
    kernels: [&'static Kernel; 2],
    block: usize,
    sizes: Queries,
    scale: f64,
    q: Tensor,
    gradient: Tensor,
    /// The log-sum-exp of rows to base 2, f32 [B, Hq, Sq].
    lse_log2: Tensor,
    delta: Tensor,
    /// The order-free sums of the queries' gradient, [B, Hq, Sq, 3 D + 1].
    dq: Tensor,
}

impl State for Forward {}

impl State for Backward {}

/// Sums of nothing for queries, `width` to a row.
fn nothing(
    Queries { batch, heads, rows, .. }: Queries,
    width: usize,
    like: &Tensor,
) -> Result<Tensor> {
    Tensor::zeros((batch, heads, rows, length(width)), DType::U32, like.device())
}

/// The rows at which blocks begin, in the form for kernels: their number, the first row of each, and the end of the last.
fn starts(
    uploads: &mut Uploads,
    processor: &dyn Processor,
    positions: &Positions,
    block: usize,
) -> Result<u64> {
    let begun = begun_at(positions, block)?;
    let all: Vec<i32> = [begun.len() - 1].into_iter().chain(begun).map(|row| row as i32).collect();
    uploads.keep(processor, &all)
}

impl Forward {
    pub(super) fn new(kernels: &Kernels, block: usize, q: &Tensor, scale: f64) -> Result<Forward> {
        let sizes = Queries::new(q, scale)?;
        let kernel = kernels.kernel(Pass::StrictForward, q.dtype(), sizes.dim)?;
        let (out, sum) = (nothing(sizes, sizes.dim, q)?, nothing(sizes, 1, q)?);
        Ok(Forward { kernel, block, sizes, scale, q: in_rows(q, q.dtype())?, out, sum })
    }

    /// Folds all tiles in one launch.
    pub(super) fn fold(&mut self, processor: &dyn Processor, tiles: &[Tile<'_>]) -> Result<()> {
        let mut rows = Vec::with_capacity(tiles.len());
        for tile in tiles {
            sides(tile, self.sizes, self.sizes.keys(tile)?)?;
            rows.push(Rows::new(tile, self.q.dtype())?);
        }
        let Some(first) = rows.first() else { return Ok(()) };
        let group = self.sizes.heads / first.k.dims()[1];
        let lent = rows.iter().flat_map(|rows| [&rows.k, &rows.v]);
        let reads: Vec<&Tensor> = [&self.q].into_iter().chain(lent).collect();
        addresses(&reads, &[&self.out, &self.sum], &mut |at| {
            let (mut uploads, mut all) = (Uploads::default(), Vec::with_capacity(tiles.len()));
            for ((tile, rows), lent) in tiles.iter().zip(&rows).zip(at.reads[1..].chunks(2)) {
                let lent = [lent[0], lent[1]];
                let (mut one, _) = uploads.tile(processor, self.kernel, tile, rows, lent)?;
                if let Some([_, keys]) = tile.positions {
                    one.key_starts = starts(&mut uploads, processor, keys, self.block)?;
                }
                all.push(one);
            }
            let arguments = StrictForwardArguments {
                tiles: Tiles::new(self.kernel, &all, |all| uploads.put(processor, all))?,
                out: at.writes[0],
                sum: at.writes[1],
                ..self.arguments(at.reads[0], group)
            };
            let blocks = self.sizes.rows.div_ceil(self.kernel.query_block);
            let launch = self.kernel.launch([blocks, self.sizes.heads, self.sizes.batch])?;
            // SAFETY: sizes were checked; addresses hold until the launch is in the stream.
            unsafe { processor.launch(&launch, bytemuck::bytes_of(&arguments)) }
        })
    }

    fn arguments(&self, q: u64, group: usize) -> StrictForwardArguments {
        let Queries { batch, heads, rows, dim } = self.sizes;
        StrictForwardArguments {
            q,
            q_strides: strides(&self.q),
            batch: batch as i32,
            heads: heads as i32,
            group: group as i32,
            rows: rows as i32,
            dim: dim as i32,
            scale_log2: (self.scale * LOG2_E) as f32,
            ..Zeroable::zeroed()
        }
    }

    /// Divides by the sums, and casts: the only division and the only cast.
    pub(super) fn finish(self, processor: &dyn Processor) -> Result<Attended> {
        let Queries { batch, heads, rows, dim } = self.sizes;
        let (shape, dtype, device) = (self.sizes.shape(), self.q.dtype(), self.q.device());
        // SAFETY: the kernel writes all rows.
        let out = unsafe { Tensor::empty(shape, dtype, device)? };
        // SAFETY: likewise.
        let lse = unsafe { Tensor::empty((batch, heads, rows), DType::F32, device)? };
        let rows = batch * heads * rows;
        let kernel = between("strict_finish", "rows", dtype)?;
        let launch = kernel.launch([rows.div_ceil(kernel.query_block), 1, 1])?;
        addresses(&[&self.out, &self.sum], &[&out, &lse], &mut |at| {
            let arguments = StrictFinishArguments {
                out: at.reads[0],
                sum: at.reads[1],
                result: at.writes[0],
                lse: at.writes[1],
                rows: rows as i64,
                dim: dim as i32,
                _gap: 0,
            };
            // SAFETY: as above.
            unsafe { processor.launch(&launch, bytemuck::bytes_of(&arguments)) }
        })?;
        Ok(Attended { out, lse })
    }
}

impl Backward {
    pub(super) fn new(
        kernels: &Kernels,
        block: usize,
        q: &Tensor,
        prepared: &Prepared,
        scale: f64,
    ) -> Result<Backward> {
        let sizes = Queries::new(q, scale)?;
        sizes.check(prepared)?;
        let dtype = q.dtype();
        let kernel = |pass| kernels.kernel(pass, dtype, sizes.dim);
        let statistic = |statistic: &Tensor| statistic.detach().to_dtype(DType::F32)?.contiguous();
        Ok(Backward {
            kernels: [kernel(Pass::StrictKeys)?, kernel(Pass::StrictQueries)?],
            block,
            sizes,
            scale,
            q: in_rows(q, dtype)?,
            gradient: in_rows(&prepared.gradient, dtype)?,
            lse_log2: statistic(&prepared.lse)?,
            delta: statistic(&prepared.delta)?,
            dq: nothing(sizes, sizes.dim, q)?,
        })
    }

    /// Adds all tiles in two launches.
    pub(super) fn add(
        &mut self,
        processor: &dyn Processor,
        tiles: Vec<BackwardTile<'_>>,
    ) -> Result<Vec<KeyValueGradients>> {
        let mut rows = Vec::with_capacity(tiles.len());
        let (mut plain, mut gradients) = (Vec::new(), Vec::new());
        for BackwardTile { tile, carried } in tiles {
            sides(&tile, self.sizes, self.sizes.keys(&tile)?)?;
            rows.push(Rows::new(&tile, self.q.dtype())?);
            gradients.push(Backward::begun(&tile, carried)?);
            plain.push(tile);
        }
        if plain.is_empty() {
            return Ok(gradients);
        }
        let lent = rows.iter().flat_map(|rows| [&rows.k, &rows.v]);
        let own = [&self.q, &self.gradient, &self.lse_log2, &self.delta];
        let reads: Vec<&Tensor> = own.into_iter().chain(lent).collect();
        let made = gradients.iter().flat_map(|made| [&made.dk, &made.dv]);
        let writes: Vec<&Tensor> = [&self.dq].into_iter().chain(made).collect();
        addresses(&reads, &writes, &mut |at| {
            let mut kernels = self.kernels.into_iter();
            kernels.try_for_each(|kernel| self.launch(processor, kernel, &plain, &rows, at))
        })?;
        Ok(gradients)
    }

    fn launch(
        &self,
        processor: &dyn Processor,
        kernel: &Kernel,
        tiles: &[Tile<'_>],
        rows: &[Rows],
        at: &Addresses,
    ) -> Result<()> {
        let mut uploads = Uploads::default();
        let mut all = Vec::with_capacity(tiles.len());
        let lent = at.reads[4..].chunks(2).zip(at.writes[1..].chunks(2));
        for ((tile, rows), (read, written)) in tiles.iter().zip(rows).zip(lent) {
            let lent = [[read[0], read[1]], [written[0], written[1]]];
            all.push(self.tile(processor, kernel, tile, rows, lent, &mut uploads)?);
        }
        let arguments = StrictBackwardArguments {
            tiles: Tiles::new(kernel, &all, |all| uploads.put(processor, all))?,
            ..self.arguments(&at.reads, at.writes[0], rows)
        };
        let launch = kernel.launch(self.grid(kernel, rows))?;
        // SAFETY: sizes were checked; addresses hold until the launch is in the stream.
        unsafe { processor.launch(&launch, bytemuck::bytes_of(&arguments)) }
    }

    fn tile(
        &self,
        processor: &dyn Processor,
        kernel: &Kernel,
        tile: &Tile<'_>,
        rows: &Rows,
        [read, written]: [[u64; 2]; 2],
        uploads: &mut Uploads,
    ) -> Result<Keys> {
        let (mut one, _) = uploads.tile(processor, kernel, tile, rows, read)?;
        [one.dk, one.dv] = written;
        if let Some([queries, keys]) = tile.positions {
            one.query_starts = starts(uploads, processor, queries, self.block)?;
            one.key_starts = starts(uploads, processor, keys, self.block)?;
        }
        Ok(one)
    }

    /// The number of blocks that stay, of heads, and of batch rows (and tiles).
    fn grid(&self, kernel: &Kernel, rows: &[Rows]) -> [usize; 3] {
        let Queries { batch, heads, .. } = self.sizes;
        if !kernel.keeps_keys() {
            return [self.sizes.rows.div_ceil(kernel.query_block), heads, batch];
        }
        let blocks = |rows: &Rows| rows.k.dims()[2].div_ceil(kernel.key_block);
        let most = rows.iter().map(blocks).max().unwrap_or(0);
        [most, rows[0].k.dims()[1], batch * rows.len()]
    }

    fn arguments(&self, reads: &[u64], dq: u64, rows: &[Rows]) -> StrictBackwardArguments {
        let Queries { batch, heads, rows: queries, dim } = self.sizes;
        StrictBackwardArguments {
            q: reads[0],
            gradient: reads[1],
            q_strides: strides(&self.q),
            gradient_strides: strides(&self.gradient),
            batch: batch as i32,
            heads: heads as i32,
            group: (heads / rows[0].k.dims()[1]) as i32,
            rows: queries as i32,
            dim: dim as i32,
            scale: self.scale as f32,
            scale_log2: (self.scale * LOG2_E) as f32,
            lse_log2: reads[2],
            delta: reads[3],
            dq,
            ..Zeroable::zeroed()
        }
    }

    /// The sums that a tile's gradients are added to: those that it carries, or sums of nothing.
    fn begun(tile: &Tile<'_>, carried: Option<KeyValueGradients>) -> Result<KeyValueGradients> {
        let (batch, heads, rows, dim) = tile.k.dims4()?;
        let dims = [batch, heads, rows, length(dim)];
        let Some(carried) = carried else {
            let start = || Tensor::zeros(&dims, DType::U32, tile.k.device());
            return Ok(KeyValueGradients { dk: start()?, dv: start()? });
        };
        for tensor in [&carried.dk, &carried.dv] {
            if tensor.dims() != dims || tensor.dtype() != DType::U32 || !tensor.is_contiguous() {
                let found = (tensor.dims(), tensor.dtype());
                return wrong(&format!(
                    "carried gradients of {found:?}, expected order-free sums of {dims:?} without gaps"
                ));
            }
        }
        Ok(carried)
    }

    /// The gradient of the queries, order-free sums.
    pub(super) fn finish(self) -> Tensor {
        self.dq
    }
}
