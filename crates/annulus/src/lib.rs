//! Exact long-context training of Llama-style models, on Candle.
//!
//! The sequence is split over ranks, so that memory per rank is O(n/P); attention is full and
//! exact, forward and backward. The program `annulus` reads one YAML file; this crate is the same
//! as a library, with a module for each part.
//!
//! # Train from a file
//!
//! ```
//! use annulus::experiment::parse;
//! use annulus::train::{Given, TrainError, resolve, run_phases};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # std::fs::write(folder.path().join("text.txt"), "one ring to split them all. ".repeat(200))?;
//! # let [text, output] = ["text.txt", "run"].map(|name| folder.path().join(name).display().to_string());
//! let yaml = format!("
//! name: tiny
//! model: {{ hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4 }}
//! data: {{ path: {text}, tokens: 64, batch: 2 }}
//! mesh: {{ sequence: 2 }}
//! attention: {{ strategy: striped }}
//! optimizer: {{ learning_rate: 1e-2 }}
//! schedule: {{ steps: 3 }}
//! output: {output}
//! ");
//! let experiment = parse("tiny.yaml", &yaml, &[])?;
//! let opened = resolve::<TrainError>(experiment, &mut |_, _, _| unreachable!("no model of the hub"))?;
//! let plans = opened.plans(2)?;
//! println!("{}", plans[0].to_text());
//! let outcome = run_phases(&plans, Given { tokenizer: opened.tokenizer, ..Given::new(yaml, 2) })?;
//! assert_eq!(outcome.step, 3);
//! assert!(outcome.last["train/loss"] < 6.0);
//! # Ok(())
//! # }
//! ```
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
//! # A strategy of your own
//!
//! A strategy is a [generator](sequence::Generator) of hops: what a rank sends, receives, computes,
//! finishes and frees. Here every rank sends its keys and values to all others at once and gets their
//! gradients back. The schedules are proved before anything runs; the executor is the same for all.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use annulus::attention::{Attention, Place, Qkv};
//! use annulus::comm::threads;
//! use annulus::ops::Pool;
//! use annulus::ops::attention::{Fused, dense};
//! use annulus::sequence::{
//!     Block, Extent, Generator, Heads, Hop, Layout, Mask, Move, Part, Pass, Positions, Schedule,
//!     Schedules, TilePlan,
//! };
//! use candle_core::{DType, Device, Result, Tensor};
//!
//! #[derive(Debug)]
//! struct Everybody {
//!     pass: Pass,
//!     heads: Heads,
//!     positions: Arc<[Positions]>,
//! }
//!
//! impl Everybody {
//!     fn block(&self, part: Part, owner: usize) -> Block {
//!         let rows = Extent::all(self.positions[owner].tokens());
//!         Block { part, owner, heads: self.heads.of(part), rows }
//!     }
//!     /// Both ends of an exchange with every other rank.
//!     fn exchange(&self, hop: &mut Hop, rank: usize, part: Part, away: impl Fn(usize) -> [usize; 2]) {
//!         for peer in (0..self.world()).filter(|peer| *peer != rank) {
//!             let [sent, received] = away(peer).map(|owner| self.block(part, owner));
//!             hop.sends.push(Move { block: sent, from: rank, to: peer, hops: 1 });
//!             hop.receives.push(Move { block: received, from: peer, to: rank, hops: 1 });
//!         }
//!     }
//!     fn tile(&self, hop: &mut Hop, rank: usize, owner: usize) {
//!         let queries = self.block(Part::Query, rank);
//!         hop.tiles.push(TilePlan { queries, keys: self.block(Part::KeyValue, owner) });
//!     }
//! }
//!
//! impl Generator for Everybody {
//!     fn world(&self) -> usize {
//!         self.positions.len()
//!     }
//!     fn hops(&self, _rank: usize) -> usize {
//!         if self.pass == Pass::Forward { 2 } else { 3 }
//!     }
//!     fn hop(&self, rank: usize, index: usize) -> Hop {
//!         let mut hop = Hop::default();
//!         match index {
//!             0 => {
//!                 self.exchange(&mut hop, rank, Part::KeyValue, |peer| [rank, peer]);
//!                 self.tile(&mut hop, rank, rank);
//!             }
//!             1 => {
//!                 for owner in (0..self.world()).filter(|owner| *owner != rank) {
//!                     self.tile(&mut hop, rank, owner);
//!                     hop.frees.push(self.block(Part::KeyValue, owner));
//!                 }
//!                 hop.finishes.push(self.block(Part::Query, rank));
//!             }
//!             _ => self.exchange(&mut hop, rank, Part::Gradient, |peer| [peer, rank]),
//!         }
//!         hop
//!     }
//! }
//!
//! # fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
//! let (tokens, heads, dim) = (40, Heads { query: 4, key_value: 2 }, 16);
//! let (mask, layout) = (Mask::full(), Layout::Contiguous);
//! let positions: Arc<[Positions]> = layout.shard(tokens, 4)?.into();
//! let schedule = |pass| Schedule {
//!     strategy: "everybody",
//!     pass,
//!     layout,
//!     mask: mask.clone(),
//!     heads,
//!     positions: positions.clone(),
//!     generator: Arc::new(Everybody { pass, heads, positions: positions.clone() }),
//! };
//! let schedules = Schedules::prove(schedule(Pass::Forward), schedule(Pass::Backward))?;
//! let schedules = Arc::new(schedules);
//!
//! let random = |heads| Tensor::randn(0f32, 1.0, (1, heads, tokens, dim), &Device::Cpu);
//! let (q, k, v, gradient) = (random(4)?, random(2)?, random(2)?, random(4)?);
//! let scale = 1.0 / (dim as f64).sqrt();
//! let options = threads::Options { world: 4, deadline: Duration::from_secs(60), stop: Arc::default() };
//! let gradients = threads::run(&options, |comm| -> Result<_> {
//!     let kernel = Arc::new(Fused::new(Pool::serial()));
//!     let attention = Attention::new(schedules.clone(), scale, comm, kernel);
//!     let own = attention.positions().extent();
//!     let rows = |all: &Tensor| all.narrow(2, own.start, own.len())?.contiguous();
//!     let qkv = Qkv { q: rows(&q)?, k: rows(&k)?, v: rows(&v)? };
//!     let attended = attention.forward(Place::default(), &qkv)?;
//!     Ok(attention.backward(Place::default(), qkv, attended, rows(&gradient)?)?.k)
//! })?;
//!
//! let all = Positions::all(tokens);
//! let dense = dense(&q, &k, &v, &gradient, &mask, &all, &all, scale)?.dk;
//! let off = (Tensor::cat(&gradients, 2)?.to_dtype(DType::F64)? - dense)?.abs()?.max_all()?;
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
//! use annulus::ops::{Backend, rms_norm, swiglu};
//! use candle_core::{Device, Result, Tensor, Var};
//!
//! /// `x + down(swiglu(gate(norm(x)), up(norm(x))))`.
//! fn feed_forward(x: &Tensor, weights: &[Var; 4], backend: &Backend) -> Result<Tensor> {
//!     let [norm, gate, up, down] = weights.each_ref().map(|weight| weight.as_tensor());
//!     let y = rms_norm(backend, x, norm, 1e-5)?;
//!     let y = swiglu(backend, &y.matmul(&gate.t()?)?, &y.matmul(&up.t()?)?)?;
//!     x + y.matmul(&down.t()?)?
//! }
//!
//! # fn main() -> Result<()> {
//! let random = |shape| Var::randn(0f32, 0.1, shape, &Device::Cpu);
//! let norm = Var::ones(8, candle_core::DType::F32, &Device::Cpu)?;
//! let weights = [norm, random((32, 8))?, random((32, 8))?, random((8, 32))?];
//! let x = Tensor::randn(0f32, 1.0, (5, 8), &Device::Cpu)?;
//! let loss = feed_forward(&x, &weights, &Backend::cpu(2))?.sqr()?.mean_all()?;
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
pub use annulus_plan as plan;
pub use annulus_sequence as sequence;
pub use annulus_simulate as simulate;
pub use annulus_train as train;
