//! The rotary embedding from runs, without tables: `kernels/rope/rope.h`.

use annulus_sequence::Positions;
use bytemuck::NoUninit;
use candle_core::{Device, Result, Shape, Tensor, bail};

use super::super::arguments::Strides;
use super::super::{Processor, addresses};
use super::{Extent, THREADS, contiguous, here, launch, of_type, off_tape, runs_of, unwritten};
use crate::projections::array;
use crate::rope::Rotary;

/// Pairs of columns per block, in groups of four.
const PAIRS: usize = 4 * THREADS as usize;

/// The number of blocks that keeps a GPU busy; beyond it blocks share heads, and each computes the angles again.
const BLOCKS: usize = 1024;

/// The most tensors of a launch: two that share the angles, and one that is only copied.
const MOST: usize = 3;

/// Mirrors the C struct `RotatedTensor`.
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

/// Mirrors the C struct `RopeArguments`.
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

/// Runs and frequencies in memory that kernels read.
#[derive(Debug)]
pub(crate) struct Placed {
    /// The runs, i64 [runs, 4]: start, step, len, width.
    runs: Tensor,
    /// The frequencies, f32 [D / 2].
    frequencies: Tensor,
}

impl Placed {
    pub(crate) fn new(
        positions: &Positions,
        frequencies: &[f32],
        device: &Device,
    ) -> Result<Placed> {
        let runs = runs_of(positions);
        let shape = (runs.len() / 4, 4);
        Ok(Placed {
            runs: Tensor::from_vec(runs, shape, device)?,
            frequencies: Tensor::new(frequencies, device)?,
        })
    }
}

/// [`crate::rope`] on a processor.
pub(crate) fn rope<const N: usize>(
    processor: &dyn Processor,
    all: &[Tensor; N],
    rotary: &Rotary,
) -> Result<[Tensor; N]> {
    off_tape("rope", all)?;
    let all: [Tensor; N] = array(all.iter().map(|x| readable(processor, x)))?;
    rotated(processor, &array(all.iter().map(Heads::first))?, rotary)
}

/// [`crate::rope_qkv`] on a processor.
pub(crate) fn rope_qkv(
    processor: &dyn Processor,
    qkv: &[Tensor; 3],
    rotary: &Rotary,
) -> Result<[Tensor; 3]> {
    off_tape("rope", qkv)?;
    let all: [Tensor; 3] = array(qkv.iter().map(|x| readable(processor, x)))?;
    let by_token = |x| Heads::last(x, 0, x.dim(2)?, rotary.head_dim());
    rotated(processor, &array(all.iter().map(by_token))?, rotary)
}

