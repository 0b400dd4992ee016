//! The attention kernel: `attention`.
//!
//! Operations as papers count them: `4 H N² D` forward, half of it under a causal mask; backward 2.5
//! times that. Beside every sample the processor's peak is measured on as many threads.

use std::time::Instant;

use annulus_ops::attention::{Attended, AttentionKernel, BackwardTile, Fused, Tile};
use annulus_ops::{Key, Pool, normal};
use annulus_sequence::{Positions, Visibility};
use anyhow::{Result, bail};
use candle_core::{DType, Device, Tensor};
use serde_json::{Value, json};

use crate::arguments::{self, Dtype, Pass, Shape, word};
use crate::session::{Verdict, measure};
use crate::statistics::Quartiles;
use crate::subject::{Fields, Sample, Side, Subject, fields};
use annulus_machine::peak::Unit;

/// Measures one size after another.
pub(crate) fn run(arguments: &arguments::Attention) -> Result<Verdict> {
    if arguments.common.serve && arguments.tokens.len() > 1 {
        bail!("`--serve` answers for one number of `--tokens`");
    }
    let mut verdict = Verdict::Fine;
    for &tokens in &arguments.tokens {
        let mut point = Point::new(arguments, tokens)?;
        verdict = verdict.or(measure(&arguments.common, &mut point)?);
    }
    Ok(verdict)
}

/// One size of attention.
struct Point {
    arguments: arguments::Attention,
    tokens: usize,
    kernel: Fused,
    inputs: Inputs,
    /// The results of forward, where only backward is timed.
    attended: Option<Attended>,
    units: Vec<(Unit, Beside)>,
    /// Seconds of the last sample.
    last: f64,
}

/// Measurements of an arithmetic unit after every sample.
#[derive(Default)]
struct Beside {
    /// The unit's speeds in GFLOP/s.
    peaks: Vec<f64>,
    /// Each sample's speed as a fraction of the unit's: a core may be slow for some samples.
    shares: Vec<f64>,
}

/// Tensors of one call of attention: q and gradient [B, H, N, D], k and v [B, Hkv, N, D].
pub(crate) struct Inputs {
    pub(crate) q: Tensor,
    pub(crate) k: Tensor,
    pub(crate) v: Tensor,
    pub(crate) gradient: Tensor,
}

impl Inputs {
    /// Standard normal numbers, one sequence on the CPU.
    pub(crate) fn random(shape: &Shape, tokens: usize, dtype: DType) -> Result<Inputs> {
        let [queries, keys] =
            [shape.heads, shape.groups()].map(|heads| (1, heads, tokens, shape.head_dim));
        Inputs::of_shapes(queries, keys, dtype, &Device::Cpu)
    }

    /// Inputs of these shapes, of standard normal numbers.
    pub(crate) fn of_shapes(
        queries: (usize, usize, usize, usize),
        keys: (usize, usize, usize, usize),
        dtype: DType,
        device: &Device,
    ) -> Result<Inputs> {
        let random = |name: &str, shape: (usize, usize, usize, usize)| {
            let len = shape.0 * shape.1 * shape.2 * shape.3;
            let numbers = normal(Key { seed: 0, purpose: "bench", name }, 0, len);
            Tensor::from_vec(numbers, shape, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
        };
        Ok(Inputs {
            q: random("q", queries)?,
            k: random("k", keys)?,
            v: random("v", keys)?,
            gradient: random("gradient", queries)?,
        })
    }

    /// The factor of scores, 1 / √D.
    pub(crate) fn scale(&self) -> Result<f64> {
        Ok(1.0 / (self.q.dims4()?.3 as f64).sqrt())
    }

    /// The positions of queries and of keys, from 0 on.
    fn positions(&self) -> Result<[Positions; 2]> {
        Ok([Positions::all(self.q.dim(2)?), Positions::all(self.k.dim(2)?)])
    }

    /// Runs a whole forward pass of one tile, as training does.
    pub(crate) fn forward(
        &self,
        kernel: &impl AttentionKernel,
        visibility: &[Visibility],
    ) -> Result<Attended> {
        let mut state = kernel.begin(&self.q, self.scale()?)?;
        state.end_with_next();
        let [queries, keys] = self.positions()?;
        let positions = Some([&queries, &keys]);
        let tile = Tile { positions, ..Tile::new(&self.k, &self.v, visibility) };
        kernel.forward(&[tile], &mut *state, &|| Ok(()))?;
        Ok(kernel.finish(state)?)
    }

    /// Runs a whole backward pass of one tile.
    pub(crate) fn backward(
        &self,
        kernel: &impl AttentionKernel,
        visibility: &[Visibility],
        attended: &Attended,
    ) -> Result<()> {
        let mut state = kernel.begin_backward(&self.q, attended, &self.gradient, self.scale()?)?;
        let [queries, keys] = self.positions()?;
        let positions = Some([&queries, &keys]);
        let tile = Tile { positions, ..Tile::new(&self.k, &self.v, visibility) };
        let tile = BackwardTile { tile, carried: None };
        kernel.backward(vec![tile], &mut *state, &|| Ok(()))?;
        kernel.finish_backward(state)?;
        Ok(())
    }
}

/// The operations of a forward pass of `tokens` positions.
pub(crate) fn operations(shape: &Shape, tokens: usize) -> f64 {
    let pairs = match shape.mask.name.as_str() {
        "full" => (tokens * tokens) as f64,
        "causal" => (tokens * tokens) as f64 / 2.0,
        _ => {
            let all = Positions::all(tokens);
            let seen = Visibility::new(&shape.mask.mask, &all, &all);
            let spans = seen.queries.iter().flatten();
            spans.map(|span| span.tokens() as f64).sum()
        }
    };
    4.0 * pairs * (shape.heads * shape.head_dim) as f64
}

impl Point {
    fn new(arguments: &arguments::Attention, tokens: usize) -> Result<Point> {
        let kernel = Fused::new(Pool::new(arguments.threads));
        let inputs = Inputs::random(&arguments.shape, tokens, arguments.dtype.candle())?;
        let narrow = (arguments.dtype == Dtype::Bf16).then(Unit::bf16).flatten();
        let units = [Some(Unit::f32()), narrow].into_iter().flatten();
        let units = units.map(|unit| (unit, Beside::default())).collect();
        let arguments = arguments.clone();
        let mut point =
            Point { arguments, tokens, kernel, inputs, attended: None, units, last: f64::NAN };
        if point.arguments.pass == Pass::Backward {
            point.attended = Some(point.forward()?);
        }
        Ok(point)
    }

