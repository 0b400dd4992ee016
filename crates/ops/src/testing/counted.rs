//! A processor that counts what is asked of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{Device, Result, Tensor};
use parking_lot::Mutex;

use crate::gpu::{Boxes, HostCopies, HostCopy, Kept, Launch, Mark, Processor, TensorMap, Uploaded};

/// A processor that counts another one's launches by kernel, its uploads, and its library's products.
#[derive(Debug)]
pub struct Counted {
    inner: Arc<dyn Processor>,
    calls: Arc<Mutex<BTreeMap<String, usize>>>,
    /// Bytes of the largest upload.
    largest: AtomicUsize,
}

impl Counted {
    /// A counter of `inner`'s calls, starting at zero.
    pub fn new(inner: Arc<dyn Processor>) -> Counted {
        Counted { inner, calls: Arc::default(), largest: AtomicUsize::new(0) }
    }
    /// The number of launches of each kernel; of uploads as `upload`, and of products as `product`.
    pub fn calls(&self) -> BTreeMap<String, usize> {
        self.calls.lock().clone()
    }
    /// Bytes of the largest upload.
    pub fn largest(&self) -> usize {
        self.largest.load(Ordering::Relaxed)
    }
    fn count(&self, what: &str) {
        count(&self.calls, what);
    }
}

fn count(calls: &Mutex<BTreeMap<String, usize>>, what: &str) {
    *calls.lock().entry(what.to_owned()).or_default() += 1;
}

/// Copies to the host, counted.
#[derive(Debug)]
struct CountedCopies {
    inner: Box<dyn HostCopies>,
    calls: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl HostCopies for CountedCopies {
    fn begin(&self, tensor: Tensor) -> Result<Box<dyn HostCopy>> {
        count(&self.calls, "copy to the host");
        self.inner.begin(tensor)
    }
}

impl Processor for Counted {
    fn device(&self) -> &Device {
        self.inner.device()
    }
    fn architecture(&self) -> u32 {
        self.inner.architecture()
    }
    fn shared_memory(&self) -> u32 {
        self.inner.shared_memory()
    }
    fn multiprocessors(&self) -> usize {
        self.inner.multiprocessors()
    }
    fn upload(&self, bytes: &[u8]) -> Result<Uploaded> {
        self.count("upload");
        self.largest.fetch_max(bytes.len(), Ordering::Relaxed);
        self.inner.upload(bytes)
    }
    fn counter(&self) -> Result<Uploaded> {
        self.inner.counter()
    }
    fn kept(&self) -> &Kept {
        self.inner.kept()
    }
    unsafe fn launch(&self, launch: &Launch<'_>, arguments: &[u8]) -> Result<()> {
        self.count(launch.kernel);
        // SAFETY: the caller's promise.
        unsafe { self.inner.launch(launch, arguments) }
    }
    fn tensor_map(&self, boxes: &Boxes) -> Result<TensorMap> {
        self.inner.tensor_map(boxes)
    }
    fn memory(&self) -> u64 {
        self.inner.memory()
    }
    fn mark(&self) -> Result<Mark> {
        self.inner.mark()
    }
    fn wait_for(&self, mark: &Mark) -> Result<()> {
        self.inner.wait_for(mark)
    }
    fn fetch(&self, tensor: &Tensor, from: &dyn Processor) -> Result<Tensor> {
        self.inner.fetch(tensor, from)
    }
    fn host_copies(&self) -> Result<Box<dyn HostCopies>> {
        Ok(Box::new(CountedCopies { inner: self.inner.host_copies()?, calls: self.calls.clone() }))
    }
    fn touches(&self, reads: &[&Tensor], writes: &[&Tensor]) -> Result<()> {
        self.count("product");
        self.inner.touches(reads, writes)
    }
    fn block(&self) -> Option<usize> {
        self.inner.block()
    }
}
