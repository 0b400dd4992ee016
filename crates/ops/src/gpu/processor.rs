//! What runs kernels: a GPU, or the emulator that runs the same sources on the CPU.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use candle_core::{Device, Result, Tensor, bail};

use super::Kept;

/// Runs kernels of `kernels/` over memory of one device.
pub trait Processor: Send + Sync + Debug {
    /// Where its tensors live.
    fn device(&self) -> &Device;

    /// What it can do, as NVIDIA counts, with the code that there is for it: 80 for an A100, 90 for an H100.
    fn architecture(&self) -> u32;

    /// Bytes of shared memory that a thread block may have.
    fn shared_memory(&self) -> u32;

    /// How many thread blocks run side by side where each takes all of a multiprocessor.
    fn multiprocessors(&self) -> usize;

    /// Copies `bytes` to where kernels read them, at an address divisible by 128.
    ///
    /// # Errors
    /// No memory left, or a device that failed.
    fn upload(&self, bytes: &[u8]) -> Result<Uploaded>;

    /// A counter, 0, that one launch may use and has to leave at 0.
    ///
    /// # Errors
    /// As `upload`.
    fn counter(&self) -> Result<Uploaded>;

    /// What is on the device for later launches.
    fn kept(&self) -> &Kept;

    /// Starts a kernel, after all that was started before it; the bytes of its one argument are copied before this returns.
    ///
    /// # Errors
    /// A kernel that does not exist, or a device that failed.
    ///
    /// # Safety
    /// `arguments` must be what the kernel takes, and every address in it must hold what the kernel reads and writes.
    unsafe fn launch(&self, launch: &Launch<'_>, arguments: &[u8]) -> Result<()>;

    /// How boxes of a tensor are fetched by the hardware (PTX ISA, "Tensors"): only where `architecture` is 90 or more.
    ///
    /// # Errors
    /// Boxes that the hardware does not take.
    fn tensor_map(&self, boxes: &Boxes) -> Result<TensorMap>;

    /// The number of the memory that its kernels reach: a tensor of another number's comes here by a [`super::Handover`].
    fn memory(&self) -> u64;

    /// What was started here so far, for others to wait for.
    ///
    /// # Errors
    /// A device that failed.
    fn mark(&self) -> Result<Mark>;

    /// Has all that is started here from now on wait until what `mark` stands for is done, here or on another processor. The host does
    /// not wait.
    ///
    /// # Errors
    /// A mark of another kind of processor, or a device that failed.
    fn wait_for(&self, mark: &Mark) -> Result<()>;

    /// Starts to copy `tensor`, without gaps and in the memory of `from`, into this one's. It is ordered with what else happens here,
    /// and with nothing there: that is a [`super::Handover`]'s to do.
    ///
    /// # Errors
    /// No memory left, or a device that failed.
    fn fetch(&self, tensor: &Tensor, from: &dyn Processor) -> Result<Tensor>;

    /// Refuses what is about to be read and written by something that is no launch, where it is in another memory.
    ///
    /// # Errors
    /// A tensor that cannot be reached.
    fn touches(&self, reads: &[&Tensor], writes: &[&Tensor]) -> Result<()> {
        reads.iter().chain(writes).try_for_each(|tensor| reach(self.device(), tensor))
    }

    /// How many tokens a block has, where sums over tokens are order-free: see [`in_blocks`].
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
    bail!("found a tensor on {found:?}, wanted one on {wanted:?}")
}

/// What was started on a processor up to a moment; opaque to all but processors of its kind.
pub type Mark = Arc<dyn Any + Send + Sync>;

/// The same processor, whose kernels add up over tokens in blocks of so many, by order-free sums: as [`crate::Pool::in_blocks`].
/// None: sums are f32, as `processor` has them.
pub fn in_blocks(processor: Arc<dyn Processor>, block: Option<usize>) -> Arc<dyn Processor> {
    match block {
        Some(_) => {
            let shared = processor.shared_memory();
            Arc::new(Told { processor, block, shared })
        }
        None => processor,
    }
}

/// The same processor, of whose shared memory a block of threads takes at most so many bytes: what a card runs that has no more.
pub fn with_shared_memory(processor: Arc<dyn Processor>, most: u32) -> Arc<dyn Processor> {
    let (block, shared) = (processor.block(), processor.shared_memory().min(most));
    Arc::new(Told { processor, block, shared })
}

/// A processor of which something else is told.
#[derive(Debug)]
struct Told {
    processor: Arc<dyn Processor>,
    block: Option<usize>,
    shared: u32,
}

impl Processor for Told {
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
    fn mark(&self) -> Result<Mark> {
        self.processor.mark()
    }
    fn wait_for(&self, mark: &Mark) -> Result<()> {
        self.processor.wait_for(mark)
    }
    fn fetch(&self, tensor: &Tensor, from: &dyn Processor) -> Result<Tensor> {
        self.processor.fetch(tensor, from)
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
    /// Its name in `kernels/`.
    pub kernel: &'a str,
    /// Thread blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
}

/// Thread blocks along x, y, z (CUDA C++ programming guide, "Technical specifications per compute capability").
const MOST_BLOCKS: [usize; 3] = [i32::MAX as usize, 65_535, 65_535];

impl<'a> Launch<'a> {
    /// Of `grid` thread blocks.
    ///
    /// # Errors
    /// When they are more than a GPU counts.
    pub fn new(kernel: &'a str, grid: [usize; 3], threads: u32, shared: u32) -> Result<Launch<'a>> {
        if std::iter::zip(grid, MOST_BLOCKS).any(|(count, most)| count > most) {
            bail!(
                "{kernel} over {grid:?} thread blocks, wanted at most {MOST_BLOCKS:?}: fewer heads or batch rows at a time"
            );
        }
        Ok(Launch { kernel, grid: grid.map(|count| count as u32), threads, shared })
    }
}

/// Bytes in the memory of a processor, freed once nothing that was started before needs them.
#[derive(Debug)]
pub struct Uploaded {
    /// Where they are.
    pub address: u64,
    /// What keeps them there.
    pub owner: Box<dyn Owner>,
}

/// What memory is freed with.
pub trait Owner: Send + Sync + Debug {}

/// A tensor [batch, heads, rows, columns] of 16-bit elements, fetched in boxes of rows by 64 columns, swizzled over 128 bytes;
/// what lies outside of it reads as zero.
#[derive(Clone, Copy, Debug)]
pub struct Boxes {
    /// Where it starts.
    pub address: u64,
    /// Whether the elements are bf16; or f16.
    pub bf16: bool,
    /// Its sizes.
    pub sizes: [usize; 4],
    /// Elements from one batch row, head, row to the next.
    pub strides: [usize; 3],
    /// Rows of a box.
    pub rows: usize,
}

impl Boxes {
    /// Sizes, strides in bytes (of all dimensions but the first; the last is unused) and box sizes of the dimensions that the
    /// hardware sees, the fastest first: columns, rows, heads, batch rows. A box is one panel of 64 columns: columns past the last
    /// read as zero.
    pub fn dimensions(&self) -> [[u64; 5]; 3] {
        let [batch, heads, rows, columns] = self.sizes.map(|size| size as u64);
        let [next_batch, next_head, next_row] = self.strides.map(|elements| 2 * elements as u64);
        let strides = [next_row, next_head, next_batch, 0, 0];
        [[columns, rows, heads, batch, 1], strides, [64, self.rows as u64, 1, 1, 1]]
    }
}

/// Opaque to all but the processor that made it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct TensorMap(pub [u64; 16]);

impl TensorMap {
    /// For kernels that fetch without one.
    pub const NONE: TensorMap = TensorMap([0; 16]);
}
