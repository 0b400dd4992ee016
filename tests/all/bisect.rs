//! Hashes of the state: the same whoever holds what and however a run ends, and where two runs differ first.

use std::fs;

use annulus_tests::drill::{Drill, KEY, What};
use annulus_tests::runs::{Place, metrics};
use annulus_tests::{Ran, run};
use safetensors::SafeTensors;
use serde_json::{Value, json};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");
const EACH: &str = "every.hash=1";
const STEPS: &str = "schedule.steps=6";
const LEVEL: &str = "schedule.decay=constant";

fn bisect(place: &Place, runs: [&str; 2]) -> Ran {
    run(ANNULUS, &place.path(""), &["bisect", runs[0], runs[1], "--json"])
}

fn hashes(place: &Place, output: &str) -> String {
    fs::read_to_string(place.path(output).join("hashes.jsonl")).expect("the run hashed its state")
}

/// The step behind which they differ first, and how many tensors of a kind do.
fn first(found: &Value) -> (u64, impl Fn(&str) -> usize + '_) {
    let first = &found["first"];
    let many = move |kind: &str| first["kinds"][kind][0].as_array().map_or(0, Vec::len);
    (first["step"].as_u64().expect("a step"), many)
}

#[test]
fn hashes_do_not_depend_on_who_holds_what_or_on_how_often_a_run_was_resumed() {
    let place = Place::new(ANNULUS);
    place.train("whole", &[STEPS, LEVEL, EACH]).ended(0);
    let whole = hashes(&place, "whole");
    assert_eq!(whole.lines().count(), 6);
    place.train("again", &["schedule.steps=3", LEVEL, EACH]).ended(0);
    place.train("again", &[STEPS, LEVEL, EACH]).ended(0);
    assert!(hashes(&place, "again") == whole, "a resumed run hashes otherwise");
    // A line that was torn by a death, and lines behind the checkpoint, are written again.
    let torn = whole.lines().take(4).chain(["{\"step\":5,\"st"]).collect::<Vec<_>>().join("\n");
    fs::write(place.path("again").join("hashes.jsonl"), torn).unwrap();
    place.train("again", &["schedule.steps=8", LEVEL, EACH]).ended(0);
    assert!(hashes(&place, "again").starts_with(&whole[..whole.len() / 2]));
    let alike = bisect(&place, ["whole", "again"]).ended(0).json().remove(0);
    assert!(alike["first"].is_null() && alike["alike"].as_u64() >= Some(4), "{alike}");
}

/// As if it had been killed in its last steps, of which its checkpoints know nothing.
#[test]
fn what_a_killed_start_wrote_of_lost_steps_is_gone_whatever_the_next_one_writes() {
    let place = Place::new(ANNULUS);
    let kept = ["every.checkpoint=2", "keep=9", STEPS, LEVEL];
    place.train("run", &[&kept[..], &[EACH, "trace.steps=[1, 4]"]].concat()).ended(0);
    for step in ["step-4", "step-6"] {
        fs::remove_dir_all(place.path("run").join(step)).expect("a checkpoint");
    }
    let said = place.train("run", &[&kept[..], &["every.hash=0", "trace.steps=[]"]].concat());
    assert!(said.ended(0).stderr.contains("resuming from `step-2`"), "{said:?}");
    assert_eq!(hashes(&place, "run").lines().count(), 2);
    let traced = |step: u64| place.path("run").join(format!("trace-{step}.json")).is_file();
    assert!(traced(1) && !traced(4));
    place.train("longer", &[&kept[..], &[EACH]].concat()).ended(0);
    let said = run(ANNULUS, &place.path(""), &["bisect", "run", "longer"]).ended(0).stdout.clone();
    assert!(said.contains("4 more are only in the other, and are not compared"), "{said}");
}

