//! Forward on a GPU: the running state in device memory, folded in place.

use candle_core::{DType, Device, Result, Tensor};

use super::super::arguments::{FinishArguments, ForwardArguments, Tiles};
use super::super::table::{Kernel, Pass, between};
use super::super::{Processor, addresses};
use super::order::{Order, visits_of_queries};
use super::tiles::{Rows, Uploads, map, strides};
use super::{Kernels, in_rows};
use crate::attention::sizes::Queries;
use crate::attention::{Attended, State, Tile, wrong};

/// Queries and their running state.
#[derive(Debug)]
pub(super) struct Forward {
    kernel: &'static Kernel,
    sizes: Queries,
    scale: f64,
    q: Tensor,
    /// The running state; `None` before the first tiles, where the kernel starts from nothing.
    running: Option<Running>,
    /// Whether the next tiles are the last.
    ends: bool,
    /// The result that the kernel left after the last tiles.
    attended: Option<Attended>,
}

#[derive(Debug)]
struct Running {
    /// The unnormalized output, f32 [B, Hq, Sq, D].
    out: Tensor,
    /// The running maximum of raw scores, f32 [B, Hq, Sq].
    maximum: Tensor,
    /// The running sum, f32 [B, Hq, Sq].
    sum: Tensor,
}

impl Running {
    /// The running state of rows that have seen nothing.
    fn begin(sizes: Queries, device: &Device) -> Result<Running> {
        let per_row = (sizes.batch, sizes.heads, sizes.rows);
        Ok(Running {
            out: Tensor::zeros(sizes.shape(), DType::F32, device)?,
            maximum: Tensor::full(f32::NEG_INFINITY, per_row, device)?,
            sum: Tensor::zeros(per_row, DType::F32, device)?,
        })
    }

    /// # Safety
    /// What is launched next must write all of it.
    unsafe fn unwritten(sizes: Queries, device: &Device) -> Result<Running> {
        let per_row = (sizes.batch, sizes.heads, sizes.rows);
        // SAFETY: the caller's promise.
        unsafe {
            Ok(Running {
                out: Tensor::empty(sizes.shape(), DType::F32, device)?,
                maximum: Tensor::empty(per_row, DType::F32, device)?,
                sum: Tensor::empty(per_row, DType::F32, device)?,
            })
        }
    }

    fn all(&self) -> [&Tensor; 3] {
        [&self.out, &self.maximum, &self.sum]
    }
}

impl State for Forward {
    fn end_with_next(&mut self) {
        self.ends = true;
    }
}

impl Forward {
    pub(super) fn new(kernels: &Kernels, q: &Tensor, scale: f64) -> Result<Forward> {
        let sizes = Queries::new(q, scale)?;
        let kernel = kernels.kernel(Pass::Forward, q.dtype(), sizes.dim)?;
        let q = in_rows(q, q.dtype())?;
        // Other kernels take an initialized state.
        let running =
            (!kernel.initializes_sums()).then(|| Running::begin(sizes, q.device())).transpose()?;
        Ok(Forward { kernel, sizes, scale, q, running, ends: false, attended: None })
    }

