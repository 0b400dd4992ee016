//! Cluster files: their meaning, and messages for wrong ones.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use annulus_machine::Instructions;
use annulus_memory::Class;
use annulus_simulate::{Cluster, Link};

use crate::support::{CLUSTER, cluster, plan};

fn edited(from: &str, to: &str) -> String {
    assert!(CLUSTER.contains(from), "`{from}` is not in the file");
    CLUSTER.replacen(from, to, 1)
}

#[test]
fn a_file_is_read() {
    let cluster = cluster();
    assert_eq!((cluster.nodes, cluster.devices_per_node, cluster.devices()), (2, 8, 16));
    assert_eq!(cluster.memory, Some(80_000_000_000));
    assert_eq!(cluster.inside, Link { bandwidth: 450e9, latency: 3.0 * 1e-6 });
    assert_eq!((cluster.link(7, 8), cluster.link(8, 15)), (cluster.between, cluster.inside));
    assert_eq!((cluster.link(0, 7), cluster.link(0, 8)), (cluster.inside, cluster.between));
    assert_eq!((cluster.rates.forward, cluster.rates.tile), (600e12, 128));
    assert!(!cluster.shared && cluster.slowdown.is_empty());
}

/// A cluster of 64 nodes of eight, in rails of four and pods of 32.
const LEVELS: &str = "name: a\nnodes: 64\ndevices_per_node: 8\ncompute: { forward: 312e12 }\n\
    inside: { bandwidth: 450GB/s }\nbetween: { bandwidth: 50GB/s, latency: 5us }\nlevels:\n  \
    pod: { nodes: 32, bandwidth: 12GB/s, latency: 20us }\n  rail: { nodes: 4, bandwidth: 25GB/s }\n";

#[test]
fn groups_of_nodes_are_joined_by_links_of_their_own() {
    let cluster = Cluster::parse("a.yaml", LEVELS).unwrap_or_else(|problems| panic!("{problems}"));
    let bandwidth = |from, to| cluster.link(from, to).bandwidth;
    assert_eq!([bandwidth(0, 7), bandwidth(7, 8), bandwidth(0, 31)], [450e9, 50e9, 50e9]);
    assert_eq!([bandwidth(31, 32), bandwidth(32, 31), bandwidth(0, 255)], [25e9; 3]);
    assert_eq!([bandwidth(255, 256), bandwidth(511, 0)], [12e9; 2]);
    assert_eq!(cluster.link(0, 300), Link { bandwidth: 12e9, latency: 20.0 * 1e-6 });
    let of_ring = |world: usize| bandwidth(0, world - 1);
    assert_eq!([8, 32, 33, 256, 257].map(of_ring), [450e9, 50e9, 25e9, 25e9, 12e9]);
    assert_eq!(cluster.without_links().link(0, 300).latency, 0.0);
    let text = cluster.to_text();
    assert!(text.contains("25.0 GB/s from rail to rail of 4 nodes"), "{text}");
    let plan = plan(&[]);
    let places: Vec<String> = cluster.hiding(&plan).into_iter().map(|one| one.place).collect();
    let wanted = ["inside a node", "between nodes", "from rail to rail", "from pod to pod"];
    assert_eq!(places, wanted);
}

#[test]
fn defaults_and_exceptions_are_read() {
    let text = "name: a\ndevices_per_node: 4\ncompute: { forward: 312e12 }\n\
                inside: { bandwidth: 100Gbit/s }\ndevices: { 3: { slowdown: 1.5 } }\n";
    let cluster = Cluster::parse("a.yaml", text).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!((cluster.rates.backward, cluster.rates.products), (312e12, 312e12));
    assert_eq!((cluster.nodes, cluster.memory, cluster.rates.tile), (1, None, 128));
    assert_eq!(cluster.between, cluster.inside);
    assert_eq!((cluster.slowdown_of(3), cluster.slowdown_of(2)), (1.5, 1.0));
}

