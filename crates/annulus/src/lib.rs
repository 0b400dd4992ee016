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
//! use annulus::train::{RunOptions, Silent, TrainError, resolve, run_phases};
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
//! let opened = resolve::<TrainError>(experiment, &mut |_, _, _| unreachable!("no `hf://`"))?;
//! let plans = opened.plans(2)?;
//! println!("{}", plans[0].to_text());
//! let options = RunOptions { tokenizer: opened.tokenizer, ..RunOptions::new(yaml, 2) };
//! let outcome = run_phases(&plans, options, &mut Silent)?;
//! assert_eq!(outcome.step, 3);
//! assert!(outcome.last["train/loss"] < 6.0);
//! # Ok(())
//! # }
//! ```
//!
//! # A program of your own
//!
//! A program that trains sets a few things for its whole process first, as `annulus` itself does. This one trains `experiment.yaml` in one
//! process, whose ranks are threads, and ends with the exit codes of `annulus`. To split ranks over several processes, use the command
//! (`mpirun -n 2 annulus train …`): its processes also agree on what they are given, on failures and on stopping.
//!
//! Its `Cargo.toml`, beside a clone of this repository (or with `git = "…"` for `path`):
//!
//! ```toml
//! [dependencies]
//! annulus = { path = "../annulus/crates/annulus" }   # on a GPU: features = ["cuda"]
//! mimalloc = { version = "0.1", default-features = false }
//! signal-hook = "0.3"
//!
//! [profile.dev.package."*"]
//! opt-level = 3   # kernels need an optimised build
//! ```
//!
//! ```no_run
//! use std::error::Error;
//! use std::process::ExitCode;
//! use std::sync::Arc;
//! use std::sync::atomic::AtomicBool;
//! use std::{fs, io};
//!
//! use annulus::experiment::{ModelSource, WeightsFrom, parse};
//! use annulus::hub::{Fetched, HubError, Options, Want, fetch};
//! use annulus::machine;
//! use annulus::train::memory::Counting;
//! use annulus::train::{
//!     Ending, Exit, Notice, RunOptions, Sink, TrainError, Value, prepare_process, resolve, run_phases,
//!     untried,
//! };
//! use mimalloc::MiMalloc;
//! use signal_hook::consts::{SIGINT, SIGTERM};
//!
//! type Done<T> = Result<T, Box<dyn Error>>;
//!
//! /// Counts memory by rank and class; without it, none is logged. mimalloc keeps pages for the next step.
//! #[global_allocator]
//! static ALLOCATOR: Counting<MiMalloc> = Counting::new(MiMalloc);
//!
//! fn main() -> ExitCode {
//!     // SAFETY: there is no other thread yet.
//!     unsafe { prepare_process() };
//!     let exit = train().map(Exit::code).unwrap_or_else(|error| {
//!         eprintln!("{error}");
//!         match error.downcast_ref::<TrainError>() {
//!             Some(error) => {
//!                 error.hint().iter().for_each(|hint| eprintln!("hint: {hint}"));
//!                 error.exit_code()
//!             }
//!             None if error.is::<HubError>() => Exit::Data.code(),
//!             None => Exit::Usage.code(),
//!         }
//!     });
//!     ExitCode::from(exit)
//! }
//!
//! fn train() -> Done<Exit> {
//!     // What `ANNULUS_VECTOR` and `ANNULUS_UNTRIED_KERNELS` ask for must be here.
//!     machine::check()?;
//!     untried::check()?;
//!     // Ctrl-C and SIGTERM end the run after its step, with a checkpoint from which the next start goes on.
//!     let stop = Arc::new(AtomicBool::new(false));
//!     for signal in [SIGINT, SIGTERM] {
//!         signal_hook::flag::register(signal, stop.clone())?;
//!     }
//!     let unread = |error| format!("experiment.yaml: {error}");
//!     let yaml = fs::read_to_string("experiment.yaml").map_err(unread)?;
//!     let experiment = parse("experiment.yaml", &yaml, &[])?;
//!     let opened = resolve::<Box<dyn Error>>(experiment, &mut |_, _, name| {
//!         let Fetched { name, folder } = fetched(name, Want::Description)?;
//!         Ok((name.to_string(), folder))
//!     })?;
//!     let cores = machine::cores();
//!     let plans = opened.plans(cores)?;
//!     let model = &plans[0].experiment.model.source;
//!     if let ModelSource::Folder { hub: Some(name), weights: WeightsFrom::Pretrained, .. } = model {
//!         fetched(name, Want::Weights)?;
//!     }
//!     let options = RunOptions { stop, tokenizer: opened.tokenizer, ..RunOptions::new(yaml, cores) };
//!     let outcome = run_phases(&plans, options, &mut Losses)?;
//!     println!("step {} of {}", outcome.step, outcome.folder.display());
//!     Ok(if outcome.ending == Ending::Preempted { Exit::Preempted } else { Exit::Done })
//! }
//!
//! /// Prints the loss of every logged step, and warnings.
//! struct Losses;
//!
//! impl Sink for Losses {
//!     fn record(&mut self, step: u64, values: &[(&str, Value<'_>)]) -> io::Result<()> {
//!         if let Some((_, loss)) = values.iter().find(|(tag, _)| *tag == "train/loss") {
//!             println!("step {step}  loss {:.4}", loss.number());
//!         }
//!         Ok(())
//!     }
//!     fn notice(&mut self, notice: &Notice<'_>) {
//!         if let Notice::Warning(warning) = notice {
//!             eprintln!("warning: {warning}");
//!         }
//!     }
//! }
//!
//! /// Fetches a model `hf://owner/name`, or finds it in Hugging Face's cache.
//! fn fetched(name: &str, want: Want) -> Done<Fetched> {
//!     Ok(fetch(&name.parse()?, want, &Options::from_environment()?, &mut |_| true)?)
//! }
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
//! use annulus::attention::{Attention, CallSite, Qkv, rows_at};
//! use annulus::candle_core::{DType, Device, Result, Tensor};
//! use annulus::comm::threads;
//! use annulus::ops::Pool;
//! use annulus::ops::attention::{Fused, dense};
//! use annulus::sequence::{Heads, Mask, Positions, Region, Rule, Setting, Strategy};
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
//! let all = Positions::all(tokens);
//! let dense = dense([&q, &k, &v, &q], &mask, [&all, &all], scale, None)?.out;
//! let options = threads::Options { world: 3, deadline: Duration::from_secs(60), stop: Arc::default() };
//! threads::run(&options, |comm| -> Result<()> {
//!     let kernel = Arc::new(Fused::new(Pool::serial()));
//!     let attention = Attention::new(schedules.clone(), scale, comm, kernel);
//!     // Each rank hands over the rows at its own positions, whatever the layout.
//!     let rows = |all: &Tensor| rows_at(all, 2, attention.positions());
//!     let qkv = Qkv { q: rows(&q)?, k: rows(&k)?, v: rows(&v)? };
//!     let out = attention.forward(CallSite::default(), &qkv)?.out;
//!     let off = (out.to_dtype(DType::F64)? - rows(&dense)?)?.abs()?.max_all()?;
//!     assert!(off.to_scalar::<f64>()? < 1e-5);
//!     Ok(())
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! # A strategy of your own
//!
//! A strategy is a [generator](sequence::Generator) of hops: what a rank sends, receives, computes,
//! finishes and frees. Here every rank sends its keys and values to all others at once and gets their
//! gradients back. The methods of [`Hop`](sequence::Hop) leave out empty blocks, of ranks without positions. The schedules are proved
//! before anything runs; the executor is the same for all.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use annulus::attention::{Attention, CallSite, Qkv, rows_at};
//! use annulus::candle_core::{DType, Device, Result, Tensor};
//! use annulus::comm::threads;
//! use annulus::ops::Pool;
//! use annulus::ops::attention::{Fused, dense};
//! use annulus::sequence::{
//!     Block, Extent, Generator, Heads, Hop, Layout, Mask, Part, Pass, Positions, Schedule, Schedules,
//! };
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
//!             hop.send(sent, rank, peer);
//!             hop.receive(received, peer, rank);
//!         }
//!     }
//!     fn tile(&self, hop: &mut Hop, rank: usize, owner: usize) {
//!         let (queries, keys) = (self.block(Part::Query, rank), self.block(Part::KeyValue, owner));
//!         hop.tile(queries, keys);
//!         // A rank without positions computes nothing, and still sends gradients.
//!         if self.pass == Pass::Backward && queries.is_empty() {
//!             hop.zeros(keys.of(Part::Gradient));
//!         }
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
//!                     hop.free(self.block(Part::KeyValue, owner));
//!                 }
//!                 hop.finish(self.block(Part::Query, rank));
//!             }
//!             _ => self.exchange(&mut hop, rank, Part::Gradient, |peer| [peer, rank]),
//!         }
//!         hop
//!     }
//! }
//!
//! # fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
//! #     run(false)?;
//! #     run(true)
//! # }
//! # /// Runs it, with fewer tokens than ranks where `few`.
//! # fn run(few: bool) -> std::result::Result<(), Box<dyn std::error::Error>> {
//! let (tokens, heads, dim) = (40, Heads { query: 4, key_value: 2 }, 16);
//! # let tokens = if few { 3 } else { tokens };
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
//! let all = Positions::all(tokens);
//! let dense = dense([&q, &k, &v, &gradient], &mask, [&all, &all], scale, None)?.dk;
//! let options = threads::Options { world: 4, deadline: Duration::from_secs(60), stop: Arc::default() };
//! threads::run(&options, |comm| -> Result<()> {
//!     let kernel = Arc::new(Fused::new(Pool::serial()));
//!     let attention = Attention::new(schedules.clone(), scale, comm, kernel);
//!     let rows = |all: &Tensor| rows_at(all, 2, attention.positions());
//!     let qkv = Qkv { q: rows(&q)?, k: rows(&k)?, v: rows(&v)? };
//!     let attended = attention.forward(CallSite::default(), &qkv)?;
//!     let dk = attention.backward(CallSite::default(), qkv, attended, rows(&gradient)?)?.k;
//! #   // Candle has no maximum of nothing.
//! #   if attention.positions().tokens() == 0 {
//! #       return Ok(());
//! #   }
//!     let off = (dk.to_dtype(DType::F64)? - rows(&dense)?)?.abs()?.max_all()?;
//!     assert!(off.to_scalar::<f64>()? < 1e-5);
//!     Ok(())
//! })?;
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
//! use annulus::candle_core::{DType, Device, Result, Tensor, Var};
//! use annulus::ops::{Backend, rms_norm, swiglu};
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
//! let norm = Var::ones(8, DType::F32, &Device::Cpu)?;
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

#[doc(inline)]
pub use annulus_attention as attention;
#[doc(inline)]
pub use annulus_comm as comm;
#[doc(inline)]
pub use annulus_data as data;
#[doc(inline)]
pub use annulus_evaluation as evaluation;
#[doc(inline)]
pub use annulus_experiment as experiment;
#[doc(inline)]
pub use annulus_figure as figure;
#[doc(inline)]
pub use annulus_hub as hub;
#[doc(inline)]
pub use annulus_machine as machine;
#[doc(inline)]
pub use annulus_model as model;
#[doc(inline)]
pub use annulus_ops as ops;
#[doc(inline)]
pub use annulus_plan as plan;
#[doc(inline)]
pub use annulus_sequence as sequence;
#[doc(inline)]
pub use annulus_simulate as simulate;
#[doc(inline)]
pub use annulus_tensorboard as tensorboard;
#[doc(inline)]
pub use annulus_tensors as tensors;
#[doc(inline)]
pub use annulus_trace as trace;
#[doc(inline)]
pub use annulus_train as train;
/// Candle, in the version whose tensors these crates take: another one has other types.
pub use candle_core;
