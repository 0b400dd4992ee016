//! Bytes on their way: those of tensors, where they lie, and those of messages.

use std::ffi::c_void;

use candle_core::{CpuStorage, DType, Device, Result, Shape, Storage, Tensor};
use half::{bf16, f16};

/// What is sent; it stays as it is until it has left.
pub enum Leaving {
    /// A message.
    Bytes(Vec<u8>),
    /// A tensor on the CPU, contiguous: nobody writes into it in place.
    Tensor(Tensor),
}

impl Leaving {
    /// A tensor as it is sent: on the CPU, one element behind the other.
    ///
    /// # Errors
    /// What Candle says of a copy.
    pub fn tensor(tensor: &Tensor) -> Result<Leaving> {
        Ok(Leaving::Tensor(tensor.to_device(&Device::Cpu)?.contiguous()?))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        let (first, length) = self.place();
        if length == 0 {
            return &[];
        }
        // SAFETY: so many bytes are there, of numbers whose every bit pattern is one of bytes; nobody writes into them.
        unsafe { std::slice::from_raw_parts(first.cast(), length) }
    }

    /// Where the bytes are, and how many. They stay there as long as this is alive.
    pub(crate) fn place(&self) -> (*const c_void, usize) {
        match self {
            Leaving::Bytes(bytes) => (bytes.as_ptr().cast(), bytes.len()),
            Leaving::Tensor(tensor) => {
                let (storage, layout) = tensor.storage_and_layout();
                let width = tensor.dtype().size_in_bytes();
                let first = match &*storage {
                    Storage::Cpu(storage) => first(storage),
                    // `tensor` brings all to the CPU.
                    _ => return (std::ptr::null(), 0),
                };
                let first = first.wrapping_byte_add(layout.start_offset() * width);
                (first, tensor.elem_count() * width)
            }
        }
    }
}

/// The first byte of a storage; null of a type that no tensor of ours has.
fn first(storage: &CpuStorage) -> *const c_void {
    match storage {
        CpuStorage::U8(all) => all.as_ptr().cast(),
        CpuStorage::U32(all) => all.as_ptr().cast(),
        CpuStorage::I64(all) => all.as_ptr().cast(),
        CpuStorage::BF16(all) => all.as_ptr().cast(),
        CpuStorage::F16(all) => all.as_ptr().cast(),
        CpuStorage::F32(all) => all.as_ptr().cast(),
        CpuStorage::F64(all) => all.as_ptr().cast(),
        _ => std::ptr::null(),
    }
}

/// Room for what arrives.
pub enum Arriving {
    /// A message.
    Bytes(Vec<u8>),
    /// Elements of a tensor.
    Elements(Elements),
}

/// Elements of one of the types that travel.
pub enum Elements {
    /// `u8`
    U8(Vec<u8>),
    /// `u32`
    U32(Vec<u32>),
    /// `i64`
    I64(Vec<i64>),
    /// `bf16`
    BF16(Vec<bf16>),
    /// `f16`
    F16(Vec<f16>),
    /// `f32`
    F32(Vec<f32>),
    /// `f64`
    F64(Vec<f64>),
}

/// The same for the elements of every type.
macro_rules! each {
    ($elements:expr, $all:ident => $of:expr) => {
        match $elements {
            Elements::U8($all) => $of,
            Elements::U32($all) => $of,
            Elements::I64($all) => $of,
            Elements::BF16($all) => $of,
            Elements::F16($all) => $of,
            Elements::F32($all) => $of,
            Elements::F64($all) => $of,
        }
    };
}

impl Elements {
    /// Room for so many elements; `None`: no tensor of this type travels.
    pub fn new(dtype: DType, count: usize) -> Option<Elements> {
        Some(match dtype {
            DType::U8 => Elements::U8(vec![0; count]),
            DType::U32 => Elements::U32(vec![0; count]),
            DType::I64 => Elements::I64(vec![0; count]),
            DType::BF16 => Elements::BF16(vec![bf16::ZERO; count]),
            DType::F16 => Elements::F16(vec![f16::ZERO; count]),
            DType::F32 => Elements::F32(vec![0.0; count]),
            DType::F64 => Elements::F64(vec![0.0; count]),
            _ => return None,
        })
    }

    /// Where they are, and how many bytes.
    fn place(&mut self) -> (*mut c_void, usize) {
        each!(self, all => (all.as_mut_ptr().cast(), size_of_val(all.as_slice())))
    }

    /// They as a tensor.
    ///
    /// # Errors
    /// When `shape` has another number of elements.
    pub fn tensor(self, shape: impl Into<Shape>) -> Result<Tensor> {
        each!(self, all => Tensor::from_vec(all, shape.into(), &Device::Cpu))
    }
}

impl Arriving {
    /// Where the bytes go, and how many there is room for.
    pub(crate) fn place(&mut self) -> (*mut c_void, usize) {
        match self {
            Arriving::Bytes(bytes) => (bytes.as_mut_ptr().cast(), bytes.len()),
            Arriving::Elements(elements) => elements.place(),
        }
    }
}
