//! Times of steps, computed by hand.

use annulus_experiment::Resolved;
use annulus_plan::Plan;
use annulus_sequence::{BlockShape, Heads, Mask, Strategy, Wire};
use annulus_simulate::{Cluster, Estimate, Link, Load, Offloaded, walk};

use crate::support::{cluster, experiment, plain, plan};

fn estimate(arguments: &[&str], cluster: &Cluster) -> Estimate {
    Estimate::of(&plan(arguments), cluster).unwrap_or_else(|problems| panic!("{problems}"))
}

/// Operations of all ranks in one step of the model of these tests.
fn operations(tokens: f64, pairs: f64) -> f64 {
    let (h, f, a, k, layers, vocabulary) = (4096.0, 14336.0, 4096.0, 1024.0, 4.0, 131_072.0);
    let forward = 2.0 * (2.0 * h * a + 2.0 * h * k + 3.0 * h * f);
    let again = 2.0 * (h * a + 2.0 * h * k + 2.0 * h * f);
    let products = layers * (3.0 * forward + again) + 6.0 * h * vocabulary;
    tokens * products + layers * pairs * 14.0 * 128.0 * 32.0
}

#[test]
fn without_waiting_a_step_is_its_operations() {
    let speed = 1e12;
    let instant = plain(8, speed, f64::INFINITY);
    let (tokens, full) = (131_072.0_f64, "attention.mask=full");
    for strategy in ["ring", "striped", "megatron", "all-gather"] {
        let found = estimate(&[&format!("attention.strategy={strategy}"), full], &instant);
        let wanted = operations(tokens, tokens * tokens) / speed / 8.0;
        assert!((found.step / wanted - 1.0).abs() < 1e-9, "{strategy}: {} {wanted}", found.step);
        assert!(found.exposed.abs() < 1e-9 && found.uneven.abs() < 1e-6, "{strategy}: {found:?}");
        assert!((found.balance - 1.0).abs() < 1e-9 && (found.efficiency() - 1.0).abs() < 1e-9);
    }
    let alone = ["mesh.sequence=1", "attention.strategy=local"];
    let found = estimate(&alone, &plain(1, speed, 1.0));
    let wanted = operations(tokens, tokens * (tokens + 1.0) / 2.0) / speed;
    assert!((found.step / wanted - 1.0).abs() < 1e-9, "{found:?}");
    assert_eq!(found.bytes, 0);
}

#[test]
fn contiguous_chunks_wait_for_the_last_rank() {
    let instant = plain(8, 1e12, f64::INFINITY);
    let of = |strategy: &str| estimate(&[&format!("attention.strategy={strategy}")], &instant);
    let (ring, striped, megatron) = (of("ring"), of("striped"), of("megatron"));
    assert!((ring.balance - 1.875).abs() < 1e-3, "{ring:?}");
    assert!(striped.balance < 1.001 && megatron.balance < 1.001);
    assert!(ring.uneven > 100.0 * striped.uneven.max(megatron.uneven), "{ring:?}");
    assert!(ring.step > 1.2 * striped.step, "{ring:?} {striped:?}");
    // Every rank computes as much as under any other strategy; it only waits.
    let computing = |e: &Estimate| e.step - e.exposed - e.uneven;
    assert!((computing(&ring) / computing(&striped) - 1.0).abs() < 1e-6);
}

#[test]
fn ranks_on_the_cores_of_one_machine_help_the_last() {
    let machine = Cluster { helping: true, ..plain(8, 1e12, f64::INFINITY) };
    let of = |strategy: &str| estimate(&[&format!("attention.strategy={strategy}")], &machine).step;
    assert!((of("ring") / of("striped") - 1.0).abs() < 1e-3, "{} {}", of("ring"), of("striped"));
    assert!(Cluster::threads(8, 8).helping);
}

