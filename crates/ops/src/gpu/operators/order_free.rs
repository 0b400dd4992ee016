//! Order-free sums on a processor: `kernels/order_free/`. Tables are those of [`crate::order_free`].

use bytemuck::NoUninit;
use candle_core::{DType, Result, Tensor, bail};

use super::super::table::element_name;
use super::super::{Processor, addresses};
use super::chunks::{self, Tables};
use super::norm::{Row, rows_at};
use super::product::Output;
use super::view::View;
use super::{Extent, launch, of_type, plain, unwritten};
use crate::order_free::{SQUARES, groups, table_of, whole_blocks};

/// Rows of a table per block of threads: one for each warp.
const ROWS: usize = 8;
/// Rows and columns that a block of threads multiplies; `WEIGHT_TILE` in C.
const TILE: usize = 64;
/// Outputs per block of threads where tensor cores multiply; `WEIGHT_LINES` in C.
const LINES: usize = 128;
/// The most bytes of shared memory of such a block: what is multiplied at a time.
const TILES: u32 = 24 << 10;

/// Mirrors the C structs `AddSumsArguments` and `ReadSumsArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct TableArguments {
    from: u64,
    to: u64,
    rows: i64,
    width: i32,
    _gap: u32,
}

/// Mirrors the C struct `FoldPartialsArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct PartialsArguments {
    partials: u64,
    sums: u64,
    count: i64,
    width: i32,
    _gap: u32,
}

/// Mirrors the C struct `EmbeddingSumsArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct EmbeddingArguments {
    tokens: u64,
    places: u64,
    dy: u64,
    sums: u64,
    rows: i64,
    count: i32,
    width: i32,
    block: i32,
    _gap: u32,
}

/// Mirrors the C struct `WeightSumsArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct WeightArguments {
    dy: u64,
    x: u64,
    sums: u64,
    dy_step: i64,
    tokens: i32,
    block: i32,
    outputs: i32,
    inputs: i32,
}

/// Mirrors the C struct `ProductArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct ProductArguments {
    a: u64,
    b: u64,
    c: u64,
    a_steps: [i64; 2],
    b_steps: [i64; 2],
    c_row: i64,
    rows: i32,
    columns: i32,
    depth: i32,
    onto: i32,
}

/// Mirrors the C struct `ExactSquaresArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct SquaresArguments {
    tensors: u64,
    chunks: u64,
    sums: u64,
}

/// Adds `from` to `to`, tables of one shape without gaps.
pub(crate) fn add_sums(processor: &dyn Processor, to: &Tensor, from: &Tensor) -> Result<()> {
    if !to.is_contiguous() || to.dtype() != DType::U32 || from.dtype() != DType::U32 {
        bail!("order-free sums: found {:?} {:?}, wanted U32 without gaps", to.dtype(), to.layout());
    }
    let from = plain(processor, from, DType::U32)?;
    let (rows, width) = sizes(to);
    // SAFETY: both are tables of so many rows.
    unsafe { row_by_row(processor, "order_free_add", [&from, to], rows, width) }
}

/// The sums [.., 3 D + 1] of a table as f32, flat, each rounded once.
pub(crate) fn read_sums(processor: &dyn Processor, sums: &Tensor) -> Result<Tensor> {
    if sums.dtype() != DType::U32 {
        bail!("order-free sums: found {:?}, wanted U32", sums.dtype());
    }
    let sums = plain(processor, sums, DType::U32)?;
    let (rows, width) = sizes(&sums);
    // SAFETY: every row is written.
    let values = unsafe { unwritten(processor, rows * width, DType::F32) }?;
    // SAFETY: a table of so many rows, and as many values.
    unsafe { row_by_row(processor, "order_free_read", [&sums, &values], rows, width) }?;
    Ok(values)
}

