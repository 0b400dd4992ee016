//! The attention kernels on a GPU: `gpu`.
//!
//! Every size of the usual tables (FlashAttention-2, arXiv 2307.08691, section 4.1): 16k positions in all, 2048 columns in all, so
//! that a row differs from the next in the length of its sequences alone. A time is that of a whole call as training makes it: the
//! state made, folded and finished. Then the tiles that the hops of a ring are made of ([`hops`]).

mod hops;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use annulus_ops::attention::Tile;
use annulus_ops::gpu::attention::Kernels;
use annulus_ops::gpu::{Generation, Processor};
use annulus_sequence::{Mask, Positions, Visibility, pairs_between};
use anyhow::{Context, Result, anyhow, bail};
use candle_core::{DType, Tensor};
use serde_json::{Value, json};

use crate::arguments;
use crate::attention::Inputs;
use crate::record::Record;
use crate::session::Verdict;
use crate::statistics::Quartiles;
use crate::subject::{Fields, fields};

/// The number of positions of all sequences together, unless one sequence is longer.
const TOKENS: usize = 16 << 10;
/// The number of columns of all heads together.
const COLUMNS: usize = 2048;
/// The least seconds of a sample, so that launches do not matter.
const SECONDS: f64 = 0.02;

/// Measures one point after another.
pub(crate) fn run(arguments: &arguments::Gpu) -> Result<Verdict> {
    let processor = annulus_ops::gpu::open(arguments.device)
        .map_err(|missing| anyhow!("cuda:{}: {missing}; {}", arguments.device, missing.hint()))?;
    let peers = arguments.beside.as_deref().map_or(Ok(Vec::new()), read)?;
    let mut record = Record::open(arguments.record.as_deref())?;
    let longest = arguments.tokens.iter().copied().max().unwrap_or(0).max(TOKENS);
    let numbers = Numbers::new(&processor, longest * COLUMNS)?;
    for &dim in &arguments.head_dim {
        for mask in ["full", "causal"] {
            for &tokens in &arguments.tokens {
                let point = Point::whole(&numbers, tokens, dim, mask)?;
                for variant in variants(&processor, &arguments.passes, dim) {
                    let speed = point.measure(&variant, arguments.samples)?;
                    let mut line = point.line(&variant, speed);
                    beside(&mut line, &peers);
                    record.tell(&line)?;
                }
            }
        }
        if !arguments.no_hops {
            hops::run(&numbers, dim, arguments, &mut record)?;
        }
    }
    Ok(Verdict::Fine)
}

/// Passes by name, what each computes, and whether its bits must be reproducible.
const PASSES: [(&str, &str, bool); 3] = [
    ("forward", "forward", false),
    ("backward", "backward", false),
    ("same-bits", "backward", true),
];

/// The values that `--passes` takes.
pub(crate) fn names() -> [&'static str; 3] {
    PASSES.map(|(name, ..)| name)
}

/// Kernels of one generation for a pass.
struct Variant {
    kernels: Kernels,
    /// The generation of the pass's own kernel, which is lower than that which was asked for where there is none for such heads.
    generation: Generation,
    pass: &'static str,
}

/// What is measured of heads of `dim`: for each wanted pass the kernels of every generation that `processor` runs, each once.
fn variants(processor: &Arc<dyn Processor>, wanted: &[String], dim: usize) -> Vec<Variant> {
    let mut all: Vec<Variant> = Vec::new();
    for asked in [Generation::Sm80, Generation::Sm90, Generation::Sm100] {
        if !asked.runs_on(processor.architecture()) {
            continue;
        }
        for (_, pass, deterministic) in
            PASSES.into_iter().filter(|(name, ..)| wanted.iter().any(|one| one == name))
        {
            let kernels =
                Kernels { processor: processor.clone(), generation: Some(asked), deterministic };
            let Ok([forward, backward]) = kernels.generations(DType::BF16, dim) else { continue };
            let generation = if pass == "forward" { forward } else { backward };
            let is_same = |one: &Variant| {
                (one.generation, one.pass, one.kernels.deterministic)
                    == (generation, pass, deterministic)
            };
            if !all.iter().any(is_same) {
                all.push(Variant { kernels, generation, pass });
            }
        }
    }
    all
}

