//! Blockwise attention on the CPU: matrix tiles by `gemm`, online softmax in f32.

use crate::Pool;

/// The fast CPU kernel.
#[derive(Debug)]
pub struct Fused {
    /// Its workers.
    pub pool: Pool,
}
