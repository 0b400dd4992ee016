//! The attention kernels on a GPU: `gpu`.
//!
//! Every size of the usual tables (FlashAttention-2, arXiv 2307.08691, section 4.1): 16k positions in all, 2048 columns in all, so
//! that a row differs from the next in the length of its sequences alone. A time is that of a whole call as training makes it: the
//! state made, folded and finished. Then the tiles that the hops of a ring are made of ([`hops`]).

mod hops;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use annulus_ops::attention::{Attended, AttentionKernel, BackwardTile, Tile};
use annulus_ops::gpu::attention::Kernels;
use annulus_ops::gpu::{Processor, Rung};
use annulus_ops::{Key, normal};
use annulus_sequence::{Mask, Positions, Visibility, pairs_between};
use anyhow::{Context, Result, anyhow, bail};
use candle_core::{DType, Tensor};
use serde_json::{Value, json};

use crate::arguments;
use crate::record::{Record, print};
use crate::session::Verdict;
use crate::statistics::Quartiles;
use crate::subject::Fields;

/// Positions of all sequences together, where one is not longer.
const TOKENS: usize = 16 << 10;
/// Columns of all heads together.
const COLUMNS: usize = 2048;
/// What a sample takes at least, so that a launch weighs nothing.
const SECONDS: f64 = 0.02;

/// One point after the other.
pub(crate) fn run(arguments: &arguments::Gpu) -> Result<Verdict> {
    let processor = annulus_ops::gpu::open(arguments.device)
        .map_err(|missing| anyhow!("cuda:{}: {missing}; {}", arguments.device, missing.hint()))?;
    let peers = arguments.beside.as_deref().map_or(Ok(Vec::new()), read)?;
    let mut record = Record::open(arguments.record.as_deref())?;
    for &dim in &arguments.head_dim {
        for mask in ["full", "causal"] {
            for &tokens in &arguments.tokens {
                let point = Point::whole(&processor, tokens, dim, mask)?;
                for (rung, pass, deterministic) in ways() {
                    let kernels =
                        Kernels { processor: processor.clone(), rung: Some(rung), deterministic };
                    let Some(speed) = point.measure(&kernels, pass, arguments.samples)? else {
                        continue;
                    };
                    let mut line = point.line(rung, pass, deterministic, speed);
                    beside(&mut line, &peers);
                    print(&line);
                    record.append(&line)?;
                }
            }
        }
        hops::run(&processor, dim, arguments.samples, &mut record)?;
    }
    Ok(Verdict::Fine)
}

/// Passes, and whether their bits are the same every time.
const PASSES: [(&str, bool); 3] = [("forward", false), ("backward", false), ("backward", true)];

/// Rungs by passes.
fn ways() -> impl Iterator<Item = (Rung, &'static str, bool)> {
    [Rung::Sm80, Rung::Sm90]
        .into_iter()
        .flat_map(|rung| PASSES.map(|(pass, deterministic)| (rung, pass, deterministic)))
}

/// A size, and tensors of it on the GPU.
struct Point {
    tokens: usize,
    dim: usize,
    /// Of the mask, or of the hop.
    name: &'static str,
    /// Of queries and keys, that see each other.
    pairs: f64,
    visibility: [Visibility; 1],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gradient: Tensor,
    processor: Arc<dyn Processor>,
}

impl Point {
    /// A whole sequence; half of all pairs count as seen under a causal mask, as the peers count.
    fn whole(
        processor: &Arc<dyn Processor>,
        tokens: usize,
        dim: usize,
        name: &'static str,
    ) -> Result<Point> {
        let all = Positions::all(tokens);
        let rule = if name == "full" { Mask::full() } else { Mask::causal() };
        let share = if name == "full" { 1.0 } else { 0.5 };
        let point = Point::new(processor, dim, name, &rule, [&all, &all])?;
        Ok(Point { pairs: share * (tokens * tokens) as f64, ..point })
    }

    /// As many queries as keys.
    fn new(
        processor: &Arc<dyn Processor>,
        dim: usize,
        name: &'static str,
        rule: &Mask,
        [queries, keys]: [&Positions; 2],
    ) -> Result<Point> {
        let tokens = queries.tokens();
        let shape = (TOKENS.div_ceil(tokens), COLUMNS / dim, tokens, dim);
        let random = |name| {
            let len = shape.0 * shape.1 * shape.2 * shape.3;
            let numbers = normal(Key { seed: 0, purpose: "bench", name }, 0, len);
            let tensor = Tensor::from_vec(numbers, shape, &candle_core::Device::Cpu)?;
            tensor.to_dtype(DType::BF16)?.to_device(processor.device())
        };
        Ok(Point {
            tokens,
            dim,
            name,
            pairs: pairs_between(rule, queries, keys) as f64,
            visibility: [Visibility::new(rule, queries, keys)],
            q: random("q")?,
            k: random("k")?,
            v: random("v")?,
            gradient: random("gradient")?,
            processor: processor.clone(),
        })
    }

