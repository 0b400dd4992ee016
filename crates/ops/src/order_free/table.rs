//! Order-free sums as u32 tensors, whose last dimension has rows in the format of [`super`].
#![expect(
    clippy::inline_always,
    reason = "inlined, a loop is compiled for the caller's instructions"
)]

use std::ops::Range;

use annulus_machine::blocks::STRICT_ROW;
use candle_core::{CpuStorage, DType, Device, InplaceOp2, Layout, Result, Tensor, bail};

use super::{Add, join, length, read};
use crate::gpu::operators;
use crate::rows::{CHUNK, unwritten};
use crate::vector::{Leaf, Machine};
use crate::{Backend, Pool};

/// Whether a tensor is a table of order-free sums.
pub fn is_order_free(tensor: &Tensor) -> bool {
    tensor.dtype() == DType::U32
}

/// Sums of nothing, one for every element of a tensor of shape [.., D]: [.., 3 D + 1].
///
/// # Errors
/// What Candle says.
pub fn of_shape(dims: &[usize], device: &Device) -> Result<Tensor> {
    let Some((width, rows)) = dims.split_last() else { bail!("order-free sums of a scalar") };
    Tensor::zeros([rows, &[length(*width)]].concat(), DType::U32, device)
}

/// The number of rows of the table of a parameter with `elements` elements.
pub(crate) fn groups(elements: usize) -> usize {
    elements.div_ceil(STRICT_ROW)
}

/// The shape of the table of a parameter with `elements` elements.
pub(crate) fn table_of(elements: usize) -> [usize; 2] {
    [groups(elements), length(STRICT_ROW)]
}

/// The integers of a table without gaps, to be changed.
pub(crate) fn table_mut<'a>(storage: &'a mut CpuStorage, layout: &Layout) -> Result<&'a mut [u32]> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::U32(sums), Some((start, end))) => Ok(&mut sums[start..end]),
        _ => bail!("order-free sums: found {layout:?}, wanted U32 without gaps"),
    }
}

/// Rows as a tensor [.., 3 D + 1].
pub(crate) fn as_tensor(rows: Vec<u32>, dims: &[usize]) -> Result<Tensor> {
    Tensor::from_vec(rows, dims, &Device::Cpu)
}

/// Adds `from` to `to`, tables of the same shape, in place: the same bits in any order.
///
/// # Errors
/// When the shapes differ, or a tensor is not a contiguous table of order-free sums.
pub fn add_sums(backend: &Backend, to: &Tensor, from: &Tensor) -> Result<()> {
    if to.shape() != from.shape() {
        bail!("order-free sums: found {:?}, expected {:?}", from.shape(), to.shape());
    }
    match backend {
        Backend::Gpu(processor) => operators::add_sums(&**processor, to, from),
        Backend::Cpu(pool) => to.inplace_op2(from, &AddSums(pool.clone())),
    }
}

struct AddSums(Pool);

impl InplaceOp2 for AddSums {
    fn name(&self) -> &'static str {
        "order-free sum"
    }
    fn cpu_fwd(
        &self,
        to: &mut CpuStorage,
        to_layout: &Layout,
        from: &CpuStorage,
        from_layout: &Layout,
    ) -> Result<()> {
        let (CpuStorage::U32(to), CpuStorage::U32(from)) = (to, from) else {
            bail!("order-free sums: found {:?}, wanted U32", from_layout);
        };
        let places = (to_layout.contiguous_offsets(), from_layout.contiguous_offsets());
        let (Some((start, end)), Some((first, last))) = places else {
            bail!("order-free sums: found {from_layout:?} and {to_layout:?}, expected no gaps");
        };
        let Some(&row) = to_layout.dims().last().filter(|row| **row > 0) else { return Ok(()) };
        let (to, from) = (&mut to[start..end], &from[first..last]);
        let together = rows_together(row) * row;
        self.0.each(to.chunks_mut(together).zip(from.chunks(together)), |(to, from)| {
            to.chunks_mut(row).zip(from.chunks(row)).for_each(|(to, from)| join(to, from));
        });
        Ok(())
    }
}

/// The sums [.., 3 D + 1] as f32 [.., D], each rounded once.
///
/// # Errors
/// When the tensor is not a table of order-free sums.
pub fn values(backend: &Backend, sums: &Tensor) -> Result<Tensor> {
    let mut dims = sums.dims().to_vec();
    let Some(last) = dims.last_mut() else { bail!("order-free sums: a scalar is none") };
    let row = std::mem::replace(last, *last / super::BINS);
    if row != length(*last) {
        bail!("order-free sums: found rows of {row}, expected {} for {last} sums", length(*last));
    }
    match backend {
        Backend::Gpu(processor) => operators::read_sums(&**processor, sums)?.reshape(dims),
        Backend::Cpu(pool) => Tensor::from_vec(read_all(pool, sums)?, dims, sums.device()),
    }
}