#[test]
fn slow_links_are_exposed_and_fast_ones_hidden() {
    let of = |bandwidth: f64| {
        estimate(&["attention.strategy=striped", "data.tokens=64k"], &plain(8, 300e12, bandwidth))
    };
    let steps: Vec<Estimate> = [1e15, 300e9, 30e9, 3e9].map(of).to_vec();
    assert!(steps.is_sorted_by(|a, b| a.step < b.step && a.exposed < b.exposed), "{steps:?}");
    assert!(steps[0].efficiency() > 0.99, "{:?}", steps[0]);
    // The slowest link decides all: what is sent, at its bandwidth, and little besides.
    let slow = &steps[3];
    let sending = slow.bytes as f64 / 3e9 + slow.gradient_sum;
    assert!(slow.step >= sending && slow.step < 1.1 * sending, "{slow:?} {sending}");
}

#[test]
fn a_straggler_slows_everybody() {
    let even = cluster();
    let mut slow = cluster();
    slow.slowdown.insert(5, 2.0);
    for strategy in ["striped", "megatron"] {
        let argument = format!("attention.strategy={strategy}");
        let (even, slow) = (estimate(&[&argument], &even), estimate(&[&argument], &slow));
        // All wait for the one that takes twice as long, wherever they meet it.
        let ratio = slow.step / even.step;
        assert!(ratio > 1.7 && ratio < 2.01, "{strategy}: {ratio}");
        assert!(slow.uneven > 0.3 * slow.step, "{strategy}: {slow:?}");
    }
}

/// Tensor-parallel ranks wait for each other, whichever of them is slow; and nothing is gained by one that is faster.
#[test]
fn every_device_of_a_tensor_parallel_group_slows_its_place() {
    for order in ["sequence_first", "data_first"] {
        let mesh = format!("mesh={{ sequence: 2, data: 2, tensor: 4, order: {order} }}");
        let step = |device: usize, slowdown: f64| {
            let mut cluster = cluster();
            cluster.slowdown.insert(device, slowdown);
            let more = ["attention.strategy=megatron", "data.tokens=64k", "data.batch=2"];
            estimate(&[&more[..], &[&mesh]].concat(), &cluster).step
        };
        let even = step(0, 1.0);
        for group in [0, 4, 8, 12] {
            let first = step(group, 3.0);
            assert!(first > 2.0 * even, "{order} {group}: {first} {even}");
            for device in group..group + 4 {
                assert_eq!([step(device, 3.0), step(device, 0.5)], [first, even], "{device}");
            }
        }
    }
}

#[test]
fn a_straggler_of_another_replica_counts_too() {
    let mut slow = cluster();
    slow.slowdown.insert(12, 2.0);
    let arguments = ["attention.strategy=striped", "mesh.data=2", "data.batch=2"];
    let (even, slow) = (estimate(&arguments, &cluster()), estimate(&arguments, &slow));
    assert!(slow.step > 1.5 * even.step, "{slow:?} {even:?}");
}

/// Of nodes of one device: rails of four cut the second of four replicas of three, and rails of three none.
#[test]
fn a_replica_that_rails_cut_counts_too() {
    let step = |rail: usize| {
        let text = format!(
            "name: a\nnodes: 12\ndevices_per_node: 1\ncompute: {{ forward: 600TFLOP/s }}\ninside: {{ bandwidth: 450GB/s }}\n\
             between: {{ bandwidth: 50GB/s }}\nlevels: {{ rail: {{ nodes: {rail}, bandwidth: 100MB/s }} }}\n"
        );
        let cluster =
            Cluster::parse("a.yaml", &text).unwrap_or_else(|problems| panic!("{problems}"));
        let mesh = ["mesh={ sequence: 3, data: 4 }", "data.tokens=96k", "data.batch=4"];
        estimate(&mesh, &cluster).step
    };
    assert!(step(4) > 1.2 * step(3), "{} {}", step(4), step(3));
}

/// Of three tensor-parallel groups of four, nodes of six cut the second.
#[test]
fn tensor_parallel_ranks_wait_for_the_slowest_group() {
    let step = |devices: usize| {
        let mut cluster = plain(12, 600e12, 450e9);
        cluster.between = Link { bandwidth: 1e9, latency: 0.0 };
        (cluster.nodes, cluster.devices_per_node) = (12 / devices, devices);
        let mesh = ["mesh={ sequence: 1, data: 3, tensor: 4 }", "attention.strategy=local"];
        estimate(&[&mesh[..], &["data.tokens=8k", "data.batch=3"]].concat(), &cluster).step
    };
    assert!(step(6) > 1.2 * step(4), "{} {}", step(6), step(4));
}

