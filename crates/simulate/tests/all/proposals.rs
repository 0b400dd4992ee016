//! What a plan says for a proposal: tokens per second, hours, and what is offloaded into which memory.

use annulus_experiment::Recompute;
use annulus_plan::label;
use annulus_sequence::Strategy;
use annulus_simulate::{Cell, Choice, Cluster, Grid, Link};

use crate::support::{CLUSTER, cluster, experiment, plain, plan, plan_apart, resolved};

fn described(more: &str) -> Cluster {
    let text = CLUSTER.to_owned() + more;
    Cluster::parse("h100.yaml", &text).unwrap_or_else(|problems| panic!("{problems}"))
}

fn choice(arguments: &[&str], cluster: &Cluster) -> Choice {
    Choice::among(&resolved(experiment(arguments)), cluster).unwrap_or_else(|p| panic!("{p}"))
}

/// Text whose lines are not wrapped.
fn flat(choice: &Choice) -> String {
    choice.to_text().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_node_s_link_and_memory_for_offloading_are_read() {
    let shared =
        described("offload: { bandwidth: 48GB/s, latency: 2us, per: node, memory: 2TB }\n");
    assert_eq!(shared.offload, Some(Link { bandwidth: 48e9, latency: 2.0 * 1e-6 }));
    assert_eq!((shared.offload_sharers, cluster().offload_sharers), (8, 1));
    assert_eq!(shared.offload_memory, Some(2_000_000_000_000));
    let untimed = described("offload: { memory: 2TB }\n");
    assert_eq!((untimed.offload, untimed.offload_memory), (None, shared.offload_memory));
    assert_eq!((cluster().offload_memory, cluster().peak), (None, None));
}

/// Devices are processors where the file says what their cores are like, one core or several.
#[test]
fn a_processor_with_one_core_is_no_gpu() {
    let place = |more: &str| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("cluster.yaml");
        std::fs::write(&path, CLUSTER.to_owned() + more).expect("written");
        let named = format!("mesh.cluster={}", path.display());
        // The file says what the plan is for, whatever device computes here.
        let text = plan(&["memory.offload=activations", "device=cuda", &named]).to_text();
        let to = text.split_once("offload activations, ").expect("offloads").1;
        to.split_whitespace().collect::<Vec<_>>().join(" ").contains("to page-locked memory")
    };
    assert!(place(""));
    for processor in ["cores: 1\n", "cores: 4\n", "core: { cache: 1MiB }\n"] {
        assert!(!place(processor), "{processor}");
    }
}

/// Of settings whose activations fit into the devices, those are taken whose offloaded part fits into the nodes, too.
#[test]
fn what_is_offloaded_has_to_fit_into_its_node() {
    let offloading = ["memory.offload=activations", "memory.recompute=auto"];
    let written = |memory: &str| {
        let cluster = described(&format!("offload: {{ bandwidth: 45GB/s, memory: {memory} }}\n"));
        let choice = choice(&offloading, &cluster);
        let (_, estimate) = choice.written.clone().expect("`ring` is written");
        let [of_rank, of_node] = estimate.offloaded_bytes;
        assert_eq!(of_node, 8 * of_rank, "{memory}: all ranks are on a node, with as many rows");
        (choice, estimate)
    };
    let (roomy, most) = written("1TB");
    assert_eq!((roomy.fits(&most), most.memory.recompute), (true, Recompute::None));
    assert_eq!(roomy.offload_beyond_node(&most), None);
    let (tight, less) = written("20GB");
    assert_eq!((tight.fits(&less), less.memory.recompute), (true, Recompute::Layer));
    let [most, less] = [most, less].map(|estimate| estimate.offloaded_bytes[1]);
    assert!(less <= 20_000_000_000 && most > 20_000_000_000, "{less} {most}");
    let text = tight.to_text();
    assert!(text.contains("\noffload  at most "), "{text}");
    let room = " of a node, of 18.6 GiB that it has for that (`offload.memory`) with ";
    assert!(flat(&tight).contains(room), "{text}");
    let (tiny, least) = written("5GB");
    assert!(!tiny.fits(&least));
    assert!(flat(&tiny).contains(" more than the 4.7 GiB that it has for that"), "{}", flat(&tiny));
    assert_eq!(tiny.offload_beyond_node(&least), Some([less, 5_000_000_000]));
    assert!(tiny.to_text().contains(", offload does not fit"), "{}", tiny.to_text());
    let json = tight.to_json();
    assert_eq!(json["written"]["offloaded_of_node"], less);
    assert_eq!(json["offload_memory"], 20_000_000_000_u64);
    assert_eq!(tiny.to_json()["strategies"][1]["fits"], false);
    // Nothing is offloaded, and nothing is said of it.
    let none = choice(&[], &cluster());
    assert_eq!(none.written.as_ref().map(|(_, own)| own.offloaded_bytes), Some([0, 0]));
    assert!(!none.to_text().contains("\noffload "));
}

