//! Backends: what operators run on.

use std::fmt;
use std::sync::Arc;

use candle_core::Device;

use crate::Pool;
use crate::gpu::{Processor, in_blocks};

/// The backend of a rank's operators. Tensors are where it computes.
#[derive(Clone)]
pub enum Backend {
    /// A CPU: the workers of one rank.
    Cpu(Pool),
    /// A GPU, or the emulator of one. It records nothing on Candle's tape.
    Gpu(Arc<dyn Processor>),
}

impl Backend {
    /// A CPU backend with this many workers.
    pub fn cpu(workers: usize) -> Backend {
        Backend::Cpu(Pool::new(workers))
    }

    /// A CPU backend that computes on the calling thread.
    pub fn serial() -> Backend {
        Backend::Cpu(Pool::serial())
    }

    /// This backend with order-free sums over tokens, in blocks of `block` ([`Pool::in_blocks`]); `None`: unchanged.
    #[must_use]
    pub fn in_blocks(self, block: Option<usize>) -> Backend {
        match self {
            Backend::Cpu(pool) => Backend::Cpu(pool.in_blocks(block)),
            Backend::Gpu(processor) => Backend::Gpu(in_blocks(processor, block)),
        }
    }

    /// The number of tokens of a strict block, where sums are order-free.
    pub fn block(&self) -> Option<usize> {
        match self {
            Backend::Cpu(pool) => pool.block(),
            Backend::Gpu(processor) => processor.block(),
        }
    }

    /// The device of its tensors.
    pub fn device(&self) -> Device {
        match self {
            Backend::Cpu(_) => Device::Cpu,
            Backend::Gpu(processor) => processor.device().clone(),
        }
    }

    /// The workers for what always runs on a CPU; with a GPU, the calling thread alone.
    pub fn pool(&self) -> Pool {
        match self {
            Backend::Cpu(pool) => pool.clone(),
            Backend::Gpu(_) => Pool::serial(),
        }
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backend::Cpu(pool) => pool.fmt(f),
            Backend::Gpu(_) => f.write_str("Gpu"),
        }
    }
}
