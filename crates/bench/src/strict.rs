//! What order-free sums cost: `strict`.

use std::time::Instant;

use annulus_machine::blocks::strict_block;
use annulus_ops::Pool;
use annulus_ops::attention::Fused;
use annulus_sequence::{Mask, Positions, Visibility};
use anyhow::{Context, Result};
use candle_core::{DType, Device};
use clap::Args;
use serde_json::json;

use crate::attention::Inputs;
use crate::record::Record;
use crate::saves::Run;
use crate::session::Verdict;
use crate::statistics::Quartiles;
use crate::subject::fields;
use crate::values::{count, positive};

/// `strict`
#[derive(Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// Positions
    #[arg(long, default_value = "16k", value_parser = count)]
    pub(crate) tokens: usize,
    /// Pairs, in turn
    #[arg(long, default_value_t = 15, value_parser = positive)]
    pub(crate) rounds: usize,
    /// Threads
    #[arg(long, default_value_t = annulus_machine::cores(), value_parser = positive)]
    pub(crate) threads: usize,
    /// Exit with 10 where a step with order-free sums takes more than this many times one with plain sums
    #[arg(long, value_name = "RATIO")]
    pub(crate) at_most: Option<f64>,
    /// Exit with 10 where attention with order-free sums takes more than this many times plain attention
    #[arg(long, value_name = "RATIO")]
    pub(crate) attention_at_most: Option<f64>,
}

/// Query heads, and elements of each.
const HEADS: [usize; 2] = [4, 64];

/// Steps of the small model, and attention alone, forward and backward, in pairs: how many times as long strict takes.
pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    let mut record = Record::open(None)?;
    let block = strict_block(arguments.tokens).context("`--tokens` is to be a multiple of 16")?;
    let attention = Quartiles::of(&attention(arguments, block)?);
    let step = Quartiles::of(&steps(arguments)?);
    record.conclude(&fields(json!({
        "bench": "strict", "tokens": arguments.tokens, "threads": arguments.threads, "block": block,
        "pairs": arguments.rounds,
        "attention": attention.median, "attention_low": attention.low, "attention_high": attention.high,
        "step": step.median, "step_low": step.low, "step_high": step.high,
    })))?;
    let of_attention = Verdict::at_most(attention.median, arguments.attention_at_most);
    Ok(of_attention.or(Verdict::at_most(step.median, arguments.at_most)))
}

/// Ratios of attention, forward and backward of one causal tile.
fn attention(arguments: &Arguments, block: usize) -> Result<Vec<f64>> {
    let [heads, dim] = HEADS;
    let [queries, keys] = [heads, 1].map(|heads| (1, heads, arguments.tokens, dim));
    let inputs = Inputs::of_shapes(queries, keys, DType::F32, &Device::Cpu)?;
    let all = Positions::all(arguments.tokens);
    let visibility = [Visibility::new(&Mask::causal(), &all, &all)];
    let kernel = |block| Fused::new(Pool::new(arguments.threads).in_blocks(block));
    let seconds = |kernel: &Fused| -> Result<f64> {
        let start = Instant::now();
        let attended = inputs.forward(kernel, &visibility)?;
        inputs.backward(kernel, &visibility, &attended)?;
        Ok(start.elapsed().as_secs_f64())
    };
    let (fast, strict) = (kernel(None), kernel(Some(block)));
    seconds(&fast)?;
    let pair = |_| {
        let without = seconds(&fast)?;
        Ok(seconds(&strict)? / without)
    };
    (0..arguments.rounds).map(pair).collect()
}

/// Ratios of the middle steps of two runs each.
fn steps(arguments: &Arguments) -> Result<Vec<f64>> {
    let run = Run { tokens: arguments.tokens, threads: arguments.threads };
    let pair = |_| {
        let seconds = |word: &str| {
            let of_steps = run.seconds(&[("reproducible", word), ("every.checkpoint", "0")])?;
            Ok::<_, anyhow::Error>(Quartiles::of(&of_steps).median)
        };
        let fast = seconds("layout")?;
        Ok(seconds("strict")? / fast)
    };
    (0..arguments.rounds).map(pair).collect()
}
