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
use crate::peak::Unit;
use crate::session::{Verdict, measure};
use crate::statistics::Quartiles;
use crate::subject::{Fields, Sample, Subject};

/// One point after the other.
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
    /// What the forward pass left, where backward alone is timed.
    attended: Option<Attended>,
    units: Vec<(Unit, Beside)>,
    /// Seconds of the last sample.
    last: f64,
}

/// What a unit does beside every sample.
#[derive(Default)]
struct Beside {
    /// GFLOP/s.
    peaks: Vec<f64>,
    /// The sample's, as a share of it: a core may be slow for some samples.
    shares: Vec<f64>,
}

/// What an attention is given: [1, H, N, D], [1, Hkv, N, D].
pub(crate) struct Inputs {
    pub(crate) q: Tensor,
    pub(crate) k: Tensor,
    pub(crate) v: Tensor,
    /// Of the output.
    pub(crate) gradient: Tensor,
}

impl Inputs {
    /// Standard normal numbers.
    pub(crate) fn random(shape: &Shape, tokens: usize, dtype: DType) -> Result<Inputs> {
        let random = |name: &str, heads: usize| {
            let len = heads * tokens * shape.head_dim;
            let numbers = normal(Key { seed: 0, purpose: "bench", name }, 0, len);
            let tensor =
                Tensor::from_vec(numbers, (1, heads, tokens, shape.head_dim), &Device::Cpu)?;
            tensor.to_dtype(dtype)
        };
        Ok(Inputs {
            q: random("q", shape.heads)?,
            k: random("k", shape.groups())?,
            v: random("v", shape.groups())?,
            gradient: random("gradient", shape.heads)?,
        })
    }
}

/// Operations of a forward pass of `tokens` positions.
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

    fn scale(&self) -> f64 {
        1.0 / (self.arguments.shape.head_dim as f64).sqrt()
    }

    fn visibility(&self) -> [Visibility; 1] {
        let all = Positions::all(self.tokens);
        [Visibility::new(&self.arguments.shape.mask.mask, &all, &all)]
    }

    fn forward(&self) -> Result<Attended> {
        let Inputs { q, k, v, .. } = &self.inputs;
        let visibility = self.visibility();
        let mut state = self.kernel.begin(q, self.scale())?;
        let tile = Tile::new(k, v, &visibility);
        self.kernel.forward(&[tile], &mut *state, &|| Ok(()))?;
        Ok(self.kernel.finish(state)?)
    }

    fn backward(&self, attended: &Attended) -> Result<()> {
        let Inputs { q, k, v, gradient } = &self.inputs;
        let visibility = self.visibility();
        let mut state = self.kernel.begin_backward(q, attended, gradient, self.scale())?;
        let tile = BackwardTile { tile: Tile::new(k, v, &visibility), carried: None };
        self.kernel.backward(vec![tile], &mut *state, &|| Ok(()))?;
        self.kernel.finish_backward(state)?;
        Ok(())
    }
}

impl Subject for Point {
    fn describe(&self) -> Fields {
        let shape = &self.arguments.shape;
        Fields::from_iter(
            [
                ("bench", json!("attention")),
                ("tokens", json!(self.tokens)),
                ("heads", json!(shape.heads)),
                ("kv_heads", json!(shape.groups())),
                ("head_dim", json!(shape.head_dim)),
                ("mask", json!(shape.mask.name)),
                ("dtype", json!(word(&self.arguments.dtype))),
                ("pass", json!(word(&self.arguments.pass))),
                ("threads", json!(self.arguments.threads)),
            ]
            .map(|(key, value)| (key.to_owned(), value)),
        )
    }

    fn threads(&self) -> usize {
        self.arguments.threads
    }

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

    fn summary(&self, seconds: Quartiles, _: &[Sample]) -> Fields {
        let mut fields = Fields::new();
        fields.insert("gflops".into(), json!(self.speed(seconds.median)));
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

    fn figure(&self, _: Quartiles) -> Option<f64> {
        self.units.first().map(|(_, beside)| Quartiles::of(&beside.shares).median)
    }
}

impl Point {
    /// GFLOP/s.
    fn speed(&self, seconds: f64) -> f64 {
        let forward = operations(&self.arguments.shape, self.tokens);
        forward * self.arguments.pass.operations() / seconds / 1e9
    }
}
