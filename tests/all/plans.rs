//! What is said before a run is what the run does: bytes to the byte, balance by counting pairs;
//! and what else is printed without running anything.

use std::fs;

use annulus_sequence::{Heads, Layout, Strategy};
use annulus_tests::hub::{File, Hub};
use annulus_tests::runs::Place;
use annulus_tests::{root, run, shared};
use serde_json::Value;

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

/// Shards to two of each layout's shares per rank.
fn tokens(ranks: usize) -> usize {
    8 * ranks
}

fn ask(place: &Place, command: &str, changes: &[&str]) -> Vec<Value> {
    let arguments = [&[command, "experiment.yaml", "--json"], changes].concat();
    run(ANNULUS, &place.path(""), &arguments).ended(0).json()
}

/// Two steps with evaluation, every one of which hands over what was planned, by rank.
#[track_caller]
fn check_bytes(place: &Place, name: &str, changes: &[&str]) {
    let changes =
        [&["schedule.steps=2", "schedule.warmup=0", "every.evaluate=1"], changes].concat();
    let plan = ask(place, "plan", &changes).remove(0);
    let planned: Vec<u64> = ranks(&plan)
        .map(|rank| {
            let bytes = rank["bytes"].as_object().expect("bytes by class");
            bytes.values().map(|count| count.as_u64().expect("a count")).sum()
        })
        .collect();
    place.train(name, &changes).ended(0);
    let lines = fs::read_to_string(place.path(name).join("metrics.jsonl")).expect("metrics");
    let counted: Vec<Vec<u64>> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON"))
        .map(|line| serde_json::from_value(line["comm/bytes"].clone()).expect("one per rank"))
        .collect();
    assert_eq!(counted, [planned.clone(), planned], "{changes:?}");
}

fn ranks(plan: &Value) -> impl Iterator<Item = &Value> {
    plan["ranks"].as_array().expect("ranks").iter()
}

/// Whether `strategy` runs on so many ranks with the heads of the place's experiment.
fn runs_on(strategy: Strategy, ranks: usize) -> bool {
    strategy.check(ranks, Heads { query: 4, key_value: 2 }).is_ok()
}

/// The memory of threads of one process is one: what fits into the budget is chosen as what fits.
#[test]
fn auto_takes_what_fits_into_the_memory_that_all_ranks_share() {
    let place = Place::new(ANNULUS);
    let open = ["attention.strategy=auto", "mesh.sequence=4", "model.hidden_size=256"];
    let said = |budget: &[&str]| {
        let words = [&["plan", "experiment.yaml"][..], &open, budget].concat();
        run(ANNULUS, &place.path(""), &words).ended(0).stdout.clone()
    };
    let plan = ask(&place, "plan", &open).remove(0);
    let held: u64 = ranks(&plan).filter_map(|rank| rank["together"].as_u64()).sum();
    let budget = format!("memory.budget={}M", (held + held / 20) >> 20);
    let text = said(&[&budget]);
    assert!(text.contains("it fits") && !text.contains("none fits"), "{text}");
}

/// Devices of a described cluster share no memory: each holds what it would alone.
#[test]
fn the_plan_for_a_cluster_is_of_its_devices() {
    let place = Place::new(ANNULUS);
    let cluster = root().join("experiments/clusters/h100.yaml");
    let there = format!("mesh.cluster={}", cluster.display());
    let held = |more: &[&str]| -> Vec<u64> {
        let plan = ask(&place, "plan", &[&["mesh.sequence=4"], more].concat()).remove(0);
        ranks(&plan).filter_map(|rank| rank["peak"]["weights"].as_u64()).collect()
    };
    let (threads, devices) = (held(&[]), held(&[&there]));
    assert!(threads[0] > threads[1] && threads.len() == 4, "{threads:?}");
    assert!(devices.iter().all(|rank| *rank == devices[0] && *rank > 0), "{devices:?}");
    // Trained here, its ranks are threads that share this machine's memory.
    let all = |more: &[&str]| -> u64 {
        let own = ["mesh.sequence=4", "model.hidden_size=256"];
        let plan = ask(&place, "plan", &[&own[..], more].concat()).remove(0);
        ranks(&plan).filter_map(|rank| rank["together"].as_u64()).sum()
    };
    let (threads, devices) = (all(&[]), all(&[&there]));
    assert!(threads + threads / 4 < devices, "{threads} {devices}");
    let budget = format!("memory.budget={}M", (threads + threads / 8) >> 20);
    let words = [&*there, &budget, "mesh.sequence=4", "model.hidden_size=256", "schedule.steps=3"];
    place.train("here", &words).ended(0);
}

/// Relative: both are rounded to f32.
const FREQUENCY: f64 = 3e-7;

