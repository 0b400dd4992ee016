//! Hands a tensor of one processor to another one that does not reach its memory.
//!
//! ```text
//! source        … writes the tensor │ mark ─┐                    ┌─► waits │ writes over it, frees it …
//! destination                               └─► waits │ copies │ mark
//! ```
//! The copy reads the tensor behind what writes it (the first mark), and what its owner starts once the copy was begun comes behind the
//! copy (the second). So what is right on one stream is right on two: whoever may write over a tensor, or free it, may do so because
//! the receiver has it, and the host that knows so came to know it when the copy and both waits were in their streams. Memory is freed
//! in the order of the stream it was made on: the last handle can be dropped by either side, on either thread. No host thread waits.

use std::sync::Arc;

use candle_core::{Result, Tensor};

use super::operators::contiguous;
use super::processor::{Mark, Processor};

/// A tensor that is being handed over. It is held until it has been copied; other holders do not write it meanwhile.
pub struct Handover {
    tensor: Tensor,
    from: Arc<dyn Processor>,
    ready: Mark,
}

impl Handover {
    /// Starts to hand over a tensor in the memory of `from`, written by what was started there.
    ///
    /// # Errors
    /// A tensor that is elsewhere, or a device that failed.
    pub fn begin(from: &Arc<dyn Processor>, tensor: &Tensor) -> Result<Handover> {
        let tensor = contiguous(&**from, tensor)?;
        Ok(Handover { tensor, from: from.clone(), ready: from.mark()? })
    }

    /// Copies the tensor to the memory of `to`, for what is started there from now on.
    ///
    /// # Errors
    /// No memory left, or a device that failed.
    pub fn end(self, to: &dyn Processor) -> Result<Tensor> {
        to.wait_for(&self.ready)?;
        let copy = to.fetch(&self.tensor, &*self.from)?;
        self.from.wait_for(&to.mark()?)?;
        Ok(copy)
    }
}
