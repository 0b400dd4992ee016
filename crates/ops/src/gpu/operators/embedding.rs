//! The embedding's rows by token, and their gradients over tokens in order: `kernels/embedding/`.

use bytemuck::NoUninit;
use candle_core::{DType, Result, Tensor, bail};

use super::super::{Processor, addresses};
use super::{Extent, THREADS, launch, of_type, off_tape, order_free, plain, unwritten};
use crate::embedding::check_tokens;

/// Bits of a token that one pass sorts by: 512 digits.
const DIGIT: u32 = 9;
/// Threads that count and move; `ORDER_DIGITS` in C.
const DIGITS: u32 = 1 << DIGIT;
/// Tokens of a tile; `ORDER_TILE` in C.
const TILE: usize = 4096;
/// Threads that sum counts; `ORDER_SCAN_THREADS` in C.
const SCAN_THREADS: u32 = 1024;
/// Tokens of a part of a row's gradient; `EMBEDDING_PART` in C.
const PART: usize = 64;

/// Mirrors the C struct `EmbeddingForwardArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct ForwardArguments {
    tokens: u64,
    weight: u64,
    y: u64,
    count: i64,
    rows: i64,
    width: i32,
    _gap: u32,
}

/// Mirrors the C struct `EmbeddingGradientArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct GradientArguments {
    tokens: u64,
    places: u64,
    dy: u64,
    dweight: u64,
    rows: i64,
    count: i32,
    width: i32,
}

/// Mirrors the C struct `OrderArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct OrderArguments {
    tokens: u64,
    places: u64,
    sorted_tokens: u64,
    sorted_places: u64,
    counts: u64,
    count: i32,
    tiles: i32,
    shift: i32,
    rows: u32,
}

/// [`crate::embedding()`] on a processor.
pub(crate) fn embedding(
    processor: &dyn Processor,
    tokens: &Tensor,
    weight: &Tensor,
) -> Result<Tensor> {
    off_tape("embedding", [weight])?;
    let (rows, width) = weight.dims2()?;
    let ids = ids(processor, tokens, rows)?;
    let weight = plain(processor, weight, weight.dtype())?;
    let count = ids.elem_count();
    let dims = [tokens.dims(), &[width]].concat();
    // SAFETY: every row is written.
    let y = unsafe { unwritten(processor, dims, weight.dtype()) }?;
    let extent = Extent::blocks(count.div_ceil(THREADS as usize / 32));
    let kernel = of_type("embedding_forward", weight.dtype())?;
    addresses(&[&ids, &weight], &[&y], &mut |at| {
        let arguments = ForwardArguments {
            tokens: at.reads[0],
            weight: at.reads[1],
            y: at.writes[0],
            count: count as i64,
            rows: rows as i64,
            width: width as i32,
            _gap: 0,
        };
        // SAFETY: sizes are the tensors'; addresses hold until the launch is in the stream.
        unsafe { launch(processor, &kernel, extent, &arguments) }
    })?;
    Ok(y)
}

/// [`crate::embedding_backward`] on a processor.
pub(crate) fn embedding_backward(
    processor: &dyn Processor,
    tokens: &Tensor,
    rows: usize,
    dy: &Tensor,
) -> Result<Tensor> {
    unchecked_backward(processor, &ids(processor, tokens, rows)?, rows, dy)
}

