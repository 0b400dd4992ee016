//! Settings that a file leaves open, and what is taken for them.

use annulus_experiment::{Recompute, State};
use annulus_simulate::{Choice, Cluster};

use crate::choices::automatic;
use crate::support::{CLUSTER, experiment, plain, plan, resolved};

/// The state's sharding and recomputation that a file leaves open are those of the fastest step that fits, in estimates and in the plan
/// that runs.
#[test]
fn open_settings_are_the_fastest_that_fit() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cluster.yaml");
    let mut taken = Vec::new();
    for (memory, ranks) in [("80GB", 8), ("30GB", 8), ("30GB", 16), ("20GB", 8)] {
        let text = CLUSTER.replace("80GB", memory);
        std::fs::write(&path, &text).expect("written");
        let cluster = Cluster::parse("tight.yaml", &text).unwrap_or_else(|p| panic!("{p}"));
        let estimate = |words: [&str; 2]| {
            let set = [
                format!("mesh.sequence={ranks}"),
                format!("parallel.state={}", words[0]),
                format!("memory.recompute={}", words[1]),
            ];
            let written = resolved(experiment(&set.each_ref().map(String::as_str)));
            let choice = Choice::among(&written, &cluster).expect("as many devices");
            let (_, estimate) = choice.written.clone().expect("`ring` is written");
            (choice.fits(&estimate), estimate)
        };
        let states = ["replicated", "zero1", "zero3"];
        let all = states.into_iter().flat_map(|state| [[state, "none"], [state, "layer"]]);
        let fitting = all.map(estimate).filter(|(fits, _)| *fits).map(|(_, one)| one.step);
        let (fits, auto) = estimate(["auto", "auto"]);
        let fastest = fitting.reduce(f64::min).expect("some fit");
        assert!(fits && auto.step <= 1.01 * fastest, "{memory}: {} of {fastest}", auto.step);
        let named = format!("mesh.cluster={}", path.display());
        let ranks = format!("mesh.sequence={ranks}");
        let open = ["parallel.state=auto", "memory.recompute=auto", &named, &ranks];
        assert_eq!(plan(&open).memory, auto.memory, "{memory}");
        taken.push((auto.memory.state, auto.memory.recompute));
    }
    // Within a node, sending weights costs next to nothing, and recomputation a little; between nodes, weights that nothing hides cost
    // more than both.
    let (none, layer) = (Recompute::None, Recompute::Layer);
    assert_eq!(taken, [none, none, none, layer].map(|recompute| (State::Zero3, recompute)));
}

/// Sharding that costs nothing is taken for the memory that it spares: strategies are compared with the least that each needs.
#[test]
fn of_equally_fast_settings_those_with_the_least_memory_are_taken() {
    let instant = plain(8, 1e12, f64::INFINITY);
    let choice = |state: &str| {
        let written = resolved(automatic(&[&format!("parallel.state={state}")]));
        let choice = Choice::among(&written, &instant).expect("as many devices");
        let (_, fits, estimate) = choice.answered().expect("one can run");
        assert!(fits);
        estimate
    };
    let [open, replicated, all] = ["auto", "replicated", "zero3"].map(choice);
    assert_eq!((open.memory, open.step), (all.memory, replicated.step));
    assert!(open.fullest() < replicated.fullest());
}
