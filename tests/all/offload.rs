//! Offloaded activations: the same bits under a budget that refuses them in memory, and after a kill.

use std::fs;
use std::path::Path;

use annulus_tests::run;
use annulus_tests::runs::{Place, last_saved};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

/// Layers that keep many activations.
const DEEP: [&str; 6] = [
    "model.num_hidden_layers=8",
    "model.hidden_size=64",
    "data.tokens=768",
    "memory.recompute=none",
    "memory.mlp_chunk=1024",
    "schedule.steps=4",
];
const OFFLOAD: &str = "memory.offload=activations";

fn weights(place: &Place, output: &str) -> Vec<u8> {
    fs::read(place.path(output).join("step-4/model.safetensors")).expect("the run saved them")
}

/// The memory of all ranks by the plan, in MiB.
fn planned(place: &Place, changes: &[&str]) -> f64 {
    let arguments = [&["plan", "experiment.yaml", "--json"], &DEEP[..], changes].concat();
    let ran = run(ANNULUS, &place.path(""), &arguments);
    let plan = &ran.ended(0).json()[0];
    let ranks = plan["ranks"].as_array().expect("ranks").iter();
    ranks.map(|rank| rank["together"].as_f64().expect("bytes")).sum::<f64>() / 1_048_576.0
}

#[test]
fn offloaded_activations_have_the_same_bits_under_a_budget_that_refuses_them_in_memory() {
    let place = Place::new(ANNULUS);
    place.train("whole", &DEEP).ended(0);
    let [whole, less] = [&[][..], &[OFFLOAD]].map(|changes| planned(&place, changes));
    assert!(less < 0.6 * whole, "{less} MiB of {whole}");
    let budget = format!("memory.budget={:.0}K", 1024.0 * (whole + less) / 2.0);
    let refused = place.train("refused", &[&DEEP[..], &[&budget]].concat());
    assert!(refused.ended(5).stderr.contains("budget"), "{}", refused.stderr);
    let folder = format!("memory.offload_folder={}", place.path("disk").display());
    for (output, more) in [("run", &[][..]), ("elsewhere", &[folder.as_str()])] {
        place.train(output, &[&DEEP[..], &[&budget, OFFLOAD], more].concat()).ended(0);
        assert!(weights(&place, output) == weights(&place, "whole"), "{output} differs");
    }
    // What was made is gone, and was nowhere else.
    assert!(!place.path("disk").exists() && !place.path("run/offload").exists());
}

/// A rank that begins with the last of the moments takes them before the thread has written all.
#[test]
fn moments_wait_on_a_disk_where_ranks_update_few_of_them() {
    let place = Place::new(ANNULUS);
    let changes = ["model.num_hidden_layers=1", "mesh.sequence=8", "schedule.steps=4"];
    place.train("whole", &changes).ended(0);
    place.train("run", &[&changes[..], &["memory.offload=optimizer"]].concat()).ended(0);
    assert!(weights(&place, "run") == weights(&place, "whole"), "the last step differs");
}

/// In micro-batches, a few rows of the feed-forward at a time: to the bit, the optimizer's moments too.
#[test]
fn offloading_goes_with_what_else_saves_memory() {
    let place = Place::new(ANNULUS);
    let layered = "memory.recompute=layer";
    let changes =
        [&DEEP[..5], &[layered, "memory.mlp_chunk=40", "memory.micro_batch=1", "schedule.steps=4"]];
    let changes = changes.concat();
    place.train("whole", &changes).ended(0);
    for what in ["activations", "optimizer", "both"] {
        let offload = format!("memory.offload={what}");
        place.train(what, &[&changes[..], &[&offload]].concat()).ended(0);
        for file in ["model", "optimizer"] {
            let of = |output: &str| {
                let path = place.path(output).join(format!("step-4/{file}.safetensors"));
                fs::read(path).expect("the run saved them")
            };
            assert!(of(what) == of("whole"), "{file} of {what} differs");
        }
    }
}

#[test]
fn a_run_that_is_killed_leaves_nothing_of_what_it_offloaded_and_goes_on_to_the_same_bits() {
    let place = Place::new(ANNULUS);
    let changes = [&DEEP[..5], &["schedule.steps=4"]].concat();
    place.train("whole", &changes).ended(0);
    let offloading = [&changes[..], &[OFFLOAD]].concat();
    let mut live = place.start("run", &offloading);
    live.wait_for(|output| last_saved(output) >= 1);
    live.kill();
    let left = |path: &Path| fs::read_dir(path).map_or(0, Iterator::count);
    assert_eq!(left(&place.path("run/offload")), 0);
    place.train("run", &offloading).ended(0);
    assert!(weights(&place, "run") == weights(&place, "whole"));
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let place = Place::new(ANNULUS);
    let folder = format!("memory.offload_folder={}", place.path("text.txt/below").display());
    let ran = place.train("run", &[&DEEP[..], &[OFFLOAD, &folder]].concat());
    let code = ran.code.expect("it ended");
    assert!(code == 1 && ran.stderr.contains("text.txt/below"), "{code}: {}", ran.stderr);
    assert!(ran.stderr.contains("hint: name another folder by `memory.offload_folder`"));
    assert_eq!(ran.stderr.matches("error: ").count(), 1, "{}", ran.stderr);
}