/// Heads rotated into separate tensors [B, H, S, D].
fn rotated<const N: usize>(
    processor: &dyn Processor,
    from: &[Heads<'_>; N],
    rotary: &Rotary,
) -> Result<[Tensor; N]> {
    let room = |heads: &Heads<'_>| {
        // SAFETY: every row is written.
        unsafe { unwritten(processor, &heads.dims[..], heads.tensor.dtype()) }
    };
    let written: [Tensor; N] = array(from.iter().map(room))?;
    let to: [Heads<'_>; N] = array(written.iter().map(Heads::first))?;
    rotate(processor, from, &to, &written.each_ref(), rotary, 1.0)?;
    Ok(written)
}

/// [`crate::rope_qkv_backward`] on a processor.
pub(crate) fn rope_qkv_backward(
    processor: &dyn Processor,
    gradients: &[Tensor; 3],
    rotary: &Rotary,
    packed_qkv: bool,
) -> Result<[Tensor; 3]> {
    let all: [Tensor; 3] = array(gradients.iter().map(|x| readable(processor, x)))?;
    let from: [Heads<'_>; 3] = array(all.iter().map(Heads::first))?;
    let [batch, _, rows, dim] = from[0].dims;
    let widths = from.each_ref().map(|heads| heads.dims[1] * dim);
    // SAFETY: every row of all heads is written.
    let room = |width| unsafe { unwritten(processor, (batch, rows, width), all[0].dtype()) };
    if !packed_qkv {
        let apart: [Tensor; 3] = array(widths.into_iter().map(room))?;
        let to = apart.iter().zip(widths).map(|(dx, width)| Heads::last(dx, 0, width, dim));
        rotate(processor, &from, &array(to)?, &apart.each_ref(), rotary, -1.0)?;
        return Ok(apart);
    }
    let whole = room(widths.iter().sum())?;
    let begins = [0, widths[0], widths[0] + widths[1]];
    let parts = || begins.into_iter().zip(widths);
    let to = array(parts().map(|(begin, width)| Heads::last(&whole, begin, width, dim)))?;
    rotate(processor, &from, &to, &[&whole], rotary, -1.0)?;
    array(parts().map(|(begin, width)| whole.narrow(2, begin, width)))
}

/// Rotates heads of one dtype, each row by its position times `direction`, into the heads in `written`: one tensor for each, or one for
/// all. A third one is only copied.
fn rotate<const N: usize>(
    processor: &dyn Processor,
    from: &[Heads<'_>; N],
    to: &[Heads<'_>; N],
    written: &[&Tensor],
    rotary: &Rotary,
    direction: f32,
) -> Result<()> {
    const { assert!(0 < N && N <= MOST) }
    let placed = rotary.placed(processor.device())?;
    let ([batch, _, rows, dim], dtype) = (from[0].dims, from[0].tensor.dtype());
    alike(from, rotary)?;
    let heads = from.iter().map(|x| batch * x.dims[1]).max().unwrap_or(1);
    let (extent, kernel) = (extent(rows * dim / 2, heads), of_type("rope", dtype)?);
    let places = [&placed.runs, &placed.frequencies];
    let reads = places.into_iter().chain(from.iter().map(|x| x.tensor)).collect::<Vec<_>>();
    addresses(&reads, written, &mut |at| {
        let mut tensors = [Rotated::default(); MOST];
        for (index, tensor) in tensors[..N].iter_mut().enumerate() {
            let y = at.writes[index.min(written.len() - 1)];
            *tensor = Rotated::new(&from[index], at.reads[2 + index], &to[index], y);
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
    })
}

/// Refuses heads that do not fit `rotary`, or differ in dtype or batch.
fn alike(all: &[Heads<'_>], rotary: &Rotary) -> Result<()> {
    let of = |x: &Heads<'_>| (x.tensor.dtype(), x.dims[0]);
    if all.iter().any(|x| of(x) != of(&all[0])) {
        let all: Vec<_> = all.iter().map(of).collect();
        bail!("rope: found types and batches {all:?}, expected one of each");
    }
    all.iter().try_for_each(|x| rotary.check(&Shape::from(&x.dims[..]), 2))
}

/// The extent for this many pairs of columns and heads.
fn extent(pairs: usize, heads: usize) -> Extent {
    let blocks = pairs.div_ceil(PAIRS);
    let sharing = BLOCKS.div_ceil(blocks.max(1)).clamp(1, heads.max(1));
    Extent { grid: [blocks, sharing, 1], ..Extent::blocks(0) }
}

/// A tensor whose rows have no gaps in them.
fn readable(processor: &dyn Processor, x: &Tensor) -> Result<Tensor> {
    here(processor, x)?;
    if x.stride().last() == Some(&1) { Ok(x.detach()) } else { contiguous(processor, x) }
}

/// Heads [B, H, S, D] in the memory of a tensor.
struct Heads<'a> {
    tensor: &'a Tensor,
    /// The index in the tensor at which the heads begin.
    begin: usize,
    dims: [usize; 4],
    strides: Strides,
}

impl<'a> Heads<'a> {
    /// The heads of a tensor [B, H, S, D].
    fn first(tensor: &'a Tensor) -> Result<Heads<'a>> {
        let (batch, heads, rows, dim) = tensor.dims4()?;
        let stride = tensor.stride();
        let strides =
            Strides { batch: stride[0] as i64, head: stride[1] as i64, row: stride[2] as i64 };
        Ok(Heads { tensor, begin: 0, dims: [batch, heads, rows, dim], strides })
    }

    /// The heads in `width` columns of a tensor [B, S, ..], from column `begin` on.
    fn last(tensor: &'a Tensor, begin: usize, width: usize, dim: usize) -> Result<Heads<'a>> {
        let (batch, rows, _) = tensor.dims3()?;
        if dim == 0 || !width.is_multiple_of(dim) {
            bail!("rope: found {width} columns, expected heads of {dim}");
        }
        let stride = tensor.stride();
        let strides = Strides { batch: stride[0] as i64, head: dim as i64, row: stride[1] as i64 };
        Ok(Heads { tensor, begin, dims: [batch, width / dim, rows, dim], strides })
    }

    /// The address of the heads, in a tensor at the address `tensor`.
    fn at(&self, tensor: u64) -> u64 {
        tensor + (self.begin * self.tensor.dtype().size_in_bytes()) as u64
    }
}

impl Rotated {
    /// The heads to rotate, from and to tensors at these addresses.
    fn new(from: &Heads<'_>, x: u64, to: &Heads<'_>, y: u64) -> Rotated {
        Rotated {
            x: from.at(x),
            y: to.at(y),
            x_strides: from.strides,
            y_strides: to.strides,
            heads: from.dims[1] as i32,
            _gap: 0,
        }
    }
}
