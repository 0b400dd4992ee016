//! Exact long-context training of Llama-style models, on Candle.
//!
//! The sequence is split over ranks, so that memory per rank is O(n/P); attention is full and
//! exact, forward and backward. The program `annulus` reads one YAML file; this crate is the same
//! as a library, with a module for each part.
//!
//! # A mask of your own
//!
//! A mask is a list of [rules](sequence::Rule). Here two texts stand around a picture whose patches
//! see each other in both directions. The mask runs as a ring over three ranks and gives what dense
//! attention gives.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use annulus::attention::{Attention, Place, Qkv};
//! use annulus::comm::threads;
//! use annulus::ops::Pool;
//! use annulus::ops::attention::{Fused, dense};
//! use annulus::sequence::{Heads, Mask, Positions, Region, Rule, Setting, Strategy};
//! use candle_core::{DType, Device, Result, Tensor};
//!
//! # fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
//! let region = |queries, keys, causal| Region { queries, keys, causal };
//! let mask = Mask::full().and(Rule::Regions(vec![
//!     region(0..10, 0..10, true),
//!     region(10..30, 0..30, false),
//!     region(30..48, 0..30, false),
//!     region(30..48, 30..48, true),
//! ]));
//! let (tokens, heads, dim) = (48, Heads { query: 4, key_value: 2 }, 16);
//! let schedules = Arc::new(Setting::new(Strategy::Ring, tokens, 3, heads).schedules(&mask)?);
//!
//! let random = |heads| Tensor::randn(0f32, 1.0, (1, heads, tokens, dim), &Device::Cpu);
//! let (q, k, v) = (random(4)?, random(2)?, random(2)?);
//! let scale = 1.0 / (dim as f64).sqrt();
//! let options = threads::Options { world: 3, deadline: Duration::from_secs(60), stop: Arc::default() };
//! let outputs = threads::run(&options, |comm| -> Result<_> {
//!     let kernel = Arc::new(Fused::new(Pool::serial()));
//!     let attention = Attention::new(schedules.clone(), scale, comm, kernel);
//!     // Contiguous shards: rank r holds positions 16 r to 16 r + 15.
//!     let own = attention.positions().extent();
//!     let rows = |all: &Tensor| all.narrow(2, own.start, own.len())?.contiguous();
//!     let qkv = Qkv { q: rows(&q)?, k: rows(&k)?, v: rows(&v)? };
//!     Ok(attention.forward(Place::default(), &qkv)?.out)
//! })?;
//!
//! let all = Positions::all(tokens);
//! let dense = dense(&q, &k, &v, &q, &mask, &all, &all, scale)?.out;
//! let off = (Tensor::cat(&outputs, 2)?.to_dtype(DType::F64)? - dense)?.abs()?.max_all()?;
//! assert!(off.to_scalar::<f64>()? < 1e-5);
//! # Ok(())
//! # }
//! ```
//!
//! # Operators on Candle's tape
//!
//! [`ops`] are fused operators with gradients, and [`attention::Attention::attend`] is attention
//! over ranks as a Candle custom op: a model of your own calls them and `backward()` runs through.
//!
//! ```
//! use annulus::ops::{Pool, rms_norm, swiglu};
//! use candle_core::{Device, Result, Tensor, Var};
//!
//! /// `x + down(swiglu(gate(norm(x)), up(norm(x))))`.
//! fn feed_forward(x: &Tensor, weights: &[Var; 4], pool: &Pool) -> Result<Tensor> {
//!     let [norm, gate, up, down] = weights.each_ref().map(|weight| weight.as_tensor());
//!     let y = rms_norm(pool, x, norm, 1e-5)?;
//!     let y = swiglu(pool, &y.matmul(&gate.t()?)?, &y.matmul(&up.t()?)?)?;
//!     x + y.matmul(&down.t()?)?
//! }
//!
//! # fn main() -> Result<()> {
//! let random = |shape| Var::randn(0f32, 0.1, shape, &Device::Cpu);
//! let norm = Var::ones(8, candle_core::DType::F32, &Device::Cpu)?;
//! let weights = [norm, random((32, 8))?, random((32, 8))?, random((8, 32))?];
//! let x = Tensor::randn(0f32, 1.0, (5, 8), &Device::Cpu)?;
//! let loss = feed_forward(&x, &weights, &Pool::new(2))?.sqr()?.mean_all()?;
//! let gradients = loss.backward()?;
//! for weight in &weights {
//!     assert_eq!(gradients.get(weight).expect("on the tape").shape(), weight.shape());
//! }
//! # Ok(())
//! # }
//! ```

pub use annulus_attention as attention;
pub use annulus_comm as comm;
pub use annulus_data as data;
pub use annulus_evaluation as evaluation;
pub use annulus_experiment as experiment;
pub use annulus_machine as machine;
pub use annulus_model as model;
pub use annulus_ops as ops;
pub use annulus_sequence as sequence;
pub use annulus_train as train;
