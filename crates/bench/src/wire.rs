//! The cost of narrow communication types: errors against dense attention in f64 of the same rounded
//! inputs, and bytes, by types and numbers of ranks: `wire`.

use std::sync::Arc;
use std::time::Duration;

use annulus_attention::{Attention, CallSite, Qkv};
use annulus_comm::{Communicator, Metered, threads};
use annulus_ops::attention::{Dense, Fused, dense};
use annulus_ops::testing::to_f64;
use annulus_ops::{Key, Pool, normal};
use annulus_sequence::{Heads, Mask, Positions, Route, Schedules, Setting, Strategy, Wire};
use anyhow::{Result, anyhow};
use candle_core::{DType, Device, Tensor};
use clap::Args;
use serde_json::json;

use crate::record::Record;
use crate::session::Verdict;
use crate::subject::fields;
use crate::values::{count, positive, strategy};

/// `wire`
#[derive(Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// Positions of the sequence; the reference takes time with their square
    #[arg(long, default_value = "1k", value_parser = count)]
    tokens: usize,
    /// Query heads; every two share keys and values
    #[arg(long, default_value_t = 4, value_parser = positive)]
    heads: usize,
    /// Elements per head
    #[arg(long, default_value_t = 64, value_parser = positive)]
    head_dim: usize,
    /// How ranks share the sequence; several with commas
    #[arg(long, default_value = "striped,all-gather", value_delimiter = ',', value_parser = strategy)]
    strategies: Vec<Strategy>,
    /// On how many ranks; several with commas
    #[arg(long, default_value = "2,4,8,16", value_delimiter = ',', value_parser = positive)]
    ranks: Vec<usize>,
    /// Print the rows of a table instead of lines of JSON
    #[arg(long, conflicts_with = "record")]
    table: bool,
    /// Append the results to `experiments/results/NAME.jsonl`
    #[arg(long, value_name = "NAME")]
    record: Option<String>,
}

type Types = Wire<Option<DType>>;

/// Types of keys and values, and of their gradients, in communication.
const TYPES: [[DType; 2]; 4] = [
    [DType::F32, DType::F32],
    [DType::BF16, DType::F32],
    [DType::BF16, DType::F16],
    [DType::BF16, DType::BF16],
];

/// One strategy with some types, on every number of ranks.
struct Series {
    strategy: Strategy,
    route: Route,
    types: [DType; 2],
    points: Vec<Point>,
}

/// Measurements on one number of ranks.
struct Point {
    ranks: usize,
    /// |a - b| / |b| of out, dq, dk and dv, in the Euclidean norm.
    errors: [f64; 4],
    /// Bytes of the rank that sends most, forward and backward.
    bytes: u64,
}

/// Prints errors and bytes of all types on all numbers of ranks.
pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    let question = Question::new(arguments)?;
    let mut record = Record::open(arguments.record.as_deref())?;
    for types in TYPES {
        let [key_value, gradient] = types.map(Some);
        let wire = Wire { key_value, gradient, ..Types::default() };
        let exact = question.dense(types[0])?;
        for strategy in &arguments.strategies {
            let routes = strategy.routes().iter().filter(|route| **route != Route::Queries);
            for &route in routes {
                let point = |ranks: &usize| question.point(*strategy, route, *ranks, wire, &exact);
                let points = arguments.ranks.iter().map(point).collect::<Result<_>>()?;
                let series = Series { strategy: *strategy, route, types, points };
                series.tell(arguments.table, &mut record)?;
            }
        }
    }
    Ok(Verdict::Fine)
}

impl Series {
    fn tell(&self, table: bool, record: &mut Record) -> Result<()> {
        let [key_value, gradient] = self.types.map(|dtype| dtype.as_str());
        let (strategy, route) = (self.strategy.name(), format!("{:?}", self.route).to_lowercase());
        if table {
            print_row(&[strategy, &route, key_value, gradient], &self.points);
            return Ok(());
        }
        for Point { ranks, errors: [out, dq, dk, dv], bytes } in &self.points {
            record.tell(&fields(json!({
                "strategy": strategy, "back": route, "key_value": key_value, "gradient": gradient,
                "ranks": ranks, "out": out, "dq": dq, "dk": dk, "dv": dv, "bytes": bytes,
            })))?;
        }
        Ok(())
    }
}

/// The larger of the errors of dk and dv, and the bytes, on every number of ranks.
#[expect(clippy::print_stdout, reason = "the table is what was asked for")]
fn print_row(names: &[&str; 4], points: &[Point]) {
    let cell = |point: &Point| {
        let [_, _, dk, dv] = point.errors;
        format!("{:.1e}, {:.2} MB", dk.max(dv), point.bytes as f64 / 1e6)
    };
    let cells: Vec<String> = points.iter().map(cell).collect();
    println!("| {} | {} |", names.join(" | "), cells.join(" | "));
}