/// Other last digits are no bug: what explains them is named.
#[test]
fn runs_that_are_split_otherwise_are_said_to_differ_for_that() {
    let place = Place::new(ANNULUS);
    for (output, ranks) in [("three", "mesh.sequence=3"), ("two", "mesh.sequence=2")] {
        place.train(output, &[STEPS, EACH, ranks]).ended(0);
    }
    let said = bisect(&place, ["three", "two"]).ended(10).stderr.clone();
    assert!(said.contains("`mesh.sequence`") && said.contains("reproducible: strict"), "{said}");
    place
        .train("decayed", &[STEPS, EACH, "mesh.sequence=2", "optimizer.weight_decay=0.3"])
        .ended(0);
    let said = bisect(&place, ["two", "decayed"]).ended(10).stderr.clone();
    assert!(!said.contains("note:"), "{said}");
}

#[test]
fn what_differs_first_is_found_by_step_and_tensor() {
    let place = Place::new(ANNULUS);
    let other = |output: &str, change: &str| {
        place.train(output, &[STEPS, EACH, change]).ended(0);
    };
    other("a", "every.log=1");
    // Other weights are left of the same gradients.
    other("decayed", "optimizer.weight_decay=0.3");
    let found = bisect(&place, ["a", "decayed"]).ended(10).json().remove(0);
    let (step, many) = first(&found);
    assert!(step == 1 && found["alike"].is_null() && many("gradients") == 0, "{found}");
    assert!(many("weights") > 0 && many("first") == 0, "{found}");
    // Another sample in a step: gradients differ there.
    other("seeded", "seed=9");
    let found = bisect(&place, ["a", "seeded"]).ended(10).json().remove(0);
    let (step, many) = first(&found);
    assert!(step == 1 && many("gradients") > 0, "{found}");
}

/// What `bisect` says of runs that differ, in this step and behind one that is alike.
#[track_caller]
fn differing(place: &Place, runs: [&str; 2], step: u64) -> Value {
    let found = bisect(place, runs).ended(10).json().remove(0);
    assert_eq!(found["first"]["step"], step, "{found}");
    assert_eq!(found["alike"], step - 1, "{found}");
    found["first"].clone()
}

#[test]
fn a_bit_of_a_message_is_found_to_its_hop() {
    let place = Place::new(ANNULUS);
    let ring = [STEPS, EACH, "attention.strategy=ring"];
    place.train("a", &ring).ended(0);
    for (pass, layer, hop, rank) in [("forward", 1, 1, 2), ("backward", 0, 0, 1)] {
        let pass_name = pass.to_owned();
        let drill = Drill { what: What::Corrupt, rank, step: 3, layer, pass: pass_name, hop };
        let mut command = place.command(pass, &ring);
        let ran = Ran::of(&command.env(KEY, json!(drill).to_string()).output().expect("it runs"));
        let at = format!("{pass}, layer {layer}, hop {hop}");
        let said = format!("step 3, {at}: a message from rank {rank} was corrupted in transit");
        assert!(ran.ended(0).stderr.contains(&said), "{}", ran.stderr);
        let first = differing(&place, ["a", pass], 3);
        assert_eq!(
            first["divergence"],
            json!({"damaged": {"run": 1, "at": at, "rank": rank}}),
            "{first}"
        );
    }
}

/// Changes the lines of a file of a run that are of step 3.
fn rewrite(place: &Place, file: &str, change: impl Fn(&mut Value)) {
    let text = fs::read_to_string(place.path(file)).expect("the run hashed its steps");
    let lines = text.lines().map(|line| {
        let mut line: Value = serde_json::from_str(line).expect("a line of JSON");
        if line["step"] == 3 {
            change(&mut line);
        }
        format!("{line}\n")
    });
    place.write(file, &lines.collect::<String>());
}

