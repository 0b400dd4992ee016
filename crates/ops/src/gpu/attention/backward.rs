//! Backward on a GPU: the gradient of the queries in device memory, those of keys and values in the tensors that are sent.

use bytemuck::Zeroable;
use candle_core::{DType, Result, Tensor};

use super::super::arguments::{BackwardArguments, FinishQueriesArguments, Reach, Tiles};
use super::super::table::{Kernel, between};
use super::super::{Addresses, Processor, addresses};
use super::order::{Order, visitors, visits_of_keys, visits_of_queries};
use super::tiles::{Rows, Uploads, map, strides};
use super::{Kernels, in_rows};
use crate::attention::sizes::Queries;
use crate::attention::{BackwardTile, KeyValueGradients, Prepared, State, Tile, wrong};

/// Rows are padded to a multiple of the largest block, so that kernels need not check where they end.
const PADDED: usize = 128;

/// Queries with the gradient of their output, and their accumulated gradient.
#[derive(Debug)]
pub(super) struct Backward {
    /// The kernel that adds the gradients of keys and values, and of queries if it does all.
    kernel: &'static Kernel,
    /// The kernel that adds the gradient of queries, where it is a separate one.
    queries: Option<&'static Kernel>,
    sizes: Queries,
    padded: usize,
    scale: f64,
    q: Tensor,
    gradient: Tensor,
    /// The log-sum-exp of rows to base 2, f32 [B, Hq, padded].
    lse_log2: Tensor,
    delta: Tensor,
    /// The accumulated gradients of queries, by the order in which kernels leave them.
    accumulated: Vec<Accumulated>,
    /// The kernel that adds in turn, where bits must be reproducible and there is one.
    in_turn: Option<InTurn>,
}

/// An accumulated gradient of queries, of kernels that leave it in one order.
#[derive(Debug)]
struct Accumulated {
    /// One of the kernels that write it.
    writer: &'static Kernel,
    /// The gradient, f32, [B, Hq, padded, columns] elements.
    dq: Tensor,
}

/// A kernel that adds all three gradients, with blocks of keys taking turns at that of the queries.
#[derive(Debug)]
struct InTurn {
    kernel: &'static Kernel,
    /// The number of additions to each block of queries, u32; 0 between launches.
    turns: Tensor,
}

/// A tile, and the gradients of its keys and values, which kernels add to; where they are `fresh`, the first kernel overwrites them.
struct TileGradients<'a> {
    tile: Tile<'a>,
    rows: Rows,
    fresh: bool,
    gradients: KeyValueGradients,
}

/// A backward tile as it is launched: the device addresses of its keys and values, and of their gradients.
#[derive(Clone, Copy)]
struct AddressedTile<'a> {
    begun: &'a TileGradients<'a>,
    read: [u64; 2],
    written: [u64; 2],
}

impl State for Backward {}

