//! The driver's pool of a GPU's memory, from which all tensors of this process come.

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::sys::{self, CUmemPool_attribute as Attribute};
use candle_core::{CudaDevice, Result};

fn of(device: &CudaDevice) -> Result<sys::CUmemoryPool> {
    let context = device.cuda_stream().context().clone();
    let mut pool = std::ptr::null_mut();
    // SAFETY: the context is alive; the driver writes one pointer.
    unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, context.cu_device()) }.result().w()?;
    Ok(pool)
}

/// Sets one of the pool's attributes whose value is a 64-bit number.
fn set(device: &CudaDevice, attribute: Attribute, mut value: u64) -> Result<()> {
    let pool = of(device)?;
    // SAFETY: the pool is the driver's, which reads one number of 64 bits.
    unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut value).cast()) }.result().w()
}

/// Keeps freed memory: by default the pool returns it whenever a stream is synchronized.
pub(super) fn keep_freed_memory(device: &CudaDevice) -> Result<()> {
    set(device, Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX)
}

/// The most bytes in use at once since [`forget_peak`].
pub(super) fn peak(device: &CudaDevice) -> Result<u64> {
    let (pool, mut bytes) = (of(device)?, 0_u64);
    let attribute = Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
    // SAFETY: the pool is the driver's, which writes one number of 64 bits.
    unsafe { sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut bytes).cast()) }.result().w()?;
    Ok(bytes)
}

/// Begins [`peak`] anew: 0 is the only value that the driver takes.
pub(super) fn forget_peak(device: &CudaDevice) -> Result<()> {
    set(device, Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0)
}