#[test]
fn frequencies_are_those_of_transformers() {
    let Some(folder) = shared("golden/A/rope") else { return };
    let place = Place::new(ANNULUS);
    // Longer than any of the sequences.
    place.write("text.txt", &"text ".repeat(1 << 19));
    let mut cases = 0;
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let case: Value = serde_json::from_str(&fs::read_to_string(&path).expect("a file"))
            .expect("a case is JSON");
        let tokens = case["seq_len"].as_u64().unwrap_or(64);
        let changes = [
            format!("model.head_dim={}", case["head_dim"]),
            format!("model.max_position_embeddings={}", case["max_position_embeddings"]),
            format!("model.rope_parameters={}", case["rope_parameters"]),
            format!("data.tokens={tokens}"),
        ];
        let plan = ask(&place, "plan", &changes.each_ref().map(String::as_str)).remove(0);
        let found = numbers(&plan["rope"]["inv_freq"]);
        let wanted = numbers(&case["inv_freq"]);
        assert_eq!(found.len(), wanted.len(), "{}", path.display());
        let factor = [&plan["rope"]["attention_factor"], &case["attention_factor"]];
        let [factor, wanted_factor] = factor.map(|factor| factor.as_f64().expect("a number"));
        let pairs = found.iter().zip(&wanted).chain([(&factor, &wanted_factor)]);
        for (found, wanted) in pairs {
            let off = (found / wanted - 1.0).abs();
            assert!(off < FREQUENCY, "{}: {found} is {off:.1e} off", path.display());
        }
        cases += 1;
    }
    assert_eq!(cases, 12);
}

fn numbers(list: &Value) -> Vec<f64> {
    serde_json::from_value(list.clone()).expect("a list of numbers")
}

#[test]
fn planned_bytes_are_those_handed_over() {
    let place = Place::new(ANNULUS);
    for strategy in Strategy::ALL {
        for ranks in (1..=8).filter(|&ranks| runs_on(strategy, ranks)) {
            let (name, tokens) = (strategy.name(), tokens(ranks));
            let changes = [
                format!("attention.strategy={name}"),
                format!("mesh.sequence={ranks}"),
                format!("data.tokens={tokens}"),
            ];
            check_bytes(
                &place,
                &format!("{name}-{ranks}"),
                &changes.each_ref().map(String::as_str),
            );
        }
    }
}

#[test]
fn planned_bytes_hold_for_meshes_micro_batches_windows_and_bf16() {
    let place = Place::new(ANNULUS);
    for strategy in ["ring", "striped", "megatron", "all-gather"] {
        let chosen = format!("attention.strategy={strategy}");
        let base = [&chosen, "mesh.sequence=2", "data.batch=4"];
        for (name, changes) in [
            ("mesh", &["mesh.data=2"][..]),
            ("micro", &["memory.micro_batch=1"]),
            ("both", &["mesh.data=2", "memory.micro_batch=1", "memory.recompute=none"]),
            ("window", &["attention.window=5"]),
            ("full", &["attention.mask=full"]),
            ("bf16", &["model.dtype=bf16"]),
            ("tied", &["model.tie_word_embeddings=true"]),
            ("chunks", &["memory.loss_chunk=7", "memory.mlp_chunk=5"]),
        ] {
            check_bytes(&place, &format!("{strategy}-{name}"), &[&base[..], changes].concat());
        }
    }
    let sliding = [
        "attention.strategy=megatron",
        "mesh.sequence=3",
        "attention.sliding.layers=[0]",
        "attention.sliding.window=6",
        "attention.sliding.strategy=halo",
    ];
    check_bytes(&place, "sliding", &sliding);
    check_bytes(&place, "parts", &["mesh.tensor=2", "mesh.sequence=2", "data.batch=4"]);
    check_bytes(&place, "replicas", &["mesh.data=4", "mesh.sequence=1", "data.batch=4"]);
}

/// The positions of a rank, by the words of the strategies' papers.
fn sharded(strategy: Strategy, tokens: usize, ranks: usize, rank: usize) -> Vec<usize> {
    let chunk = |index: usize, of: usize| index * tokens / of..(index + 1) * tokens / of;
    match strategy.layout() {
        Layout::Contiguous => chunk(rank, ranks).collect(),
        Layout::Striped { .. } => (rank..tokens).step_by(ranks).collect(),
        _ => chunk(rank, 2 * ranks).chain(chunk(2 * ranks - 1 - rank, 2 * ranks)).collect(),
    }
}

#[test]
fn planned_pairs_are_those_that_a_count_finds() {
    let place = Place::new(ANNULUS);
    let masks: [(&str, fn(usize, usize) -> bool); 3] = [
        ("mask=causal", |query, key| key <= query),
        ("mask=full", |_, _| true),
        ("window=7", |query, key| key <= query && query - key < 7),
    ];
    for strategy in Strategy::ALL {
        for ranks in (1..=8).filter(|&ranks| runs_on(strategy, ranks)) {
            for (mask, sees) in masks {
                check_pairs(&place, strategy, ranks, mask, sees);
            }
        }
    }
}

