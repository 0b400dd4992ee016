//! `annulus plan` against runs: bytes, peak memory and the order of step times
//! of strategies on ranks that are threads: `plan`.
//!
//! The rates that step times are planned with are measured first, as `strategy: auto` does. Rounds
//! go through all strategies, so that what disturbs meets all of them.

use annulus_experiment::{Kernel, Offload, Recompute, parse};
use annulus_plan::Plan;
use annulus_sequence::Strategy;
use annulus_simulate::{Cluster, Estimate};
use annulus_train::{Measured, Processors, SpeedProbe, measure};
use anyhow::Result;
use candle_core::DType;
use clap::Args;
use serde_json::{Value, json};

use crate::llama::planned;
use crate::model::Model;
use crate::record::Record;
use crate::session::Verdict;
use crate::statistics::Quartiles;
use crate::subject::{Fields, fields};
use crate::values::{count, positive, recompute, strategy};

/// `plan`
#[derive(Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// Positions of the sequence
    #[arg(long, default_value = "8k", value_parser = count)]
    pub(crate) tokens: usize,
    /// Number of ranks
    #[arg(long, default_value_t = 4, value_parser = positive)]
    pub(crate) ranks: usize,
    /// How they share the sequence; several with commas
    #[arg(long, default_value = "ring,striped,megatron,all-gather,ulysses", value_delimiter = ',',
        value_parser = strategy)]
    pub(crate) strategies: Vec<Strategy>,
    /// Activation checkpointing: `none` or `layer`
    #[arg(long, default_value = "layer", value_parser = recompute)]
    pub(crate) recompute: Recompute,
    /// Steps of a round, after one that is not timed
    #[arg(long, default_value_t = 2, value_parser = positive)]
    pub(crate) steps: usize,
    /// Rounds through all strategies
    #[arg(long, default_value_t = 3, value_parser = positive)]
    pub(crate) rounds: usize,
    /// Threads, over all ranks
    #[arg(long, default_value_t = annulus_machine::cores(), value_parser = positive)]
    pub(crate) threads: usize,
    /// Steps that are planned nearer to each other than this share may come in either order
    #[arg(long, default_value_t = 0.05, value_name = "SHARE")]
    pub(crate) apart: f64,
    /// Append the results to `experiments/results/NAME.jsonl`
    #[arg(long, value_name = "NAME")]
    pub(crate) record: Option<String>,
}

/// How far peak memory may be from the plan.
const MEMORY: f64 = 0.1;

/// One strategy, planned and measured.
struct Case {
    strategy: Strategy,
    plan: Plan,
    /// Seconds of a step, as planned.
    step: f64,
    /// Seconds of every step but the first of a round: of the slowest rank.
    seconds: Vec<f64>,
    ranks: Vec<Measured>,
}

/// A line for every strategy, and one that says whether the plan was right.
pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    let mut record = Record::open(arguments.record.as_deref())?;
    let [_, _, head_dim] = Model::SMALL.heads();
    let (cores, processors) = (arguments.threads, Processors::default());
    let (kernel, deterministic, dtype) = (Kernel::Fused, true, DType::F32);
    let probe = SpeedProbe { head_dim, dtype, kernel, deterministic, cores, processors };
    let cluster = probe.measure(arguments.ranks)?;
    let cases = arguments.strategies.iter().map(|strategy| case(arguments, *strategy, &cluster));
    let mut cases = cases.collect::<Result<Vec<Case>>>()?;
    for _ in 0..arguments.rounds {
        for case in &mut cases {
            case.ranks = measure(&case.plan, arguments.steps as u64 + 1, arguments.threads)?;
            for step in 1..=arguments.steps {
                let of_ranks = case.ranks.iter().map(|rank| rank.seconds[step]);
                case.seconds.push(of_ranks.fold(0.0, f64::max));
            }
        }
    }
    for case in &cases {
        record.conclude(&case.describe(arguments))?;
    }
    let wrong = disorder(&cases, arguments.apart);
    let bytes = cases.iter().all(|case| case.ranks.iter().all(|r| r.bytes == r.planned_bytes));
    let memory = cases.iter().map(Case::off).fold(0.0, f64::max);
    record.tell(&fields(json!({
        "bench": "plan", "bytes_equal": bytes, "memory_off": memory, "wrong_order": wrong,
        "cluster": cluster.to_text(),
    })))?;
    Ok(verdict(bytes, memory, &wrong))
}

