//! What operators run on.

use std::fmt;
use std::sync::Arc;

use candle_core::Device;

use crate::Pool;
use crate::gpu::{Processor, in_blocks};

/// The device of a rank's operators. Tensors live where it computes.
#[derive(Clone)]
pub enum Backend {
    /// A CPU: the workers of one rank.
    Cpu(Pool),
    /// A GPU, or the emulator of one. It records nothing on Candle's tape.
    Gpu(Arc<dyn Processor>),
}

impl Backend {
    /// A CPU with so many workers.
    pub fn cpu(workers: usize) -> Backend {
        Backend::Cpu(Pool::new(workers))
    }

    /// A CPU where everything runs in the caller.
    pub fn serial() -> Backend {
        Backend::Cpu(Pool::serial())
    }

    /// The same, which adds up over tokens in blocks of so many, by order-free sums ([`Pool::in_blocks`]); none: as it is.
    #[must_use]
    pub fn in_blocks(self, block: Option<usize>) -> Backend {
        match self {
            Backend::Cpu(pool) => Backend::Cpu(pool.in_blocks(block)),
            Backend::Gpu(processor) => Backend::Gpu(in_blocks(processor, block)),
        }
    }

    /// How many tokens a block has, where sums are order-free.
    pub fn block(&self) -> Option<usize> {
        match self {
            Backend::Cpu(pool) => pool.block(),
            Backend::Gpu(processor) => processor.block(),
        }
    }

    /// Where its tensors are.
    pub fn device(&self) -> Device {
        match self {
            Backend::Cpu(_) => Device::Cpu,
            Backend::Gpu(processor) => processor.device().clone(),
        }
    }

    /// The workers for what runs on a CPU in any case; of a GPU's rank the caller alone.
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
