//! Memory of every rank while the sequence grows with the ranks: `memory`.
//!
//! The model is that of `step`. The class of a block is charged where it is allocated; a peak is the
//! most of a class at once, whenever that was.

use annulus_experiment::parse;
use annulus_memory::{ByClass, Class};
use annulus_plan::Plan;
use annulus_train::{Memory, measure_memory};
use anyhow::Result;
use serde_json::{Value, json};

use crate::arguments;
use crate::llama::planned;
use crate::model::Model;
use crate::record::Record;
use crate::session::Verdict;
use crate::subject::{Fields, fields};

/// A line for every number of ranks, and one that says how flat it is and how near to the plan.
pub(crate) fn run(arguments: &arguments::Memory) -> Result<Verdict> {
    let mut record = Record::open(arguments.record.as_deref())?;
    let mut found = Vec::new();
    for &ranks in &arguments.ranks {
        let plan = plan(arguments, ranks)?;
        let memory = measure_memory(&plan, arguments.steps as u64, arguments.threads)?;
        record.conclude(&describe(arguments, ranks, &memory))?;
        found.push((ranks, memory));
    }
    let (unflat, (unplanned, which)) = (unevenness(&found), distance(&found));
    record.tell(&fields(json!({
        "bench": "memory", "uneven": unflat, "from_plan": unplanned, "furthest": which,
    })))?;
    let flat = Verdict::at_most(unflat, arguments.flat);
    Ok(flat.or(Verdict::at_most(unplanned, arguments.planned)))
}

/// The experiment on made-up sequences, as long as the ranks are many.
fn plan(arguments: &arguments::Memory, ranks: usize) -> Result<Plan> {
    let arguments::Memory { tokens, strategy, recompute, .. } = arguments;
    let yaml = Model::SMALL.experiment(ranks * tokens, ranks, *strategy, *recompute, "recall");
    planned(parse("bench", &yaml, &[])?, None)
}

fn describe(arguments: &arguments::Memory, ranks: usize, memory: &[Memory]) -> Fields {
    let by_rank = memory.iter().map(|memory| {
        json!({
            "measured": classes(memory.measured),
            "planned": classes(memory.planned),
            "together": memory.together,
            "planned_together": memory.planned_together,
        })
    });
    fields(json!({
        "bench": "memory", "tokens": ranks * arguments.tokens, "ranks": ranks,
        "strategy": arguments.strategy.name(), "recompute": arguments.recompute.word(),
        "threads": arguments.threads, "by_rank": Value::Array(by_rank.collect()),
    }))
}

fn classes(peak: ByClass) -> Value {
    peak.named().into_iter().map(|(name, bytes)| (name.to_owned(), json!(bytes))).collect()
}

/// Spread of activations with keys and values in flight over ranks and numbers of ranks, from two on, as a share of the least.
fn unevenness(found: &[(usize, Vec<Memory>)]) -> f64 {
    let split = found.iter().filter(|(ranks, _)| *ranks > 1).flat_map(|(_, memory)| memory);
    let bytes = split.map(|Memory { measured, .. }| {
        (measured[Class::Activations] + measured[Class::KeyValue]) as f64
    });
    let (least, most) = bytes.fold((f64::INFINITY, 0.0), |(least, most): (f64, f64), bytes| {
        (least.min(bytes), most.max(bytes))
    });
    if most == 0.0 { 0.0 } else { most / least - 1.0 }
}

/// Distance of the class that is furthest from the plan, as a share of the plan, and its name.
fn distance(found: &[(usize, Vec<Memory>)]) -> (f64, String) {
    let mut worst = (0.0, String::new());
    for (ranks, memory) in found {
        for Memory { rank, measured, planned, .. } in memory {
            for ((class, measured), (_, planned)) in
                std::iter::zip(measured.named(), planned.named())
            {
                let off = measured.abs_diff(planned) as f64;
                let share = if off == 0.0 { 0.0 } else { off / planned as f64 };
                if share > worst.0 {
                    worst = (share, format!("{class} of rank {rank} of {ranks}"));
                }
            }
        }
    }
    worst
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(activations: u64, key_value: u64, planned: u64) -> Memory {
        let peak = |activations| {
            let peak = ByClass::default().with(Class::KeyValue, key_value);
            peak.with(Class::Activations, activations)
        };
        let (measured, planned) = (peak(activations), peak(planned));
        Memory { rank: 0, measured, planned, together: 0, planned_together: 0 }
    }

    #[test]
    fn flatness_is_from_two_ranks_on_and_the_plan_is_held_to_every_class() {
        let found =
            [(1, vec![memory(50, 0, 50)]), (2, vec![memory(90, 10, 100), memory(92, 10, 92)])];
        assert!((unevenness(&found) - 0.02).abs() < 1e-12);
        let (share, which) = distance(&found);
        assert!((share - 0.1).abs() < 1e-12);
        assert_eq!(which, "activations of rank 0 of 2");
        assert_eq!((unevenness(&found[..1]), distance(&found[..1]).0), (0.0, 0.0));
        assert_eq!(distance(&[(2, vec![memory(1, 0, 0)])]).0, f64::INFINITY);
    }
}
