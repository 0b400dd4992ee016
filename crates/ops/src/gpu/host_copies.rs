//! Copies tensors to the host and back beside what a processor computes.
//!
//! ```text
//! computing  … writes the tensor │ mark ─┐             ┌─► waits │ frees it …     mark ─┐              ┌─► waits │ reads the copy …
//! copying                                └─► copies it │ mark                          └─► copies it back │ mark
//! ```
//! No host thread waits. The memory of the tensor is free for what is started after [`HostCopy::release`], which waits for the copy where
//! both are on the device; so a step is longer only where a copy takes longer than what is computed meanwhile.

use std::fmt::Debug;

use candle_core::{Result, Tensor};

/// How the error begins that the driver page-locks no more of the host's memory.
pub const HOST_IS_FULL: &str = "cannot page-lock";

/// Copies between a processor's memory and the host's, in order.
pub trait HostCopies: Send + Sync + Debug {
    /// Starts to copy a tensor without gaps to the host, after everything that was started on the processor.
    ///
    /// # Errors
    /// A tensor that is elsewhere, no memory left on the host ([`HOST_IS_FULL`]), or a device that failed.
    fn begin(&self, tensor: Tensor) -> Result<Box<dyn HostCopy>>;
}

/// A tensor that is copied to the host, and back when it is needed. Dropped, it gives the host's memory back to the copies that follow.
pub trait HostCopy: Send + Sync + Debug {
    /// Drops the tensor in the processor's memory: what is started there from now on waits for the copy to the host.
    ///
    /// # Errors
    /// A device that failed.
    fn release(&mut self) -> Result<()>;

    /// Starts to copy the tensor back, unless it is still there or that has been started.
    ///
    /// # Errors
    /// No memory left on the device, or a device that failed.
    fn prefetch(&mut self) -> Result<()>;

    /// The tensor in the processor's memory, for what is started there from now on. It can be restored again.
    ///
    /// # Errors
    /// As [`HostCopy::prefetch`].
    fn restore(&mut self) -> Result<Tensor>;
}
