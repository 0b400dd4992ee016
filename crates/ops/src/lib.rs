//! Fused operators with gradients, for anybody who uses Candle: each a slow obvious reference, a
//! fast CPU form, a CUDA form. Nothing here knows of ranks.
//!
//! An operator `x` is recorded on Candle's tape where its inputs are, and has its gradient there.
//! `x_backward` is that gradient by hand, for callers who walk backward themselves: the tape makes
//! zeros and adds for every gradient, and keeps tensors that are not needed.
//!
//! Every operator takes the [`Backend`] it runs on; none uses a global one. A GPU runs kernels over
//! its own tensors and records nothing: there gradients are made by hand. Inputs may be f32 or bf16;
//! sums are f32.
#![expect(clippy::inline_always, reason = "loops become vector code where they are inlined")]

pub mod attention;

mod accumulate;
mod adamw;
mod backend;
mod charge;
mod cores;
mod cross_entropy;
mod dropout;
mod embedding;
mod exp;
pub mod gpu;
mod gradients;
mod linear;
mod matrix;
mod on_host;
pub mod order_free;
mod philox;
mod pool;
mod projections;
mod random;
mod rms_norm;
mod rope;
mod rows;
mod sums;
mod swiglu;
pub mod testing;
mod vector;

pub use accumulate::{accumulate, add_all};
pub use adamw::{AdamW, Moments, Parameter};
pub use backend::Backend;
pub use charge::charge;
pub use cores::Cores;
pub use cross_entropy::{
    CrossEntropyGradients, IGNORED, Prediction, SOFTMAX_STATISTICS, check_targets,
    linear_cross_entropy, linear_cross_entropy_gradients, linear_cross_entropy_input_gradient,
    linear_cross_entropy_loss, partial_softmax, partial_softmax_gradient, predictions,
};
pub use dropout::{InputDropout, RowPlaces};
pub use embedding::{check_tokens, embedding, embedding_backward};
pub use gradients::{NoGradient, check_gradients, global_norm_squared, vjp};
pub use linear::{linear, wide_linear};
pub use on_host::on_host;
pub use pool::Pool;
pub use projections::{
    Affine, AffineGradients, input_gradient, parameter_gradients, projected_onto, projections,
};
pub use random::{Key, fill_normal, normal, uniform};
pub use rms_norm::{rms_norm, rms_norm_backward};
pub use rope::{Rotary, rope, rope_qkv, rope_qkv_backward};
pub use rows::{contiguous, readable};
pub use swiglu::{SwiGluGradients, swiglu, swiglu_backward};