    fn scale(&self) -> f64 {
        1.0 / (self.dim as f64).sqrt()
    }

    /// TFLOP/s; none where the rung has no such kernel.
    fn measure(&self, kernels: &Kernels, pass: &str, samples: usize) -> Result<Option<Quartiles>> {
        if kernels.begin(&self.q, self.scale()).is_err() {
            return Ok(None);
        }
        let attended = self.forward(kernels)?;
        let run = || -> Result<()> {
            match pass {
                "forward" => self.forward(kernels).map(drop),
                _ => self.backward(kernels, &attended),
            }
        };
        Ok(Some(self.speed(pass, samples, run)?))
    }

    /// TFLOP/s of what runs a pass once.
    fn speed(
        &self,
        pass: &str,
        samples: usize,
        mut run: impl FnMut() -> Result<()>,
    ) -> Result<Quartiles> {
        run()?;
        let once = self.seconds(1, &mut run)?;
        let repeats = (SECONDS / once).ceil().max(1.0) as usize;
        let (batch, heads, ..) = self.q.dims4()?;
        let forward = 4.0 * self.pairs * (batch * heads * self.dim) as f64;
        let operations = if pass == "forward" { forward } else { 2.5 * forward };
        let speeds = (0..samples)
            .map(|_| Ok(operations / self.seconds(repeats, &mut run)? / 1e12))
            .collect::<Result<Vec<_>>>()?;
        Ok(Quartiles::of(&speeds))
    }

    fn seconds(&self, repeats: usize, run: &mut impl FnMut() -> Result<()>) -> Result<f64> {
        self.processor.device().synchronize()?;
        let start = Instant::now();
        (0..repeats).try_for_each(|_| run())?;
        self.processor.device().synchronize()?;
        Ok(start.elapsed().as_secs_f64() / repeats as f64)
    }

    fn forward(&self, kernels: &Kernels) -> Result<Attended> {
        let mut state = kernels.begin(&self.q, self.scale())?;
        kernels.forward(&[self.tile()], &mut *state, &|| Ok(()))?;
        Ok(kernels.finish(state)?)
    }

    fn backward(&self, kernels: &Kernels, attended: &Attended) -> Result<()> {
        let mut state = kernels.begin_backward(&self.q, attended, &self.gradient, self.scale())?;
        let tile = BackwardTile { tile: self.tile(), carried: None };
        kernels.backward(vec![tile], &mut *state, &|| Ok(()))?;
        kernels.finish_backward(state)?;
        Ok(())
    }

    fn tile(&self) -> Tile<'_> {
        Tile::new(&self.k, &self.v, &self.visibility)
    }

    fn line(&self, rung: Rung, pass: &str, deterministic: bool, speed: Quartiles) -> Fields {
        let fields = [
            ("bench", json!("gpu")),
            ("tokens", json!(self.tokens)),
            ("head_dim", json!(self.dim)),
            ("mask", json!(self.name)),
            ("pass", json!(pass)),
            ("rung", json!(format!("{rung:?}").to_lowercase())),
            ("deterministic", json!(deterministic)),
            ("tflops", json!(speed.median)),
            ("low", json!(speed.low)),
            ("high", json!(speed.high)),
        ];
        Fields::from_iter(fields.map(|(key, value)| (key.to_owned(), value)))
    }
}

/// What a peer's program measured, a line of JSON per point.
fn read(path: &Path) -> Result<Vec<Fields>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let lines = text.lines().filter(|line| line.starts_with('{'));
    lines
        .map(|line| match serde_json::from_str(line)? {
            Value::Object(fields) => Ok(fields),
            other => bail!("`{other}` in {}", path.display()),
        })
        .collect()
}

/// Adds the fastest peer of the same point, and how many times its speed ours is.
fn beside(line: &mut Fields, peers: &[Fields]) {
    let same = |peer: &&Fields| {
        ["tokens", "head_dim", "mask", "pass"].iter().all(|key| peer.get(*key) == line.get(*key))
    };
    let speed = |peer: &Fields| peer.get("tflops").and_then(Value::as_f64).unwrap_or(0.0);
    let best = peers.iter().filter(same).max_by(|a, b| speed(a).total_cmp(&speed(b))).cloned();
    if let Some(best) = best {
        let ratio = speed(line) / speed(&best);
        line.insert("peer".into(), best.get("peer").cloned().unwrap_or_default());
        line.insert("peer_tflops".into(), json!(speed(&best)));
        line.insert("ratio".into(), json!(ratio));
    }
}