#[test]
fn nodes_cost_what_their_link_costs() {
    let arguments = ["attention.strategy=striped", "mesh.sequence=16", "data.tokens=64k"];
    let (two, mut one) = (cluster(), cluster());
    (one.nodes, one.devices_per_node) = (1, 16);
    let (two, one) = (estimate(&arguments, &two), estimate(&arguments, &one));
    assert!(two.exposed > 2.0 * one.exposed, "{two:?} {one:?}");
}

/// Two nodes of four: a block has a node's whole round, four hops, to reach the next node.
#[test]
fn a_double_ring_hides_slow_links_behind_a_round() {
    let block = BlockShape { batch: 1, head_dim: 64, wire: Wire::new(2, 2), order_free: false };
    let (tokens, heads) = (512, Heads::equal(4));
    let walked = |strategy: Strategy, hops: f64| {
        let split = strategy.split(&Mask::full(), 8 * tokens, 8, heads).expect("it splits");
        let load = Load::of(&strategy.forward(&split).expect("it runs"), block, 1);
        let hop = load.ranks[0][0].operations / 1e12;
        let bytes = load.ranks[0][0].sends[0].bytes as f64;
        let mut cluster = plain(4, 1e12, 1e15);
        cluster.nodes = 2;
        cluster.between = Link { bandwidth: bytes / (hops * hop), latency: 0.0 };
        walk(&load, &cluster, &[0.0; 8]).end() / hop
    };
    let nodes = Strategy::DoubleRing { shape: Some([2, 4]) };
    for (link, took) in [(0.5, 8.0), (3.9, 8.0), (5.0, 9.0), (7.0, 11.0)] {
        let found = walked(nodes, link);
        assert!((found - took).abs() < 1e-6, "{link} hops between nodes: {found} and not {took}");
    }
    // A ring of all waits for that link in every one of its seven moves.
    let ring = walked(Strategy::Ring, 3.9);
    assert!((ring - (7.0 * 3.9 + 1.0)).abs() < 1e-6, "{ring}");
}

#[test]
fn shares_by_weight_take_time_and_memory_by_weight() {
    let fast = plain(4, 1e12, 1e15);
    let shared = |weights: &str| {
        let full = ["mesh.sequence=4", "attention.mask=full", "attention.strategy=striped"];
        estimate(&[&full[..], &[weights, "data.tokens=64k"]].concat(), &fast)
    };
    let (even, uneven) = (shared("mesh.weights=[1, 1, 1, 1]"), shared("mesh.weights=[5, 1, 1, 1]"));
    assert_eq!(even, estimate_of_four(&fast));
    assert!((uneven.balance - 2.5).abs() < 0.01, "{uneven:?}");
    assert!((uneven.step / even.step - 2.5).abs() < 0.01, "{uneven:?} {even:?}");
    assert!(uneven.peak[0] > even.peak[0] && uneven.peak[0] > uneven.peak[1], "{uneven:?}");
}

fn estimate_of_four(cluster: &Cluster) -> Estimate {
    let full = ["mesh.sequence=4", "attention.mask=full", "attention.strategy=striped"];
    estimate(&[&full[..], &["data.tokens=64k"]].concat(), cluster)
}

#[test]
fn the_same_question_has_the_same_answer() {
    let ask = || estimate(&["attention.strategy=megatron"], &cluster());
    assert_eq!(ask(), ask());
}

#[test]
fn micro_batches_and_layers_add_up() {
    let fast = plain(8, 1e12, 1e15);
    let base = ["attention.strategy=striped", "data.tokens=16k"];
    let with = |more: &[&str]| estimate(&[&base[..], more].concat(), &fast);
    let (one, four) = (with(&[]), with(&["data.batch=4", "memory.micro_batch=1"]));
    assert!((four.step / one.step - 4.0).abs() < 0.01, "{four:?} {one:?}");
    let deep = with(&["model.num_hidden_layers=8"]);
    let loss = 6.0 * 4096.0 * 131_072.0 * 2048.0 / 1e12;
    assert!(((deep.step - loss) / (one.step - loss) - 2.0).abs() < 0.01, "{deep:?} {one:?}");
}

