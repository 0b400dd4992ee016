//! Copies on the host.

use candle_core::{Device, Result, Tensor};

/// The elements of `tensor` on the host, row-major and without gaps: on a CPU the tensor itself where it is so already.
///
/// Candle copies from a GPU the whole storage that a tensor views; here, what other tensors have of it stays there.
///
/// # Errors
/// What Candle says.
pub fn on_host(tensor: &Tensor) -> Result<Tensor> {
    if tensor.device().is_cpu() {
        return tensor.contiguous();
    }
    let own = if is_whole(tensor)? { tensor.contiguous()? } else { tensor.force_contiguous()? };
    own.to_device(&Device::Cpu)
}

/// Whether no element of the tensor's storage, on a GPU, is beside the tensor.
#[cfg(feature = "cuda")]
fn is_whole(tensor: &Tensor) -> Result<bool> {
    let (storage, _) = tensor.storage_and_layout();
    match &*storage {
        candle_core::Storage::Cuda(storage) => {
            Ok(crate::gpu::elements(storage)? == tensor.elem_count())
        }
        _ => Ok(false),
    }
}

/// There is no such storage.
#[cfg(not(feature = "cuda"))]
fn is_whole(_: &Tensor) -> Result<bool> {
    Ok(false)
}