/// As [`crate::embedding_backward`], of `ids` u32, contiguous on the processor's device, that nobody has checked: those not below `rows`
/// are left out.
///
/// # Errors
/// When there is not a gradient for every token, or a tensor has another type.
pub fn unchecked_backward(
    processor: &dyn Processor,
    ids: &Tensor,
    rows: usize,
    dy: &Tensor,
) -> Result<Tensor> {
    let (count, width) = (ids.elem_count(), dy.dims().last().copied().unwrap_or(1));
    if dy.elem_count() != count * width {
        bail!("embedding: found {} gradients, expected {count} times {width}", dy.elem_count());
    }
    let dy = plain(processor, dy, dy.dtype())?;
    let [tokens, places] = in_order(processor, ids, rows)?;
    if let Some(block) = processor.block() {
        return order_free::of_rows(processor, [&tokens, &places], &dy, rows, width, block);
    }
    let dweight = Tensor::zeros((rows, width), DType::F32, processor.device())?;
    let grid = [count.div_ceil(PART), width.div_ceil(256), 1];
    let extent = Extent { grid, threads: THREADS, shared: 16 << 10 };
    let kernel = of_type("embedding_gradient", dy.dtype())?;
    addresses(&[&tokens, &places, &dy], &[&dweight], &mut |at| {
        let arguments = GradientArguments {
            tokens: at.reads[0],
            places: at.reads[1],
            dy: at.reads[2],
            dweight: at.writes[0],
            rows: rows as i64,
            count: count as i32,
            width: width as i32,
        };
        // SAFETY: as above.
        unsafe { launch(processor, &kernel, extent, &arguments) }
    })?;
    Ok(dweight)
}

/// The tokens, plain. Those on the host are checked to be below `rows`; checking others would make the host wait, so whoever makes them
/// does it ([`check_tokens`]), and a token that is not below `rows` has zeros and no gradient.
fn ids(processor: &dyn Processor, tokens: &Tensor, rows: usize) -> Result<Tensor> {
    if tokens.dtype() != DType::U32 {
        bail!("embedding: found tokens of {:?}, wanted U32", tokens.dtype());
    }
    if tokens.device().is_cpu() {
        check_tokens(&tokens.flatten_all()?.to_vec1()?, rows)?;
    }
    plain(processor, tokens, DType::U32)
}

/// The tokens sorted, and the original index of each: by digits, the lowest first. Those not below `rows` come last.
fn in_order(processor: &dyn Processor, tokens: &Tensor, rows: usize) -> Result<[Tensor; 2]> {
    let count = tokens.elem_count();
    let tiles = count.div_ceil(TILE);
    // SAFETY: every pass writes all of what it makes, and its counts before they are read.
    let made = |len: usize| unsafe { unwritten(processor, len, DType::U32) };
    let counts = made(DIGITS as usize * tiles)?;
    let (mut sorted, mut places) = (tokens.clone(), None);
    let rows = u32::try_from(rows).unwrap_or(u32::MAX);
    // Tokens that are not of the table count as `rows`, so that its bits, too, are sorted by.
    for shift in (0..u32::BITS - rows.leading_zeros()).step_by(DIGIT as usize) {
        let next = [made(count)?, made(count)?];
        let reads: Vec<&Tensor> = [&sorted].into_iter().chain(&places).collect();
        addresses(&reads, &[&next[0], &next[1], &counts], &mut |at| {
            let arguments = OrderArguments {
                tokens: at.reads[0],
                places: at.reads.get(1).copied().unwrap_or(0),
                sorted_tokens: at.writes[0],
                sorted_places: at.writes[1],
                counts: at.writes[2],
                count: count as i32,
                tiles: tiles as i32,
                shift: shift as i32,
                rows,
            };
            pass(processor, tiles, &arguments)
        })?;
        let [tokens, moved] = next;
        (sorted, places) = (tokens, Some(moved));
    }
    let in_place = || Tensor::arange(0, count as u32, processor.device());
    Ok([sorted, places.map_or_else(in_place, Ok)?])
}

/// One pass of the sort: counts, sums the counts, moves.
fn pass(processor: &dyn Processor, tiles: usize, arguments: &OrderArguments) -> Result<()> {
    let each = Extent { grid: [tiles, 1, 1], threads: DIGITS, shared: 16 << 10 };
    let once = Extent { grid: [tiles.min(1), 1, 1], threads: SCAN_THREADS, shared: 4 << 10 };
    for (kernel, extent) in [
        ("embedding_order_count", each),
        ("embedding_order_scan", once),
        ("embedding_order_move", each),
    ] {
        // SAFETY: as above; the caller keeps the addresses.
        unsafe { launch(processor, kernel, extent, arguments) }?;
    }
    Ok(())
}