/// Every rank sends the same amount to each of the others.
#[test]
fn bytes_between_nodes_are_those_to_ranks_of_other_nodes() {
    let on = |cluster: &Cluster, more: &[&str]| {
        estimate(&[&["attention.strategy=all-gather"], more].concat(), cluster)
    };
    let one = on(&plain(8, 1e12, 1e9), &[]);
    assert_eq!(one.sent, [one.bytes, 0]);
    let nodes = Cluster { nodes: 2, devices_per_node: 4, ..plain(8, 1e12, 1e9) };
    assert_eq!(on(&nodes, &[]).sent, [one.bytes / 7 * 3, one.bytes / 7 * 4]);
    // Six to a replica: the first one's are on one node of eight, of the second one's two.
    let replicas = ["mesh.sequence=6", "mesh.data=2", "data.tokens=48k", "data.batch=2"];
    let found = on(&cluster(), &replicas);
    assert_eq!(found.sent, [found.bytes, found.bytes / 5 * 4]);
}

/// Two replicas of two ranks on two nodes of two.
#[test]
fn the_order_of_the_mesh_says_what_leaves_a_node() {
    let nodes = Cluster { nodes: 2, devices_per_node: 2, ..plain(4, 1e12, 1e9) };
    let mesh = ["mesh.sequence=2", "mesh.data=2", "data.batch=2", "attention.strategy=ring"];
    let of = |order: &str, cluster: &Cluster| {
        let order = format!("mesh.order={order}");
        estimate(&[&mesh[..], &[&order]].concat(), cluster)
    };
    let [near, far] = ["sequence_first", "data_first"].map(|order| of(order, &nodes));
    assert_eq!((near.sent, far.sent), ([near.bytes, 0], [0, near.bytes]));
    // On one node nothing differs; where a node's link is shared, both replicas are on it.
    let [near, far] = ["sequence_first", "data_first"].map(|order| of(order, &plain(4, 1e12, 1e9)));
    assert_eq!(near, far);
    let slow = |shared| {
        let link = Link { bandwidth: 1e3, latency: 0.0 };
        let nodes = Cluster { shared, between: link, ..nodes.clone() };
        ["sequence_first", "data_first"].map(|order| of(order, &nodes))
    };
    let [[_, own], [near, shared]] = [slow(false), slow(true)];
    let times = shared.forward / own.forward;
    assert!((times - 2.0).abs() < 0.01 && near.forward < 0.01 * own.forward, "{times}");
}

/// Six replicas of three on nodes of four differ in what they send to other nodes.
#[test]
fn replicas_whose_ranks_are_apart_need_not_be_on_alike_nodes() {
    let nodes = Cluster { nodes: 5, devices_per_node: 4, ..plain(20, 1e12, 1e9) };
    let mesh = ["mesh.sequence=3", "mesh.data=6", "data.batch=6", "mesh.order=data_first"];
    let more = ["attention.strategy=all-gather", "data.tokens=48k"];
    let found = estimate(&[&mesh[..], &more].concat(), &nodes);
    assert_eq!(found.sent, [0, found.bytes]);
    let mesh = ["mesh.sequence=6", "mesh.data=3", "data.batch=3", "mesh.order=data_first"];
    // Ranks 0, 3, 6, 9, 12, 15: at 3 there is one of the same node, at 6 none.
    let found = estimate(&[&mesh[..], &more].concat(), &nodes);
    assert_eq!(found.sent, [found.bytes / 5, found.bytes]);
}

/// With many ranks, those at the edges of nodes are looked at.
#[test]
fn bytes_between_nodes_are_those_of_ranks_that_stand_for_all() {
    let many = ["attention.strategy=striped", "mesh.sequence=512", "data.tokens=64k"];
    let nodes = Cluster { nodes: 64, devices_per_node: 8, ..plain(512, 1e12, 1e9) };
    let found = estimate(&many, &nodes);
    assert_eq!(found.sent, [found.bytes; 2]);
}