    fn visibility(&self) -> [Visibility; 1] {
        let all = Positions::all(self.tokens);
        [Visibility::new(&self.arguments.shape.mask.mask, &all, &all)]
    }

    fn forward(&self) -> Result<Attended> {
        self.inputs.forward(&self.kernel, &self.visibility())
    }

    fn backward(&self, attended: &Attended) -> Result<()> {
        self.inputs.backward(&self.kernel, &self.visibility(), attended)
    }

    /// The speed in GFLOP/s of a pass that takes `seconds`.
    fn speed(&self, seconds: f64) -> f64 {
        let forward = operations(&self.arguments.shape, self.tokens);
        forward * self.arguments.pass.operations() / seconds / 1e9
    }
}

impl Side for Point {
    fn sample(&mut self) -> Result<Sample> {
        let start = Instant::now();
        match (self.arguments.pass, &self.attended) {
            (Pass::Backward, Some(attended)) => self.backward(attended)?,
            (Pass::Both, _) => {
                let attended = self.forward()?;
                self.backward(&attended)?;
            }
            _ => drop(self.forward()?),
        }
        self.last = start.elapsed().as_secs_f64();
        Ok(Sample { seconds: self.last, ..Sample::default() })
    }

    fn beside(&mut self) {
        let speed = self.speed(self.last);
        for (unit, beside) in &mut self.units {
            let peak = unit.measure(self.arguments.threads);
            beside.peaks.push(peak);
            beside.shares.push(speed / peak);
        }
    }
}

impl Subject for Point {
    fn describe(&self) -> Fields {
        let arguments::Attention { shape, dtype, pass, threads, .. } = &self.arguments;
        fields(json!({
            "bench": "attention", "tokens": self.tokens, "heads": shape.heads,
            "kv_heads": shape.groups(), "head_dim": shape.head_dim, "mask": shape.mask.name,
            "dtype": word(dtype), "pass": word(pass), "threads": threads,
        }))
    }

    fn threads(&self) -> usize {
        self.arguments.threads
    }

    fn summary(&self, seconds: Quartiles, _: &[Sample]) -> Fields {
        let mut fields = fields(json!({ "gflops": self.speed(seconds.median) }));
        for (index, (unit, beside)) in self.units.iter().enumerate() {
            let prefix = if index == 0 { "" } else { "bf16_" };
            let [peak, share] =
                [&beside.peaks, &beside.shares].map(|all| Quartiles::of(all).median);
            fields.insert(format!("{prefix}unit"), Value::from(unit.name));
            fields.insert(format!("{prefix}peak_gflops"), json!(peak));
            fields.insert(format!("{prefix}of_peak"), json!(share));
        }
        fields
    }

    fn has_figure(&self) -> bool {
        true
    }

    fn figure(&self) -> f64 {
        self.units.first().map_or(f64::NAN, |(_, beside)| Quartiles::of(&beside.shares).median)
    }
}
