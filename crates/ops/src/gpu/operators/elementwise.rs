//! Copies, casts and elementwise sums: `kernels/elementwise/`.

use bytemuck::NoUninit;
use candle_core::{DType, Result, Tensor, bail};

use super::super::table::element_name;
use super::super::{Processor, addresses};
use super::{Extent, here, launch, of_type, unwritten};

/// Mirrors the C struct `AddRowArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct AddRowArguments {
    x: u64,
    row: u64,
    y: u64,
    count: i64,
    width: i64,
}

/// Mirrors the C structs `AccumulateArguments` and `CastArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct FromToArguments {
    from: u64,
    to: u64,
    count: i64,
}

/// The most tensors that one launch adds.
const PARTS: usize = 8;

/// Mirrors the C struct `AddAllArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct AddAllArguments {
    parts: [u64; PARTS],
    y: u64,
    count: i64,
    many: i32,
    _gap: u32,
}

/// Mirrors the C struct `GatherArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct GatherArguments {
    from: u64,
    to: u64,
    sizes: [i64; 5],
    strides: [i64; 5],
}

/// The elements row-major and without gaps: the tensor itself where it is so, else a copy.
pub(crate) fn contiguous(processor: &dyn Processor, x: &Tensor) -> Result<Tensor> {
    here(processor, x)?;
    if x.is_contiguous() { Ok(x.detach()) } else { copied(processor, x) }
}

/// A row-major copy of the elements without gaps, always new.
pub(super) fn copied(processor: &dyn Processor, x: &Tensor) -> Result<Tensor> {
    gathered(processor, &[x], x.dims(), x.stride())
}

/// A copy of `dims` elements at distances `strides`, starting with the first of `tensors`, which follow one another in memory.
pub(super) fn gathered(
    processor: &dyn Processor,
    tensors: &[&Tensor],
    dims: &[usize],
    strides: &[usize],
) -> Result<Tensor> {
    let (sizes, strides) = view(dims, strides)?;
    let dtype = tensors[0].dtype();
    let kernel = match dtype.size_in_bytes() {
        2 => "gather_16_bits",
        4 => "gather_32_bits",
        8 => "gather_64_bits",
        _ => bail!("contiguous: found a tensor of {dtype:?}, expected 2, 4 or 8 bytes each"),
    };
    // SAFETY: every element is written.
    let copy = unsafe { unwritten(processor, dims, dtype) }?;
    addresses(tensors, &[&copy], &mut |at| {
        let arguments = GatherArguments { from: at.reads[0], to: at.writes[0], sizes, strides };
        // SAFETY: the tensors have these elements, and their addresses hold until the launch is in the stream.
        unsafe { launch(processor, kernel, Extent::flat(copy.elem_count()), &arguments) }
    })?;
    Ok(copy)
}

/// Sizes and strides of five dimensions; missing ones come first, as 1.
fn view(dims: &[usize], steps: &[usize]) -> Result<([i64; 5], [i64; 5])> {
    let (mut sizes, mut strides) = ([1; 5], [0; 5]);
    let Some(missing) = 5_usize.checked_sub(dims.len()) else {
        bail!("contiguous: found {} dimensions, expected at most 5", dims.len());
    };
    for (dim, (size, stride)) in dims.iter().zip(steps).enumerate() {
        sizes[missing + dim] = *size as i64;
        strides[missing + dim] = *stride as i64;
    }
    Ok((sizes, strides))
}

/// Elements without gaps, rounded to `dtype`.
pub(super) fn cast(processor: &dyn Processor, x: &Tensor, dtype: DType) -> Result<Tensor> {
    let kernel = format!("cast_{}_{}", element_name(x.dtype())?, element_name(dtype)?);
    // SAFETY: every element is written.
    let y = unsafe { unwritten(processor, x.shape(), dtype) }?;
    addresses(&[x], &[&y], &mut |at| {
        let count = x.elem_count();
        let arguments =
            FromToArguments { from: at.reads[0], to: at.writes[0], count: count as i64 };
        // SAFETY: as above.
        unsafe { launch(processor, &kernel, Extent::flat(count), &arguments) }
    })?;
    Ok(y)
}

/// Adds `from` to `to`, which were checked to be f32 without gaps.
pub(crate) fn accumulate(processor: &dyn Processor, to: &Tensor, from: &Tensor) -> Result<()> {
    here(processor, to)?;
    here(processor, from)?;
    addresses(&[from], &[to], &mut |at| {
        let count = to.elem_count();
        let arguments =
            FromToArguments { from: at.reads[0], to: at.writes[0], count: count as i64 };
        // SAFETY: as above.
        unsafe { launch(processor, "accumulate_f32_f32", Extent::flat(count), &arguments) }
    })
}

/// The sum of `parts`, checked to be f32 of one shape without gaps, in the order of a binary tree, of which eight parts are a whole
/// subtree.
pub(crate) fn add_all(processor: &dyn Processor, parts: &[Tensor]) -> Result<Tensor> {
    let mut sums: Vec<Tensor> =
        parts.chunks(PARTS).map(|parts| added(processor, parts)).collect::<Result<_>>()?;
    if sums.len() > 1 {
        return add_all(processor, &sums);
    }
    sums.pop().ok_or_else(|| candle_core::Error::Msg("the sum of no tensors".to_owned()))
}

/// The sum of at most eight `parts`, f32 of one shape and without gaps.
fn added(processor: &dyn Processor, parts: &[Tensor]) -> Result<Tensor> {
    if let [only] = parts {
        return Ok(only.clone());
    }
    // SAFETY: every element is written.
    let y = unsafe { unwritten(processor, parts[0].shape(), DType::F32) }?;
    addresses(&parts.iter().collect::<Vec<_>>(), &[&y], &mut |at| {
        let mut given = [0; PARTS];
        given[..parts.len()].copy_from_slice(&at.reads);
        let count = y.elem_count();
        let many = parts.len() as i32;
        let arguments =
            AddAllArguments { parts: given, y: at.writes[0], count: count as i64, many, _gap: 0 };
        // SAFETY: as above.
        unsafe { launch(processor, "add_all_f32", Extent::flat(count), &arguments) }
    })?;
    Ok(y)
}

/// Adds `row` to every row of `x` [.., width], both plain and of one dtype.
pub(super) fn add_row(processor: &dyn Processor, x: &Tensor, row: &Tensor) -> Result<Tensor> {
    // SAFETY: every element is written.
    let y = unsafe { unwritten(processor, x.shape(), x.dtype()) }?;
    let kernel = of_type("add_row", x.dtype())?;
    addresses(&[x, row], &[&y], &mut |at| {
        let count = x.elem_count();
        let arguments = AddRowArguments {
            x: at.reads[0],
            row: at.reads[1],
            y: at.writes[0],
            count: count as i64,
            width: row.elem_count() as i64,
        };
        // SAFETY: as above.
        unsafe { launch(processor, &kernel, Extent::flat(count), &arguments) }
    })?;
    Ok(y)
}