impl Backward {
    pub(super) fn new(
        kernels: &Kernels,
        q: &Tensor,
        prepared: &Prepared,
        scale: f64,
    ) -> Result<Backward> {
        let sizes = Queries::new(q, scale)?;
        sizes.check(prepared)?;
        let dtype = q.dtype();
        let (kernel, queries) = kernels.backward_kernels(dtype, sizes.dim)?;
        let padded = sizes.rows.next_multiple_of(PADDED);
        let (batch, heads, rows) = (sizes.batch, sizes.heads, sizes.rows);
        let in_turn = |kernel: &'static Kernel| -> Result<InTurn> {
            let blocks = batch * heads * (padded / kernel.query_block);
            Ok(InTurn { kernel, turns: Tensor::zeros(blocks, DType::U32, q.device())? })
        };
        // Past the last row, exp2(score - infinity) leaves no weight.
        let padding = |statistic: &Tensor, value: f32| {
            let statistic = statistic.detach().contiguous()?;
            if padded == rows {
                return Ok(statistic);
            }
            let rest = Tensor::full(value, (batch, heads, padded - rows), q.device())?;
            Tensor::cat(&[&statistic, &rest], 2)
        };
        Ok(Backward {
            kernel,
            queries,
            padded,
            scale,
            q: in_rows(q, dtype)?,
            gradient: in_rows(&prepared.gradient, dtype)?,
            lse_log2: padding(&prepared.lse, f32::INFINITY)?,
            delta: padding(&prepared.delta, 0.0)?,
            accumulated: Vec::new(),
            in_turn: kernels.in_turn(dtype, sizes.dim).map(in_turn).transpose()?,
            sizes,
        })
    }

    /// Adds all tiles. A tile whose blocks of keys take turns has a launch of its own; all others share one launch, or two where the
    /// gradient of queries has its own kernel.
    pub(super) fn add(
        &mut self,
        processor: &dyn Processor,
        tiles: Vec<BackwardTile<'_>>,
    ) -> Result<Vec<KeyValueGradients>> {
        let initializes = self.kernel.initializes_sums();
        let mut begun = Vec::with_capacity(tiles.len());
        for BackwardTile { tile, carried } in tiles {
            self.sizes.keys(&tile)?;
            let rows = Rows::new(&tile, self.q.dtype())?;
            let fresh = carried.is_none() && initializes;
            let gradients = started(&tile, carried, initializes)?;
            begun.push(TileGradients { tile, rows, fresh, gradients });
        }
        let mut left: Vec<&TileGradients<'_>> = begun.iter().collect();
        if let Some(InTurn { kernel, turns }) = &self.in_turn {
            let (kernel, turns) = (*kernel, turns.clone());
            let mut others = Vec::new();
            for one in left {
                let dq = self.accumulated(kernel)?;
                if !self.launch(processor, kernel, &[one], &[&dq, &turns])? {
                    others.push(one);
                }
            }
            left = others;
        }
        if !left.is_empty() {
            let dq = self.accumulated(self.queries.unwrap_or(self.kernel))?;
            for kernel in [Some(self.kernel), self.queries].into_iter().flatten() {
                self.launch(processor, kernel, &left, &[&dq])?;
            }
        }
        Ok(begun.into_iter().map(|begun| begun.gradients).collect())
    }

    /// The tensor that `writer` adds the gradient of queries to.
    fn accumulated(&mut self, writer: &'static Kernel) -> Result<Tensor> {
        let columns = writer.columns(self.sizes.dim);
        let alike = |one: &&Accumulated| {
            one.writer.order_of_queries() == writer.order_of_queries()
                && one.writer.columns(self.sizes.dim) == columns
        };
        if let Some(found) = self.accumulated.iter().find(alike) {
            return Ok(found.dq.clone());
        }
        let shape = (self.sizes.batch, self.sizes.heads, self.padded, columns);
        let dq = Tensor::zeros(shape, DType::F32, self.q.device())?;
        self.accumulated.push(Accumulated { writer, dq: dq.clone() });
        Ok(dq)
    }

    /// Launches a kernel as `launch_at` does, on the tensors of the gradient of queries and of `written`.
    fn launch(
        &self,
        processor: &dyn Processor,
        kernel: &Kernel,
        tiles: &[&TileGradients<'_>],
        written: &[&Tensor],
    ) -> Result<bool> {
        let reads: Vec<&Tensor> = [&self.q, &self.gradient, &self.lse_log2, &self.delta]
            .into_iter()
            .chain(tiles.iter().flat_map(|begun| [&begun.rows.k, &begun.rows.v]))
            .collect();
        let writes: Vec<&Tensor> = (written.iter().copied())
            .chain(tiles.iter().flat_map(|begun| [&begun.gradients.dk, &begun.gradients.dv]))
            .collect();
        let mut launched = false;
        addresses(&reads, &writes, &mut |at| {
            let lent = at.reads[4..].chunks(2).zip(at.writes[written.len()..].chunks(2));
            let addressed = tiles.iter().zip(lent).map(|(begun, (read, written))| {
                let [read, written] = [read, written].map(|two| [two[0], two[1]]);
                AddressedTile { begun, read, written }
            });
            launched = self.launch_at(processor, kernel, &addressed.collect::<Vec<_>>(), at)?;
            Ok(())
        })?;
        Ok(launched)
    }

    /// Launches a kernel; returns false where it does not support how these tiles take turns.
    fn launch_at(
        &self,
        processor: &dyn Processor,
        kernel: &Kernel,
        tiles: &[AddressedTile<'_>],
        at: &Addresses,
    ) -> Result<bool> {
        let mut uploads = Uploads::default();
        let mut all = Vec::with_capacity(tiles.len());
        let mut reaches = Vec::with_capacity(tiles.len());
        for AddressedTile { begun, read, written } in tiles {
            let (mut one, reached) =
                uploads.tile(processor, kernel, &begun.tile, &begun.rows, *read)?;
            [one.dk, one.dv] = *written;
            one.fresh = i32::from(begun.fresh);
            all.push(one);
            reaches.push(reached);
        }
        let heads = tiles[0].begun.rows.k.dims()[1];
        let mut arguments = self.arguments(processor, kernel, at, self.sizes.heads / heads)?;
        arguments.tiles = Tiles::new(kernel, &all, |all| uploads.put(processor, all))?;
        let (visits, group, items) = self.blocks(kernel, tiles, &reaches);
        let order = if kernel.is_in_turn() {
            let blocks = self.sizes.rows.div_ceil(kernel.query_block);
            let of = |reaches: &Vec<Reach>| visitors(reaches, kernel.query_block, blocks);
            let Some(visitors) = reaches[0].iter().map(of).collect::<Option<Vec<_>>>() else {
                return Ok(false);
            };
            arguments.turns = at.writes[1];
            arguments.visitors = uploads.keep(processor, &visitors.concat())?;
            Order::in_turn(items[0], items[1] * items[2], processor.multiprocessors())
        } else {
            Order::new(&visits, group, items[1] * items[2], processor.multiprocessors())
        };
        arguments.order = uploads.order(processor, &order)?;
        let launch = kernel.launch(kernel.blocks_for(items, processor))?;
        // SAFETY: sizes were checked; addresses hold until the launch is in the stream.
        unsafe { processor.launch(&launch, bytemuck::bytes_of(&arguments)) }?;
        Ok(true)
    }

    /// The number of blocks that each staying block visits, the number of heads that visit the same ones, and the number of staying blocks:
    /// blocks by heads by batch rows (and tiles).
    fn blocks(
        &self,
        kernel: &Kernel,
        tiles: &[AddressedTile<'_>],
        reaches: &[Vec<Vec<Reach>>],
    ) -> (Vec<Vec<usize>>, usize, [usize; 3]) {
        let Queries { batch, heads: query_heads, .. } = self.sizes;
        let heads = tiles[0].begun.rows.k.dims()[1];
        if kernel.keeps_keys() {
            let blocks =
                |tile: &AddressedTile<'_>| tile.begun.rows.k.dims()[2].div_ceil(kernel.key_block);
            let most = tiles.iter().map(blocks).max().unwrap_or(0);
            let visits = visits_of_keys(reaches, kernel.query_block);
            return (visits, 1, [most, heads, batch * tiles.len()]);
        }
        let blocks = self.sizes.rows.div_ceil(kernel.query_block);
        let visits = visits_of_queries(reaches, kernel.key_block);
        (visits, query_heads / heads, [blocks, query_heads, batch])
    }

    fn arguments(
        &self,
        processor: &dyn Processor,
        kernel: &Kernel,
        at: &Addresses,
        group: usize,
    ) -> Result<BackwardArguments> {
        let Queries { batch, heads, rows, dim } = self.sizes;
        let mapped = |tensor, address| map(processor, kernel, tensor, address, kernel.query_block);
        Ok(BackwardArguments {
            q_map: mapped(&self.q, at.reads[0])?,
            gradient_map: mapped(&self.gradient, at.reads[1])?,
            q: at.reads[0],
            gradient: at.reads[1],
            q_strides: strides(&self.q),
            gradient_strides: strides(&self.gradient),
            batch: batch as i32,
            heads: heads as i32,
            group: group as i32,
            rows: rows as i32,
            padded: self.padded as i32,
            dim: dim as i32,
            scale: self.scale as f32,
            scale_log2: (self.scale * std::f64::consts::LOG2_E) as f32,
            lse_log2: at.reads[2],
            delta: at.reads[3],
            dq: at.writes[0],
            ..Zeroable::zeroed()
        })
    }

    /// The gradient of the queries in row order.
    pub(super) fn finish(mut self, processor: &dyn Processor) -> Result<Tensor> {
        if self.accumulated.is_empty() {
            self.accumulated(self.queries.unwrap_or(self.kernel))?;
        }
        let mut finished = self.accumulated.iter().map(|one| self.finished(processor, one));
        let first = finished.next().expect("one at least")?;
        finished.try_fold(first, |sum, next| sum + next?)
    }

    fn finished(&self, processor: &dyn Processor, one: &Accumulated) -> Result<Tensor> {
        let Queries { batch, heads, rows, dim } = self.sizes;
        // SAFETY: the kernel writes all rows.
        let dq = unsafe { Tensor::empty(self.sizes.shape(), DType::F32, self.q.device())? };
        let order = one.writer.order_of_queries();
        let kernel = between("finish_queries", order, DType::F32)?;
        let rows_of_order = if order == "rows" { rows } else { self.padded };
        let blocks = (batch * heads * rows_of_order).div_ceil(kernel.query_block);
        let launch = kernel.launch([blocks, 1, 1])?;
        addresses(&[&one.dq], &[&dq], &mut |at| {
            let arguments = FinishQueriesArguments {
                accumulated: at.reads[0],
                dq: at.writes[0],
                batch: batch as i32,
                heads: heads as i32,
                rows: rows as i32,
                padded: self.padded as i32,
                dim: dim as i32,
                scale: self.scale as f32,
                columns: one.writer.columns(dim) as i32,
                _gap: 0,
            };
            // SAFETY: as above.
            unsafe { processor.launch(&launch, bytemuck::bytes_of(&arguments)) }
        })?;
        Ok(dq)
    }
}

/// The gradients that a tile adds to: those that it carries, or zeros, which a kernel that `initializes` sums writes itself.
fn started(
    tile: &Tile<'_>,
    carried: Option<KeyValueGradients>,
    initializes: bool,
) -> Result<KeyValueGradients> {
    let Some(carried) = carried else {
        let (dims, device) = (tile.k.dims(), tile.k.device());
        let start = || {
            if initializes {
                // SAFETY: the kernel writes the gradients of all keys of a tile that is fresh.
                return unsafe { Tensor::empty(dims, DType::F32, device) };
            }
            Tensor::zeros(dims, DType::F32, device)
        };
        return Ok(KeyValueGradients { dk: start()?, dv: start()? });
    };
    for tensor in [&carried.dk, &carried.dv] {
        if tensor.dims() != tile.k.dims() || tensor.dtype() != DType::F32 || !tensor.is_contiguous()
        {
            return wrong(&format!(
                "carried gradients {:?} {:?} for keys {:?}, expected F32 without gaps",
                tensor.dtype(),
                tensor.dims(),
                tile.k.dims()
            ));
        }
    }
    Ok(carried)
}