#[track_caller]
fn check_pairs(
    place: &Place,
    strategy: Strategy,
    world: usize,
    mask: &str,
    sees: fn(usize, usize) -> bool,
) {
    const SEQUENCES: usize = 3;
    let (name, tokens) = (strategy.name(), tokens(world));
    let changes = [
        format!("attention.strategy={name}"),
        format!("attention.{mask}"),
        format!("mesh.sequence={world}"),
        format!("data.tokens={tokens}"),
        format!("data.batch={SEQUENCES}"),
    ];
    let plan = ask(place, "plan", &changes.each_ref().map(String::as_str)).remove(0);
    assert_eq!(ranks(&plan).count(), world);
    for (index, rank) in ranks(&plan).enumerate() {
        let own = sharded(strategy, tokens, world, index);
        let seen = |&query: &usize| (0..tokens).filter(|&key| sees(query, key)).count();
        let pairs = SEQUENCES * own.iter().map(seen).sum::<usize>();
        assert_eq!(rank["pairs"], pairs, "{changes:?}, rank {index}");
        assert_eq!(rank["positions"], serde_json::json!(own), "{changes:?}, rank {index}");
    }
}

/// A command and what it prints.
fn shown(place: &Place, command: &str) -> String {
    let arguments: Vec<_> = command.split(' ').collect();
    let ran = run(ANNULUS, &place.path(""), &arguments);
    format!("$ annulus {command}\n{}\n", ran.ended(0).stdout)
}

#[test]
fn layouts_are_drawn() {
    let place = Place::new(ANNULUS);
    let commands = [
        "layout striped",
        "layout megatron --ranks 2 --tokens 8 --hops",
        "layout ring --ranks 3 --tokens 6 --window 2",
        "layout all-gather --ranks 2 --tokens 4 --json",
    ];
    insta::assert_snapshot!(commands.map(|command| shown(&place, command)).concat());
}

#[test]
fn experiments_are_read_without_running() {
    let place = Place::new(ANNULUS);
    let commands = [
        "check experiment.yaml memory.budget=1G",
        "check experiment.yaml --json",
        "plan experiment.yaml memory.budget=1G",
        "plan experiment.yaml --json",
        "plan experiment.yaml memory.budget=1G attention.sliding.layers=[0] attention.sliding.window=6 attention.sliding.strategy=ring",
        "tokenize text.txt --out cache",
        "tokenize text.txt --out cache --json",
    ];
    insta::assert_snapshot!(commands.map(|command| shown(&place, command)).concat());
    assert!(!place.path("run").exists(), "nothing was trained");
}

/// The description of the model comes from the tests' own hub; its tokenizer is not ours to keep.
#[test]
fn the_plan_of_a_model_of_the_hub_is_the_one_beside_it() {
    let model = root().join("tests/fixtures/llama-3.2-1b/config.json");
    let hub = Hub::new("meta-llama/Llama-3.2-1B", [("config.json", File::read(&model))]);
    let home = tempfile::tempdir().expect("a scratch folder");
    let mut command = std::process::Command::new(ANNULUS);
    let experiment = "experiments/llama-3.2-1b-128k.yaml";
    // What a core packs follows from its cache: of a machine that is named, not of this one.
    let machine = "mesh.cluster=experiments/clusters/processors.yaml";
    command.args(["plan", experiment, "data.tokenizer=bytes", machine]).current_dir(root());
    command.env_remove("HF_HUB_OFFLINE");
    let ran = hub.to(&mut command, home.path());
    let kept = root().join("experiments/plans/llama-3.2-1b-128k.txt");
    assert_eq!(ran.ended(0).stdout, fs::read_to_string(kept).expect("the plan"));
}

/// `check`, `plan` and `train` say the same of what does not fit.
#[test]
fn what_does_not_fit_is_refused_by_every_command() {
    let place = Place::new(ANNULUS);
    for (change, wanted) in [
        ("memory.budget=100k", "`memory.budget` is 100.0 KiB: it does not fit"),
        // A container's limit stands in for the machine's memory.
        ("model.hidden_size=65536 model.num_hidden_layers=1000", "this machine has"),
    ] {
        let said = ["check", "plan", "train"].map(|command| {
            let mut arguments = vec![command, "experiment.yaml"];
            arguments.extend(change.split(' '));
            let ran = annulus_tests::run(ANNULUS, &place.path(""), &arguments);
            ran.ended(5);
            let error = ran.stderr.lines().find(|line| line.starts_with("error: "));
            error.expect("an error").to_owned()
        });
        let of_machine = said[0].replace("this process's control group allows", "this machine has");
        assert!(of_machine.contains("this needs ") && of_machine.contains(wanted), "{}", said[0]);
        assert!(said.iter().all(|error| *error == said[0]), "{said:?}");
    }
}

#[test]
fn the_schema_is_the_one_that_experiments_name() {
    let ran = run(ANNULUS, &root(), &["schema"]);
    let kept = fs::read_to_string(root().join("experiments/schema.json")).expect("the schema");
    assert_eq!(ran.ended(0).stdout, kept);
}
