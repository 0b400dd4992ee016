//! Memory of every rank while the sequence grows with the ranks: `memory`.
//!
//! The model is that of `step`. The class of a block is charged where it is allocated; a peak is the
//! most of a class at once, whenever that was. Under a launcher of MPI the ranks are shared among its
//! processes, and what each has in memory stands beside what was planned for it.

use annulus_comm::World;
use annulus_experiment::{Offload, parse};
use annulus_memory::{ByClass, Class};
use annulus_plan::Plan;
use annulus_train::{Memory, OfProcesses, ProcessMemory, measure_over, ranks_on_host};
use anyhow::Result;
use serde_json::{Value, json};

use crate::arguments;
use crate::llama::planned;
use crate::model::Model;
use crate::record::Record;
use crate::session::Verdict;
use crate::subject::{Fields, fields};

/// Prints a line for every number of ranks, and one with the evenness and the distance from the plan.
pub(crate) fn run(arguments: &arguments::Memory) -> Result<Verdict> {
    let world = World::init(|| ())?;
    let told = measure(arguments, &world);
    let why = told.as_ref().err().map(ToString::to_string);
    world.end(i32::from(why.is_some()), why.as_deref());
    told
}

fn measure(arguments: &arguments::Memory, world: &World) -> Result<Verdict> {
    // All ranks get the results, and the first writes them.
    let first = world.process() == 0;
    let mut record = Record::open(arguments.record.as_deref().filter(|_| first))?;
    let (mut found, mut off) = (Vec::new(), 0.0_f64);
    for &ranks in &arguments.ranks {
        let plan = plan(arguments, ranks, world)?;
        let all = measure_over(world, &plan, arguments.steps as u64, arguments.threads)?;
        if first {
            record.conclude(&describe(arguments, ranks, &all))?;
        }
        off = all.processes.iter().map(|held| distance_of(*held)).fold(off, f64::max);
        found.push((ranks, all.ranks.into_iter().map(|rank| rank.memory).collect()));
    }
    if !first {
        return Ok(Verdict::Fine);
    }
    let (unflat, (unplanned, which)) = (unevenness(&found), distance(&found));
    record.tell(&fields(json!({
        "bench": "memory", "uneven": unflat, "from_plan": unplanned, "furthest": which,
        "resident_from_plan": off,
    })))?;
    let flat = Verdict::at_most(unflat, arguments.flat);
    let flat = flat.or(Verdict::at_most(off, arguments.resident));
    Ok(flat.or(Verdict::at_most(unplanned, arguments.planned)))
}

/// The plan of the experiment on synthetic sequences, whose length grows with the ranks.
fn plan(arguments: &arguments::Memory, ranks: usize, world: &World) -> Result<Plan> {
    let arguments::Memory { tokens, strategy, recompute, layers, .. } = arguments;
    let model = Model { layers: *layers, ..Model::SMALL };
    let yaml =
        model.experiment(ranks * tokens, ranks, *strategy, *recompute, Offload::None, "recall");
    let mut experiment = parse("bench", &yaml, &[])?;
    experiment.host.here = Some(ranks_on_host(world, ranks)?);
    experiment.host.processes = world.processes();
    planned(experiment, None)
}

fn describe(arguments: &arguments::Memory, ranks: usize, all: &OfProcesses) -> Fields {
    let by_rank = all.ranks.iter().map(|rank| {
        let memory = &rank.memory;
        json!({
            "measured": classes(memory.measured),
            "planned": classes(memory.planned),
            "together": memory.together,
            "planned_together": memory.planned_together,
        })
    });
    let by_process = all.processes.iter().map(|process| {
        let ProcessMemory { resident, planned, base } = *process;
        json!({ "resident": resident, "planned": planned, "base": base })
    });
    let by_process = Value::Array(by_process.collect());
    fields(json!({
        "bench": "memory", "by_process": by_process, "tokens": ranks * arguments.tokens, "ranks": ranks,
        "strategy": arguments.strategy.name(), "recompute": arguments.recompute.word(),
        "threads": arguments.threads, "by_rank": Value::Array(by_rank.collect()),
    }))
}

fn classes(peak: ByClass) -> Value {
    peak.named().into_iter().map(|(name, bytes)| (name.to_owned(), json!(bytes))).collect()
}

/// The distance of a process's resident memory from its plan, as a fraction of the plan; 0 without a plan.
fn distance_of(held: ProcessMemory) -> f64 {
    held.planned
        .map_or(0.0, |planned| held.resident.abs_diff(planned) as f64 / planned.max(1) as f64)
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
