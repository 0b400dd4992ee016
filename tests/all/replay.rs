//! `annulus replay`: one step of a run again, whose tensors have the hashes that the run logged, and are those of its checkpoints.

use std::collections::BTreeMap;
use std::fs::{self, File};

use annulus_tests::runs::{Place, contents};
use annulus_tests::{Ran, run};
use safetensors::SafeTensors;
use serde_json::Value;

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");
const SHORT: [&str; 4] = ["schedule.steps=6", "every.hash=1", "every.checkpoint=2", "keep=9"];

fn replay(place: &Place, arguments: &[&str]) -> Ran {
    run(ANNULUS, &place.path(""), &[&["replay"], arguments].concat())
}

/// The bytes of all tensors of a file.
fn tensors(place: &Place, file: &str) -> BTreeMap<String, Vec<u8>> {
    let bytes = fs::read(place.path(file)).expect(file);
    let all = SafeTensors::deserialize(&bytes).expect(file);
    all.tensors().into_iter().map(|(name, view)| (name, view.data().to_vec())).collect()
}

/// The tensors of the line of step `step`.
fn hashed(place: &Place, run: &str, step: u64) -> Vec<String> {
    let text = fs::read_to_string(place.path(run).join("hashes.jsonl")).expect("hashes");
    let line = |line: &str| serde_json::from_str::<Value>(line).expect("a line of JSON");
    let line = text.lines().map(line).find(|line| line["step"] == step).expect("its line");
    line["tensors"].as_object().expect("tensors").keys().cloned().collect()
}

#[test]
fn a_step_has_the_tensors_that_the_run_hashed_and_saved() {
    let place = Place::new(ANNULUS);
    place.train("a", &SHORT).ended(0);
    let before = contents(&place.path("a"));
    let said = replay(&place, &["a", "--step", "6", "--json"]).ended(0).json().remove(0);
    assert!(
        said["equal"] == true && said["from"] == 4 && said["found"]["hashed"] == true,
        "{said}"
    );
    assert!(said["found"]["logged"] == true, "{said}");
    let mut found: Vec<String> = ["gradients", "weights", "first", "second"]
        .iter()
        .flat_map(|kind| tensors(&place, &format!("a-replayed-6/{kind}.safetensors")).into_keys())
        .collect();
    found.sort();
    assert_eq!(found, hashed(&place, "a", 6));
    // They are what the run saved behind the step.
    let saved = tensors(&place, "a/step-6/model.safetensors").into_iter();
    let saved: BTreeMap<_, _> =
        saved.map(|(name, data)| (format!("weights.{name}"), data)).collect();
    assert!(tensors(&place, "a-replayed-6/weights.safetensors") == saved);
    let mut moments = tensors(&place, "a-replayed-6/first.safetensors");
    moments.extend(tensors(&place, "a-replayed-6/second.safetensors"));
    assert!(tensors(&place, "a/step-6/optimizer.safetensors") == moments);
    // The first step has no checkpoint before it.
    let said = replay(&place, &["a", "--step", "1", "--json"]).ended(0).json().remove(0);
    assert!(said["from"].is_null() && said["equal"] == true, "{said}");
    assert!(contents(&place.path("a")) == before, "the run was changed");
    let left = fs::read_dir(place.path("")).unwrap().flatten();
    let left = left.filter(|entry| entry.file_name().to_string_lossy().starts_with("replay-"));
    assert_eq!(left.count(), 0, "the run up to the step was left behind");
}

/// What others have unfinished there stays.
#[test]
fn what_a_killed_replay_has_left_is_removed_by_the_next() {
    let place = Place::new(ANNULUS);
    place.train("a", &["schedule.steps=2", "every.hash=1"]).ended(0);
    let [left, used, other] = ["left", "used", "other"].map(|name| {
        let folder = place.path(&format!(".annulus-{name:0>16}.partial"));
        fs::create_dir_all(folder.join("step-1")).expect("a folder");
        folder
    });
    let [_, used_lock] = [&left, &used].map(|folder| {
        let lock = File::create(folder.join("replay.lock")).expect("a file");
        lock.lock().expect("it is ours");
        lock
    });
    replay(&place, &["a", "--step", "2"]).ended(0);
    assert_eq!([&left, &used, &other].map(|folder| folder.exists()), [false, true, true]);
    drop(used_lock);
    let names = fs::read_dir(place.path("")).expect("a folder");
    let names = names.map(|entry| entry.expect("an entry").file_name().into_string());
    let unfinished =
        names.filter(|name| name.as_ref().is_ok_and(|name| name.starts_with(['.', 'r'])));
    assert_eq!(unfinished.count(), 2, "its own is gone");
}

