//! What operators run on.

use std::fmt;
use std::sync::Arc;

use crate::Pool;
use crate::gpu::Processor;

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
