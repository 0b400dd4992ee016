//! Rotary embedding from runs, no tables: `kernels/rope/rope.h`.

use annulus_sequence::Positions;
use bytemuck::NoUninit;
use candle_core::{Device, Result, Tensor};

use super::super::arguments::Strides;
use super::super::{Processor, addresses};
use super::{Extent, THREADS, contiguous, here, launch, of_type, off_tape, unwritten};
use crate::rope::Rotary;

/// Pairs of columns of a block, in groups of four.
const PAIRS: usize = 4 * THREADS as usize;

/// As many blocks keep a GPU busy; more share heads, and each makes the angles again.
const BLOCKS: usize = 1024;

/// `RotatedTensor`.
#[derive(Clone, Copy, Debug, Default, NoUninit)]
#[repr(C)]
struct Rotated {
    x: u64,
    y: u64,
    x_strides: Strides,
    y_strides: Strides,
    heads: i32,
    _gap: u32,
}

/// `RopeArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct Arguments {
    tensor: Rotated,
    another: Rotated,
    runs: u64,
    frequencies: u64,
    factor: f64,
    batch: i32,
    rows: i32,
    dim: i32,
    direction: f32,
}

/// Runs and frequencies where kernels read them.
#[derive(Debug)]
pub(crate) struct Placed {
    /// i64 [runs, 4]: start, step, len, width.
    runs: Tensor,
    /// f32 [D / 2].
    frequencies: Tensor,
}

impl Placed {
    pub(crate) fn new(
        positions: &Positions,
        frequencies: &[f32],
        device: &Device,
    ) -> Result<Placed> {
        let runs = positions.runs().iter();
        let runs: Vec<i64> = runs
            .flat_map(|run| [run.start, run.step, run.len, run.width].map(|number| number as i64))
            .collect();
        let shape = (runs.len() / 4, 4);
        Ok(Placed {
            runs: Tensor::from_vec(runs, shape, device)?,
            frequencies: Tensor::new(frequencies, device)?,
        })
    }
}

/// See [`crate::rope`].
pub(crate) fn rope(processor: &dyn Processor, x: &Tensor, rotary: &Rotary) -> Result<Tensor> {
    off_tape("rope", [x])?;
    rotary.check(x.shape(), 2)?;
    rotated(processor, x, rotary, 1.0, false)
}

/// See [`crate::rope_backward`].
pub(crate) fn rope_backward(
    processor: &dyn Processor,
    dy: &Tensor,
    rotary: &Rotary,
) -> Result<Tensor> {
    rotary.check(dy.shape(), 2)?;
    rotated(processor, dy, rotary, -1.0, true)?.flatten_from(2)
}

/// Rotates `x` [B, H, S, D], each row by its position times `direction`, into [B, H, S, D] or, `by_token`, [B, S, H, D]. S and D
/// are those of `rotary`, which was checked.
fn rotated(
    processor: &dyn Processor,
    x: &Tensor,
    rotary: &Rotary,
    direction: f32,
    by_token: bool,
) -> Result<Tensor> {
    here(processor, x)?;
    let placed = rotary.placed(processor.device())?;
    let x = if x.stride()[3] == 1 { x.detach() } else { contiguous(processor, x)? };
    let (batch, heads, rows, dim) = x.dims4()?;
    let shape = if by_token { (batch, rows, heads, dim) } else { (batch, heads, rows, dim) };
    // SAFETY: every row is written.
    let y = unsafe { unwritten(processor, shape, x.dtype()) }?;
    let by_head = if by_token { y.transpose(1, 2)? } else { y.clone() };
    let blocks = (rows * dim / 2).div_ceil(PAIRS);
    let sharing = BLOCKS.div_ceil(blocks.max(1)).clamp(1, (batch * heads).max(1));
    let extent = Extent { grid: [blocks, sharing, 1], ..Extent::blocks(0) };
    let kernel = of_type("rope", x.dtype())?;
    addresses(&[&x, &placed.runs, &placed.frequencies], &[&y], &mut |at| {
        let arguments = Arguments {
            tensor: Rotated::new([at.reads[0], at.writes[0]], &x, &by_head),
            another: Rotated::default(),
            runs: at.reads[1],
            frequencies: at.reads[2],
            factor: rotary.factor(),
            batch: batch as i32,
            rows: rows as i32,
            dim: dim as i32,
            direction,
        };
        // SAFETY: sizes were checked; addresses hold until the launch is in the stream.
        unsafe { launch(processor, &kernel, extent, &arguments) }
    })?;
    Ok(y)
}

impl Rotated {
    /// Of [B, H, S, D] to the same.
    fn new([x, y]: [u64; 2], from: &Tensor, to: &Tensor) -> Rotated {
        let strides = |tensor: &Tensor| {
            let stride = tensor.stride();
            Strides { batch: stride[0] as i64, head: stride[1] as i64, row: stride[2] as i64 }
        };
        let (x_strides, y_strides) = (strides(from), strides(to));
        Rotated { x, y, x_strides, y_strides, heads: from.dims()[1] as i32, _gap: 0 }
    }
}