#[test]
fn cores_of_a_cluster_are_what_plans_are_made_for() {
    let folder = tempfile::tempdir().unwrap();
    let plan = |cores: &str| {
        let file = folder.path().join("cluster.yaml");
        fs::write(&file, edited("memory: 80GB", &format!("memory: 80GB\n{cores}"))).unwrap();
        plan(&[&format!("mesh.cluster={}", file.display())])
    };
    let [small, large] = ["256KiB", "2MiB"]
        .map(|cache| plan(&format!("cores: 2\ncore: {{ cache: {cache}, vector: neon }}")));
    let core = small.experiment.host.core;
    assert_eq!((core.caches.second, core.instructions), (256 << 10, Instructions::Neon));
    // 60 rows of 256 floats and 240.
    assert_eq!(large.ranks[0].packing - small.ranks[0].packing, 180 * 256 * 4);
    let many = plan("cores: 64\ncore: { cache: 2MiB }");
    assert!(
        many.ranks[0].peak_by_class[Class::Workspace]
            == large.ranks[0].peak_by_class[Class::Workspace] + 62 * many.ranks[0].worker
    );
    assert!(many.ranks[0].peak > large.ranks[0].peak);
    let wrong = edited("memory: 80GB", "core: { vector: avx }");
    let message = Cluster::parse("h100.yaml", &wrong).unwrap_err().to_string();
    assert!(message.contains("`avx`") && message.contains("avx512-bf16"), "{message}");
}

#[test]
fn wrong_files_are_answered() {
    let cases = [
        ("a key that is none", edited("nodes: 2", "node: 2")),
        ("a key of a section", edited("nodes: 2", "latency: 2us")),
        ("a bandwidth without a unit", edited("450GB/s", "450")),
        ("a bandwidth that is a size", edited("450GB/s", "450GB")),
        ("bits as one says them", edited(" 50GB/s", " 400Gbps")),
        ("operations as vendors write them", edited("600TFLOP/s", "600TFLOPS")),
        ("no bandwidth at all", edited("450GB/s", "0")),
        ("a negative latency", edited("3us", "-3us")),
        ("a word for a number", edited("devices_per_node: 8", "devices_per_node: eight")),
        ("no compute", edited("compute: ", "# compute: ")),
        ("nodes that nothing joins", edited("between: ", "# between: ")),
        ("a device that is none", CLUSTER.to_owned() + "devices: { 16: { slowdown: 2 } }\n"),
        ("a device by name", CLUSTER.to_owned() + "devices: { last: { slowdown: 2 } }\n"),
        ("a device written otherwise", CLUSTER.to_owned() + "devices: { 01: { slowdown: 2 } }\n"),
        ("a peak without its unit", edited("600TFLOP/s", "600TFLOP/s, peak: 989")),
        ("a latency of nothing", CLUSTER.to_owned() + "offload: { latency: 5us }\n"),
        ("too many devices", edited("devices_per_node: 8", "devices_per_node: 16384")),
        ("groups that do not fill the cluster", LEVELS.replace("nodes: 32", "nodes: 31")),
        ("groups that do not fill the next", LEVELS.replace("nodes: 4,", "nodes: 5,")),
        ("a group of all nodes", LEVELS.replace("nodes: 32", "nodes: 64")),
        ("a group without a link", LEVELS.replace(", bandwidth: 12GB/s", "")),
        ("a list", String::from("- name\n")),
        ("an open bracket", edited("latency: 3us }", "latency: 3us")),
        (
            "several at once",
            CLUSTER.replace("80GB", "lots").replace("3us", "soon").replace("name", "nme"),
        ),
    ];
    let mut text = String::new();
    for (title, case) in &cases {
        let problems = Cluster::parse("h100.yaml", case).expect_err(title);
        writeln!(text, "## {title}\n\n{problems}\n").expect("strings take all");
    }
    insta::assert_snapshot!(text);
}

#[test]
fn a_file_that_is_not_there_says_so() {
    let problems = Cluster::load(Path::new("nowhere.yaml")).expect_err("no such file");
    assert!(problems.to_string().contains("`nowhere.yaml` cannot be read"), "{problems}");
}

#[test]
fn every_shipped_cluster_is_one() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/clusters");
    let mut found = 0;
    for entry in fs::read_dir(folder).expect("the clusters") {
        let path = entry.expect("an entry").path();
        Cluster::load(&path).unwrap_or_else(|problems| panic!("{problems}"));
        found += 1;
    }
    assert!(found >= 2);
}
