//! Attention, or the whole step, split over ranks: `ring`.
//!
//! Under a causal mask contiguous shards leave ranks waiting: the last has (2 P - 1) / P² of the
//! work where 1 / P would be its share, so a balanced strategy can be 2 - 1 / P times faster where
//! ranks keep to their cores (`--apart`). That bound is printed beside what was measured. Ranks of
//! one process help each other, so that there it is 1.

use std::sync::Arc;
use std::time::Instant;

use annulus_attention::{Attention, CallSite, Qkv};
use annulus_comm::Communicator;
use annulus_experiment::{Device, Offload};
use annulus_ops::attention::Fused;
use annulus_ops::{Cores, Pool};
use annulus_sequence::{Heads, Layout, Schedules, Setting, Strategy};
use anyhow::{Result, anyhow, bail};
use serde_json::json;

use crate::arguments::{self, Part, Pass, word};
use crate::attention::{Inputs, operations};
use crate::crew::{Crew, Work};
use crate::session::{Compared, Verdict, between};
use crate::statistics::Quartiles;
use crate::step;
use crate::subject::{Fields, Sample, Side, Subject, fields};

/// Measures what `--part` says.
pub(crate) fn run(arguments: &arguments::Ring) -> Result<Verdict> {
    match arguments.part {
        Part::Attention => attention(arguments),
        Part::Step => whole_step(arguments),
    }
}

/// Attention alone, against another strategy.
fn attention(arguments: &arguments::Ring) -> Result<Verdict> {
    if arguments.model.device != Device::Cpu {
        bail!("`--part attention` runs on the CPU; `--part step` on a GPU too");
    }
    let than = arguments.than.unwrap_or(Strategy::Ring);
    let mut split = Split::new(arguments, arguments.strategy, arguments.ranks)?;
    if arguments.common.serve || arguments.common.against.is_some() {
        return crate::session::measure(&arguments.common, &mut split);
    }
    let mut other = Split::new(arguments, than, ranks(than, arguments.ranks))?;
    let bound = imbalance(arguments, than) / imbalance(arguments, arguments.strategy);
    between(&arguments.common, &mut split, &mut other, |compared, line| {
        line.insert("bound".into(), json!(bound));
        compared.ratio
    })
}

/// The step, against the unsplit one, whose losses must agree. Ranks help each other, so that no strategy need cost more.
fn whole_step(arguments: &arguments::Ring) -> Result<Verdict> {
    if arguments.apart {
        bail!("`--apart` is of `--part attention`: the ranks of a step help each other");
    }
    let than = arguments.than.unwrap_or(Strategy::Local);
    let point =
        |strategy, ranks| step::Point::of(&of_step(arguments, strategy, ranks), arguments.tokens);
    let mut split = point(arguments.strategy, arguments.ranks)?;
    if arguments.common.serve || arguments.common.against.is_some() {
        return crate::session::measure(&arguments.common, &mut split);
    }
    let mut other = point(than, ranks(than, arguments.ranks))?;
    let mut agreed = Verdict::Fine;
    let fast = between(&arguments.common, &mut split, &mut other, |compared, line| {
        let Compared { ratio, samples, .. } = compared;
        let (losses, verdict) = step::losses(arguments.model.dtype, samples);
        line.extend(losses);
        agreed = verdict;
        line.insert("cost".into(), json!(1.0 / ratio));
        *ratio
    })?;
    Ok(agreed.or(fast))
}

/// `local` runs on one rank.
fn ranks(strategy: Strategy, ranks: usize) -> usize {
    if strategy == Strategy::Local { 1 } else { ranks }
}

/// Work of the busiest rank as a multiple of its share, where each keeps to a core or more of its own; else waiting ranks
/// leave their cores to others.
fn imbalance(arguments: &arguments::Ring, strategy: Strategy) -> f64 {
    let causal = arguments.shape.mask.name == "causal";
    let ranks = ranks(strategy, arguments.ranks);
    let apart = arguments.apart && ranks <= arguments.threads;
    if strategy.layout() == Layout::Contiguous && causal && apart {
        2.0 - 1.0 / ranks as f64
    } else {
        1.0
    }
}

/// The arguments of `step` for the same model and split.
fn of_step(arguments: &arguments::Ring, strategy: Strategy, ranks: usize) -> arguments::Step {
    arguments::Step {
        tokens: vec![arguments.tokens],
        model: arguments.model.clone(),
        recompute: arguments.recompute,
        offload: Offload::None,
        threads: arguments.threads,
        ranks,
        strategy,
        export: None,
        transformers: false,
        python: None,
        longest: None,
        peak: Vec::new(),
        common: arguments.common.clone(),
    }
}

