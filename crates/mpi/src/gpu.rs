//! Tensors of a GPU that are sent through memory of the host: asynchronous copies from and to page-locked memory.
//!
//! A copy runs on the tensor's own stream, after what writes the tensor and before what overwrites it. An event after the copy says when
//! it is over.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::{Arc, LazyLock};

use annulus_machine::Limit;
use candle_core::backend::BackendDevice;
use candle_core::cuda_backend::cudarc::driver::{
    CudaContext, CudaEvent, CudaStream, DevicePtr, DevicePtrMut, result, sys,
};
use candle_core::cuda_backend::{CudaStorageSlice, WrapErr};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, DType, Device, Error, Result, Shape, Storage, Tensor};

use crate::pool::{Lent, Memory, Pool, Work};

/// The part of the memory that a process may use that it may page-lock: the system cannot swap it out, and a machine has up to eight
/// GPUs, with a process each.
const SHARE: usize = 32;

/// The page-locked memory of this process. It is never dropped: the driver frees it when the process ends.
static POOL: LazyLock<Arc<Pool<Host, Copying>>> =
    LazyLock::new(|| Arc::new(Pool::new(page_locked(annulus_machine::memory()))));

/// Bytes that may be page-locked where memory has this limit: none where the system does not say.
fn page_locked(limit: Option<Limit>) -> usize {
    limit.map_or(0, |limit| usize::try_from(limit.bytes).unwrap_or(usize::MAX) / SHARE)
}

/// Memory of the host, page-locked if possible.
struct Host {
    first: *mut u8,
    bytes: usize,
    /// The context in which it is page-locked; `None`: it is not. The driver copies other memory through a buffer of its own, and such a
    /// copy may block.
    context: Option<Arc<CudaContext>>,
}

// SAFETY: the memory is this value's alone, and may be used and given back by any thread.
unsafe impl Send for Host {}
// SAFETY: shared, it only says where it is.
unsafe impl Sync for Host {}

impl Host {
    /// Allocates page-locked memory; `None`: the driver has none.
    fn locked(bytes: usize, context: &Arc<CudaContext>) -> Option<Host> {
        if let Err(error) = context.bind_to_thread() {
            // The context reports an error once: it is recorded again for a caller that can return it.
            context.record_err::<()>(Err(error));
            return None;
        }
        // Of all devices: the pool is the process's. Not write-combined: MPI reads it.
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: nobody reads it before it is written.
        let first = unsafe { result::malloc_host(bytes, flags) }.ok()?.cast();
        Some(Host { first, bytes, context: Some(context.clone()) })
    }

    fn ordinary(bytes: usize) -> Host {
        let all = Box::<[u8]>::new_uninit_slice(bytes);
        Host { first: Box::into_raw(all).cast(), bytes, context: None }
    }
}

impl Memory for Host {
    fn place(&self) -> (*mut u8, usize) {
        (self.first, self.bytes)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let Some(context) = &self.context else {
            let all = std::ptr::slice_from_raw_parts_mut(self.first.cast(), self.bytes);
            // SAFETY: it came from a box of as many bytes that nobody need have written.
            drop(unsafe { Box::<[MaybeUninit<u8>]>::from_raw(all) });
            return;
        };
        context.record_err(context.bind_to_thread());
        // SAFETY: it came from `malloc_host`; the pool lets nothing go that a copy still uses.
        context.record_err(unsafe { result::free_host(self.first.cast()) });
    }
}

/// A copy between the host and a GPU that is under way.
struct Copying {
    /// An event after the copy on its stream.
    event: CudaEvent,
    /// The tensor that the copy reads.
    _source: Option<Tensor>,
}

impl Work for Copying {
    fn is_over(&self) -> Result<bool> {
        self.event.context().bind_to_thread().w()?;
        self.event.try_is_complete().w()
    }

    fn wait(&self) -> Result<()> {
        self.event.synchronize().w()
    }
}

/// Memory of the host and the copy that uses it.
type Room = Lent<Host, Copying>;

fn room(bytes: usize, context: &Arc<CudaContext>) -> Room {
    POOL.take(bytes, |bytes| Host::locked(bytes, context), Host::ordinary)
}

/// A tensor of a GPU that is being sent, copied to the host.
pub struct Outgoing {
    room: Room,
    bytes: usize,
}

impl Outgoing {
    /// Begins to copy a tensor to the host; `None`: it is not on a GPU.
    pub(crate) fn begin(tensor: &Tensor) -> Result<Option<Outgoing>> {
        let Device::Cuda(device) = tensor.device() else { return Ok(None) };
        let (tensor, stream) = (tensor.detach().contiguous()?, device.cuda_stream());
        if is_of_a_thread(&stream) {
            // What wrote the tensor may be on the stream of the same name of another thread.
            stream.context().synchronize().w()?;
        }
        let width = tensor.dtype().size_in_bytes();
        let bytes = tensor.elem_count() * width;
        let room = room(bytes, stream.context());
        let to: *mut c_void = room.place().0.cast();
        let copy = || {
            let (storage, layout) = tensor.storage_and_layout();
            let Storage::Cuda(storage) = &*storage else { return Err(elsewhere()) };
            let start = (layout.start_offset() * width) as u64;
            reading(storage, &stream, |from| {
                // SAFETY: the tensor is contiguous and has so many bytes from there, as the room has at least; `Copying` keeps the
                // tensor and the pool keeps the room until the copy is over.
                unsafe { sys::cuMemcpyDtoHAsync_v2(to, from + start, bytes, stream.cu_stream()) }
            })
        };
        let room = copied(room, &stream, Some(tensor.clone()), copy)?;
        Ok(Some(Outgoing { room, bytes }))
    }

