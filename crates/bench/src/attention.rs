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
    units: Vec<Unit>,
    /// GFLOP/s by unit, one for every sample.
    peaks: Vec<Vec<f64>>,
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
        let mut units = vec![Unit::f32()];
        if arguments.dtype == Dtype::Bf16 {
            units.extend(Unit::bf16());
        }
        let peaks = vec![Vec::new(); units.len()];
        let arguments = arguments.clone();
        let mut point = Point { arguments, tokens, kernel, inputs, attended: None, units, peaks };
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
        Ok(Sample { seconds: start.elapsed().as_secs_f64(), ..Sample::default() })
    }

    fn beside(&mut self) {
        for (unit, peaks) in self.units.iter().zip(&mut self.peaks) {
            peaks.push(unit.measure(self.arguments.threads));
        }
    }

    fn summary(&self, seconds: Quartiles, _: &[Sample]) -> Fields {
        let mut fields = Fields::new();
        let speed = self.speed(seconds);
        fields.insert("gflops".into(), json!(speed));
        for (index, (unit, peaks)) in self.units.iter().zip(&self.peaks).enumerate() {
            let peak = Quartiles::of(peaks).median;
            let prefix = if index == 0 { "" } else { "bf16_" };
            fields.insert(format!("{prefix}unit"), Value::from(unit.name));
            fields.insert(format!("{prefix}peak_gflops"), json!(peak));
            fields.insert(format!("{prefix}of_peak"), json!(speed / peak));
        }
        fields
    }

    fn figure(&self, seconds: Quartiles) -> Option<f64> {
        let peak = Quartiles::of(&self.peaks[0]).median;
        Some(self.speed(seconds) / peak)
    }
}

impl Point {
    /// GFLOP/s.
    fn speed(&self, seconds: Quartiles) -> f64 {
        let forward = operations(&self.arguments.shape, self.tokens);
        forward * self.arguments.pass.operations() / seconds.median / 1e9
    }
}
