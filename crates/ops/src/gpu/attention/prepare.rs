//! Prepares backward on a GPU: statistics of each row of queries.

use candle_core::{DType, Result, Tensor};

use super::super::arguments::PrepareArguments;
use super::super::table::between;
use super::super::{Processor, addresses};
use super::in_rows;
use super::tiles::strides;
use crate::attention::sizes::Queries;
use crate::attention::{Attended, Prepared};

/// The log-sum-exp in base 2, and the sum of output times gradient, per row (FlashAttention-2, arXiv 2307.08691, section 3.1).
pub(super) fn prepare(
    processor: &dyn Processor,
    attended: &Attended,
    gradient: &Tensor,
) -> Result<Prepared> {
    let Queries { batch, heads, rows, dim } = Queries::of(attended, gradient)?;
    let dtype = attended.out.dtype();
    let (out, gradient) = (in_rows(&attended.out, dtype)?, in_rows(gradient, dtype)?);
    let lse = attended.lse.to_dtype(DType::F32)?.contiguous()?;
    // SAFETY: the kernel writes all rows.
    let statistic = || unsafe { Tensor::empty((batch, heads, rows), DType::F32, out.device()) };
    let (lse_log2, delta) = (statistic()?, statistic()?);
    let kernel = between("prepare", "rows", dtype)?;
    let launch = kernel.launch([(batch * heads * rows).div_ceil(kernel.query_block), 1, 1])?;
    addresses(&[&out, &gradient, &lse], &[&lse_log2, &delta], &mut |at| {
        let arguments = PrepareArguments {
            out: at.reads[0],
            gradient: at.reads[1],
            out_strides: strides(&out),
            gradient_strides: strides(&gradient),
            lse: at.reads[2],
            lse_log2: at.writes[0],
            delta: at.writes[1],
            batch: batch as i32,
            heads: heads as i32,
            rows: rows as i32,
            dim: dim as i32,
        };
        // SAFETY: sizes were checked; addresses hold until the launch is in the stream.
        unsafe { processor.launch(&launch, bytemuck::bytes_of(&arguments)) }
    })?;
    Ok(Prepared { gradient, lse: lse_log2, delta })
}
