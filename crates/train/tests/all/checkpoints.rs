//! Checkpoints that cannot be deleted or read, that others lay files into, or that contradict themselves.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::common::{BASE, Place, Warnings};
use serde_json::{Value, json};

use annulus_train::{Ending, Fork, Outcome, RunOptions, Silent, TrainError, best_checkpoint, run};

const EVERY_SECOND: (&str, &str) = ("every.checkpoint", "2");

/// Goes on with the run in `place` until step `stop`; all warnings.
fn go_on(place: &Place, stop: &str) -> (Result<Outcome, TrainError>, Vec<String>) {
    let mut console = Warnings::default();
    let plan = place.plan(&[("schedule.stop", stop), EVERY_SECOND]);
    let outcome = run(&plan, RunOptions::new(BASE, 2), &mut console);
    (outcome, console.0)
}

/// The names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn steps(folder: &Path) -> Vec<String> {
    names(folder).into_iter().filter(|name| name.starts_with("step-")).collect()
}

/// Sets whether `folder/file` can be deleted.
fn may_be_deleted(folder: &Path, may: bool) {
    fs::set_permissions(folder, Permissions::from_mode(if may { 0o755 } else { 0o555 })).unwrap();
    // Root may delete from any folder.
    let flag = if may { "-i" } else { "+i" };
    let _ = Command::new("chattr").arg(flag).arg(folder.join("file")).output();
}

#[test]
fn what_cannot_be_deleted_stops_neither_pruning_nor_a_start() {
    let place = Place::new();
    let first = place.run_in("run", &[("schedule.stop", "6"), EVERY_SECOND]);
    let folder = first.folder;
    let others = folder.join("step-4/others");
    fs::create_dir(&others).unwrap();
    fs::write(others.join("file"), "").unwrap();
    fs::write(others.join("probe"), "").unwrap();
    may_be_deleted(&others, false);
    if fs::remove_file(others.join("file")).is_ok() {
        may_be_deleted(&others, true);
        println!("SKIPPED: this user may delete everything");
        return;
    }
    let (pruned, said) = go_on(&place, "10");
    let saved = steps(&folder);
    let is_left = |name: &&String| name.starts_with(".annulus-");
    let left = names(&folder).iter().find(is_left).unwrap().clone();
    let (next, of_next) = go_on(&place, "11");
    may_be_deleted(&folder.join(&left).join("going/others"), true);
    pruned.unwrap();
    assert_eq!(saved, ["step-10", "step-8"]);
    let [said] = &said[..] else { panic!("{said:?}") };
    assert!(said.contains("run/step-4`") && said.contains(&left), "{said}");
    assert_eq!(next.unwrap().resumed_from, Some(10));
    assert!(of_next[0].contains(&left), "{of_next:?}");
    let (last, said) = go_on(&place, "12");
    last.unwrap();
    assert_eq!((said, names(&folder).iter().find(is_left)), (Vec::new(), None));
}

#[test]
fn files_of_others_do_no_harm_and_stay() {
    let place = Place::new();
    let until = [("schedule.stop", "6"), EVERY_SECOND];
    let last = place.run_in("run", &until).checkpoint.unwrap();
    let lay = |name: &str| fs::write(last.join(name), "precious").unwrap();
    ["eval_results.json", "embeddings.safetensors"].into_iter().for_each(lay);
    let again = place.run_in("run", &until);
    assert_eq!((again.ending, again.step, again.warnings), (Ending::AlreadyFinished, 6, vec![]));
    // What would be read is damage, and stays under another name.
    lay("adapter_config.json");
    let replaced = place.run_in("run", &until);
    assert_eq!((replaced.resumed_from, replaced.warnings.len()), (Some(4), 1));
    for name in ["eval_results.json", "embeddings.safetensors", "adapter_config.json.foreign"] {
        assert_eq!(fs::read(last.join(name)).unwrap(), b"precious", "{name}");
    }
    let again = place.run_in("run", &until);
    assert_eq!((again.ending, again.warnings), (Ending::AlreadyFinished, vec![]));
}

/// A link to itself cannot be read, not even by root.
#[test]
fn a_checkpoint_that_cannot_be_read_is_not_passed_over() {
    let place = Place::new();
    let last = place.run_in("run", &[("schedule.stop", "6"), EVERY_SECOND]).checkpoint.unwrap();
    for name in ["hashes.json", "model.safetensors", "state.json"] {
        let file = last.join(name);
        fs::rename(&file, last.join("aside")).unwrap();
        symlink(&file, &file).unwrap();
        let error = go_on(&place, "8").0.unwrap_err();
        assert_eq!(error.exit_code(), 4);
        assert!(error.to_string().starts_with(&format!("cannot read `{}`", file.display())));
        assert!(error.hint().unwrap().contains("run/step-6`"), "{error}");
        fs::rename(last.join("aside"), &file).unwrap();
    }
    assert_eq!(steps(last.parent().unwrap()), ["step-4", "step-6"]);
    assert_eq!(go_on(&place, "8").0.unwrap().resumed_from, Some(6));
}

