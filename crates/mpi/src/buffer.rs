//! Bytes that are sent or received: those of tensors, in place where possible, and those of messages.

use std::ffi::c_void;

use candle_core::{CpuStorage, DType, Device, Result, Shape, Storage, Tensor};
use half::{bf16, f16};

use crate::gpu::{Incoming, Outgoing};

/// What is sent; it must not change until it has left.
pub enum Leaving {
    /// A message.
    Bytes(Vec<u8>),
    /// A contiguous tensor on the CPU, into which nobody writes in place.
    Tensor(Tensor),
    /// A tensor of a GPU that is being copied to the CPU.
    Copied(Outgoing),
}

impl Leaving {
    /// A tensor as it is sent: contiguous, on the CPU. From a GPU it is copied without blocking, after all that is on its stream now: a
    /// rank calls this when it sends, before it gives the GPU more to compute.
    ///
    /// # Errors
    /// What Candle says of a copy, and elements of a type that is not sent.
    pub fn tensor(tensor: &Tensor) -> Result<Leaving> {
        if Elements::new(tensor.dtype(), 0).is_none() {
            candle_core::bail!(
                "cannot send a tensor of dtype {}: convert it to one of u8, u32, i64, bf16, f16, f32, f64",
                tensor.dtype().as_str()
            );
        }
        if let Some(outgoing) = Outgoing::begin(tensor)? {
            return Ok(Leaving::Copied(outgoing));
        }
        Ok(Leaving::Tensor(tensor.to_device(&Device::Cpu)?.contiguous()?))
    }

    /// Whether the bytes are on the host: a copy from a GPU takes time. Never blocks. Once they are, the tensor that was copied is
    /// dropped.
    ///
    /// # Errors
    /// What the driver says of the copy.
    pub fn is_ready(&mut self) -> Result<bool> {
        match self {
            Leaving::Bytes(_) | Leaving::Tensor(_) => Ok(true),
            Leaving::Copied(outgoing) => outgoing.is_ready(),
        }
    }

    /// Blocks until the bytes are on the host.
    ///
    /// # Errors
    /// What the driver says of the copy.
    pub fn wait(&self) -> Result<()> {
        match self {
            Leaving::Bytes(_) | Leaving::Tensor(_) => Ok(()),
            Leaving::Copied(outgoing) => outgoing.wait(),
        }
    }

    /// The number of bytes, also before they are on the host.
    pub fn size(&self) -> usize {
        self.place().1
    }

    /// The bytes, after [`Leaving::is_ready`] or [`Leaving::wait`] has said that they are on the host.
    ///
    /// # Panics
    /// If the copy failed.
    pub fn bytes(&self) -> &[u8] {
        // Costs nothing after the copy; before it, wrong bytes would be sent unnoticed.
        self.wait().expect("the copy from the GPU has been waited for");
        let (first, length) = self.place();
        if length == 0 {
            return &[];
        }
        // SAFETY: there are so many bytes, of numbers that may be read as bytes; nobody writes into them.
        unsafe { std::slice::from_raw_parts(first.cast(), length) }
    }

    /// The address of the bytes, which is the same as long as this lives, and their number.
    pub(crate) fn place(&self) -> (*const c_void, usize) {
        match self {
            Leaving::Bytes(bytes) => (bytes.as_ptr().cast(), bytes.len()),
            Leaving::Copied(outgoing) => outgoing.place(),
            Leaving::Tensor(tensor) => {
                let (storage, layout) = tensor.storage_and_layout();
                let width = tensor.dtype().size_in_bytes();
                let first = match &*storage {
                    Storage::Cpu(storage) => first(storage),
                    // `tensor` copies all others to the CPU.
                    _ => return (std::ptr::null(), 0),
                };
                let first = first.wrapping_byte_add(layout.start_offset() * width);
                (first, tensor.elem_count() * width)
            }
        }
    }
}

/// The address of a storage; null if its elements are of a type that is not sent.
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

/// A buffer for what is received.
pub enum Arriving {
    /// A message.
    Bytes(Vec<u8>),
    /// Elements of a tensor.
    Elements(Elements),
}

/// A buffer for elements of a type that is sent, and the elements once they have come.
pub struct Elements(Room);

enum Room {
    /// For a tensor on the CPU.
    Here { all: All, count: usize },
    /// For a tensor on a GPU, which copies the elements from here.
    OfGpu(Incoming),
}

/// Vectors of elements, by type: empty before the elements have come.
enum All {
    U8(Vec<u8>),
    U32(Vec<u32>),
    I64(Vec<i64>),
    BF16(Vec<bf16>),
    F16(Vec<f16>),
    F32(Vec<f32>),
    F64(Vec<f64>),
}

