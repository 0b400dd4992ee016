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

/// Room for elements of one of the types that travel, and they, once they are there.
pub struct Elements {
    all: All,
    count: usize,
}

/// Elements by type: none before they have arrived.
enum All {
    U8(Vec<u8>),
    U32(Vec<u32>),
    I64(Vec<i64>),
    BF16(Vec<bf16>),
    F16(Vec<f16>),
    F32(Vec<f32>),
    F64(Vec<f64>),
}

/// The same for the elements of every type.
macro_rules! each {
    ($elements:expr, $all:ident => $of:expr) => {
        match $elements {
            All::U8($all) => $of,
            All::U32($all) => $of,
            All::I64($all) => $of,
            All::BF16($all) => $of,
            All::F16($all) => $of,
            All::F32($all) => $of,
            All::F64($all) => $of,
        }
    };
}

impl Elements {
    /// Room for so many elements; `None`: no tensor of this type travels. Nothing is written there before they arrive: a large
    /// message would pay for it.
    pub fn new(dtype: DType, count: usize) -> Option<Elements> {
        let all = match dtype {
            DType::U8 => All::U8(Vec::with_capacity(count)),
            DType::U32 => All::U32(Vec::with_capacity(count)),
            DType::I64 => All::I64(Vec::with_capacity(count)),
            DType::BF16 => All::BF16(Vec::with_capacity(count)),
            DType::F16 => All::F16(Vec::with_capacity(count)),
            DType::F32 => All::F32(Vec::with_capacity(count)),
            DType::F64 => All::F64(Vec::with_capacity(count)),
            _ => return None,
        };
        Some(Elements { all, count })
    }

    /// Where they go, and how many bytes there is room for.
    fn place(&mut self) -> (*mut c_void, usize) {
        let count = self.count;
        each!(&mut self.all, all => (all.as_mut_ptr().cast(), count * width(all)))
    }

    /// They are all there.
    ///
    /// # Safety
    /// All bytes of their room must have been written.
    unsafe fn arrived(&mut self) {
        let count = self.count;
        // SAFETY: the room was made for so many; they are numbers of which every bit pattern is one.
        each!(&mut self.all, all => unsafe { all.set_len(count) });
    }

    /// They as a tensor.
    ///
    /// # Errors
    /// When `shape` has another number of elements, or they have not arrived.
    pub fn tensor(self, shape: impl Into<Shape>) -> Result<Tensor> {
        each!(self.all, all => Tensor::from_vec(all, shape.into(), &Device::Cpu))
    }
}

/// Bytes of an element.
fn width<T>(_: &[T]) -> usize {
    size_of::<T>()
}

impl Arriving {
    /// Where the bytes go, and how many there is room for.
    pub(crate) fn place(&mut self) -> (*mut c_void, usize) {
        match self {
            Arriving::Bytes(bytes) => (bytes.as_mut_ptr().cast(), bytes.len()),
            Arriving::Elements(elements) => elements.place(),
        }
    }

    /// So many bytes were written at the beginning of the room: a message is cut to them. `false`: fewer than the elements have.
    ///
    /// # Safety
    /// They must have been.
    pub(crate) unsafe fn filled(&mut self, bytes: usize) -> bool {
        let elements = match self {
            Arriving::Bytes(all) => {
                all.truncate(bytes);
                return true;
            }
            Arriving::Elements(elements) => elements,
        };
        let is_all = bytes == elements.place().1;
        if is_all {
            // SAFETY: all were written.
            unsafe { elements.arrived() };
        }
        is_all
    }
}
