//! Tensors as rows of f32, whatever their dtype and strides, and results as tensors of the wanted dtype.

use std::borrow::Cow;
use std::ops::{Deref, Range};

use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, DType, Layout, Result, Shape, Storage, StorageRef, Tensor, bail};
use half::bf16;
use half::slice::HalfFloatSliceExt;

use crate::gpu::operators;
use crate::{Backend, Pool};

/// Elements that a job copies, casts or works on at a time: 128 KiB, which a core's cache holds.
pub(crate) const CHUNK: usize = 1 << 15;

/// The number of rows of `width` elements in a chunk, which depends on nothing else.
pub(crate) fn rows_per_chunk(width: usize) -> usize {
    (CHUNK / width.max(1)).max(1)
}

/// A buffer that has not been written yet: zeros would cost as much as the arithmetic of many operators.
///
/// # Safety
/// Every element must be written before it is read.
#[expect(clippy::uninit_vec, reason = "the caller's promise")]
pub(crate) unsafe fn unwritten(len: usize) -> Vec<f32> {
    let mut buffer = Vec::with_capacity(len);
    // SAFETY: the capacity is there; the caller writes the elements, whose every bit pattern is one.
    unsafe { buffer.set_len(len) };
    buffer
}

/// Zeros written by all workers: an allocator would let a single thread write those of reused memory.
pub(crate) fn zeros(pool: &Pool, len: usize) -> Vec<f32> {
    // SAFETY: the pieces cover the buffer, and nothing is read of them before.
    let mut zeros = unsafe { unwritten(len) };
    pool.for_chunks(&mut zeros, CHUNK, |_, piece| piece.fill(0.0));
    zeros
}

/// The rows of a tensor, along its last dimension: f32 or bf16, strided or not.
pub(crate) struct Rows<'a> {
    storage: &'a CpuStorage,
    layout: &'a Layout,
    /// Elements of a row.
    pub(crate) width: usize,
}

impl<'a> Rows<'a> {
    /// The rows of a tensor; refuses dtypes other than f32 and bf16.
    pub(crate) fn new(storage: &'a CpuStorage, layout: &'a Layout) -> Result<Rows<'a>> {
        if !matches!(storage, CpuStorage::F32(_) | CpuStorage::BF16(_)) {
            bail!("found a tensor of {:?}, expected F32 or BF16", storage.dtype());
        }
        Ok(Rows { storage, layout, width: layout.dims().last().copied().unwrap_or(1) })
    }
    /// Copies rows from `first` on, widened, until `into` is full.
    pub(crate) fn copy(&self, first: usize, into: &mut [f32]) {
        match self.storage {
            CpuStorage::F32(data) => {
                self.gather(data, first, into, |from, to| to.copy_from_slice(from), |from| from);
            }
            CpuStorage::BF16(data) => {
                self.gather(data, first, into, <[bf16]>::convert_to_f32_slice, bf16::to_f32);
            }
            _ => unreachable!("`new` takes f32 and bf16 alone"),
        }
    }
    /// Reads contiguous rows as a whole, others element by element.
    fn gather<T: Copy>(
        &self,
        data: &[T],
        first: usize,
        into: &mut [f32],
        piece: impl Fn(&[T], &mut [f32]),
        element: impl Fn(T) -> f32,
    ) {
        let stride = self.layout.stride().last().copied().unwrap_or(1);
        for (row, from) in into.chunks_exact_mut(self.width.max(1)).zip(self.offsets(first)) {
            let from = &data[from..];
            if stride == 1 {
                piece(&from[..row.len()], row);
            } else {
                row.iter_mut().enumerate().for_each(|(i, to)| *to = element(from[i * stride]));
            }
        }
    }
    /// The offsets at which rows start, from row `first` on.
    fn offsets(&self, first: usize) -> impl Iterator<Item = usize> {
        let leading = self.layout.dims().len().saturating_sub(1);
        let (rows, stride) = match leading {
            0 => (1, 0),
            _ => (self.layout.dims()[leading - 1], self.layout.stride()[leading - 1]),
        };
        // Rows along the last dimension but one are `stride` apart.
        let rows = rows.max(1);
        let mut row = first % rows;
        let mut blocks = first / rows..;
        let mut start = blocks.next().map_or(0, |block| self.offset(block));
        std::iter::from_fn(move || {
            if row == rows {
                row = 0;
                start = blocks.next().map_or(0, |block| self.offset(block));
            }
            row += 1;
            Some(start + (row - 1) * stride)
        })
    }
    /// The offset of a block of rows, those along the last dimension but one.
    fn offset(&self, block: usize) -> usize {
        let leading = self.layout.dims().len().saturating_sub(2);
        let dims = self.layout.dims()[..leading].iter();
        let strides = self.layout.stride()[..leading].iter();
        let (offset, _) = dims.zip(strides).rev().fold(
            (self.layout.start_offset(), block),
            |(offset, rest), (dim, stride)| {
                (offset + rest % dim.max(&1) * stride, rest / dim.max(&1))
            },
        );
        offset
    }
    fn collect(&self, pool: &Pool) -> Vec<f32> {
        // SAFETY: the pieces are whole rows and cover the copy, and `copy` writes all of each.
        let mut copy = unsafe { unwritten(self.layout.shape().elem_count()) };
        let rows = rows_per_chunk(self.width);
        pool.for_chunks(&mut copy, rows * self.width.max(1), |index, piece| {
            self.copy(index * rows, piece);
        });
        copy
    }
}