    /// Folds all tiles in one launch.
    pub(super) fn fold(&mut self, processor: &dyn Processor, tiles: &[Tile<'_>]) -> Result<()> {
        for tile in tiles {
            self.sizes.keys(tile)?;
        }
        let rows = tiles.iter().map(|tile| Rows::new(tile, self.q.dtype()));
        let rows = rows.collect::<Result<Vec<_>>>()?;
        if rows.is_empty() {
            return Ok(());
        }
        if self.attended.is_some() {
            return wrong("tiles came after those that were said to be the last");
        }
        let (first, device) = (self.running.is_none(), self.q.device());
        if self.ends && self.kernel.initializes_sums() {
            // SAFETY: of its last tiles the kernel writes the results of all rows.
            let attended = unsafe { unwritten(self.sizes, self.q.dtype(), device, true)? };
            let running = self.running.take();
            let state = running.iter().flat_map(Running::all).collect::<Vec<_>>();
            self.launch(processor, tiles, &rows, &state, &[&attended.out, &attended.lse], first)?;
            self.attended = Some(attended);
            return Ok(());
        }
        let running = match self.running.take() {
            Some(running) => running,
            // SAFETY: of its first tiles the kernel writes the state of all rows.
            None => unsafe { Running::unwritten(self.sizes, device)? },
        };
        self.launch(processor, tiles, &rows, &[], &running.all(), first)?;
        self.running = Some(running);
        Ok(())
    }

    /// Launches a kernel that reads `state`, where it ends one, and writes a state, or output and log-sum-exp.
    fn launch(
        &self,
        processor: &dyn Processor,
        tiles: &[Tile<'_>],
        rows: &[Rows],
        state: &[&Tensor],
        written: &[&Tensor],
        first: bool,
    ) -> Result<()> {
        let group = self.sizes.heads / rows[0].k.dims()[1];
        let lent = rows.iter().flat_map(|rows| [&rows.k, &rows.v]);
        let reads: Vec<&Tensor> =
            [&self.q].into_iter().chain(state.iter().copied()).chain(lent).collect();
        addresses(&reads, written, &mut |at| {
            let (state, lent) = at.reads[1..].split_at(state.len());
            let mut uploads = Uploads::default();
            let (mut all, mut reaches) = (Vec::new(), Vec::new());
            for ((tile, rows), at) in tiles.iter().zip(rows).zip(lent.chunks(2)) {
                let at = [at[0], at[1]];
                let (one, reached) = uploads.tile(processor, self.kernel, tile, rows, at)?;
                all.push(one);
                reaches.push(reached);
            }
            let mut arguments = self.arguments(processor, at.reads[0], group)?;
            arguments.tiles = Tiles::new(self.kernel, &all, |all| uploads.put(processor, all))?;
            let visits = visits_of_queries(&reaches, self.kernel.key_block);
            let heads = self.sizes.heads * self.sizes.batch;
            let order = Order::new(&visits, group, heads, processor.multiprocessors());
            arguments.order = uploads.order(processor, &order)?;
            arguments.first = i32::from(first);
            arguments.give(state, &at.writes);
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
            scale: self.scale as f32,
            ..bytemuck::Zeroable::zeroed()
        })
    }

    /// Divides by the sums and casts, where the kernel has not done so.
    pub(super) fn finish(self, processor: &dyn Processor) -> Result<Attended> {
        if let Some(attended) = self.attended {
            return Ok(attended);
        }
        let Queries { batch, heads, rows, dim } = self.sizes;
        let device = self.q.device();
        let running = self.running.map_or_else(|| Running::begin(self.sizes, device), Ok)?;
        // SAFETY: the kernel writes all rows.
        let attended = unsafe { unwritten(self.sizes, self.q.dtype(), device, false)? };
        let rows = batch * heads * rows;
        let kernel = between("finish", "rows", self.q.dtype())?;
        let launch = kernel.launch([rows.div_ceil(kernel.query_block), 1, 1])?;
        addresses(&running.all(), &[&attended.out, &attended.lse], &mut |at| {
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
        Ok(attended)
    }
}

/// Uninitialized output, laid out as [B, Hq, Sq, D] or `by_token`, and log-sum-exp.
///
/// # Safety
/// What is launched next must write all of it.
unsafe fn unwritten(
    sizes: Queries,
    dtype: DType,
    device: &Device,
    by_token: bool,
) -> Result<Attended> {
    let (batch, heads, rows, dim) = sizes.shape();
    // SAFETY: the caller's promise.
    unsafe {
        let out = if by_token {
            Tensor::empty((batch, rows, heads, dim), dtype, device)?.transpose(1, 2)?
        } else {
            Tensor::empty(sizes.shape(), dtype, device)?
        };
        Ok(Attended { out, lse: Tensor::empty((batch, heads, rows), DType::F32, device)? })
    }
}

impl ForwardArguments {
    /// The state that is read, where these tiles end it, and what is written: a state, or output and log-sum-exp.
    fn give(&mut self, state: &[u64], written: &[u64]) {
        if let &[out, maximum, sum] = written {
            [self.out, self.maximum, self.sum] = [out, maximum, sum];
        }
        if let &[out, maximum, sum] = state {
            [self.out, self.maximum, self.sum] = [out, maximum, sum];
        }
        if let &[result, lse] = written {
            [self.result, self.lse] = [result, lse];
            self.last = 1;
        }
    }
}
