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

#[cfg(test)]
mod tests {
    use candle_core::{Device, bail};

    use super::*;

    /// Copies that are told when to fail, and keep what they were asked to do.
    #[derive(Clone, Debug, Default)]
    struct Told {
        asked: Arc<Mutex<Vec<&'static str>>>,
        fails: Arc<Mutex<Option<&'static str>>>,
    }

    #[derive(Debug)]
    struct ToldCopy(Told, Tensor);

    impl Told {
        fn does(&self, what: &'static str) -> candle_core::Result<()> {
            self.asked.lock().push(what);
            match *self.fails.lock() {
                Some(fails) if fails == what => bail!("the device failed to {what}"),
                _ => Ok(()),
            }
        }

        fn count(&self, what: &str) -> usize {
            self.asked.lock().iter().filter(|asked| **asked == what).count()
        }
    }

    impl HostCopies for Told {
        fn begin(&self, tensor: Tensor) -> candle_core::Result<Box<dyn HostCopy>> {
            self.does("begin")?;
            Ok(Box::new(ToldCopy(self.clone(), tensor)))
        }
    }

    impl HostCopy for ToldCopy {
        fn release(&mut self) -> candle_core::Result<()> {
            self.0.does("release")
        }
        fn prefetch(&mut self) -> candle_core::Result<()> {
            self.0.does("prefetch")
        }
        fn restore(&mut self) -> candle_core::Result<Tensor> {
            self.0.does("restore")?;
            Ok(self.1.clone())
        }
    }

    fn one(value: f32) -> Vec<Tensor> {
        vec![Tensor::new(value, &Device::Cpu).expect("a number")]
    }

    fn memory(told: &Told) -> HostMemory {
        HostMemory(Arc::new(Copying { copies: Box::new(told.clone()), leaving: Mutex::default() }))
    }

    fn write(memory: &HostMemory, value: f32) -> Result<Box<dyn Offloaded>> {
        memory.write(one(value), &|| Ok(()))
    }

    #[test]
    fn the_device_holds_no_more_than_may_be_under_way() -> Result<()> {
        let told = Told::default();
        let memory = memory(&told);
        let kept = (0..IN_FLIGHT + 3).map(|value| write(&memory, value as f32));
        let kept = kept.collect::<Result<Vec<_>>>()?;
        assert_eq!(told.count("release"), 3);
        for (value, handle) in kept.iter().enumerate() {
            assert_eq!(handle.restore(&|| Ok(()))?[0].to_scalar::<f32>()?, value as f32);
        }
        drop(kept);
        write(&memory, 0.0)?;
        assert_eq!(told.count("release"), 3, "what is dropped need not leave");
        Ok(())
    }

    /// Whatever fails is told, and what was written before can still be restored.
    #[test]
    fn copies_that_fail_are_told() -> Result<()> {
        for fails in ["begin", "release", "prefetch", "restore"] {
            let told = Told::default();
            let memory = memory(&told);
            let kept = (0..IN_FLIGHT).map(|value| write(&memory, value as f32));
            let mut kept = kept.collect::<Result<Vec<_>>>()?;
            *told.fails.lock() = Some(fails);
            let failed = match fails {
                "begin" | "release" => write(&memory, 9.0).map(|_| ()),
                "prefetch" => kept[0].prefetch(),
                _ => kept[0].restore(&|| Ok(())).map(|_| ()),
            };
            let message = failed.expect_err("it failed").to_string();
            assert!(message.contains(&format!("the device failed to {fails}")), "{message}");
            *told.fails.lock() = None;
            kept[0].rewrite(one(5.0), &|| Ok(()))?;
            assert_eq!(kept[0].restore(&|| Ok(()))?[0].to_scalar::<f32>()?, 5.0);
            assert_eq!(kept[1].restore(&|| Ok(()))?[0].to_scalar::<f32>()?, 1.0);
        }
        Ok(())
    }
}