/// Calls `use_rows` with the rows of a tensor on the CPU.
pub(crate) fn with_rows<T>(tensor: &Tensor, use_rows: impl FnOnce(&Rows<'_>) -> T) -> Result<T> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(data) => Ok(use_rows(&Rows::new(data, layout)?)),
        _ => bail!("found a tensor on {:?}, expected one on the CPU", tensor.device().location()),
    }
}

/// A tensor's elements, row-major and without gaps: the tensor itself where it is so, else a copy. Off the tape.
///
/// # Errors
/// When it is not on the CPU, or no float.
pub fn contiguous(backend: &Backend, x: &Tensor) -> Result<Tensor> {
    let pool = match backend {
        Backend::Gpu(processor) => return operators::contiguous(&**processor, x),
        Backend::Cpu(pool) => pool,
    };
    if x.is_contiguous() {
        return Ok(x.detach());
    }
    if matches!(x.dtype(), DType::F16 | DType::F64) {
        // Operators compute in neither: f16 is a comm dtype, and the reference kernel of attention takes f64.
        return x.detach().contiguous();
    }
    let copy = with_rows(x, |rows| rows.collect(pool))?;
    tensor(pool, copy, x.shape(), x.dtype())
}

/// Rows as attention reads them, [B, H, S, D]: on a GPU in place if each has no gaps; else, and for tensors of other dimensions, as
/// [`contiguous`] returns them. Off the tape.
///
/// # Errors
/// As [`contiguous`].
pub fn readable(backend: &Backend, x: &Tensor) -> Result<Tensor> {
    match (backend, x.stride()) {
        (Backend::Gpu(_), [_, _, _, 1]) => Ok(x.detach()),
        _ => contiguous(backend, x),
    }
}

/// The range of the elements if they are f32, row-major and without gaps.
fn in_place(storage: &CpuStorage, layout: &Layout) -> Option<Range<usize>> {
    let (start, end) = layout.contiguous_offsets()?;
    matches!(storage, CpuStorage::F32(_)).then_some(start..end)
}

/// The elements as f32, row-major: borrowed where they are stored so, else a copy.
pub(crate) fn elements<'a>(
    pool: &Pool,
    storage: &'a CpuStorage,
    layout: &Layout,
) -> Result<Cow<'a, [f32]>> {
    match (storage, in_place(storage, layout)) {
        (CpuStorage::F32(data), Some(range)) => Ok(Cow::Borrowed(&data[range])),
        _ => Ok(Cow::Owned(Rows::new(storage, layout)?.collect(pool))),
    }
}

/// The elements, contiguous f32, to be changed.
pub(crate) fn in_place_mut<'a>(
    storage: &'a mut CpuStorage,
    layout: &Layout,
) -> Result<&'a mut [f32]> {
    match (in_place(storage, layout), storage) {
        (Some(range), CpuStorage::F32(data)) => Ok(&mut data[range]),
        (_, storage) => no_place(storage.dtype(), layout),
    }
}

/// Refuses tensors that operators cannot change in place: all but contiguous f32.
pub(crate) fn check_place(tensor: &Tensor) -> Result<()> {
    if tensor.dtype() == DType::F32 && tensor.is_contiguous() {
        return Ok(());
    }
    no_place(tensor.dtype(), tensor.layout())
}

fn no_place<T>(dtype: DType, layout: &Layout) -> Result<T> {
    let strides = layout.stride();
    bail!("found {dtype:?} of strides {strides:?}, expected F32 without gaps to change in place")
}

/// The elements of a tensor, locked against writers.
pub(crate) struct Elements<'a> {
    storage: StorageRef<'a>,
    place: Place,
}

enum Place {
    Storage(Range<usize>),
    Copy(Vec<f32>),
}

impl Elements<'_> {
    /// Locks the elements of a tensor; refuses tensors that are not on the CPU, or neither f32 nor bf16.
    pub(crate) fn of<'a>(pool: &Pool, tensor: &'a Tensor) -> Result<Elements<'a>> {
        let (storage, layout) = tensor.storage_and_layout();
        let Storage::Cpu(data) = &*storage else {
            bail!("found a tensor on {:?}, expected one on the CPU", tensor.device().location());
        };
        let place = match in_place(data, layout) {
            Some(range) => Place::Storage(range),
            None => Place::Copy(Rows::new(data, layout)?.collect(pool)),
        };
        Ok(Elements { storage, place })
    }
}

impl Deref for Elements<'_> {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        match (&self.place, &*self.storage) {
            (Place::Copy(copy), _) => copy,
            (Place::Storage(range), Storage::Cpu(CpuStorage::F32(data))) => &data[range.clone()],
            _ => unreachable!("`of` saw f32 on the CPU"),
        }
    }
}

/// The values rounded once to `dtype`, f32 or bf16.
pub(crate) fn narrow(pool: &Pool, values: Vec<f32>, dtype: DType) -> Result<CpuStorage> {
    match dtype {
        DType::F32 => Ok(CpuStorage::F32(values)),
        DType::BF16 => {
            let mut narrowed = vec![bf16::ZERO; values.len()];
            let pieces = narrowed.chunks_mut(CHUNK).zip(values.chunks(CHUNK));
            pool.each(pieces, |(to, from)| to.convert_from_f32_slice(from));
            Ok(CpuStorage::BF16(narrowed))
        }
        other => bail!("found a tensor of {other:?}, expected F32 or BF16"),
    }
}

/// A tensor of `values` off the tape, rounded once to `dtype`.
pub(crate) fn tensor(
    pool: &Pool,
    values: Vec<f32>,
    shape: impl Into<Shape>,
    dtype: DType,
) -> Result<Tensor> {
    let storage = Storage::Cpu(narrow(pool, values, dtype)?);
    Ok(Tensor::from_storage(storage, shape, BackpropOp::none(), false))
}