/// Evaluates an expression for the vector of whichever type.
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
    /// A buffer for so many elements; `None`: tensors of this type are not sent. It is not initialised, which would take time for a large
    /// message.
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
        Some(Elements(Room::Here { all, count }))
    }

    /// A buffer for a tensor on `device`: for a GPU it is page-locked, so that the copy from it does not block. `None`: tensors of this
    /// type are not sent.
    pub fn pinned_for(dtype: DType, count: usize, device: &Device) -> Option<Elements> {
        // `None` for a type that is not sent.
        Elements::new(dtype, 0)?;
        let incoming = Incoming::room(dtype, count, device);
        incoming
            .map_or_else(|| Elements::new(dtype, count), |room| Some(Elements(Room::OfGpu(room))))
    }

    /// The address of the buffer, and its bytes.
    fn place(&mut self) -> (*mut c_void, usize) {
        match &mut self.0 {
            Room::Here { all, count } => {
                each!(all, all => (all.as_mut_ptr().cast(), *count * width(all)))
            }
            Room::OfGpu(incoming) => incoming.place(),
        }
    }

    /// Says that all elements have come.
    ///
    /// # Safety
    /// All bytes of the buffer must have been written.
    unsafe fn arrived(&mut self) {
        match &mut self.0 {
            // SAFETY: the vector has this capacity; every bit pattern is a number of this type.
            Room::Here { all, count } => each!(all, all => unsafe { all.set_len(*count) }),
            // SAFETY: as the caller promises.
            Room::OfGpu(incoming) => unsafe { incoming.arrived() },
        }
    }

    /// The elements as a tensor, on the device for which the buffer was made: on a GPU what is computed from now on is ordered after the
    /// copy.
    ///
    /// # Errors
    /// When `shape` has another number of elements, or they have not come; what the driver says of a copy.
    pub fn tensor(self, shape: impl Into<Shape>) -> Result<Tensor> {
        match self.0 {
            Room::Here { all, .. } => {
                each!(all, all => Tensor::from_vec(all, shape.into(), &Device::Cpu))
            }
            Room::OfGpu(incoming) => incoming.tensor(shape.into()),
        }
    }
}

/// Bytes of an element of the vector.
fn width<T>(_: &[T]) -> usize {
    size_of::<T>()
}

impl Arriving {
    /// The address of the buffer, and its bytes.
    pub(crate) fn place(&mut self) -> (*mut c_void, usize) {
        match self {
            Arriving::Bytes(bytes) => (bytes.as_mut_ptr().cast(), bytes.len()),
            Arriving::Elements(elements) => elements.place(),
        }
    }

    /// Says that so many bytes were received at the start of the buffer; a message is cut to them. Returns `false` if that is fewer than
    /// the elements have.
    ///
    /// # Safety
    /// So many bytes must have been written.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_the_cpu_is_there_at_once() -> Result<()> {
        let tensor = Tensor::arange(0_u32, 12, &Device::Cpu)?.reshape((3, 4))?;
        for (tensor, wanted) in [
            (tensor.t()?, [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11].as_slice()),
            (tensor.narrow(0, 1, 1)?, &[4, 5, 6, 7]),
            (tensor.narrow(0, 0, 0)?, &[]),
        ] {
            let mut leaving = Leaving::tensor(&tensor)?;
            leaving.wait()?;
            assert!(leaving.is_ready()?);
            let wanted: Vec<u8> = wanted.iter().copied().flat_map(u32::to_ne_bytes).collect();
            assert_eq!((leaving.size(), leaving.bytes()), (wanted.len(), wanted.as_slice()));
        }
        Ok(())
    }

    #[test]
    fn what_does_not_travel_is_refused() -> Result<()> {
        let tensor = Tensor::new(&[1_i16, 2], &Device::Cpu)?;
        assert!(Leaving::tensor(&tensor).is_err());
        Ok(())
    }

    #[test]
    fn room_for_the_cpu_is_of_the_cpu() -> Result<()> {
        let mut elements = Elements::pinned_for(DType::F32, 2, &Device::Cpu).unwrap();
        let (first, bytes) = elements.place();
        assert_eq!(bytes, 8);
        // SAFETY: there is room for two.
        unsafe {
            first.cast::<[f32; 2]>().write([1.0, -2.0]);
            elements.arrived();
        }
        assert_eq!(elements.tensor(2)?.to_vec1::<f32>()?, [1.0, -2.0]);
        // What has not arrived is no tensor.
        assert!(Elements::pinned_for(DType::F32, 2, &Device::Cpu).unwrap().tensor(2).is_err());
        assert!(Elements::pinned_for(DType::I16, 2, &Device::Cpu).is_none());
        Ok(())
    }
}
