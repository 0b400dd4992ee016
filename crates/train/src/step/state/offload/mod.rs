//! Offloads tensors while they are not used: to page-locked memory of the host from GPUs, else to a disk.
//!
//! Both write and read back while the rank computes, so that what stages keep for backward is in memory for a few stages only.

mod disk;
mod host;

use std::fmt::Debug;
use std::io;
use std::path::Path;

use annulus_memory::Class;
use annulus_ops::Backend;
use candle_core::Tensor;

use self::disk::Disk;
use self::host::HostMemory;
use crate::{Result, TrainError};

/// How many writes (what a stage kept, or the moments of a parameter) may be under way at once: one more waits. The planner counts with the
/// same number.
pub(crate) const IN_FLIGHT: usize = annulus_plan::OFFLOADS_IN_FLIGHT;

/// Says now and then, while a rank waits, that it is alive.
pub(crate) type Alive<'a> = &'a dyn Fn() -> Result<()>;

/// Where a rank offloads tensors to.
pub(crate) trait Offload: Send + Sync + Debug {
    /// Begins to write tensors; waits where too many writes are under way.
    fn write(&self, tensors: Vec<Tensor>, alive: Alive<'_>) -> Result<Box<dyn Offloaded>>;

    /// Discards everything: none of it is needed any more.
    fn discard(&self);
}

/// Tensors that are offloaded.
pub(crate) trait Offloaded: Send + Sync + Debug {
    /// Begins to read them, unless that has begun.
    fn prefetch(&self) -> Result<()>;

    /// The tensors, on the device; waits until they have been read.
    fn restore(&self, alive: Alive<'_>) -> Result<Vec<Tensor>>;

    /// A copy of the tensors, which can still be restored.
    fn peek(&self, alive: Alive<'_>) -> Result<Vec<Tensor>>;

    /// Begins to write tensors of the same dtypes and shapes in their place; they have been restored.
    fn rewrite(&mut self, tensors: Vec<Tensor>, alive: Alive<'_>) -> Result<()>;
}

/// Where a rank offloads what is of a class: to `folder`, or without one to the memory of the GPU's host.
pub(crate) fn open(
    folder: Option<&Path>,
    rank: usize,
    class: Class,
    backend: &Backend,
) -> Result<Box<dyn Offload>> {
    match (folder, backend) {
        (Some(folder), _) => Ok(Box::new(Disk::open(folder, rank, class, backend.device())?)),
        (None, Backend::Gpu(processor)) => Ok(Box::new(HostMemory::of(&**processor)?)),
        (None, Backend::Cpu(_)) => {
            Err(TrainError::Internal("what is offloaded has no folder".to_owned()))
        }
    }
}

/// The error that something cannot be kept in `folder`, with the way out.
fn failure(what: &str, folder: &Path, error: &io::Error) -> TrainError {
    let message = format!("cannot {what} `{}`: {error}", folder.display());
    let hint = if annulus_files::is_full(error) {
        "free some space there, name a folder with more by `memory.offload_folder`, or set `memory.offload=none`"
    } else {
        "name another folder by `memory.offload_folder`, or set `memory.offload=none`"
    };
    TrainError::offload(message, hint)
}
