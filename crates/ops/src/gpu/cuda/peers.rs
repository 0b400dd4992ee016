//! Several GPUs of one process, and copies between their memories.
//!
//! cudarc copies between GPUs, too, but lets the source's stream go on as soon as the copy has been requested: a source that is freed or
//! overwritten then changes while it is read. Here both streams are ordered, by a [`super::super::Handover`].

use std::ffi::c_int;
use std::sync::Arc;

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{CudaEvent, result, sys};
use candle_core::{Device, Error, Result, Tensor, bail};

use super::super::addresses;
use super::super::find::GpuUnavailable;
use super::super::processor::{Mark, Processor};
use super::Cuda;

/// The GPUs of these numbers, each of which reads the others' memory directly where the hardware can; elsewhere the driver copies through
/// the host.
pub(in super::super) fn open_all(
    indices: &[usize],
) -> std::result::Result<Vec<Arc<dyn Processor>>, GpuUnavailable> {
    let all = indices.iter().map(|index| Cuda::open(*index));
    let all = all.collect::<std::result::Result<Vec<Cuda>, _>>()?;
    for (owner, reader) in all.iter().flat_map(|one| all.iter().map(move |other| (one, other))) {
        lend(owner, reader).map_err(|error| GpuUnavailable::Driver(error.to_string()))?;
    }
    Ok(all.into_iter().map(|cuda| Arc::new(cuda) as Arc<dyn Processor>).collect())
}

/// Lets `reader` access what `owner` allocates, all of it in its default pool: enabling access between contexts does not include pools
/// (CUDA C++ programming guide, "Device accessibility for multi-GPU support").
fn lend(owner: &Cuda, reader: &Cuda) -> Result<()> {
    let [of, by] = [owner, reader].map(|cuda| cuda.stream().context().cu_device());
    if of == by {
        return Ok(());
    }
    let (mut is_reached, mut pool, access) = (0, std::ptr::null_mut(), access(by));
    // SAFETY: both devices are the driver's; it writes one number and one pointer, and reads one description.
    unsafe {
        sys::cuDeviceCanAccessPeer(&raw mut is_reached, by, of).result().w()?;
        if is_reached == 0 {
            return Ok(());
        }
        sys::cuDeviceGetDefaultMemPool(&raw mut pool, of).result().w()?;
        sys::cuMemPoolSetAccess(pool, &raw const access, 1).result().w()
    }
}

/// A description of read and write access from a device. CUDA 13.2 made its location a union, whose first member is the former number.
fn access(device: sys::CUdevice) -> sys::CUmemAccessDesc {
    // SAFETY: a description is numbers, the location's kind and then its device, whatever names they have.
    unsafe {
        let mut access: sys::CUmemAccessDesc = std::mem::zeroed();
        access.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        (&raw mut access.location).cast::<c_int>().add(1).write(device);
        access.flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        access
    }
}

impl Cuda {
    /// An event after everything that is on the stream.
    pub(super) fn marked(&self) -> Result<Mark> {
        Ok(Arc::new(self.stream().record_event(None).w()?))
    }

    /// Makes the stream wait for an event, of this or another device.
    pub(super) fn waits_for(&self, mark: &Mark) -> Result<()> {
        let Some(event) = mark.downcast_ref::<CudaEvent>() else {
            bail!("found a mark of another kind of processor")
        };
        self.stream().wait(event).w()
    }

    /// Copies a tensor as of [`Processor::fetch`].
    pub(super) fn fetched(&self, tensor: &Tensor) -> Result<Tensor> {
        let Device::Cuda(source) = tensor.device() else {
            return Err(Error::Msg(format!(
                "{:?} is not a CUDA device",
                tensor.device().location()
            )));
        };
        // SAFETY: all of it is copied to.
        let copy = unsafe { Tensor::empty(tensor.shape(), tensor.dtype(), &self.device) }?;
        let bytes = tensor.elem_count() * tensor.dtype().size_in_bytes();
        if bytes == 0 {
            return Ok(copy);
        }
        let stream = self.stream();
        let [own, theirs] = [&stream, &source.cuda_stream()].map(|stream| stream.context().clone());
        addresses(&[tensor], &[&copy], &mut |at| {
            let (from, to) = (at.reads[0], at.writes[0]);
            own.bind_to_thread().w()?;
            // SAFETY: both hold so many bytes; what else happens to the source comes behind the copy, by the caller's promise.
            unsafe {
                if own.cu_ctx() == theirs.cu_ctx() {
                    result::memcpy_dtod_async(to, from, bytes, stream.cu_stream())
                } else {
                    let (own, theirs) = (own.cu_ctx(), theirs.cu_ctx());
                    result::memcpy_peer_async(own, to, theirs, from, bytes, stream.cu_stream())
                }
            }
            .w()
        })?;
        Ok(copy)
    }
}
