//! Operators on a GPU: the host's half of `kernels/`.
//!
//! A [`Processor`] runs kernels: `Cuda` on an NVIDIA GPU, `Emulator` on the CPU, so that all that is not the chip itself is
//! tested where there is none. Tensors are Candle's on either; `addresses` says where they lie while a launch takes place. A processor
//! computes with tensors of its own memory alone: others' come to it by a [`Handover`].

mod addresses;
mod arguments;
pub mod attention;
#[cfg(feature = "cuda")]
mod cuda;
mod data_sheet;
#[cfg(feature = "emulator")]
mod emulator;
mod find;
mod handover;
mod host_copies;
mod kept;
#[cfg(feature = "emulator")]
mod late_copies;
#[cfg(feature = "emulator")]
mod memories;
pub(crate) mod operators;
mod processor;
mod table;
pub mod untried;

pub(crate) use addresses::{Addresses, addresses};
#[cfg(feature = "cuda")]
pub(crate) use cuda::elements;
#[cfg(feature = "emulator")]
pub use emulator::Emulator;
pub use find::{Code, Gpu, GpuUnavailable, gpus, open, open_all};
pub use handover::Handover;
pub use host_copies::{HOST_IS_FULL, HostCopies, HostCopy};
pub use kept::Kept;
pub use processor::{
    Boxes, Launch, Mark, Owner, Processor, TensorMap, Uploaded, in_blocks, with_shared_memory,
};
pub use table::{Generation, GpuCapability};
