//! The stream of transfers, beside the computing stream, and what orders the two.

use std::ffi::c_void;
use std::fmt::Debug;
use std::sync::Arc;

use candle_core::{DType, Device, Result, Shape, Tensor};

use crate::Library;

/// Makes a lane wait for all that was on the computing stream when the gate was made.
pub type Gate = Box<dyn FnOnce() -> Result<()> + Send>;

/// The stream on which the transfers of one device run.
pub trait Lane: Send + Sync + Debug {
    /// Makes the lane's device the current one of the calling thread, as NCCL requires.
    ///
    /// # Errors
    /// What the driver says.
    fn enter(&self) -> Result<()>;
    /// The stream's handle (`cudaStream_t`).
    fn stream(&self) -> *mut c_void;
    /// Whether transfers of this lane can read and write the memory of `tensor`.
    fn carries(&self, tensor: &Tensor) -> bool;
    /// A gate after all that was started on the computing stream until now.
    ///
    /// # Errors
    /// What the driver says.
    fn gate(&self) -> Result<Gate>;
    /// A mark after all that is on the lane now.
    ///
    /// # Errors
    /// What the driver says.
    fn mark(&self) -> Result<Arc<dyn Mark>>;
    /// `tensor`, contiguous, to be sent to a peer. The send must come after a gate that is made after this call, as the tensor may be
    /// copied on the computing stream.
    ///
    /// # Errors
    /// What Candle says of a copy, and elements of a type that is not sent.
    fn leaving(&self, tensor: &Tensor, to: usize) -> Result<Piece>;
    /// A buffer for a tensor that comes from a peer. The receive must come after a gate that is made after this call.
    ///
    /// # Errors
    /// No memory, and elements of a type that is not sent.
    fn buffer(&self, dtype: DType, shape: Shape, from: usize) -> Result<Piece>;
}

/// A moment on a lane.
pub trait Mark: Send + Sync + Debug {
    /// Whether the lane is past the mark; never blocks.
    ///
    /// # Errors
    /// What the driver says of transfers before the mark.
    fn is_over(&self) -> Result<bool>;
    /// Orders what is computed from now on after the mark. On a GPU only the computing stream waits; without one the host does, until
    /// `given_up` returns true.
    ///
    /// # Errors
    /// What the driver says, and a wait that was given up.
    fn precede_computing(&self, given_up: &dyn Fn() -> bool) -> Result<()>;
}

/// A tensor that is sent to a peer or received from one.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The peer's rank in the clique.
    pub peer: usize,
    /// The address of its first element.
    pub(crate) address: usize,
    /// How many bytes its elements have.
    pub(crate) bytes: usize,
    /// The tensor itself, which keeps the memory allocated.
    pub tensor: Tensor,
}

/// A new lane for `device`; `None` if `library` has no transfers for such a device.
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