/// Peaked attention, causal.
struct Question {
    qkv: Qkv,
    gradient: Tensor,
    heads: Heads,
    tokens: usize,
    scale: f64,
}

impl Question {
    fn new(arguments: &Arguments) -> Result<Question> {
        let Arguments { tokens, heads, head_dim, .. } = *arguments;
        let heads = Heads { query: heads, key_value: heads.div_ceil(2) };
        let random = |name: &str, heads: usize| {
            let key = Key { seed: 1, purpose: "wire", name };
            let values = normal(key, 0, heads * tokens * head_dim);
            Tensor::from_vec(values, (1, heads, tokens, head_dim), &Device::Cpu)? * 2.0
        };
        let q = random("q", heads.query)?;
        let (k, v) = (random("k", heads.key_value)?, random("v", heads.key_value)?);
        let gradient = random("gradient", heads.query)?;
        let scale = 1.0 / (head_dim as f64).sqrt();
        Ok(Question { qkv: Qkv { q, k, v }, gradient, heads, tokens, scale })
    }

    /// The reference with keys and values rounded to `dtype`.
    fn dense(&self, dtype: DType) -> Result<Dense> {
        let (Qkv { q, k, v }, all) = (&self.qkv, Positions::all(self.tokens));
        let [k, v] = [k, v].map(|tensor| tensor.to_dtype(dtype));
        let mask = Mask::causal();
        Ok(dense([q, &k?, &v?, &self.gradient], &mask, [&all, &all], self.scale, None)?)
    }

    fn point(
        &self,
        strategy: Strategy,
        route: Route,
        ranks: usize,
        wire: Types,
        exact: &Dense,
    ) -> Result<Point> {
        let deadline = Duration::from_secs(60);
        let options = threads::Options { world: ranks, deadline, stop: Arc::default() };
        let setting = Setting::new(strategy, self.tokens, ranks, self.heads);
        let schedules = Setting { route, ..setting }.schedules(&Mask::causal());
        let schedules = Arc::new(schedules.map_err(|error| anyhow!("{error}"))?);
        let parts = threads::run(&options, |comm| self.here(&schedules, comm, wire));
        let parts = parts.map_err(|failure| anyhow!("{failure}"))?;
        let bytes = parts.iter().map(|(_, _, bytes)| *bytes).max().unwrap_or_default();
        let mut errors = [0.0; 4];
        let exact = [&exact.out, &exact.dq, &exact.dk, &exact.dv];
        for (index, (error, exact)) in errors.iter_mut().zip(exact).enumerate() {
            let (mut off, mut norm) = (0.0, 0.0);
            for (positions, tensors, _) in &parts {
                let ours = to_f64(&tensors[index])?;
                let exact = to_f64(&rows(exact, positions)?)?;
                off += std::iter::zip(&ours, &exact).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
                norm += exact.iter().map(|b| b * b).sum::<f64>();
            }
            *error = (off / norm).sqrt();
        }
        Ok(Point { ranks, errors, bytes })
    }

    /// Positions, results and sent bytes of one rank.
    fn here(
        &self,
        schedules: &Arc<Schedules>,
        comm: Arc<dyn Communicator>,
        wire: Types,
    ) -> Result<(Positions, [Tensor; 4], u64)> {
        let meter = Metered::new(comm);
        let kernel = Arc::new(Fused::new(Pool::serial()));
        let attention = Attention::new(schedules.clone(), self.scale, meter.clone(), kernel)
            .with_wire_dtypes(wire);
        let here = attention.positions();
        let Qkv { q, k, v } = &self.qkv;
        let qkv = Qkv { q: rows(q, here)?, k: rows(k, here)?, v: rows(v, here)? };
        let done = attention.forward(CallSite::default(), &qkv)?;
        let out = done.out.clone();
        let gradient = rows(&self.gradient, here)?;
        let Qkv { q, k, v } = attention.backward(CallSite::default(), qkv, done, gradient)?;
        Ok((here.clone(), [out, q, k, v], meter.take().bytes.values().sum()))
    }
}

fn rows(tensor: &Tensor, positions: &Positions) -> candle_core::Result<Tensor> {
    let index: Vec<u32> = positions.iter().map(|position| position as u32).collect();
    let count = index.len();
    tensor.index_select(&Tensor::from_vec(index, count, &Device::Cpu)?, 2)
}
