//! Offloads tensors of a GPU to page-locked memory of its host.
//!
//! Copies run on a stream of their own, and only what computes waits for them, on the device: no thread and no host waits here.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use annulus_ops::gpu::{HostCopies, HostCopy, Processor};
use candle_core::Tensor;
use parking_lot::Mutex;

use super::{Alive, IN_FLIGHT, Offload, Offloaded};
use crate::Result;

/// The memory of a GPU's host.
#[derive(Debug)]
pub(super) struct HostMemory(Arc<Copying>);

#[derive(Debug)]
struct Copying {
    copies: Box<dyn HostCopies>,
    /// What may not have been copied to the host yet, the oldest first.
    leaving: Mutex<VecDeque<Weak<OnHost>>>,
}

/// The copies of some tensors.
type OnHost = Mutex<Vec<Box<dyn HostCopy>>>;

/// Tensors in the memory of the host.
#[derive(Debug)]
struct Handle {
    copying: Arc<Copying>,
    tensors: Arc<OnHost>,
}

impl HostMemory {
    /// The memory of the host of `processor`.
    pub(super) fn of(processor: &dyn Processor) -> Result<HostMemory> {
        let copies = processor.host_copies()?;
        Ok(HostMemory(Arc::new(Copying { copies, leaving: Mutex::default() })))
    }
}

impl Copying {
    /// Begins to copy tensors to the host. The device holds no more of them than may be under way at once.
    fn begin(&self, tensors: Vec<Tensor>) -> Result<Arc<OnHost>> {
        let mut leaving = self.leaving.lock();
        while leaving.len() >= IN_FLIGHT {
            if let Some(first) = leaving.pop_front().and_then(|first| first.upgrade()) {
                first.lock().iter_mut().try_for_each(|tensor| tensor.release())?;
            }
        }
        let begun = tensors.into_iter().map(|tensor| self.copies.begin(tensor));
        let begun = Arc::new(Mutex::new(begun.collect::<candle_core::Result<_>>()?));
        leaving.push_back(Arc::downgrade(&begun));
        Ok(begun)
    }
}

impl Offload for HostMemory {
    fn write(&self, tensors: Vec<Tensor>, _: Alive<'_>) -> Result<Box<dyn Offloaded>> {
        let tensors = self.0.begin(tensors)?;
        Ok(Box::new(Handle { copying: self.0.clone(), tensors }))
    }

    /// The memory of a tensor is used again once its handle is dropped.
    fn discard(&self) {}
}

impl Offloaded for Handle {
    fn prefetch(&self) -> Result<()> {
        Ok(self.tensors.lock().iter_mut().try_for_each(|tensor| tensor.prefetch())?)
    }

    fn restore(&self, _: Alive<'_>) -> Result<Vec<Tensor>> {
        let mut tensors = self.tensors.lock();
        let restored = tensors.iter_mut().map(|tensor| tensor.restore());
        Ok(restored.collect::<candle_core::Result<_>>()?)
    }

    fn peek(&self, alive: Alive<'_>) -> Result<Vec<Tensor>> {
        self.restore(alive)
    }

    fn rewrite(&mut self, tensors: Vec<Tensor>, _: Alive<'_>) -> Result<()> {
        // Their memory of the host is free for the new ones.
        self.tensors = Arc::default();
        self.tensors = self.copying.begin(tensors)?;
        Ok(())
    }
}