/// The integers of a parameter's table, flat, that hold the sums of these elements: those of whole rows.
pub fn places(elements: Range<usize>) -> Range<usize> {
    if elements.is_empty() {
        return 0..0;
    }
    elements.start / STRICT_ROW * length(STRICT_ROW)
        ..elements.end.div_ceil(STRICT_ROW) * length(STRICT_ROW)
}

/// The values, f32, flat, of `elements`, read from their [`places`] in a parameter's table.
///
/// # Errors
/// When the tensor is not a table of order-free sums, or of other elements.
pub fn values_at(backend: &Backend, sums: &Tensor, elements: Range<usize>) -> Result<Tensor> {
    if elements.is_empty() {
        return Tensor::zeros(0, DType::F32, sums.device());
    }
    let sums = sums.reshape(((), length(STRICT_ROW)))?;
    let (all, first) = (values(backend, &sums)?.flatten_all()?, elements.start % STRICT_ROW);
    if all.elem_count() < first + elements.len() {
        bail!(
            "order-free sums: found {} elements, expected {}",
            all.elem_count() - first,
            elements.len()
        );
    }
    if (first, all.elem_count()) == (0, elements.len()) {
        return Ok(all);
    }
    all.narrow(0, first, elements.len())?.force_contiguous()
}

/// The sum of flat tables of the same rows of a parameter.
///
/// # Errors
/// As [`add_sums`].
pub fn sum_of(backend: &Backend, parts: &[Tensor]) -> Result<Tensor> {
    let Some((first, rest)) = parts.split_first() else { bail!("order-free sums: of nothing") };
    // Of a view, `copy` would copy all of its storage.
    let sum = first.reshape(((), length(STRICT_ROW)))?.force_contiguous()?;
    for part in rest {
        add_sums(backend, &sum, &part.reshape(((), length(STRICT_ROW)))?)?;
    }
    Ok(sum)
}

fn read_all(pool: &Pool, sums: &Tensor) -> Result<Vec<f32>> {
    let (sums, row) = (sums.detach().contiguous()?, sums.dims().last().copied().unwrap_or(1));
    let (storage, layout) = sums.storage_and_layout();
    let candle_core::Storage::Cpu(CpuStorage::U32(all)) = &*storage else {
        bail!("order-free sums: found {:?}, wanted U32 on the CPU", sums.dtype());
    };
    let all = &all[layout.start_offset()..][..layout.shape().elem_count()];
    let width = row / super::BINS;
    // SAFETY: every row is read into its place.
    let mut to = unsafe { unwritten(all.len() / row * width) };
    let together = rows_together(row);
    let jobs = to.chunks_mut(together * width.max(1)).zip(all.chunks(together * row));
    pool.each(jobs, |(to, rows)| {
        for (to, row) in to.chunks_mut(width.max(1)).zip(rows.chunks(row)) {
            read(row, to);
        }
    });
    Ok(to)
}

/// The number of rows that one job takes.
fn rows_together(row: usize) -> usize {
    (CHUNK / row.max(1)).max(1)
}

/// Adds rows of numbers to the sums of a parameter.
pub(crate) struct AddFlat<'a> {
    /// Rows of the parameter's table.
    pub(crate) sums: &'a mut [u32],
    /// The element that the first number is added to, and the distance between the elements at which rows begin.
    pub(crate) start: usize,
    pub(crate) apart: usize,
    /// Rows of numbers, `step` apart.
    pub(crate) numbers: &'a [f32],
    pub(crate) width: usize,
    pub(crate) step: usize,
}

impl Leaf for AddFlat<'_> {
    #[inline(always)]
    fn run<M: Machine>(self, machine: M) {
        let AddFlat { sums, mut start, apart, numbers, width, step } = self;
        for row in numbers.chunks(step) {
            add_row(machine, sums, start, &row[..width]);
            start += apart;
        }
    }
}

/// Adds numbers to sums, from an element on.
#[inline(always)]
fn add_row<M: Machine>(machine: M, sums: &mut [u32], mut start: usize, mut numbers: &[f32]) {
    while !numbers.is_empty() {
        let (group, offset) = (start / STRICT_ROW, start % STRICT_ROW);
        let (now, later) = numbers.split_at(numbers.len().min(STRICT_ROW - offset));
        let row = &mut sums[group * length(STRICT_ROW)..][..length(STRICT_ROW)];
        let mut padded = [0.0; STRICT_ROW];
        let all = if let Some(all) = now.first_chunk::<STRICT_ROW>() {
            all
        } else {
            padded[offset..offset + now.len()].copy_from_slice(now);
            &padded
        };
        Add { row, numbers: all, factor: 1.0, shift: 0 }.run(machine);
        (start, numbers) = (start + now.len(), later);
    }
}
