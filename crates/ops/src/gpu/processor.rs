//! Processors, which run kernels: a GPU, or the emulator that runs the same sources on the CPU.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use candle_core::{Device, Result, Tensor, bail};

use super::{HostCopies, Kept};

/// A processor, which runs kernels of `kernels/` over the memory of one device.
pub trait Processor: Send + Sync + Debug {
    /// The device of its tensors.
    fn device(&self) -> &Device;

    /// The compute capability for which there is code: 80 for an A100, 90 for an H100.
    fn architecture(&self) -> u32;

    /// Bytes of shared memory that a thread block may use.
    fn shared_memory(&self) -> u32;

    /// The number of thread blocks that run concurrently where each takes a whole multiprocessor.
    fn multiprocessors(&self) -> usize;

    /// Copies `bytes` to where kernels read them, at an address divisible by 128.
    ///
    /// # Errors
    /// No memory left, or a device that failed.
    fn upload(&self, bytes: &[u8]) -> Result<Uploaded>;

    /// A counter, starting at 0, that one launch may use and must leave at 0.
    ///
    /// # Errors
    /// As `upload`.
    fn counter(&self) -> Result<Uploaded>;

    /// Uploads that stay on the device for later launches.
    fn kept(&self) -> &Kept;

    /// Starts a kernel, after everything that was started before it; the bytes of its one argument are copied before this returns.
    ///
    /// # Errors
    /// A kernel that does not exist, or a device that failed.
    ///
    /// # Safety
    /// `arguments` must be what the kernel takes, and every address in it must hold what the kernel reads and writes.
    unsafe fn launch(&self, launch: &Launch<'_>, arguments: &[u8]) -> Result<()>;

    /// The map by which the hardware fetches boxes of a tensor (PTX ISA, "Tensors"): only where `architecture` is 90 or more.
    ///
    /// # Errors
    /// Boxes that the hardware does not take.
    fn tensor_map(&self, boxes: &Boxes) -> Result<TensorMap>;

    /// The number of the memory that its kernels reach: a tensor in another memory is copied here by a [`super::Handover`].
    fn memory(&self) -> u64;

    /// The most bytes that tensors have taken of this device's own memory at once, in this process and since
    /// [`Processor::forget_pool_peak`]; 0 where the driver does not say. `None`: they lie in the host's memory.
    fn pool_peak(&self) -> Option<u64> {
        None
    }

    /// Begins [`Processor::pool_peak`] anew.
    fn forget_pool_peak(&self) {}

    /// A mark after what was started here so far, for others to wait for.
    ///
    /// # Errors
    /// A device that failed.
    fn mark(&self) -> Result<Mark>;

    /// Makes everything that is started here from now on wait for `mark`, of this or another processor. The host does not wait.
    ///
    /// # Errors
    /// A mark of another kind of processor, or a device that failed.
    fn wait_for(&self, mark: &Mark) -> Result<()>;

    /// Starts to copy `tensor`, without gaps and in the memory of `from`, to this one's. The copy is ordered with other work here, but not
    /// with work there: a [`super::Handover`] does that.
    ///
    /// # Errors
    /// No memory left, or a device that failed.
    fn fetch(&self, tensor: &Tensor, from: &dyn Processor) -> Result<Tensor>;

    /// Copies to the host and back, for one thread's tensors.
    ///
    /// # Errors
    /// A device that failed.
    fn host_copies(&self) -> Result<Box<dyn HostCopies>>;

    /// Refuses tensors in another memory that are about to be read or written by something other than a launch.
    ///
    /// # Errors
    /// A tensor that cannot be reached.
    fn touches(&self, reads: &[&Tensor], writes: &[&Tensor]) -> Result<()> {
        reads.iter().chain(writes).try_for_each(|tensor| reach(self.device(), tensor))
    }

    /// The number of tokens of a strict block, where sums over tokens are order-free: see [`in_blocks`].
    fn block(&self) -> Option<usize> {
        None
    }
}

/// Refuses a tensor that is not on `device`.
pub(super) fn reach(device: &Device, tensor: &Tensor) -> Result<()> {
    if tensor.device().same_device(device) {
        return Ok(());
    }
    let [found, wanted] = [tensor.device(), device].map(Device::location);
    bail!("found a tensor on {found:?}, expected one on {wanted:?}")
}

/// What was started on a processor up to a moment; opaque to all but processors of its kind.
pub type Mark = Arc<dyn Any + Send + Sync>;

/// This processor with kernels whose sums over tokens are order-free, in blocks of `block`: as [`crate::Pool::in_blocks`]. `None`:
/// `processor` unchanged, with f32 sums.
pub fn in_blocks(processor: Arc<dyn Processor>, block: Option<usize>) -> Arc<dyn Processor> {
    match block {
        Some(_) => {
            let shared = processor.shared_memory();
            Arc::new(Overridden { processor, block, shared })
        }
        None => processor,
    }
}

/// This processor with at most `most` bytes of shared memory per block of threads, to run what a card with no more runs.
pub fn with_shared_memory(processor: Arc<dyn Processor>, most: u32) -> Arc<dyn Processor> {
    let (block, shared) = (processor.block(), processor.shared_memory().min(most));
    Arc::new(Overridden { processor, block, shared })
}

/// A processor with some of its properties replaced.
#[derive(Debug)]
struct Overridden {
    processor: Arc<dyn Processor>,
    block: Option<usize>,
    shared: u32,
}

impl Processor for Overridden {
    fn device(&self) -> &Device {
        self.processor.device()
    }
    fn architecture(&self) -> u32 {
        self.processor.architecture()
    }
    fn shared_memory(&self) -> u32 {
        self.shared
    }
    fn multiprocessors(&self) -> usize {
        self.processor.multiprocessors()
    }
    fn upload(&self, bytes: &[u8]) -> Result<Uploaded> {
        self.processor.upload(bytes)
    }
    fn counter(&self) -> Result<Uploaded> {
        self.processor.counter()
    }
    fn kept(&self) -> &Kept {
        self.processor.kept()
    }
    unsafe fn launch(&self, launch: &Launch<'_>, arguments: &[u8]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.processor.launch(launch, arguments) }
    }
    fn tensor_map(&self, boxes: &Boxes) -> Result<TensorMap> {
        self.processor.tensor_map(boxes)
    }
    fn memory(&self) -> u64 {
        self.processor.memory()
    }
    fn pool_peak(&self) -> Option<u64> {
        self.processor.pool_peak()
    }
    fn forget_pool_peak(&self) {
        self.processor.forget_pool_peak();
    }
    fn mark(&self) -> Result<Mark> {
        self.processor.mark()
    }
    fn wait_for(&self, mark: &Mark) -> Result<()> {
        self.processor.wait_for(mark)
    }
    fn fetch(&self, tensor: &Tensor, from: &dyn Processor) -> Result<Tensor> {
        self.processor.fetch(tensor, from)
    }
    fn host_copies(&self) -> Result<Box<dyn HostCopies>> {
        self.processor.host_copies()
    }
    fn touches(&self, reads: &[&Tensor], writes: &[&Tensor]) -> Result<()> {
        self.processor.touches(reads, writes)
    }
    fn block(&self) -> Option<usize> {
        self.block
    }
}

/// A kernel and its extent.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The name of the kernel in `kernels/`.
    pub kernel: &'a str,
    /// The numbers of thread blocks along x, y, z.
    pub grid: [u32; 3],
    /// The number of threads per block.
    pub threads: u32,
    /// Bytes of dynamic shared memory per block.
    pub shared: u32,
}

