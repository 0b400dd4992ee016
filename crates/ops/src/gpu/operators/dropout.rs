//! Dropout of a projection's inputs: `kernels/dropout/`.

use bytemuck::NoUninit;
use candle_core::{D, Result, Tensor};

use super::super::{Processor, addresses};
use super::{Extent, launch, of_type, off_tape, plain, runs_of, unwritten};
use crate::dropout::{Draws, RowPlaces};

/// Mirrors the C struct `InputDropoutArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct InputDropoutArguments {
    x: u64,
    y: u64,
    runs: u64,
    count: i64,
    width: i64,
    tokens: i64,
    piece: i64,
    stride: i64,
    first: i64,
    key: u64,
    sequence: u32,
    module: u32,
    column: u32,
    threshold: u32,
    kept: f32,
    gap: u32,
}

/// [`crate::InputDropout::apply`] on a processor.
pub(crate) fn input_dropout(
    processor: &dyn Processor,
    x: &Tensor,
    draws: &Draws,
    places: &RowPlaces<'_>,
) -> Result<Tensor> {
    off_tape("dropout", [x])?;
    let x = plain(processor, x, x.dtype())?;
    let kernel = of_type("input_dropout", x.dtype())?;
    let runs = runs_of(places.positions);
    let runs = processor.kept().upload(processor, bytemuck::cast_slice(&runs))?;
    // SAFETY: every element is written.
    let y = unsafe { unwritten(processor, x.shape(), x.dtype()) }?;
    addresses(&[&x], &[&y], &mut |at| {
        let count = x.elem_count();
        let arguments = InputDropoutArguments {
            x: at.reads[0],
            y: at.writes[0],
            runs: runs.address,
            count: count as i64,
            width: x.dim(D::Minus1)? as i64,
            tokens: places.positions.tokens() as i64,
            piece: places.piece as i64,
            stride: places.stride as i64,
            first: places.first as i64,
            key: u64::from(draws.drops.key[0]) | u64::from(draws.drops.key[1]) << 32,
            sequence: places.sequence as u32,
            module: draws.module,
            column: draws.column,
            threshold: draws.drops.threshold,
            kept: draws.drops.scale,
            gap: 0,
        };
        // SAFETY: the tensors have these elements, each row has a token of the runs, and addresses hold until the launch is in the stream.
        unsafe { launch(processor, &kernel, Extent::flat(count), &arguments) }
    })?;
    Ok(y)
}
