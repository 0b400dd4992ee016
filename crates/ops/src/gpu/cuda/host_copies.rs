//! Copies between a GPU and page-locked memory of the host, on a stream of their own.

use std::sync::Arc;

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{
    CudaEvent, CudaStream, HostSlice, PinnedHostSlice, result,
};
use candle_core::{DType, Error, Result, Shape, Tensor};
use parking_lot::Mutex;

use super::super::addresses;
use super::super::host_copies::{HOST_IS_FULL, HostCopies, HostCopy};
use super::super::operators::contiguous;
use super::Cuda;

/// The copies of a GPU.
#[derive(Debug)]
pub(super) struct Copies(Arc<Lane>);

/// The stream of copies, and the host's memory that they use.
#[derive(Debug)]
struct Lane {
    gpu: Cuda,
    copying: Arc<CudaStream>,
    /// Memory that no tensor is in. All copies are on one stream, so whoever takes it next comes behind the copy that used it last.
    idle: Mutex<Vec<PinnedHostSlice<u8>>>,
}

/// A tensor on the host.
#[derive(Debug)]
struct OnHost {
    lane: Arc<Lane>,
    dtype: DType,
    shape: Shape,
    /// The host's memory; `None`: the tensor has no elements.
    room: Option<PinnedHostSlice<u8>>,
    /// The tensor until it is released, with an event after the copy to the host.
    source: Option<Copied>,
    /// The tensor that is copied back, with an event after that copy.
    back: Option<Copied>,
}

/// A tensor of the GPU that a copy reads or writes, and an event after this copy.
#[derive(Debug)]
struct Copied {
    tensor: Tensor,
    event: CudaEvent,
}

impl Copies {
    pub(super) fn of(gpu: &Cuda) -> Result<Copies> {
        let copying = gpu.stream().context().new_stream().w()?;
        Ok(Copies(Arc::new(Lane { gpu: gpu.clone(), copying, idle: Mutex::default() })))
    }
}

impl HostCopies for Copies {
    fn begin(&self, tensor: Tensor) -> Result<Box<dyn HostCopy>> {
        let lane = &self.0;
        let tensor = contiguous(&lane.gpu, &tensor)?;
        let (dtype, shape) = (tensor.dtype(), tensor.shape().clone());
        let mut room = lane.room(shape.elem_count() * dtype.size_in_bytes())?;
        let copied = room.as_mut().map_or(Ok(()), |room| lane.copy_out(&tensor, room));
        let event = copied.and_then(|()| lane.copying.record_event(None).w());
        // The host's memory must not be freed under a copy.
        let event = event.inspect_err(|_| lane.finish())?;
        let source = Some(Copied { tensor, event });
        Ok(Box::new(OnHost { lane: lane.clone(), dtype, shape, room, source, back: None }))
    }
}

impl Lane {
    /// Waits for all copies, if the device still can: one that has failed copies nothing.
    fn finish(&self) {
        let _ = self.copying.synchronize();
    }

    /// Page-locked memory of so many bytes or more. To page-lock it, the driver may wait for the device, and so for transfers to other GPUs
    /// that are under way: that is once per size, between two stages of the model, when all ranks have posted what these transfers wait for.
    fn room(&self, bytes: usize) -> Result<Option<PinnedHostSlice<u8>>> {
        if bytes == 0 {
            return Ok(None);
        }
        let mut idle = self.idle.lock();
        let sizes = || idle.iter().map(PinnedHostSlice::len).enumerate();
        if let Some((best, _)) =
            sizes().filter(|(_, size)| *size >= bytes).min_by_key(|(_, size)| *size)
        {
            return Ok(Some(idle.swap_remove(best)));
        }
        // Tensors have become larger: memory that is too small for this one gives way.
        if let Some((largest, _)) = sizes().max_by_key(|(_, size)| *size) {
            self.copying.synchronize().w()?;
            drop(idle.swap_remove(largest));
        }
        let context = self.copying.context();
        // SAFETY: nobody reads it before a copy has written it.
        let room = unsafe { context.alloc_pinned_with_flags(bytes, 0) };
        room.map(Some).map_err(|error| {
            Error::Msg(format!("{HOST_IS_FULL} {bytes} bytes of the host's memory: {error}"))
        })
    }

    /// Starts to copy a tensor without gaps to the host.
    fn copy_out(&self, tensor: &Tensor, room: &mut PinnedHostSlice<u8>) -> Result<()> {
        let bytes = tensor.elem_count() * tensor.dtype().size_in_bytes();
        self.copying.join(&self.gpu.stream()).w()?;
        addresses(&[tensor], &[], &mut |at| {
            // SAFETY: both hold so many bytes. The tensor is kept until the stream that computes has waited for the copy, the memory until
            // the stream of copies has come behind it.
            unsafe {
                let (to, _) = room.stream_synced_mut_slice(&self.copying);
                result::memcpy_dtoh_async(&mut to[..bytes], at.reads[0], self.copying.cu_stream())
            }
            .w()
        })
    }

    /// Starts to copy from the host to a new tensor.
    fn copy_back(&self, form: (DType, &Shape), room: &PinnedHostSlice<u8>) -> Result<Copied> {
        let (dtype, shape) = form;
        // SAFETY: the copy writes all of it.
        let tensor = unsafe { Tensor::empty(shape, dtype, &self.gpu.device) }?;
        let bytes = tensor.elem_count() * dtype.size_in_bytes();
        // Its memory is free for what comes behind what the computing stream has been given so far.
        self.copying.join(&self.gpu.stream()).w()?;
        let copied = addresses(&[], &[&tensor], &mut |at| {
            // SAFETY: as for the copy to the host.
            unsafe {
                let (from, _) = room.stream_synced_slice(&self.copying);
                result::memcpy_htod_async(at.writes[0], &from[..bytes], self.copying.cu_stream())
            }
            .w()
        });
        let event = copied.and_then(|()| self.copying.record_event(None).w());
        Ok(Copied { tensor, event: event.inspect_err(|_| self.finish())? })
    }

    /// A tensor for what the computing stream is given from now on; its copy is over by then.
    fn after(&self, Copied { tensor, event }: Copied) -> Result<Tensor> {
        self.gpu.stream().wait(&event).w()?;
        Ok(tensor)
    }
}

impl HostCopy for OnHost {
    fn release(&mut self) -> Result<()> {
        if self.room.is_some()
            && let Some(source) = self.source.take()
        {
            drop(self.lane.after(source)?);
        }
        Ok(())
    }

    fn prefetch(&mut self) -> Result<()> {
        if let Some(room) = &self.room
            && self.source.is_none()
            && self.back.is_none()
        {
            self.back = Some(self.lane.copy_back((self.dtype, &self.shape), room)?);
        }
        Ok(())
    }

    fn restore(&mut self) -> Result<Tensor> {
        if let Some(Copied { tensor, event }) = &self.source {
            self.lane.gpu.stream().wait(event).w()?;
            return Ok(tensor.clone());
        }
        self.prefetch()?;
        let back = self.back.take();
        let back = back.ok_or_else(|| Error::Msg("a tensor is nowhere".to_owned()))?;
        self.lane.after(back)
    }
}

impl Drop for OnHost {
    fn drop(&mut self) {
        // The memory of both tensors is freed in the order of the stream that computes.
        for copied in [self.source.take(), self.back.take()].into_iter().flatten() {
            if self.lane.after(copied).is_err() {
                // The device has failed, and every later call says so.
                return self.lane.finish();
            }
        }
        self.lane.idle.lock().extend(self.room.take());
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // As above.
        self.finish();
    }
}