/// Launches a kernel that reads a table row by row.
///
/// # Safety
/// Both tensors must have the given number of rows, of the given number of sums each, without gaps.
unsafe fn row_by_row(
    processor: &dyn Processor,
    kernel: &str,
    [from, to]: [&Tensor; 2],
    rows: usize,
    width: usize,
) -> Result<()> {
    addresses(&[from], &[to], &mut |at| {
        let arguments = TableArguments {
            from: at.reads[0],
            to: at.writes[0],
            rows: rows as i64,
            width: width as i32,
            _gap: 0,
        };
        let extent = Extent::blocks(rows.div_ceil(ROWS));
        // SAFETY: the caller's promise; addresses hold until the launch is in the stream.
        unsafe { launch(processor, kernel, extent, &arguments) }
    })
}

/// The number of a table's rows, and of sums in each.
fn sizes(sums: &Tensor) -> (usize, usize) {
    let row = sums.dims().last().copied().unwrap_or(1);
    (sums.elem_count() / row.max(1), row / 3)
}

/// A parameter's table of sums of nothing.
pub(super) fn nothing(processor: &dyn Processor, elements: usize) -> Result<Tensor> {
    Tensor::zeros(&table_of(elements), DType::U32, processor.device())
}

/// A parameter's table that has not been written yet.
///
/// # Safety
/// What is launched next must write all of it.
unsafe fn unwritten_table(processor: &dyn Processor, elements: usize) -> Result<Tensor> {
    // SAFETY: the caller's promise.
    unsafe { unwritten(processor, &table_of(elements), DType::U32) }
}

/// The table of the sums over `partials` f32 [count, width], each row a block of tokens' partial result.
pub(super) fn of_partials(processor: &dyn Processor, partials: &Tensor) -> Result<Tensor> {
    let (count, width) = partials.dims2()?;
    // SAFETY: every row is written.
    let sums = unsafe { unwritten_table(processor, width) }?;
    addresses(&[partials], &[&sums], &mut |at| {
        let arguments = PartialsArguments {
            partials: at.reads[0],
            sums: at.writes[0],
            count: count as i64,
            width: width as i32,
            _gap: 0,
        };
        let extent = Extent::blocks(groups(width).div_ceil(ROWS));
        // SAFETY: as above.
        unsafe { launch(processor, "order_free_partials", extent, &arguments) }
    })?;
    Ok(sums)
}

/// The table of a gradient [rows, width], in blocks of `block` places: for every one of `tokens`, sorted, with their `places`, its row of
/// `dy` [count, width].
pub(super) fn of_rows(
    processor: &dyn Processor,
    [tokens, places]: [&Tensor; 2],
    dy: &Tensor,
    rows: usize,
    width: usize,
    block: usize,
) -> Result<Tensor> {
    // SAFETY: every row is written.
    let sums = unsafe { unwritten_table(processor, rows * width) }?;
    let kernel = of_type("order_free_embedding", dy.dtype())?;
    addresses(&[tokens, places, dy], &[&sums], &mut |at| {
        let arguments = EmbeddingArguments {
            tokens: at.reads[0],
            places: at.reads[1],
            dy: at.reads[2],
            sums: at.writes[0],
            rows: rows as i64,
            count: tokens.elem_count() as i32,
            width: width as i32,
            block: block as i32,
            _gap: 0,
        };
        let extent = Extent::blocks(groups(rows * width).div_ceil(ROWS));
        // SAFETY: as above.
        unsafe { launch(processor, &kernel, extent, &arguments) }
    })?;
    Ok(sums)
}