/// Writes `key` of a checkpoint's state, with the hash that makes it whole.
pub(crate) fn forge(checkpoint: &Path, key: &str, value: Value) {
    let read = |name: &str| fs::read(checkpoint.join(name)).unwrap();
    let mut state: BTreeMap<String, Value> = serde_json::from_slice(&read("state.json")).unwrap();
    state.insert(key.to_owned(), value);
    let text = serde_json::to_vec(&state).unwrap();
    let mut hashes: Value = serde_json::from_slice(&read("hashes.json")).unwrap();
    let hash = blake3::hash(&text).to_hex().to_string();
    hashes["state.json"] = json!({ "size": text.len(), "blake3": hash });
    fs::write(checkpoint.join("state.json"), text).unwrap();
    fs::write(checkpoint.join("hashes.json"), hashes.to_string()).unwrap();
}

#[test]
fn a_state_that_contradicts_itself_is_refused() {
    let place = Place::new();
    let last = place.run_in("run", &[("schedule.stop", "2")]).checkpoint.unwrap();
    for (key, value, wanted) in [
        ("moments", 3, "it contradicts itself: `step` is 2 and `moments` 3"),
        ("tokens", u64::MAX, "`tokens` is 18446744073709551615, expected at most"),
        ("step", u64::MAX, "it contradicts itself: `step` is 18446744073709551615, and its"),
    ] {
        let folder = place.path(&format!("forged-{key}"));
        let forged =
            folder.join(if key == "step" { format!("step-{value}") } else { "step-2".into() });
        fs::create_dir_all(&forged).unwrap();
        for name in names(&last) {
            fs::copy(last.join(&name), forged.join(&name)).unwrap();
        }
        forge(&forged, key, json!(value));
        let plan = place.plan(&[("output", folder.to_str().unwrap())]);
        let error = run(&plan, RunOptions::new(BASE, 2), &mut Silent).unwrap_err();
        assert!(error.exit_code() == 4 && error.to_string().contains(wanted), "{error}");
        let output = place.path(&format!("fork-{key}"));
        let plan = place.plan(&[("output", output.to_str().unwrap())]);
        let fork = Some(Fork { from: forged, fresh_optimizer: false });
        let error =
            run(&plan, RunOptions { fork, ..RunOptions::new(BASE, 2) }, &mut Silent).unwrap_err();
        assert!(error.exit_code() == 4 && error.to_string().contains(wanted), "{error}");
    }
}

#[test]
fn what_is_logged_is_not_lost_where_a_line_is_broken() {
    let place = Place::new();
    let hashed = ("every.hash", "1");
    let folder = place.run_in("run", &[("schedule.stop", "3"), hashed]).folder;
    let go_on = |stop: &str| place.run(&[("schedule.stop", stop), hashed]);
    for name in ["metrics.jsonl", "hashes.jsonl", "messages.jsonl"] {
        let path = folder.join(name);
        let text = fs::read_to_string(&path).unwrap();
        let broken = text.replacen("\"step\"", "\"st", 1);
        fs::write(&path, &broken).unwrap();
        let error = go_on("4").unwrap_err();
        assert!(error.to_string().contains(&format!("`{name}`: line 1: ")), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), broken, "{name}");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let error = go_on("4").unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        fs::remove_dir(&path).unwrap();
        // A blank line, and one that a kill cut off.
        fs::write(&path, format!("{text}\n{{\"st")).unwrap();
    }
    go_on("4").unwrap();
    for name in ["metrics.jsonl", "hashes.jsonl", "messages.jsonl"] {
        assert_eq!(fs::read_to_string(folder.join(name)).unwrap().lines().count(), 4, "{name}");
    }
}

#[test]
fn checkpoints_are_written_by_time_too() {
    let place = Place::new();
    let changes = [
        ("schedule.stop", "3"),
        ("every.checkpoint", "0"),
        ("every.checkpoint_after", "1ms"),
        ("keep", "9"),
    ];
    let outcome = place.run_in("timed", &changes);
    let saved =
        |step: &u64| outcome.folder.join(format!("step-{step}/model.safetensors")).is_file();
    assert_eq!((1..=4).filter(saved).collect::<Vec<u64>>(), [1, 2, 3]);
}

/// Over two attempts with a learning rate that rises until the loss does: the best is not the last.
#[test]
fn the_checkpoint_with_the_lowest_validation_loss_is_kept_too() {
    let place = Place::new();
    let changes = [
        EVERY_SECOND,
        ("every.evaluate", "1"),
        ("keep", "1"),
        ("keep_best", "true"),
        ("optimizer.learning_rate", "1"),
        ("schedule.warmup", "20"),
    ];
    place.run_in("run", &[&changes[..], &[("schedule.stop", "7")]].concat());
    let folder = place.run_in("run", &[&changes[..], &[("schedule.stop", "12")]].concat()).folder;
    let metrics = fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let lines = metrics.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of_saved = |line: Value| {
        let step = line["step"].as_u64().filter(|step| [2, 4, 6, 7, 8, 10, 12].contains(step))?;
        Some((line["evaluate/loss"].as_f64()?, step))
    };
    let (loss, best) =
        lines.filter_map(of_saved).min_by(|one, other| one.0.total_cmp(&other.0)).unwrap();
    assert!(best < 12, "{metrics}");
    let mut kept = ["step-12".to_owned(), format!("step-{best}")];
    kept.sort();
    assert_eq!(steps(&folder), kept);
    let found = best_checkpoint(&folder).unwrap();
    assert_eq!(found, (folder.join(format!("step-{best}")), loss));
}
