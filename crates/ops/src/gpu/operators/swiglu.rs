//! SwiGLU and its gradients: `kernels/swiglu/swiglu.h`.

use bytemuck::NoUninit;
use candle_core::{Result, Tensor};

use super::super::{Processor, addresses};
use super::{Extent, launch, of_type, off_tape, plain, unwritten};
use crate::swiglu::SwiGluGradients;

/// `SwigluForwardArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct ForwardArguments {
    gate: u64,
    up: u64,
    y: u64,
    count: i64,
}

/// `SwigluBackwardArguments`.
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
}

/// See [`crate::swiglu`]; of one shape, which was checked.
pub(crate) fn swiglu(processor: &dyn Processor, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    off_tape("swiglu", [gate, up])?;
    let [gate, up] = [gate, up].map(|tensor| plain(processor, tensor, gate.dtype()));
    let (gate, up) = (gate?, up?);
    let (kernel, count) = (of_type("swiglu_forward", gate.dtype())?, gate.elem_count());
    // SAFETY: every element is written.
    let y = unsafe { unwritten(processor, gate.shape(), gate.dtype()) }?;
    addresses(&[&gate, &up], &[&y], &mut |at| {
        let arguments = ForwardArguments {
            gate: at.reads[0],
            up: at.reads[1],
            y: at.writes[0],
            count: count as i64,
        };
        // SAFETY: sizes were checked; addresses hold until the launch is in the stream.
        unsafe { launch(processor, &kernel, Extent::flat(count), &arguments) }
    })?;
    Ok(y)
}

/// See [`crate::swiglu_backward`]; as many of each, which was checked.
pub(crate) fn swiglu_backward(
    processor: &dyn Processor,
    gate: &Tensor,
    up: &Tensor,
    dy: &Tensor,
) -> Result<SwiGluGradients> {
    let [gate, up, dy] = [gate, up, dy].map(|tensor| plain(processor, tensor, gate.dtype()));
    let (gate, up, dy) = (gate?, up?, dy?);
    let (kernel, count) = (of_type("swiglu_backward", gate.dtype())?, gate.elem_count());
    // SAFETY: every element of all three is written.
    let made = [(); 3].map(|()| unsafe { unwritten(processor, gate.shape(), gate.dtype()) });
    let [dgate, dup, y] = made;
    let (dgate, dup, y) = (dgate?, dup?.reshape(up.shape())?, y?);
    addresses(&[&gate, &up, &dy], &[&dgate, &dup, &y], &mut |at| {
        let arguments = BackwardArguments {
            gate: at.reads[0],
            up: at.reads[1],
            dy: at.reads[2],
            dgate: at.writes[0],
            dup: at.writes[1],
            y: at.writes[2],
            count: count as i64,
        };
        // SAFETY: as above.
        unsafe { launch(processor, &kernel, Extent::flat(count), &arguments) }
    })?;
    Ok(SwiGluGradients { gate: dgate, up: dup, y })
}