/// Adds `dyᵀ x` of every block of tokens to the table of a weight [outputs, inputs]: rows `dy` [tokens, outputs], and `x` [tokens, inputs]
/// without gaps.
///
/// # Errors
/// When the tokens are not whole blocks.
pub(super) fn add_products(
    processor: &dyn Processor,
    sums: &Tensor,
    dy: &View<'_>,
    x: &View<'_>,
    block: usize,
) -> Result<()> {
    let ([tokens, outputs], [_, inputs], dtype) = (dy.dims, x.dims, dy.first().dtype());
    whole_blocks(tokens, block)?;
    let tiles = if inputs.is_multiple_of(TILE) {
        let lines = if dtype == DType::F32 { TILE } else { LINES };
        outputs.div_ceil(lines) * (inputs / TILE)
    } else {
        groups(outputs * inputs).div_ceil(TILE)
    };
    let kernel = of_type("order_free_weight", dtype)?;
    addresses(&[dy.first(), x.first()], &[sums], &mut |at| {
        let arguments = WeightArguments {
            dy: at.reads[0],
            x: at.reads[1],
            sums: at.writes[0],
            dy_step: dy.strides[0] as i64,
            tokens: tokens as i32,
            block: block as i32,
            outputs: outputs as i32,
            inputs: inputs as i32,
        };
        let extent = Extent { shared: TILES, ..Extent::blocks(tiles) };
        // SAFETY: as above.
        unsafe { launch(processor, &kernel, extent, &arguments) }
    })
}

/// Computes `c = a b`, or `c += a b`; sizes and dtypes were checked, and none is empty.
pub(super) fn multiply(
    processor: &dyn Processor,
    c: &Tensor,
    a: &View<'_>,
    b: &View<'_>,
    output: Output,
) -> Result<()> {
    let ([rows, depth], [_, columns]) = (a.dims, b.dims);
    if columns > 1 && c.stride()[1] != 1 {
        bail!("product: found a result with gaps in its rows, of strides {:?}", c.stride());
    }
    if let Some(gaps) = [a, b].into_iter().find(|one| !one.strides.contains(&1)) {
        bail!(
            "product: found a matrix of strides {:?}, expected rows or columns in one piece",
            gaps.strides
        );
    }
    let [of_a, of_c] = [a.first().dtype(), c.dtype()].map(element_name);
    let kernel = format!("order_free_product_{}_{}", of_a?, of_c?);
    let steps = |view: &View<'_>| view.strides.map(|stride| stride as i64);
    let reads = [&a.tensors[..], &b.tensors].concat();
    addresses(&reads, &[c], &mut |at| {
        let arguments = ProductArguments {
            a: at.reads[0],
            b: at.reads[a.tensors.len()],
            c: at.writes[0],
            a_steps: steps(a),
            b_steps: steps(b),
            c_row: c.stride()[0] as i64,
            rows: rows as i32,
            columns: columns as i32,
            depth: depth as i32,
            onto: i32::from(output == Output::Accumulate),
        };
        let tiles = rows.div_ceil(TILE) * columns.div_ceil(TILE);
        let extent = Extent { shared: TILES, ..Extent::blocks(tiles) };
        // SAFETY: as above.
        unsafe { launch(processor, &kernel, extent, &arguments) }
    })
}

/// The order-free sum of the squares of all elements, by exponent: see [`crate::order_free::Squares`]. The host waits for it.
pub(crate) fn exact_squares<'a>(
    processor: &dyn Processor,
    tensors: impl IntoIterator<Item = &'a Tensor>,
) -> Result<Vec<i64>> {
    let tensors = tensors.into_iter().map(|tensor| plain(processor, tensor, DType::F32));
    let tensors = tensors.collect::<Result<Vec<_>>>()?;
    let sums = Tensor::zeros(SQUARES, DType::I64, processor.device())?;
    let sizes = || tensors.iter().map(Tensor::elem_count);
    let shared = (ROWS * SQUARES * size_of::<i64>()) as u32;
    let extent = Extent { shared, ..Extent::blocks(chunks::count(sizes())) };
    addresses(&tensors.iter().collect::<Vec<_>>(), &[&sums], &mut |at| {
        let rows: Vec<Row> = rows_at(&at.reads, sizes());
        let tables = Tables::new(processor, &rows, sizes())?;
        let arguments = SquaresArguments {
            tensors: tables.tensors.address,
            chunks: tables.chunks.address,
            sums: at.writes[0],
        };
        // SAFETY: rows hold addresses of as many elements as they say.
        unsafe { launch(processor, "order_free_squares", extent, &arguments) }
    })?;
    sums.to_vec1()
}
