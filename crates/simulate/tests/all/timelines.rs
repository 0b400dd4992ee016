//! Planned traces: they end when the estimate says, and contain what the schedules do.

use annulus_simulate::{Cluster, Estimate};
use annulus_trace::testing::check;
use annulus_trace::{Activity, Pass, Sums, Trace};

use crate::support::{cluster, plain, plan, plan_apart};

fn timeline(arguments: &[&str], cluster: &Cluster) -> Trace {
    annulus_simulate::timeline(&plan(arguments), cluster)
        .unwrap_or_else(|problems| panic!("{problems}"))
}

/// Replicas whose ranks are not neighbours.
const TURNED: [&str; 3] = ["data.tokens=4000", "mesh.data=2", "mesh.order=data_first"];

/// The end of the last span, in seconds.
fn end(trace: &Trace) -> f64 {
    trace.ranks.iter().flatten().map(|span| span.end).max().unwrap_or_default() as f64 / 1e9
}

#[test]
fn a_planned_trace_ends_when_the_estimate_says() {
    // Two layers: a longer pass is estimated by its first two.
    let base = ["model.num_hidden_layers=2", "data.batch=2", "memory.micro_batch=1"];
    let cluster = cluster();
    for strategy in
        ["ring", "striped", "megatron", "ulysses", "double-ring", "all-gather", "li-ring"]
    {
        let strategy = format!("attention.strategy={strategy}");
        for mesh in [
            &["data.tokens=32k"][..],
            &["data.tokens=4000", "mesh.data=2"],
            &TURNED,
            &["data.tokens=32k", "mesh.sequence=4", "mesh.tensor=2"],
            &["data.tokens=4000", "parallel.state=zero3", "memory.offload=both"],
        ] {
            let arguments = [&base[..], mesh, &[&strategy]].concat();
            let plan = plan_apart(&arguments);
            let trace = annulus_simulate::timeline(&plan, &cluster).expect("it can be traced");
            let wanted = Estimate::of(&plan, &cluster).expect("it runs").step;
            assert!(
                (end(&trace) / wanted - 1.0).abs() < 1e-5,
                "{strategy}: {} {wanted}",
                end(&trace)
            );
            check(&trace.to_json()).unwrap_or_else(|wrong| panic!("{strategy}: {wrong}"));
            for (spans, rank) in trace.ranks.iter().zip(&plan.ranks) {
                let bytes: u64 = spans.iter().map(|span| span.activity.bytes()).sum();
                let attention = rank.forward + rank.backward;
                let wanted = attention + rank.tensor + rank.gradients + rank.weights;
                assert_eq!(bytes, wanted, "{strategy} {mesh:?}");
            }
        }
    }
}

/// Two replicas of eight ranks on two nodes of eight.
#[test]
fn a_planned_trace_says_on_which_nodes_ranks_are() {
    let arguments = ["model.num_hidden_layers=2", "data.batch=2", "data.tokens=4000"];
    let one = timeline(&arguments, &cluster());
    assert!(one.locations.is_empty() && Sums::of(&one).flows.is_empty());
    let two = timeline(&[&arguments[..], &["mesh.data=2"]].concat(), &cluster());
    let nodes: Vec<(usize, &str)> = [0, 7, 8, 15]
        .map(|rank| (two.locations[rank].process, &*two.locations[rank].host))
        .to_vec();
    assert_eq!(nodes, [(0, "node 0"), (0, "node 0"), (1, "node 1"), (1, "node 1")]);
    // The ranks of a sequence share a node; gradients are summed over both.
    let names = |trace| Sums::of(trace).flows.iter().map(|flow| flow.name).collect::<Vec<_>>();
    assert_eq!(names(&two), ["blocks within a host", "sums between hosts"]);
    // Those of the other order are on both: four places on each.
    let turned = timeline(&[&arguments[..], &TURNED].concat(), &cluster());
    let wanted = ["blocks within a host", "blocks between hosts", "sums between hosts"];
    assert_eq!(names(&turned), wanted);
}

/// Every layer follows its own group's schedule.
#[test]
fn a_planned_trace_of_layers_that_differ_has_all_of_them() {
    let arguments = [
        "data.tokens=32k",
        "attention.strategy=megatron",
        "attention.sliding.layers=[0, 2]",
        "attention.sliding.window=1k",
        "attention.sliding.strategy=halo",
    ];
    let (cluster, plan) = (cluster(), plan(&arguments));
    let trace = timeline(&arguments, &cluster);
    let wanted = Estimate::of(&plan, &cluster).expect("it runs").step;
    assert!((end(&trace) / wanted - 1.0).abs() < 0.02, "{} {wanted}", end(&trace));
    check(&trace.to_json()).unwrap_or_else(|wrong| panic!("{wrong}"));
    for (spans, rank) in trace.ranks.iter().zip(&plan.ranks) {
        let bytes: u64 = spans.iter().map(|span| span.activity.bytes()).sum();
        assert_eq!(bytes, rank.forward + rank.backward + rank.gradients);
    }
}

#[test]
fn waits_are_those_that_links_make() {
    let slow = timeline(&["attention.mask=full"], &plain(8, 1e14, 1e8));
    let fast = timeline(&["attention.mask=full"], &plain(8, 1e9, 1e12));
    let overlap = |trace: &Trace, pass: Pass| {
        let sums = Sums::of(trace);
        sums.total(|_, of, _| of == pass).overlap().expect("something moves")
    };
    assert!(overlap(&slow, Pass::Forward) < 0.9);
    assert!(overlap(&fast, Pass::Forward) > 0.999_99);
    // Nobody is late where all compute alike: a ring waits for its links alone.
    let total = Sums::of(&slow).total(|_, pass, _| pass == Pass::Forward);
    assert!(total.late * 1000 < total.waiting, "{total:?}");
}

#[test]
fn hops_have_what_the_schedule_has() {
    let trace = timeline(&["data.tokens=800"], &cluster());
    let moved: Vec<String> = trace.ranks[3]
        .iter()
        .filter_map(|span| match &span.activity {
            Activity::Send { place, moved } if (place.layer, place.pass) == (1, Pass::Forward) => {
                Some(format!("{}: {} > {}", place.hop, moved.block, moved.to))
            }
            _ => None,
        })
        .collect();
    let wanted = ["0: k3 > 4", "1: k2 > 4", "2: k1 > 4", "3: k0 > 4"];
    assert_eq!(moved[..4], wanted, "a causal ring");
    let hops = trace.moves(1);
    assert!(hops.starts_with("forward of layer 1, 8 hops\n"), "{hops}");
}

/// The memory of traces is bounded: a million micro-batches are refused before a span is made.
#[test]
fn traces_of_more_than_can_be_listed_are_refused() {
    let many = plan(&["data.batch=1000000", "memory.micro_batch=1", "data.tokens=800"]);
    let refused =
        annulus_simulate::timeline(&many, &cluster()).expect_err("too much to list").to_string();
    assert!(refused.contains("a trace of this step would list "), "{refused}");
    assert!(refused.contains("fewer layers"), "{refused}");
}