#[test]
fn a_rank_that_sends_something_else_is_found_where_runs_are_split_alike() {
    let place = Place::new(ANNULUS);
    place.train("a", &[STEPS, EACH, "attention.strategy=ring"]).ended(0);
    place.copy("a", "b");
    // As if rank 1 had erred while it made what it sends: what is computed of it is another, too.
    let (at, behind) = ("forward, layer 1, hop 0", "forward layers.1.input_layernorm");
    rewrite(&place, "b/messages.jsonl", |line| {
        let hops = line["hops"].as_array_mut().expect("hops");
        let hop = hops.iter_mut().find(|hop| hop["at"] == at).expect("the hop");
        assert_eq!(hop["before"], behind);
        hop["sent"]["1"] = json!("0123456789abcdef");
    });
    rewrite(&place, "b/hashes.jsonl", |line| {
        let computed = line["computed"].as_array_mut().expect("what was computed");
        let one = computed.iter_mut().find(|one| one[0] == behind).expect("the stage");
        one[1] = json!("0123456789abcdef");
    });
    let first = differing(&place, ["a", "b"], 3);
    assert_eq!(first["divergence"], json!({"sent": {"at": at, "ranks": [1]}}), "{first}");
    // Messages of another way to split say nothing.
    rewrite(&place, "b/messages.jsonl", |line| line["split"] = json!("another"));
    let first = differing(&place, ["a", "b"], 3);
    assert_eq!(first["divergence"], json!({"computed": {"at": behind}}), "{first}");
}

/// The run `whole`, stopped behind step 3; with a bit of the middle element of a tensor of its state another, gone on with as `output`.
fn with_a_bit(place: &Place, output: &str, file: &str, tensor: &str) {
    place.train(output, &["schedule.steps=3", LEVEL, EACH]).ended(0);
    let folder = place.path(output).join("step-3");
    let path = folder.join(file);
    let mut bytes = fs::read(&path).expect("the checkpoint's file");
    let at = {
        let all = SafeTensors::deserialize(&bytes).expect("tensors");
        let data = all.tensor(tensor).expect("the tensor").data();
        data.as_ptr() as usize - bytes.as_ptr() as usize + data.len() / 8 * 4
    };
    // The lowest bit of a moment may be rounded away in the next step.
    bytes[at + 1] ^= 1;
    fs::write(&path, &bytes).unwrap();
    // As if it had happened in memory: the checkpoint's own hashes would notice it.
    let stamps = folder.join("hashes.json");
    let mut all: Value = serde_json::from_str(&fs::read_to_string(&stamps).unwrap()).unwrap();
    all[file]["blake3"] = json!(blake3::hash(&bytes).to_hex().to_string());
    fs::write(&stamps, all.to_string()).unwrap();
    place.train(output, &[STEPS, LEVEL, EACH]).ended(0);
}

#[test]
fn a_bit_of_a_weight_or_a_moment_is_found_to_its_tensor() {
    let place = Place::new(ANNULUS);
    place.train("whole", &[STEPS, LEVEL, EACH]).ended(0);
    let weight = "model.layers.1.mlp.up_proj.weight";
    with_a_bit(&place, "weight", "model.safetensors", weight);
    let first = differing(&place, ["whole", "weight"], 4);
    let at = format!("weights.{weight}");
    assert_eq!(first["divergence"], json!({"computed": {"at": at}}), "{first}");
    let moment = "second.model.layers.0.self_attn.q_proj.weight";
    with_a_bit(&place, "moment", "optimizer.safetensors", moment);
    let first = differing(&place, ["whole", "moment"], 4);
    assert!(first["divergence"].is_null(), "{first}");
    assert_eq!(first["kinds"]["gradients"][0], json!([]), "{first}");
    let (_, name) = moment.split_once('.').unwrap();
    assert_eq!(first["kinds"]["second"][0], json!([name]), "{first}");
}