/// The most thread blocks along x, y, z (CUDA C++ programming guide, "Technical specifications per compute capability").
const MOST_BLOCKS: [usize; 3] = [i32::MAX as usize, 65_535, 65_535];

impl<'a> Launch<'a> {
    /// A launch of `grid` thread blocks.
    ///
    /// # Errors
    /// When there are more than a GPU allows.
    pub fn new(kernel: &'a str, grid: [usize; 3], threads: u32, shared: u32) -> Result<Launch<'a>> {
        if std::iter::zip(grid, MOST_BLOCKS).any(|(count, most)| count > most) {
            bail!(
                "{kernel} over {grid:?} thread blocks, expected at most {MOST_BLOCKS:?}: fewer heads or batch rows at a time"
            );
        }
        Ok(Launch { kernel, grid: grid.map(|count| count as u32), threads, shared })
    }

    /// The error of this launch, which failed: drivers name neither the kernel nor its extent.
    #[cfg(any(test, feature = "cuda", feature = "emulator"))]
    pub(super) fn failed(&self, why: impl std::fmt::Display) -> candle_core::Error {
        let Launch { kernel, grid, threads, shared } = self;
        candle_core::Error::Msg(format!(
            "{kernel} over {grid:?} thread blocks of {threads} threads and {shared} bytes of shared memory: {why}"
        ))
    }
}

/// Bytes in the memory of a processor, freed once nothing that was started before needs them.
#[derive(Debug)]
pub struct Uploaded {
    /// The address of the bytes.
    pub address: u64,
    /// The owner that keeps them there.
    pub owner: Box<dyn Owner>,
}

/// An owner, which frees its memory when dropped.
pub trait Owner: Send + Sync + Debug {}

/// A tensor [batch, heads, rows, columns] of 16-bit elements, fetched in boxes of rows by 64 columns, swizzled over 128 bytes;
/// what lies outside of it reads as zero.
#[derive(Clone, Copy, Debug)]
pub struct Boxes {
    /// The address of the first element.
    pub address: u64,
    /// Whether elements are bf16; else f16.
    pub bf16: bool,
    /// The sizes along each dimension.
    pub sizes: [usize; 4],
    /// Elements between neighbouring batch rows, heads and rows.
    pub strides: [usize; 3],
    /// The number of rows of a box.
    pub rows: usize,
}

impl Boxes {
    /// Sizes, strides in bytes (of all dimensions but the first; the last is unused) and box sizes of the dimensions that the hardware
    /// sees, the fastest first: columns, rows, heads, batch rows. A box is one panel of 64 columns: columns past the last read as zero.
    pub fn dimensions(&self) -> [[u64; 5]; 3] {
        let [batch, heads, rows, columns] = self.sizes.map(|size| size as u64);
        let [next_batch, next_head, next_row] = self.strides.map(|elements| 2 * elements as u64);
        let strides = [next_row, next_head, next_batch, 0, 0];
        [[columns, rows, heads, batch, 1], strides, [64, self.rows as u64, 1, 1, 1]]
    }
}

/// A map for fetching boxes, opaque to all but the processor that made it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct TensorMap(pub [u64; 16]);

impl TensorMap {
    /// The map for kernels that fetch without one.
    pub const NONE: TensorMap = TensorMap([0; 16]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_launch_is_named_with_its_extent() -> Result<()> {
        let launch = Launch::new("forward_sm80_bf16_d64", [7, 32, 2], 128, 65_536)?;
        let wanted = "forward_sm80_bf16_d64 over [7, 32, 2] thread blocks of 128 threads and 65536 bytes of shared memory: no image";
        assert_eq!(launch.failed("no image").to_string(), wanted);
        assert!(Launch::new("forward", [1, 65_536, 1], 128, 0).is_err());
        Ok(())
    }
}
