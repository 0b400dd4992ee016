//! Sums in a fixed order, over rows and of a list of numbers: `kernels/sums/sums.h`.

use bytemuck::NoUninit;
use candle_core::{DType, Result, Tensor};

use super::super::{Processor, addresses};
use super::elementwise::gathered;
use super::view::View;
use super::{Extent, launch, of_type, order_free, unwritten};

/// The most blocks that share the rows of a sum.
const BLOCKS: usize = 512;

/// Mirrors the C struct `SumRowsArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct RowsArguments {
    x: u64,
    partials: u64,
    rows: i64,
    width: i32,
    rows_per_block: i32,
}

/// Mirrors the C struct `SumPartialsArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct PartialsArguments {
    partials: u64,
    totals: u64,
    count: i64,
    width: i32,
    _gap: u32,
}

/// Mirrors the C struct `SumArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct ListArguments {
    values: u64,
    total: u64,
    count: i64,
}

/// The number of rows that a block sums, a function of `rows` alone, on which the sums' bits depend. Where sums are order-free, the rows of
/// a strict block.
pub(super) fn rows_per_block(processor: &dyn Processor, rows: usize) -> usize {
    processor.block().unwrap_or_else(|| rows.div_ceil(BLOCKS).next_multiple_of(8).max(8))
}

/// The sum of the rows of `x` [rows, width]: f32 `[width]`, or a table of order-free sums.
pub(super) fn over_rows(processor: &dyn Processor, x: &View<'_>) -> Result<Tensor> {
    let [rows, width] = x.dims;
    let copy = (x.gap() > 0).then(|| gathered(processor, &x.tensors, &x.dims, &x.strides));
    let copy = copy.transpose()?;
    let tensors = copy.as_ref().map_or_else(|| x.tensors.clone(), |copy| vec![copy]);
    let each = rows_per_block(processor, rows);
    let blocks = rows.div_ceil(each);
    // SAFETY: every block writes its sums.
    let sums = unsafe { unwritten(processor, (blocks, width), DType::F32) }?;
    let grid = [blocks, width.div_ceil(256), 1];
    let extent = Extent { grid, shared: 8192, ..Extent::blocks(0) };
    let kernel = of_type("sum_rows", x.first().dtype())?;
    addresses(&tensors, &[&sums], &mut |at| {
        let arguments = RowsArguments {
            x: at.reads[0],
            partials: at.writes[0],
            rows: rows as i64,
            width: width as i32,
            rows_per_block: each as i32,
        };
        // SAFETY: the sizes are those of the tensors, whose addresses hold until the launch is in the stream.
        unsafe { launch(processor, &kernel, extent, &arguments) }
    })?;
    partials(processor, &sums)
}

/// The sum of `partials` [count, width] f32, computed in f64: f32 `[width]`; or a table of order-free sums.
pub(super) fn partials(processor: &dyn Processor, partials: &Tensor) -> Result<Tensor> {
    if processor.block().is_some() {
        return order_free::of_partials(processor, partials);
    }
    let (count, width) = partials.dims2()?;
    // SAFETY: every sum is written, of no rows too.
    let totals = unsafe { unwritten(processor, width, DType::F32) }?;
    let extent = Extent { shared: 2048, ..Extent::blocks(width.div_ceil(32)) };
    addresses(&[partials], &[&totals], &mut |at| {
        let arguments = PartialsArguments {
            partials: at.reads[0],
            totals: at.writes[0],
            count: count as i64,
            width: width as i32,
            _gap: 0,
        };
        // SAFETY: as above.
        unsafe { launch(processor, "sum_partials_f32", extent, &arguments) }
    })?;
    Ok(totals)
}

/// The sum of `values` f64 [count]: a scalar f64.
pub(super) fn total(processor: &dyn Processor, values: &Tensor) -> Result<Tensor> {
    // SAFETY: it is written.
    let total = unsafe { unwritten(processor, (), DType::F64) }?;
    let extent = Extent { shared: 2048, ..Extent::blocks(1) };
    addresses(&[values], &[&total], &mut |at| {
        let arguments = ListArguments {
            values: at.reads[0],
            total: at.writes[0],
            count: values.elem_count() as i64,
        };
        // SAFETY: as above.
        unsafe { launch(processor, "sum_f64", extent, &arguments) }
    })?;
    Ok(total)
}