/// An attention that is shared by ranks.
struct Split {
    arguments: arguments::Ring,
    strategy: Strategy,
    ranks: usize,
    crew: Crew<()>,
}

impl Split {
    fn new(arguments: &arguments::Ring, strategy: Strategy, ranks: usize) -> Result<Split> {
        let (of_all, cores) = (arguments.clone(), Cores::from(arguments.threads));
        let setting = Setting::new(
            strategy,
            arguments.tokens,
            ranks,
            Heads { query: arguments.shape.heads, key_value: arguments.shape.groups() },
        );
        let schedules = setting.schedules(&arguments.shape.mask.mask);
        let schedules = Arc::new(schedules.map_err(|error| anyhow!("{error}"))?);
        let crew = Crew::start(ranks, move |comm| member(&of_all, &schedules, &cores, comm))?;
        Ok(Split { arguments: arguments.clone(), strategy, ranks, crew })
    }
}

/// One rank: its share of the threads, its own queries, keys and values.
fn member(
    arguments: &arguments::Ring,
    schedules: &Arc<Schedules>,
    cores: &Cores,
    comm: Arc<dyn Communicator>,
) -> Result<Work<()>> {
    let scale = 1.0 / (arguments.shape.head_dim as f64).sqrt();
    let pool = if arguments.apart {
        Pool::new((arguments.threads / comm.world_size()).max(1))
    } else {
        Pool::share(cores, comm.world_size(), || ())
    };
    let kernel = Arc::new(Fused::new(pool));
    let attention = Attention::new(schedules.clone(), scale, comm, kernel);
    let (own, dtype) = (attention.positions().tokens(), arguments.model.dtype.candle());
    let Inputs { q, k, v, gradient } = Inputs::random(&arguments.shape, own, dtype)?;
    let qkv = Qkv { q, k, v };
    let place = CallSite::default();
    let kept = match arguments.pass {
        Pass::Backward => Some(attention.forward(place, &qkv)?),
        Pass::Forward | Pass::Both => None,
    };
    let pass = arguments.pass;
    Ok(Box::new(move || {
        let attended = match &kept {
            Some(attended) => attended.clone(),
            None => attention.forward(place, &qkv)?,
        };
        if pass != Pass::Forward {
            attention.backward(place, qkv.clone(), attended, gradient.clone())?;
        }
        Ok(())
    }))
}

impl Side for Split {
    fn sample(&mut self) -> Result<Sample> {
        let start = Instant::now();
        self.crew.go()?;
        Ok(Sample { seconds: start.elapsed().as_secs_f64(), ..Sample::default() })
    }
}

impl Subject for Split {
    fn describe(&self) -> Fields {
        let arguments::Ring { tokens, model, shape, pass, threads, .. } = &self.arguments;
        fields(json!({
            "bench": "ring", "part": "attention", "tokens": tokens, "ranks": self.ranks,
            "strategy": self.strategy.name(), "heads": shape.heads, "kv_heads": shape.groups(),
            "head_dim": shape.head_dim, "mask": shape.mask.name, "dtype": word(&model.dtype),
            "pass": word(pass), "threads": threads,
        }))
    }

    fn threads(&self) -> usize {
        self.arguments.threads
    }

    fn summary(&self, seconds: Quartiles, _: &[Sample]) -> Fields {
        let all = operations(&self.arguments.shape, self.arguments.tokens);
        let speed = all * self.arguments.pass.operations() / seconds.median / 1e9;
        fields(json!({ "gflops": speed }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Command;

    fn ring(words: &str) -> arguments::Ring {
        let words: Vec<&str> =
            ["ring", "--threads", "4"].into_iter().chain(words.split(' ')).collect();
        let Command::Ring(ring) = Command::of(&words) else { panic!("no ring") };
        ring
    }

    #[test]
    fn contiguous_shards_are_unbalanced_under_a_causal_mask() {
        let four = ring("--ranks 4 --apart");
        assert_eq!(imbalance(&four, Strategy::Ring), 1.75);
        assert_eq!(imbalance(&four, Strategy::STRIPED), 1.0);
        assert_eq!(imbalance(&four, Strategy::Local), 1.0);
        assert_eq!(imbalance(&ring("--ranks 8 --apart"), Strategy::Ring), 1.0);
        assert_eq!(imbalance(&ring("--ranks 4"), Strategy::Ring), 1.0, "they help each other");
        assert_eq!(imbalance(&ring("--mask full --apart"), Strategy::Ring), 1.0);
        assert_eq!(imbalance(&ring("--ranks 2 --apart"), Strategy::Ring), 1.5);
    }
}
