//! Bytes on their way: those of tensors, where they lie, and those of messages.

use std::ffi::c_void;

use candle_core::{CpuStorage, DType, Device, Result, Shape, Storage, Tensor};
use half::{bf16, f16};

use crate::gpu::{Incoming, Outgoing};

/// What is sent; it stays as it is until it has left.
pub enum Leaving {
    /// A message.
    Bytes(Vec<u8>),
    /// A tensor on the CPU, contiguous: nobody writes into it in place.
    Tensor(Tensor),
    /// A tensor of a GPU that is being copied to the CPU.
    Copied(Outgoing),
}

impl Leaving {
    /// A tensor as it is sent: on the CPU, one element behind the other. From a GPU it is copied by the way, behind all that is on
    /// its stream by now: a rank calls this when it sends, before it gives the GPU more to compute.
    ///
    /// # Errors
    /// What Candle says of a copy, and elements of a type that does not travel.
    pub fn tensor(tensor: &Tensor) -> Result<Leaving> {
        if Elements::new(tensor.dtype(), 0).is_none() {
            candle_core::bail!("no tensor of {:?} travels", tensor.dtype());
        }
        if let Some(outgoing) = Outgoing::begin(tensor)? {
            return Ok(Leaving::Copied(outgoing));
        }
        Ok(Leaving::Tensor(tensor.to_device(&Device::Cpu)?.contiguous()?))
    }

    /// Whether the bytes are there: a copy from a GPU takes its time. Never blocks. Once they are, the tensor that was copied is not
    /// kept any longer.
    ///
    /// # Errors
    /// What the driver says of the copy.
    pub fn is_ready(&mut self) -> Result<bool> {
        match self {
            Leaving::Bytes(_) | Leaving::Tensor(_) => Ok(true),
            Leaving::Copied(outgoing) => outgoing.is_ready(),
        }
    }

    /// Returns when the bytes are there.
    ///
    /// # Errors
    /// What the driver says of the copy.
    pub fn wait(&self) -> Result<()> {
        match self {
            Leaving::Bytes(_) | Leaving::Tensor(_) => Ok(()),
            Leaving::Copied(outgoing) => outgoing.wait(),
        }
    }

    /// How many bytes there are or will be.
    pub fn size(&self) -> usize {
        self.place().1
    }

    /// The bytes, which must be there: [`Leaving::is_ready`] or [`Leaving::wait`] has said so.
    ///
    /// # Panics
    /// When they are not and never will be: the copy failed.
    pub fn bytes(&self) -> &[u8] {
        // Costs nothing where they are there, and bytes of before the copy would be sent unnoticed.
        self.wait().expect("the copy from the GPU has been waited for");
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
            Leaving::Copied(outgoing) => outgoing.place(),
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
pub struct Elements(Room);

enum Room {
    /// On the CPU, where they stay.
    Here { all: All, count: usize },
    /// Where a GPU copies them from.
    OfGpu(Incoming),
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
        Some(Elements(Room::Here { all, count }))
    }

    /// The same for a tensor that goes on to `device`: of a GPU page-locked room, from which its copy is not waited for.
    pub fn pinned_for(dtype: DType, count: usize, device: &Device) -> Option<Elements> {
        // None of a type that does not travel.
        Elements::new(dtype, 0)?;
        let incoming = Incoming::room(dtype, count, device);
        incoming
            .map_or_else(|| Elements::new(dtype, count), |room| Some(Elements(Room::OfGpu(room))))
    }

    /// Where they go, and how many bytes there is room for.
    fn place(&mut self) -> (*mut c_void, usize) {
        match &mut self.0 {
            Room::Here { all, count } => {
                each!(all, all => (all.as_mut_ptr().cast(), *count * width(all)))
            }
            Room::OfGpu(incoming) => incoming.place(),
        }
    }

    /// They are all there.
    ///
    /// # Safety
    /// All bytes of their room must have been written.
    unsafe fn arrived(&mut self) {
        match &mut self.0 {
            // SAFETY: the room was made for so many; they are numbers of which every bit pattern is one.
            Room::Here { all, count } => each!(all, all => unsafe { all.set_len(*count) }),
            // SAFETY: the caller's.
            Room::OfGpu(incoming) => unsafe { incoming.arrived() },
        }
    }

    /// They as a tensor, on the device that the room was made for: on a GPU what is computed from now on finds them there.
    ///
    /// # Errors
    /// When `shape` has another number of elements, or they have not arrived; what the driver says of a copy.
    pub fn tensor(self, shape: impl Into<Shape>) -> Result<Tensor> {
        match self.0 {
            Room::Here { all, .. } => {
                each!(all, all => Tensor::from_vec(all, shape.into(), &Device::Cpu))
            }
            Room::OfGpu(incoming) => incoming.tensor(shape.into()),
        }
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
