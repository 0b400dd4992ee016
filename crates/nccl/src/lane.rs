//! The stream that transfers are on, beside the one that computes, and what orders the two.

use std::ffi::c_void;
use std::fmt::Debug;
use std::sync::Arc;

use candle_core::{DType, Device, Result, Shape, Tensor};

use crate::Library;

/// Makes a lane wait for what was on the computing stream when this was made.
pub type Gate = Box<dyn FnOnce() -> Result<()> + Send>;

/// The stream of transfers of one device.
pub trait Lane: Send + Sync + Debug {
    /// Makes its device that of the calling thread, as NCCL wants it.
    ///
    /// # Errors
    /// What the driver says.
    fn enter(&self) -> Result<()>;
    /// As NCCL takes it.
    fn stream(&self) -> *mut c_void;
    /// Whether a tensor is in the memory that transfers read and write.
    fn carries(&self, tensor: &Tensor) -> bool;
    /// Behind all that has been handed to the device by now.
    ///
    /// # Errors
    /// What the driver says.
    fn gate(&self) -> Result<Gate>;
    /// Behind all that is on the lane by now.
    ///
    /// # Errors
    /// What the driver says.
    fn mark(&self) -> Result<Arc<dyn Mark>>;
    /// A tensor on its way to a peer, one element behind the other. It is on the device, and on its way behind a gate that is made
    /// after this.
    ///
    /// # Errors
    /// What Candle says of a copy, and elements of a type that does not travel.
    fn leaving(&self, tensor: &Tensor, to: usize) -> Result<Piece>;
    /// Room for a tensor that comes from a peer, behind a gate that is made after this.
    ///
    /// # Errors
    /// No memory, and elements of a type that does not travel.
    fn room(&self, dtype: DType, shape: Shape, from: usize) -> Result<Piece>;
}

/// A moment on a lane.
pub trait Mark: Send + Sync + Debug {
    /// Whether the lane is past it; never blocks.
    ///
    /// # Errors
    /// What the driver says of what was before it.
    fn is_over(&self) -> Result<bool>;
    /// What is computed from now on comes behind it. On a GPU nothing waits but its stream.
    ///
    /// # Errors
    /// What the driver says; a wait that `given_up` ends, where one waits.
    fn precede_computing(&self, given_up: &dyn Fn() -> bool) -> Result<()>;
}

/// A tensor that goes to a peer or comes from one.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The rank in the clique.
    pub peer: usize,
    /// Where it is.
    pub(crate) address: usize,
    /// How long it is.
    pub(crate) bytes: usize,
    /// What keeps it there.
    pub tensor: Tensor,
}

/// A lane of its own for `device`; `None`: no transfers of this library are for it.
///
/// # Errors
/// What the driver says.
#[cfg_attr(
    not(any(feature = "cuda", feature = "emulator")),
    expect(clippy::unnecessary_wraps, reason = "other builds fail")
)]
pub fn lane(library: &Arc<Library>, device: &Device) -> Result<Option<Arc<dyn Lane>>> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => Ok(Some(Arc::new(crate::gpu::OfGpu::new(device)?))),
        #[cfg(feature = "emulator")]
        Device::Cpu => Ok(crate::emulated::lane(library)),
        _ => {
            let _ = library;
            Ok(None)
        }
    }
}
