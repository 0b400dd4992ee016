//! Plans, what ranks held, and how far the two may be apart.

use std::fmt::Write as _;

use annulus_experiment::Resolved;
use annulus_machine::Caches;
use annulus_memory::Class;
use annulus_plan::Plan;
use annulus_train::{Memory, measure};
use parking_lot::{Mutex, MutexGuard};

use crate::common::Place;

/// One run at a time: ranks of one process are told apart only by their number.
pub(super) fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock()
}

/// How far a class may be from its plan, as a fraction.
pub(super) const LIMIT: f64 = 0.1;
/// How far activations and KV under way may differ between numbers of ranks, as a fraction.
pub(super) const FLAT: f64 = 0.03;
/// The caches of a core, except the second-level one.
pub(super) const CACHES: Caches = Caches { first: 32 << 10, second: 0, third: 0 };
/// Rows per rank.
pub(super) const ROWS: usize = 1024;

/// A model wide enough that fixed buffers are small beside what grows with rows.
pub(super) const BASE: &[(&str, &str)] = &[
    ("model.hidden_size", "128"),
    ("model.intermediate_size", "344"),
    ("model.num_key_value_heads", "1"),
    ("data.batch", "1"),
    ("data.evaluate", "0"),
    ("memory.recompute", "layer"),
];

/// A place with a text that is long enough for all tests.
pub(super) fn place() -> Place {
    let place = Place::new();
    let mut text = String::new();
    (0..20_000).for_each(|number| write!(text, "{} ", number * 7919 % 10_007).unwrap());
    std::fs::write(place.path("text.txt"), text).unwrap();
    place
}

/// The plan of `ranks` ranks with [`ROWS`] rows each, and `changes`.
pub(super) fn plan(place: &Place, ranks: usize, strategy: &str, changes: &[(&str, &str)]) -> Plan {
    plan_with(place, BASE, ranks, strategy, changes)
}

/// The plan of [`plan`] with another base than [`BASE`].
pub(super) fn plan_with(
    place: &Place,
    base: &[(&str, &str)],
    ranks: usize,
    strategy: &str,
    changes: &[(&str, &str)],
) -> Plan {
    let (tokens, ranks) = ((ROWS * ranks).to_string(), ranks.to_string());
    let split = [
        ("data.tokens", tokens.as_str()),
        ("mesh.sequence", &ranks),
        ("attention.strategy", strategy),
    ];
    place.plan(&[base, &split, changes].concat())
}

/// The plan for a core whose second-level cache has `second` bytes.
pub(super) fn plan_for(plan: &Plan, second: usize) -> Plan {
    let mut experiment = plan.experiment.clone();
    experiment.host.core.caches = CACHES.with_second(second);
    Resolved::read(experiment, Some(plan.vocabulary()))
        .and_then(|resolved| Plan::new(&resolved))
        .unwrap()
}

/// The memory of the second of two steps: what is made only once exists by then.
pub(super) fn measured(plan: &Plan) -> Vec<Memory> {
    let _one = alone();
    measure_memory(plan, 2, 1)
}

/// What every rank held in the last of a few steps.
pub(super) fn measure_memory(plan: &Plan, steps: u64, cores: usize) -> Vec<Memory> {
    let ranks = measure(plan, steps, cores).unwrap();
    ranks.into_iter().map(|rank| rank.memory).collect()
}

/// Checks that every class of every rank is within [`LIMIT`] of its plan. KV under way are nowhere more, and as much on the fullest rank; a
/// rank that all others have overtaken may hold a pair less.
#[track_caller]
pub(super) fn check(place: &Place, ranks: usize, strategy: &str, changes: &[(&str, &str)]) {
    check_with(place, BASE, ranks, strategy, changes);
}

/// [`check`] with another base than [`BASE`].
#[track_caller]
pub(super) fn check_with(
    place: &Place,
    base: &[(&str, &str)],
    ranks: usize,
    strategy: &str,
    changes: &[(&str, &str)],
) {
    let plan = plan_with(place, base, ranks, strategy, changes);
    hold(&measured(&plan), &format!("{ranks} x {strategy} {changes:?}"));
}

/// Checks the memory of ranks against their plan.
#[track_caller]
pub(super) fn hold(memory: &[Memory], what: &str) {
    let flight = memory.iter().map(|rank| rank.measured[Class::KeyValue]).max().unwrap();
    for rank in memory {
        let measured = rank.measured.with(Class::KeyValue, flight);
        let classes = measured.named().into_iter().zip(rank.planned.named());
        let classes = classes.map(|((class, measured), (_, planned))| (class, measured, planned));
        let together = ("at once", rank.together, rank.planned_together);
        for (class, measured, planned) in classes.chain([together]) {
            let off = measured as f64 / planned as f64 - 1.0;
            let what = format!("{what}, rank {}: {class}", rank.rank);
            let least = match class {
                // Shared weights count to another rank.
                "weights" if planned == 0 => continue,
                // Whole gradients are held until the others have read their slices: shorter where ranks keep pace.
                "gradients" if memory.len() > 1 => -0.5,
                // Tensors under way to the disk are held for as long as it takes.
                "activations" | "optimizer" | "at once" if what.contains("memory.offload") => -0.6,
                _ => -LIMIT,
            };
            assert!(off > least && off < LIMIT, "{what}: {measured} of {planned}");
        }
    }
}
