//! Rotary embedding from runs, no tables: `kernels/rope/rope.h`.

use annulus_sequence::Positions;
use bytemuck::NoUninit;
use candle_core::{Device, Result, Tensor, bail};

use super::super::arguments::Strides;
use super::super::{Processor, addresses};
use super::{Extent, THREADS, contiguous, here, launch, of_type, off_tape, unwritten};
use crate::projections::array;
use crate::rope::Rotary;

/// Pairs of columns of a block, in groups of four.
const PAIRS: usize = 4 * THREADS as usize;

/// As many blocks keep a GPU busy; more share heads, and each makes the angles again.
const BLOCKS: usize = 1024;

/// Tensors of a launch: two that share the angles, and one that is moved as it is.
const MOST: usize = 3;

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
    moved: Rotated,
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
pub(crate) fn rope<const N: usize>(
    processor: &dyn Processor,
    all: &[Tensor; N],
    rotary: &Rotary,
) -> Result<[Tensor; N]> {
    off_tape("rope", all)?;
    rotated(processor, all, rotary, (1.0, false))
}

/// See [`crate::rope_backward`].
pub(crate) fn rope_backward<const N: usize>(
    processor: &dyn Processor,
    all: &[Tensor; N],
    rotary: &Rotary,
) -> Result<[Tensor; N]> {
    let turned = rotated(processor, all, rotary, (-1.0, true))?;
    array(turned.iter().map(|dx| dx.flatten_from(2)))
}

/// Rotates tensors [B, H, S, D] of one type, each row by its position times `direction`, into [B, H, S, D] or, `by_token`,
/// [B, S, H, D]. A third one is only moved.
fn rotated<const N: usize>(
    processor: &dyn Processor,
    all: &[Tensor; N],
    rotary: &Rotary,
    (direction, by_token): (f32, bool),
) -> Result<[Tensor; N]> {
    const { assert!(0 < N && N <= MOST) }
    let placed = rotary.placed(processor.device())?;
    let all: [Tensor; N] = array(all.iter().map(|x| readable(processor, x, rotary)))?;
    let ((batch, _, rows, dim), dtype) = (all[0].dims4()?, all[0].dtype());
    alike(&all)?;
    let written: [Tensor; N] = array(all.iter().map(|x| room(processor, x, by_token)))?;
    let by_head: [Tensor; N] =
        array(written.iter().map(|y| if by_token { y.transpose(1, 2) } else { Ok(y.clone()) }))?;
    let heads = all.iter().map(|x| batch * x.dims()[1]).max().unwrap_or(1);
    let (extent, kernel) = (extent(rows * dim / 2, heads), of_type("rope", dtype)?);
    let reads: Vec<&Tensor> = [&placed.runs, &placed.frequencies].into_iter().chain(&all).collect();
    addresses(&reads, &written.each_ref(), &mut |at| {
        let mut tensors = [Rotated::default(); MOST];
        for (index, tensor) in tensors[..N].iter_mut().enumerate() {
            let places = [at.reads[2 + index], at.writes[index]];
            *tensor = Rotated::new(places, &all[index], &by_head[index]);
        }
        let [tensor, another, moved] = tensors;
        let arguments = Arguments {
            tensor,
            another,
            moved,
            runs: at.reads[0],
            frequencies: at.reads[1],
            factor: rotary.factor(),
            batch: batch as i32,
            rows: rows as i32,
            dim: dim as i32,
            direction,
        };
        // SAFETY: sizes were checked; addresses hold until the launch is in the stream.
        unsafe { launch(processor, &kernel, extent, &arguments) }
    })?;
    Ok(written)
}

fn alike(all: &[Tensor]) -> Result<()> {
    let of = |x: &Tensor| (x.dtype(), x.dims()[0]);
    if all.iter().any(|x| of(x) != of(&all[0])) {
        bail!("rope: found {all:?}, wanted tensors of one type and batch");
    }
    Ok(())
}

/// Blocks for so many pairs of columns of so many heads.
fn extent(pairs: usize, heads: usize) -> Extent {
    let blocks = pairs.div_ceil(PAIRS);
    let sharing = BLOCKS.div_ceil(blocks.max(1)).clamp(1, heads.max(1));
    Extent { grid: [blocks, sharing, 1], ..Extent::blocks(0) }
}

/// Where `x` [B, H, S, D] goes: [B, H, S, D], or `by_token` [B, S, H, D].
fn room(processor: &dyn Processor, x: &Tensor, by_token: bool) -> Result<Tensor> {
    let (batch, heads, rows, dim) = x.dims4()?;
    let shape = if by_token { (batch, rows, heads, dim) } else { (batch, heads, rows, dim) };
    // SAFETY: every row is written.
    unsafe { unwritten(processor, shape, x.dtype()) }
}

/// A tensor that `rotary` is for, its rows without gaps.
fn readable(processor: &dyn Processor, x: &Tensor, rotary: &Rotary) -> Result<Tensor> {
    here(processor, x)?;
    rotary.check(x.shape(), 2)?;
    if x.stride()[3] == 1 { Ok(x.detach()) } else { contiguous(processor, x) }
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