    /// Whether the bytes are on the host; never blocks.
    pub(crate) fn is_ready(&mut self) -> Result<bool> {
        self.room.is_ready()
    }

    /// Blocks until the bytes are on the host.
    pub(crate) fn wait(&self) -> Result<()> {
        self.room.wait()
    }

    /// The address of the bytes, and their number.
    pub(crate) fn place(&self) -> (*const c_void, usize) {
        (self.room.place().0.cast(), self.bytes)
    }
}

/// A buffer of the host for elements that are copied to a GPU.
pub(crate) struct Incoming {
    room: Room,
    dtype: DType,
    bytes: usize,
    device: CudaDevice,
    /// Whether all elements have been written.
    is_here: bool,
}

impl Incoming {
    /// A buffer for so many elements; `None`: `device` is not a GPU.
    pub(crate) fn room(dtype: DType, count: usize, device: &Device) -> Option<Incoming> {
        let Device::Cuda(device) = device else { return None };
        let bytes = count.checked_mul(dtype.size_in_bytes())?;
        let room = room(bytes, device.cuda_stream().context());
        Some(Incoming { room, dtype, bytes, device: device.clone(), is_here: false })
    }

    /// The address of the buffer, and its bytes.
    pub(crate) fn place(&mut self) -> (*mut c_void, usize) {
        (self.room.place().0.cast(), self.bytes)
    }

    /// Says that all elements have come.
    ///
    /// # Safety
    /// All bytes of the buffer must have been written.
    pub(crate) unsafe fn arrived(&mut self) {
        self.is_here = true;
    }

    /// The elements on their GPU: what comes onto its stream from now on is ordered after the copy.
    pub(crate) fn tensor(self, shape: Shape) -> Result<Tensor> {
        let Incoming { room, dtype, bytes, device, is_here } = self;
        let wanted = shape.elem_count() * dtype.size_in_bytes();
        if !is_here || wanted != bytes {
            let there = if is_here { bytes } else { 0 };
            return Err(Error::Msg(format!("{there} bytes arrived of the {wanted} of {shape:?}")));
        }
        // SAFETY: nothing reads it before the copy, which writes all of it and is first on its stream.
        let mut storage = unsafe { device.alloc_uninit(&shape, dtype) }?;
        let (from, stream): (*const c_void, _) = (room.place().0.cast(), device.cuda_stream());
        let copy = || {
            writing(&mut storage, &stream, |to| {
                // SAFETY: so many bytes are there, and as many have been allocated; the pool keeps the room until the copy is over,
                // and the storage is freed on the same stream behind it.
                unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes, stream.cu_stream()) }
            })
        };
        let room = copied(room, &stream, None, copy)?;
        if is_of_a_thread(&stream) {
            // Who reads it next may be on the stream of the same name of another thread.
            room.wait()?;
        }
        Ok(Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false))
    }
}

/// Begins a copy that uses the memory `room`, and an event after it.
fn copied(
    mut room: Room,
    stream: &CudaStream,
    source: Option<Tensor>,
    copy: impl FnOnce() -> Result<()>,
) -> Result<Room> {
    // Before it: a copy without an event would never be known to be over.
    let event = stream.context().new_event(None).w()?;
    if let Err(error) = copy().and_then(|()| event.record(stream).w()) {
        // It may be under way, and nothing says when it is over.
        std::mem::forget(room);
        return Err(error);
    }
    room.is_used_by(Copying { event, _source: source });
    Ok(room)
}

/// Whether it is a thread's default stream: on another thread the same handle means another stream, and neither waits for the other.
fn is_of_a_thread(stream: &CudaStream) -> bool {
    /// `CU_STREAM_PER_THREAD`
    const PER_THREAD: usize = 2;
    stream.cu_stream() as usize == PER_THREAD
}

/// The error of a tensor whose elements are of a type that is not sent.
const NOT_SENT: &str =
    "cannot send a tensor of this dtype: convert it to one of u8, u32, i64, bf16, f16, f32, f64";

/// Applies `$then` to the typed slice of a storage whose elements can be sent.
macro_rules! typed {
    ($storage:expr, $slice:ident => $then:expr) => {
        match $storage {
            CudaStorageSlice::U8($slice) => $then,
            CudaStorageSlice::U32($slice) => $then,
            CudaStorageSlice::I64($slice) => $then,
            CudaStorageSlice::BF16($slice) => $then,
            CudaStorageSlice::F16($slice) => $then,
            CudaStorageSlice::F32($slice) => $then,
            CudaStorageSlice::F64($slice) => $then,
            _ => return Err(Error::Msg(NOT_SENT.to_owned())),
        }
    };
}

/// Calls `then` with the address of a slice that is read, ordered after what wrote it.
fn reading(
    storage: &CudaStorage,
    stream: &CudaStream,
    then: impl FnOnce(u64) -> sys::CUresult,
) -> Result<()> {
    typed!(&storage.slice, slice => {
        let (address, _until_begun) = slice.device_ptr(stream);
        then(address).result().w()
    })
}

/// Calls `then` with the address of a slice that is written.
fn writing(
    storage: &mut CudaStorage,
    stream: &CudaStream,
    then: impl FnOnce(u64) -> sys::CUresult,
) -> Result<()> {
    typed!(&mut storage.slice, slice => {
        let (address, _until_begun) = slice.device_ptr_mut(stream);
        then(address).result().w()
    })
}

fn elsewhere() -> Error {
    Error::Msg("a tensor is not on the device that it names".to_owned())
}