/// Random numbers on the GPU, from which all points take theirs: drawing takes longer than measuring.
struct Numbers {
    all: Inputs,
    processor: Arc<dyn Processor>,
}

impl Numbers {
    fn new(processor: &Arc<dyn Processor>, count: usize) -> Result<Numbers> {
        let shape = (1, 1, 1, count);
        let all = Inputs::of_shapes(shape, shape, DType::BF16, processor.device())?;
        Ok(Numbers { all, processor: processor.clone() })
    }

    fn inputs(&self, shape: (usize, usize, usize, usize)) -> Result<Inputs> {
        let count = shape.0 * shape.1 * shape.2 * shape.3;
        let taken = |numbers: &Tensor| numbers.flatten_all()?.narrow(0, 0, count)?.reshape(shape);
        let Inputs { q, k, v, gradient } = &self.all;
        Ok(Inputs { q: taken(q)?, k: taken(k)?, v: taken(v)?, gradient: taken(gradient)? })
    }
}

/// A size, with its tensors on the GPU.
struct Point {
    tokens: usize,
    dim: usize,
    /// The name of the mask or the hop.
    name: &'static str,
    /// The number of visible pairs of queries and keys.
    pairs: f64,
    visibility: [Visibility; 1],
    inputs: Inputs,
    processor: Arc<dyn Processor>,
}

impl Point {
    /// A whole sequence; with a causal mask half of all pairs count, as the peers count them.
    fn whole(numbers: &Numbers, tokens: usize, dim: usize, name: &'static str) -> Result<Point> {
        let all = Positions::all(tokens);
        let rule = if name == "full" { Mask::full() } else { Mask::causal() };
        let share = if name == "full" { 1.0 } else { 0.5 };
        let point = Point::new(numbers, dim, name, &rule, [&all, &all])?;
        Ok(Point { pairs: share * (tokens * tokens) as f64, ..point })
    }

    /// A point with as many queries as keys.
    fn new(
        numbers: &Numbers,
        dim: usize,
        name: &'static str,
        rule: &Mask,
        [queries, keys]: [&Positions; 2],
    ) -> Result<Point> {
        let tokens = queries.tokens();
        let shape = (TOKENS.div_ceil(tokens), COLUMNS / dim, tokens, dim);
        Ok(Point {
            tokens,
            dim,
            name,
            pairs: pairs_between(rule, queries, keys) as f64,
            visibility: [Visibility::new(rule, queries, keys)],
            inputs: numbers.inputs(shape)?,
            processor: numbers.processor.clone(),
        })
    }

    /// TFLOP/s of a pass.
    fn measure(&self, variant: &Variant, samples: usize) -> Result<Quartiles> {
        let Point { inputs, visibility, .. } = self;
        let Variant { kernels, pass, .. } = variant;
        let attended = inputs.forward(kernels, visibility)?;
        let run = || -> Result<()> {
            match *pass {
                "forward" => inputs.forward(kernels, visibility).map(drop),
                _ => inputs.backward(kernels, visibility, &attended),
            }
        };
        self.speed(pass, samples, run)
    }

    /// TFLOP/s of a pass, which `run` runs once.
    fn speed(
        &self,
        pass: &str,
        samples: usize,
        mut run: impl FnMut() -> Result<()>,
    ) -> Result<Quartiles> {
        run()?;
        let once = self.seconds(1, &mut run)?;
        let repeats = (SECONDS / once).ceil().max(1.0) as usize;
        let (batch, heads, ..) = self.inputs.q.dims4()?;
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

    fn tile(&self) -> Tile<'_> {
        Tile::new(&self.inputs.k, &self.inputs.v, &self.visibility)
    }

    fn line(&self, variant: &Variant, speed: Quartiles) -> Fields {
        let Variant { kernels, generation, pass } = variant;
        fields(json!({
            "bench": "gpu", "tokens": self.tokens, "head_dim": self.dim, "mask": self.name,
            "pass": pass, "generation": format!("{generation:?}").to_lowercase(),
            "deterministic": kernels.deterministic, "tflops": speed.median, "low": speed.low,
            "high": speed.high,
        }))
    }
}

/// A peer's measurements, a line of JSON per point.
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
        let peer = best.get("peer").cloned().unwrap_or_default();
        line.extend(fields(json!({ "peer": peer, "peer_tflops": speed(&best), "ratio": ratio })));
    }
}
