//! The norm of many tensors in two launches: `kernels/norm/norm.h`, `kernels/sums/sums.h`.

use bytemuck::NoUninit;
use candle_core::{DType, Result, Tensor};

use super::super::{Processor, addresses};
use super::chunks::{self, Tables};
use super::{Extent, launch, plain, sums, unwritten};

/// Mirrors the C struct `NormTensor`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C, align(16))]
pub(super) struct Row {
    values: u64,
    count: i64,
}

/// Mirrors the C struct `NormSquaresArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct Arguments {
    tensors: u64,
    chunks: u64,
    squares: u64,
}

/// The rows of the table: addresses of tensors with their sizes.
pub(super) fn rows_at(values: &[u64], sizes: impl Iterator<Item = usize>) -> Vec<Row> {
    values
        .iter()
        .zip(sizes)
        .map(|(values, count)| Row { values: *values, count: count as i64 })
        .collect()
}

/// The sum of squares of all elements in f64. The host waits for it.
pub(crate) fn global_norm_squared<'a>(
    processor: &dyn Processor,
    tensors: impl IntoIterator<Item = &'a Tensor>,
) -> Result<f64> {
    let tensors = tensors.into_iter().map(|tensor| plain(processor, tensor, DType::F32));
    let tensors = tensors.collect::<Result<Vec<_>>>()?;
    let sizes = || tensors.iter().map(Tensor::elem_count);
    let blocks = chunks::count(sizes());
    // SAFETY: every block writes its sum.
    let squares = unsafe { unwritten(processor, blocks, DType::F64) }?;
    let extent = Extent { shared: 2048, ..Extent::blocks(blocks) };
    addresses(&tensors.iter().collect::<Vec<_>>(), &[&squares], &mut |at| {
        let rows = rows_at(&at.reads, sizes());
        let tables = Tables::new(processor, &rows, sizes())?;
        let arguments = Arguments {
            tensors: tables.tensors.address,
            chunks: tables.chunks.address,
            squares: at.writes[0],
        };
        // SAFETY: rows hold addresses of as many elements as they say; there is a sum for every block.
        unsafe { launch(processor, "norm_squares_f32", extent, &arguments) }
    })?;
    sums::total(processor, &squares)?.to_scalar()
}
