//! All operators but attention as kernels: each file mirrors its kernels' arguments in `kernels/`, byte by byte, and launches them.
//!
//! Inputs are converted to what kernels read: without gaps, of one dtype. Results are off the tape. Only what gives the host a number waits
//! for the processor: a loss, a norm.

mod adamw;
mod chunks;
mod cross_entropy;
#[cfg(feature = "cuda")]
pub(super) mod cublas;
mod dropout;
mod elementwise;
mod embedding;
mod linear;
mod norm;
mod order_free;
mod product;
mod rms_norm;
mod rope;
mod sums;
mod swiglu;
mod view;

use annulus_sequence::Positions;
use bytemuck::NoUninit;
use candle_core::{DType, Result, Shape, Tensor, bail};

use super::processor::reach;
use super::table::element_name;
use super::{Launch, Processor};

pub(crate) use adamw::update_all;
pub(crate) use cross_entropy::{
    linear_cross_entropy, linear_cross_entropy_gradients, linear_cross_entropy_loss, predictions,
};
pub(crate) use dropout::input_dropout;
pub(crate) use elementwise::{accumulate, add_all, contiguous};
pub use embedding::unchecked_backward;
pub(crate) use embedding::{embedding, embedding_backward};
pub(crate) use linear::{
    input_gradient, linear, parameter_gradients, projected_onto, projections, wide_linear,
};
pub(crate) use norm::global_norm_squared;
pub(crate) use order_free::{add_sums, exact_squares, read_sums};
pub(crate) use rms_norm::{rms_norm, rms_norm_backward};
pub(crate) use rope::{Placed, rope, rope_qkv, rope_qkv_backward};
pub(crate) use swiglu::{swiglu, swiglu_backward};

/// Threads of most blocks; `OPERATOR_THREADS` in C.
const THREADS: u32 = 256;

/// Elements of flat memory that a block works on; `FLAT_ELEMENTS` in C.
const FLAT: usize = 8192;

/// Bytes of shared memory for sums over a row's threads; `TEAM_SCRATCH` in C.
const SCRATCH: u32 = 128;

/// The extent of a launch whose blocks have a fixed size.
#[derive(Clone, Copy, Debug)]
struct Extent {
    grid: [usize; 3],
    threads: u32,
    /// Bytes of shared memory per block.
    shared: u32,
}

impl Extent {
    /// The extent for `count` elements of flat memory.
    fn flat(count: usize) -> Extent {
        Extent::blocks(count.div_ceil(FLAT))
    }

    /// The extent of `blocks` blocks without shared memory.
    fn blocks(blocks: usize) -> Extent {
        Extent { grid: [blocks, 1, 1], threads: THREADS, shared: 0 }
    }
}

/// Launches `kernel`, unless there is nothing to do.
///
/// # Safety
/// As [`Processor::launch`].
unsafe fn launch<A: NoUninit>(
    processor: &dyn Processor,
    kernel: &str,
    Extent { grid, threads, shared }: Extent,
    arguments: &A,
) -> Result<()> {
    if grid.contains(&0) {
        return Ok(());
    }
    let launch = Launch::new(kernel, grid, threads, shared)?;
    // SAFETY: the caller's promise.
    unsafe { processor.launch(&launch, bytemuck::bytes_of(arguments)) }
}

/// The runs of `positions` as kernels read them: start, step, len, width of each.
fn runs_of(positions: &Positions) -> Vec<i64> {
    let runs = positions.runs().iter();
    runs.flat_map(|run| [run.start, run.step, run.len, run.width].map(|number| number as i64))
        .collect()
}

/// The name of a kernel for tensors of `dtype`.
fn of_type(kernel: &str, dtype: DType) -> Result<String> {
    Ok(format!("{kernel}_{}", element_name(dtype)?))
}

/// A tensor that has not been written yet.
///
/// # Safety
/// What is launched next must write all of it.
unsafe fn unwritten(
    processor: &dyn Processor,
    shape: impl Into<Shape>,
    dtype: DType,
) -> Result<Tensor> {
    // SAFETY: the caller's promise.
    unsafe { Tensor::empty(shape, dtype, processor.device()) }
}

/// Refuses inputs that are on the tape: kernels record no gradients.
fn off_tape<'a>(operator: &str, inputs: impl IntoIterator<Item = &'a Tensor>) -> Result<()> {
    if inputs.into_iter().any(Tensor::track_op) {
        bail!(
            "{operator}: found an input on the tape, expected detached ones: on a processor of kernels nothing is recorded, \
             gradients are made by hand"
        );
    }
    Ok(())
}

/// Refuses a tensor that the processor's kernels cannot reach.
fn here(processor: &dyn Processor, tensor: &Tensor) -> Result<()> {
    reach(processor.device(), tensor)
}

/// The elements as kernels read them: row-major without gaps, of `dtype`, off the tape.
fn plain(processor: &dyn Processor, tensor: &Tensor, dtype: DType) -> Result<Tensor> {
    let tensor = contiguous(processor, tensor)?;
    if tensor.dtype() == dtype { Ok(tensor) } else { elementwise::cast(processor, &tensor, dtype) }
}

/// The shape with another last dimension.
fn with_last(shape: &Shape, last: usize) -> Shape {
    let mut dims = shape.dims().to_vec();
    dims.splice(dims.len().saturating_sub(1).., [last]);
    dims.into()
}
