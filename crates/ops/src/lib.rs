//! Fused operators with gradients, for anybody who uses Candle: each a slow obvious reference, a
//! fast CPU form, later a CUDA form. Nothing here knows of ranks.
//!
//! Every operator takes the [`Pool`] it may use; none uses a global one. Inputs may be f32 or bf16;
//! sums are f32.
#![expect(clippy::inline_always, reason = "loops become vector code where they are inlined")]

pub mod attention;

mod accumulate;
mod adamw;
mod charge;
mod cross_entropy;
mod embedding;
mod exp;
mod gradients;
mod linear;
mod matrix;
mod pool;
mod random;
mod rms_norm;
mod rope;
mod rows;
mod sums;
mod swiglu;
pub mod testing;

pub use accumulate::accumulate;
pub use adamw::{AdamW, Moments};
pub use charge::charge;
pub use cross_entropy::{IGNORED, linear_cross_entropy};
pub use embedding::embedding;
pub use gradients::{NoGradient, check_gradients, global_norm_squared, scale, vjp};
pub use linear::linear;
pub use pool::Pool;
pub use random::{Key, normal, uniform};
pub use rms_norm::rms_norm;
pub use rope::{Rotary, rope};
pub use swiglu::swiglu;