#[test]
fn memory_is_what_devices_of_their_own_hold() {
    let of = |strategy: &str| estimate(&[&format!("attention.strategy={strategy}")], &cluster());
    let (ring, gathered) = (of("ring"), of("all-gather"));
    assert_eq!(ring.peak.len(), 8);
    assert!(gathered.fullest() > ring.fullest(), "{gathered:?} {ring:?}");
    // Seven blocks of others instead of two at most.
    let block = 2 * 1024 * (131_072 / 8) * 2;
    assert!(gathered.fullest() - ring.fullest() >= 4 * block, "{gathered:?} {ring:?}");
}

#[test]
fn more_ranks_than_devices_are_refused() {
    let plan = Resolved::read(experiment(&["mesh.sequence=32"]), None)
        .and_then(|resolved| Plan::new(&resolved))
        .expect("it splits");
    let problems = Estimate::of(&plan, &cluster()).expect_err("16 devices");
    let wanted = "32 ranks, but the cluster `h100` has 16 devices";
    assert!(problems.to_string().contains(wanted), "{problems}");
}

/// What does not hide behind a pass is waited for; moments, which only the update needs, entirely.
#[test]
fn a_step_waits_for_offloading_as_far_as_its_passes_are_too_short() {
    let offloading = |what: &str, bandwidth: Option<f64>| {
        let offload = bandwidth.map(|bandwidth| Link { bandwidth, latency: 0.0 });
        let words = [format!("memory.offload={what}")];
        let plan = plan(&["attention.strategy=ring", &words[0]]);
        let cluster = Cluster { offload, offload_sharers: 1, ..plain(8, 1e12, 1e15) };
        let bytes = [plan.offloaded() as f64, plan.offloaded_moments() as f64];
        let found = Estimate::of(&plan, &cluster).unwrap_or_else(|problems| panic!("{problems}"));
        (found, bytes)
    };
    let (none, _) = offloading("none", Some(1e9));
    assert_eq!(none.offloaded, Offloaded::Nothing);
    assert_eq!(offloading("both", None).0.offloaded, Offloaded::Untimed);
    let (quick, _) = offloading("activations", Some(1e18));
    assert_eq!((quick.offloaded, quick.step), (Offloaded::Waits(0.0), none.step));
    let (slow, [activations, _]) = offloading("activations", Some(1e3));
    let (both, [_, moments]) = offloading("both", Some(1e3));
    let passes = 2.0 * activations / 1e3 - slow.offloaded.seconds();
    assert!(0.0 < passes && passes <= none.step, "{passes} of {}", none.step);
    let waits = slow.offloaded.seconds() + 2.0 * moments / 1e3;
    assert!((both.offloaded.seconds() / waits - 1.0).abs() < 1e-9, "{both:?}");
    assert!((slow.step - none.step - slow.offloaded.seconds()).abs() < 1e-6 * slow.step);
    assert!(slow.exposed >= slow.offloaded.seconds(), "{slow:?}");
}

/// A node's link is shared by the devices that have a rank, however many there are.
#[test]
fn a_node_s_link_is_shared_by_its_ranks() {
    let waits = |ranks: usize, offload_sharers: usize| {
        let offload = Some(Link { bandwidth: 1e6, latency: 0.0 });
        let split = [format!("mesh.sequence={ranks}"), "attention.strategy=striped".to_owned()];
        let more = ["memory.offload=optimizer", "parallel.state=replicated"];
        let words: Vec<&str> = split.iter().map(String::as_str).chain(more).collect();
        let cluster = Cluster { offload, offload_sharers, ..plain(8, 1e12, 1e15) };
        let plan = plan(&words);
        let found = Estimate::of(&plan, &cluster).unwrap_or_else(|problems| panic!("{problems}"));
        found.offloaded.seconds() / plan.offloaded_moments() as f64
    };
    let alone = waits(1, 1);
    for (ranks, sharers, times) in [(1, 8, 1.0), (2, 8, 2.0), (8, 8, 8.0), (8, 4, 4.0), (8, 1, 1.0)]
    {
        let found = waits(ranks, sharers) / alone;
        assert!((found - times).abs() < 1e-9, "{ranks} ranks, {sharers} share: {found}");
    }
}