#[test]
fn a_hash_that_is_another_is_named() {
    let place = Place::new(ANNULUS);
    place.train("a", &SHORT).ended(0);
    let name = "gradients.model.layers.1.mlp.up_proj.weight";
    let path = place.path("a/hashes.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let line = |line: &str| {
        let mut value: Value = serde_json::from_str(line).unwrap();
        if value["step"] == 5 {
            value["tensors"][name] = "0123456789abcdef".into();
        }
        format!("{value}\n")
    };
    fs::write(&path, text.lines().map(line).collect::<String>()).unwrap();
    let ran = replay(&place, &["a", "--step", "5"]);
    let said = &ran.ended(10).stdout;
    assert!(said.contains("step 5 computed again, from step-4 on"), "{said}");
    assert!(said.contains("1 of 21  model.layers.1.mlp.up_proj.weight"), "{said}");
    assert!(said.contains("as the run logged them"), "{said}");
    replay(&place, &["a", "--step", "6"]).ended(0);
}

#[test]
fn parts_of_tensors_and_masters_are_whole_and_damaged_checkpoints_are_passed_over() {
    let place = Place::new(ANNULUS);
    let parts = ["mesh.sequence=2", "mesh.tensor=2", "model.dtype=bf16"];
    place.train("a", &[&SHORT[..], &parts].concat()).ended(0);
    annulus_tests::runs::flip(&place.path("a/step-4/model.safetensors"));
    let ran = replay(&place, &["a", "--step", "5", "--out", "out", "--json"]);
    let said = ran.ended(0).json().remove(0);
    assert!(said["from"] == 2 && said["equal"] == true, "{said}");
    assert!(ran.stderr.contains("step-4` is refused"), "{}", ran.stderr);
    assert!(tensors(&place, "out/master.safetensors").len() > 20);
}

#[test]
fn what_cannot_be_replayed_is_refused() {
    let place = Place::new(ANNULUS);
    place.train("a", &["schedule.steps=2"]).ended(0);
    let said = replay(&place, &["a", "--step", "3"]).ended(2).stderr.clone();
    assert!(said.contains("`a` has 2 steps, no step 3"), "{said}");
    let said = replay(&place, &["a", "--step", "2", "--out", "a/2"]).ended(2).stderr.clone();
    assert!(said.contains("is in the run's folder"), "{said}");
    let said = replay(&place, &["a", "--step", "2"]).ended(0).stdout.clone();
    assert!(said.contains("has no hashes of this step"), "{said}");
}

/// A replay evaluates nothing that `keep_best` could compare.
#[test]
fn a_step_of_a_run_that_keeps_its_best_checkpoint_is_replayed() {
    let place = Place::new(ANNULUS);
    let best = ["keep_best=true", "every.evaluate=2", "data.evaluate=2"];
    place.train("a", &[&SHORT[..], &best].concat()).ended(0);
    let said = replay(&place, &["a", "--step", "5"]).ended(0).stdout.clone();
    assert!(said.contains("equal to the bit"), "{said}");
}

/// What is computed again elsewhere is said of the run itself.
#[test]
fn a_text_that_has_moved_is_named_and_one_that_has_changed_refused() {
    let place = Place::new(ANNULUS);
    place.train("a", &["schedule.steps=4", "every.hash=1"]).ended(0);
    let step = ["a", "--step", "3", "--out", "out"];
    let with = |more: &[&str]| replay(&place, &[&step[..], more].concat());
    fs::rename(place.path("text.txt"), place.path("moved.txt")).expect("a text");
    with(&[]).ended(3);
    place.write("text.txt", &"another text ".repeat(900));
    let changed = with(&[]);
    let said = "`a/step-2` was trained on other texts: `text.txt` has changed since";
    let hint = "hint: restore the texts, or name where they are now, as in `data.path=NEW`";
    let stderr = &changed.ended(4).stderr;
    assert!(stderr.contains(said) && stderr.contains(hint), "{stderr}");
    assert!(!stderr.contains("replay-"), "{stderr}");
    let other = with(&["data.path=moved.txt", "optimizer.weight_decay=0.5"]);
    let stderr = &other.ended(4).stderr;
    assert!(stderr.contains("`a/step-2` belongs to a different experiment"), "{stderr}");
    assert!(!stderr.contains("replay-"), "{stderr}");
    let output = with(&["output=b"]);
    assert!(output.ended(2).stderr.contains("give `--out` instead"), "{}", output.stderr);
    let moved = with(&["data.path=moved.txt"]);
    assert!(moved.ended(0).stdout.contains("equal to the bit"), "{}", moved.stdout);
    // Commands that replace no keys say so.
    let words = ["bisect", "a", "a", "data.path=moved.txt"];
    let refused = run(ANNULUS, &place.path(""), &words);
    let said = "`data.path=moved.txt`: this command replaces no keys";
    assert!(refused.ended(2).stderr.contains(said), "{}", refused.stderr);
}