/// Moments wait beside activations, and a node has those of all its ranks.
#[test]
fn a_node_holds_what_all_its_ranks_offload() {
    let offload = |what: &str| plan_apart(&[&format!("memory.offload={what}"), "data.batch=2"]);
    let both = offload("both");
    let of_rank = both.offloaded() + both.offloaded_moments();
    assert_eq!(both.offloaded_at_once(8), [of_rank, 8 * of_rank]);
    assert_eq!(both.offloaded_at_once(2), [of_rank, 2 * of_rank]);
    assert_eq!(both.offloaded_at_once(16), [of_rank, 8 * of_rank]);
    let moments = offload("optimizer");
    assert_eq!(moments.offloaded_at_once(1), [both.offloaded_moments(); 2]);
    assert_eq!(offload("none").offloaded_at_once(8), [0, 0]);
    // The first of four shards is twice as long as each of the others.
    let weighed = ["mesh.sequence=4", "mesh.weights=[2, 1, 1, 1]", "data.tokens=80k"];
    let weighed = plan_apart(&[&weighed[..], &["memory.offload=activations"]].concat());
    let [of_rank, of_node] = weighed.offloaded_at_once(4);
    assert_eq!((of_rank, 2 * of_node), (weighed.offloaded(), 5 * of_rank));
}

/// A plan that runs on such a cluster takes the same settings.
#[test]
fn a_plan_for_a_named_cluster_offloads_what_its_nodes_can_hold() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cluster.yaml");
    let named = format!("mesh.cluster={}", path.display());
    let recompute = |memory: &str| {
        let offload = format!("offload: {{ bandwidth: 45GB/s, memory: {memory} }}\n");
        // Devices without a limit, too.
        std::fs::write(&path, CLUSTER.replace("memory: 80GB\n", "") + &offload).expect("written");
        plan(&[&named, "memory.offload=activations", "memory.recompute=auto"]).memory.recompute
    };
    assert_eq!([recompute("1TB"), recompute("20GB")], [Recompute::None, Recompute::Layer]);
}

#[test]
fn a_step_is_told_in_the_units_of_a_proposal() {
    let steps = ["schedule.steps=1000"];
    let found = choice(&steps, &Cluster { peak: Some(989e12), ..cluster() });
    let (_, estimate) = found.written.clone().expect("`ring` is written");
    let (step, speed) = (estimate.step, &found.to_json()["speed"]);
    let number = |key: &str| speed[key].as_f64().expect("a number");
    let close = |key: &str, wanted: f64| {
        assert!((number(key) / wanted - 1.0).abs() < 1e-9, "{key}: {speed}, not {wanted}");
    };
    close("tokens_per_second", 131_072.0 / step);
    close("seconds", 1000.0 * step);
    close("device_hours", 8.0 * 1000.0 * step / 3600.0);
    close("mfu", plan(&steps).flops() / step / (8.0 * 989e12));
    assert!(number("mfu") > 0.1 && number("mfu") < 0.6, "{speed}");
    assert!(found.to_text().contains("\nspeed    "), "{}", found.to_text());
    let line = format!(
        " speed {:.0} tokens/s, {:.1} % MFU, {:.2} s for 1000 steps ({:.2} device-hours) ",
        number("tokens_per_second"),
        100.0 * number("mfu"),
        number("seconds"),
        number("device_hours"),
    );
    assert!(flat(&found).contains(&line), "{line} {}", found.to_text());
    // Without a data sheet there is no peak, and of threads no device.
    let without = choice(&steps, &cluster());
    assert!(without.to_json()["speed"]["mfu"].is_null() && !without.to_text().contains("MFU"));
    let threads = choice(&steps, &Cluster { helping: true, ..plain(8, 1e12, 1e15) });
    assert!(threads.to_text().contains(" for 1000 steps\n"), "{}", threads.to_text());
    assert!(threads.to_json()["speed"]["device_hours"].is_null());
}

/// The fastest need not fit: what is taken instead stands with them.
#[test]
fn a_summary_has_the_fastest_strategies_and_the_one_that_is_taken() {
    let mut choice = choice(&["attention.strategy=auto"], &cluster());
    let ranking = choice.tables[0].ranking();
    let ranking: Vec<Strategy> = ranking.iter().map(|(strategy, _)| *strategy).collect();
    assert!(ranking.len() > 6, "{ranking:?}");
    let mut others = |taken: Strategy| {
        choice.tables[0].chosen = Some(taken);
        let summary = choice.to_summary();
        let row = format!("\n{}  ", label(taken));
        assert_eq!(summary.matches(&row).count(), 1, "{summary}");
        let count = summary.split("  and ").nth(1).and_then(|text| text.split(' ').next());
        count.and_then(|count| count.parse().ok())
    };
    assert_eq!(others(ranking[0]), Some(ranking.len() - 5));
    assert_eq!(others(ranking[6]), Some(ranking.len() - 6));
}

#[test]
fn a_single_sweet_length_is_no_range() {
    let cell = |efficiency| Some(Cell { step: 1.0, efficiency, fits: true });
    let of_devices = |devices: usize, cells: [f64; 2]| Grid {
        strategy: Strategy::STRIPED,
        devices: vec![devices],
        tokens: vec![1 << 19, 1 << 20],
        tensor: 1,
        sliding: None,
        cells: cells.map(|efficiency| vec![cell(efficiency)]).to_vec(),
    };
    let text = of_devices(4, [0.95, 0.5]).to_text();
    assert!(text.contains("   4 devices: 512k tokens\n"), "{text}");
    let text = of_devices(1, [0.95, 0.95]).to_text();
    assert!(text.contains("   1 device: 512k to 1M tokens\n"), "{text}");
}
