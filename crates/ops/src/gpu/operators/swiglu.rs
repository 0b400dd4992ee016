//! SwiGLU and its gradients: `kernels/swiglu/swiglu.h`.

use bytemuck::NoUninit;
use candle_core::{D, Result, Tensor};

use super::super::{Processor, addresses};
use super::linear::rows;
use super::view;
use super::{Extent, launch, of_type, off_tape, plain, unwritten, with_last};
use crate::swiglu::SwiGluGradients;

/// Mirrors the C struct `SwigluRows`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct Rows {
    width: i64,
    gap: i64,
}

/// Mirrors the C struct `SwigluForwardArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct ForwardArguments {
    gate: u64,
    up: u64,
    y: u64,
    count: i64,
    rows: Rows,
}

/// Mirrors the C struct `SwigluBackwardArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct BackwardArguments {
    gate: u64,
    up: u64,
    dy: u64,
    dgate: u64,
    dup: u64,
    y: u64,
    count: i64,
    rows: Rows,
    gradients: Rows,
}

/// [`crate::swiglu`] on a processor; shapes were checked to be equal.
pub(crate) fn swiglu(processor: &dyn Processor, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    off_tape("swiglu", [gate, up])?;
    let ([gate, up], rows) = alike(processor, gate, up)?;
    let (kernel, count) = (of_type("swiglu_forward", gate.dtype())?, gate.elem_count());
    // SAFETY: every element is written.
    let y = unsafe { unwritten(processor, gate.shape(), gate.dtype()) }?;
    addresses(&[&gate, &up], &[&y], &mut |at| {
        let arguments = ForwardArguments {
            gate: at.reads[0],
            up: at.reads[1],
            y: at.writes[0],
            count: count as i64,
            rows,
        };
        // SAFETY: sizes were checked; addresses hold until the launch is in the stream.
        unsafe { launch(processor, &kernel, Extent::flat(count), &arguments) }
    })?;
    Ok(y)
}

/// [`crate::swiglu_backward`] on a processor; shapes were checked to be equal. The gradients of gate and up lie side by side.
pub(crate) fn swiglu_backward(
    processor: &dyn Processor,
    gate: &Tensor,
    up: &Tensor,
    dy: &Tensor,
) -> Result<SwiGluGradients> {
    let ([gate, up], rows) = alike(processor, gate, up)?;
    let (dy, width) = (plain(processor, dy, gate.dtype())?, gate.dim(D::Minus1)?);
    let (kernel, count) = (of_type("swiglu_backward", gate.dtype())?, gate.elem_count());
    // SAFETY: every element of both is written.
    let room =
        |width| unsafe { unwritten(processor, with_last(gate.shape(), width), gate.dtype()) };
    let (both, y) = (room(2 * width)?, room(width)?);
    let [dgate, dup] = [both.narrow(D::Minus1, 0, width)?, both.narrow(D::Minus1, width, width)?];
    addresses(&[&gate, &up, &dy], &[&both, &y], &mut |at| {
        let arguments = BackwardArguments {
            gate: at.reads[0],
            up: at.reads[1],
            dy: at.reads[2],
            dgate: at.writes[0],
            dup: at.writes[0] + (width * gate.dtype().size_in_bytes()) as u64,
            y: at.writes[1],
            count: count as i64,
            rows,
            gradients: Rows { width: width as i64, gap: width as i64 },
        };
        // SAFETY: as above.
        unsafe { launch(processor, &kernel, Extent::flat(count), &arguments) }
    })?;
    Ok(SwiGluGradients { gate: dgate, up: dup, y })
}

/// Gate and up as rows of one dtype with equal gaps between them.
fn alike(processor: &dyn Processor, gate: &Tensor, up: &Tensor) -> Result<([Tensor; 2], Rows)> {
    let dtype = gate.dtype();
    let (mut gate, mut up) = (rows(processor, gate, dtype)?, rows(processor, up, dtype)?);
    if view::rows(&gate)?.gap() != view::rows(&up)?.gap() {
        (gate, up) = (plain(processor, &gate, dtype)?, plain(processor, &up, dtype)?);
    }
    let rows = view::rows(&gate)?;
    let rows = Rows { width: rows.dims[1] as i64, gap: rows.gap() as i64 };
    Ok(([gate, up], rows))
}
