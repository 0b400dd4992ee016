//! The RMS norm and its gradients: `kernels/rms_norm/`.

use bytemuck::NoUninit;
use candle_core::{DType, Result, Tensor};

use super::super::table::element_name;
use super::super::{Processor, addresses};
use super::{Extent, SCRATCH, THREADS, launch, off_tape, plain, sums, unwritten};
use crate::rms_norm::sizes;

/// The widest rows that a single warp computes, eight of them per block: their column sums in backward then leave a multiprocessor room for
/// enough blocks.
const NARROW: usize = 1024;

/// The number of threads in a warp.
const WARP: u32 = 32;

/// Mirrors the C struct `RmsNormForwardArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct ForwardArguments {
    x: u64,
    weight: u64,
    y: u64,
    rows: i64,
    width: i32,
    epsilon: f32,
}

/// Mirrors the C struct `RmsNormBackwardArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct BackwardArguments {
    x: u64,
    weight: u64,
    dy: u64,
    onto: u64,
    dx: u64,
    partials: u64,
    rows: i64,
    width: i32,
    rows_per_block: i32,
    epsilon: f32,
    _gap: u32,
}

/// The threads that compute a row.
#[derive(Clone, Copy, Debug)]
struct Team {
    name: &'static str,
    /// The number of rows that a block computes concurrently.
    teams: usize,
}

impl Team {
    fn of(width: usize) -> Team {
        if width <= NARROW {
            Team { name: "warp", teams: (THREADS / WARP) as usize }
        } else {
            Team { name: "block", teams: 1 }
        }
    }

    fn kernel(self, pass: &str, dtype: DType) -> Result<String> {
        Ok(format!("rms_norm_{pass}_{}_{}", self.name, element_name(dtype)?))
    }
}

/// [`crate::rms_norm`] on a processor.
pub(crate) fn rms_norm(
    processor: &dyn Processor,
    x: &Tensor,
    weight: &Tensor,
    epsilon: f64,
) -> Result<Tensor> {
    off_tape("rms-norm", [x, weight])?;
    let (rows, width) = sizes(x.shape(), weight.shape())?;
    let [x, weight] = [x, weight].map(|tensor| plain(processor, tensor, x.dtype()));
    let (x, weight) = (x?, weight?);
    let team = Team::of(width);
    let kernel = team.kernel("forward", x.dtype())?;
    let extent = Extent { shared: SCRATCH, ..Extent::blocks(rows.div_ceil(team.teams)) };
    // SAFETY: every row is written.
    let y = unsafe { unwritten(processor, x.shape(), x.dtype()) }?;
    addresses(&[&x, &weight], &[&y], &mut |at| {
        let arguments = ForwardArguments {
            x: at.reads[0],
            weight: at.reads[1],
            y: at.writes[0],
            rows: rows as i64,
            width: width as i32,
            epsilon: epsilon as f32,
        };
        // SAFETY: sizes were checked; addresses hold until the launch is in the stream.
        unsafe { launch(processor, &kernel, extent, &arguments) }
    })?;
    Ok(y)
}

/// [`crate::rms_norm_backward`] on a processor; that gradients have the shape of x was checked.
pub(crate) fn rms_norm_backward(
    processor: &dyn Processor,
    x: &Tensor,
    weight: &Tensor,
    epsilon: f64,
    dy: &Tensor,
    onto: Option<&Tensor>,
) -> Result<(Tensor, Tensor)> {
    let (rows, width) = sizes(x.shape(), weight.shape())?;
    let [x, weight, dy] = [x, weight, dy].map(|tensor| plain(processor, tensor, x.dtype()));
    let (x, weight, dy) = (x?, weight?, dy?);
    let onto = onto.map(|onto| plain(processor, onto, x.dtype())).transpose()?;
    let (team, each) = (Team::of(width), sums::rows_per_block(processor, rows));
    let blocks = rows.div_ceil(each);
    let shared = SCRATCH + (4 * width * team.teams) as u32;
    let extent = Extent { shared, ..Extent::blocks(blocks) };
    // SAFETY: every row of both is written.
    let dx = unsafe { unwritten(processor, x.shape(), x.dtype()) }?;
    // SAFETY: likewise.
    let partials = unsafe { unwritten(processor, (blocks, width), DType::F32) }?;
    let reads: Vec<&Tensor> = [&x, &weight, &dy].into_iter().chain(&onto).collect();
    addresses(&reads, &[&dx, &partials], &mut |at| {
        let arguments = BackwardArguments {
            x: at.reads[0],
            weight: at.reads[1],
            dy: at.reads[2],
            onto: at.reads.get(3).copied().unwrap_or(0),
            dx: at.writes[0],
            partials: at.writes[1],
            rows: rows as i64,
            width: width as i32,
            rows_per_block: each as i32,
            epsilon: epsilon as f32,
            _gap: 0,
        };
        // SAFETY: as above.
        unsafe { launch(processor, &team.kernel("backward", x.dtype())?, extent, &arguments) }
    })?;
    Ok((dx, sums::partials(processor, &partials)?))
}