#[test]
fn a_swapped_sample_is_found_as_what_was_read() {
    let place = Place::new(ANNULUS);
    place.train("a", &[STEPS, EACH, "every.log=1"]).ended(0);
    // Windows of 48 tokens, which are bytes.
    let text = fs::read_to_string(place.path("text.txt")).unwrap();
    let windows = text.as_bytes().chunks(48).map(|window| str::from_utf8(window).unwrap());
    let mut windows: Vec<&str> = windows.collect();
    let all = windows.len();
    windows[all / 2..][..all / 8].chunks_exact_mut(2).for_each(|pair| pair.swap(0, 1));
    place.write("text.txt", &windows.concat());
    place.train("b", &[STEPS, EACH, "every.log=1"]).ended(0);
    let losses = |run: &str| metrics(&place.path(run));
    let (a, b) = (losses("a"), losses("b"));
    let parted = a.iter().zip(&b).position(|(a, b)| a["train/loss"] != b["train/loss"]);
    let step = 1 + parted.expect("they read other tokens") as u64;
    let first = differing(&place, ["a", "b"], step);
    assert_eq!(first["divergence"], json!({"computed": {"at": "batch"}}), "{first}");
}

#[test]
fn a_sum_in_another_order_is_found_to_its_layer_and_is_none_where_order_does_not_count() {
    let place = Place::new(ANNULUS);
    let ring = ["attention.strategy=ring", "data.tokens=96", LEVEL, EACH];
    let train = |output: &str, changes: &[&str]| {
        place.train(output, &[&ring[..], changes].concat()).ended(0);
    };
    for sums in ["layout", "strict"] {
        let (whole, other) = (format!("whole-{sums}"), format!("other-{sums}"));
        let reproducible = &format!("reproducible={sums}");
        train(&whole, &[STEPS, reproducible, "attention.backward=reversed"]);
        train(&other, &["schedule.steps=3", reproducible, "attention.backward=reversed"]);
        // From here on gradients of keys and values are added in another order.
        train(&other, &[STEPS, reproducible, "attention.backward=direct"]);
        if sums == "strict" {
            bisect(&place, [&whole, &other]).ended(0);
            continue;
        }
        let first = differing(&place, [&whole, &other], 4);
        let at = "backward layers.1.input_layernorm";
        assert_eq!(first["divergence"], json!({"computed": {"at": at}}), "{first}");
    }
}

/// No step before the first hashed one is known to be alike, but what it read is.
#[test]
fn a_cause_is_said_of_the_first_hashed_step_too() {
    let place = Place::new(ANNULUS);
    place.train("a", &[STEPS, "every.hash=3"]).ended(0);
    place.copy("a", "b");
    let meaning = |wanted: &str| {
        let said = run(ANNULUS, &place.path(""), &["bisect", "a", "b"]).ended(10).stdout.clone();
        assert!(said.trim_end().ends_with(wanted), "{said}");
    };
    let differs = |at: &str| {
        let [from, to] = ["a", "b"].map(|run| place.path(run).join("hashes.jsonl"));
        fs::copy(from, to).expect("the run hashed its steps");
        rewrite(&place, "b/hashes.jsonl", |line| {
            let computed = line["computed"].as_array_mut().expect("what was computed");
            let mut points = computed.iter_mut();
            let point = points.find(|one| one[0].as_str().is_some_and(|name| name.starts_with(at)));
            point.expect("the point")[1] = json!("0123456789abcdef");
        });
    };
    differs("backward");
    meaning("From the same weights and tokens the step computed different values.");
    differs("batch");
    meaning("The runs read different tokens.");
}

#[test]
fn runs_without_hashes_are_answered() {
    let place = Place::new(ANNULUS);
    place.train("a", &["schedule.steps=2"]).ended(0);
    place.train("b", &["schedule.steps=2", "every.hash=2"]).ended(0);
    let said = bisect(&place, ["a", "b"]).ended(2).stderr.clone();
    assert!(
        said.contains("`a` has no hashes of the state") && said.contains("every.hash"),
        "{said}"
    );
}