fn verdict(bytes: bool, memory: f64, wrong: &[String]) -> Verdict {
    if !bytes {
        return Verdict::Missed("bytes differ from the plan".to_owned());
    }
    match wrong {
        [] => Verdict::at_most(memory, Some(MEMORY)),
        wrong => Verdict::Missed(wrong.join("; ")),
    }
}

fn case(arguments: &Arguments, strategy: Strategy, cluster: &Cluster) -> Result<Case> {
    let Arguments { tokens, ranks, recompute, .. } = arguments;
    let yaml =
        Model::SMALL.experiment(*tokens, *ranks, strategy, *recompute, Offload::None, "recall");
    let plan = planned(parse("bench", &yaml, &[])?, None)?;
    let estimate = Estimate::of(&plan, cluster)?;
    Ok(Case { strategy, plan, step: estimate.step, seconds: Vec::new(), ranks: Vec::new() })
}

impl Case {
    /// How far the rank that is furthest from its planned memory is from it.
    fn off(&self) -> f64 {
        let off = |rank: &Measured| {
            let (held, planned) = (rank.memory.together, rank.memory.planned_together);
            held.abs_diff(planned) as f64 / planned as f64
        };
        self.ranks.iter().map(off).fold(0.0, f64::max)
    }

    fn measured(&self) -> f64 {
        Quartiles::of(&self.seconds).median
    }

    fn describe(&self, arguments: &Arguments) -> Fields {
        let by_rank = self.ranks.iter().map(|rank| {
            json!({
                "bytes": rank.bytes, "planned_bytes": rank.planned_bytes,
                "memory": rank.memory.together, "planned_memory": rank.memory.planned_together,
            })
        });
        let Quartiles { low, median, high } = Quartiles::of(&self.seconds);
        fields(json!({
            "bench": "plan", "strategy": self.strategy.name(), "tokens": arguments.tokens,
            "ranks": arguments.ranks, "threads": arguments.threads,
            "step": { "low": low, "median": median, "high": high }, "planned_step": self.step,
            "by_rank": Value::Array(by_rank.collect()),
        }))
    }
}

/// Pairs of strategies whose planned steps are further apart than this share, and whose measured
/// steps are the other way round.
fn disorder(cases: &[Case], apart: f64) -> Vec<String> {
    let mut wrong = Vec::new();
    for fast in cases {
        for slow in cases.iter().filter(|slow| slow.step > (1.0 + apart) * fast.step) {
            let [a, b] = [fast.measured(), slow.measured()];
            if !(a < b) {
                let [fast, slow] = [fast, slow].map(|case| case.strategy.name());
                wrong.push(format!(
                    "`{fast}` was planned to be faster than `{slow}`: {a:.3} s, {b:.3} s"
                ));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Command;

    #[test]
    fn an_order_is_wrong_only_where_the_plan_was_sure() -> Result<()> {
        let words = "plan --threads 2 --tokens 256 --ranks 2 --strategies ring,striped";
        let words: Vec<&str> = words.split(' ').collect();
        let Command::Plan(arguments) = Command::of(&words) else { panic!("no plan") };
        let cluster = Cluster::threads(2, 2);
        let of = |strategy, step, seconds| -> Result<Case> {
            Ok(Case { step, seconds: vec![seconds], ..case(&arguments, strategy, &cluster)? })
        };
        let cases = |ring: f64| -> Result<Vec<Case>> {
            Ok(vec![of(Strategy::Ring, ring, 1.0)?, of(Strategy::STRIPED, 1.0, 1.2)?])
        };
        assert!(disorder(&cases(1.04)?, 0.05).is_empty());
        assert_eq!(disorder(&cases(1.5)?, 0.05).len(), 1);
        assert!(disorder(&cases(0.5)?, 0.05).is_empty());
        assert!(matches!(verdict(true, 0.2, &[]), Verdict::Missed(_)));
        assert!(matches!(verdict(false, 0.0, &[]), Verdict::Missed(_)));
        assert_eq!(verdict(true, 0.05, &[]), Verdict::Fine);
        Ok(())
    }
}
