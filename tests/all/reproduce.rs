//! `annulus reproduce`: a finished run again, equal to the bit, or where it first differs; with the reasons that may change bits.

use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use annulus_tests::runs::{Place, contents, flip, last_saved, metrics};
use annulus_tests::{Ran, run};
use serde_json::Value;

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");
const SHORT: [&str; 3] = ["schedule.steps=4", "schedule.decay=constant", "every.hash=1"];
const VECTOR: &str = "ANNULUS_VECTOR";

/// `annulus reproduce`, with these vector instructions asked for.
fn reproduce(place: &Place, arguments: &[&str], vector: Option<&str>) -> Ran {
    let mut command = Command::new(ANNULUS);
    command.arg("reproduce").args(arguments).current_dir(place.path("")).env_remove(VECTOR);
    command.envs(vector.map(|word| (VECTOR, word)));
    Ran::of(&command.output().expect("the program starts"))
}

/// Changes a file of a run.
fn change(place: &Place, name: &str, with: impl FnOnce(String) -> String) {
    let text = fs::read_to_string(place.path(name)).expect(name);
    let other = with(text.clone());
    assert_ne!(text, other, "{name}");
    place.write(name, &other);
}

/// Changes the line of step `step`.
fn change_line(text: &str, step: u64, with: impl Fn(&mut Value)) -> String {
    let line = |line: &str| {
        let mut value: Value = serde_json::from_str(line).expect("a line of JSON");
        if value["step"] == step {
            with(&mut value);
        }
        format!("{value}\n")
    };
    text.lines().map(line).collect()
}

fn vector(place: &Place, run: &str) -> String {
    let text = fs::read_to_string(place.path(run).join("manifest.json")).expect("a manifest");
    let manifest: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(manifest["attempts"][0]["vector"], manifest["machine"]["vector"]);
    manifest["machine"]["vector"].as_str().expect("a word").to_owned()
}

#[test]
fn a_run_comes_to_the_same_bits_and_stays_as_it_is() {
    let place = Place::new(ANNULUS);
    place.train("a", &SHORT).ended(0);
    let before = contents(&place.path("a"));
    let said = reproduce(&place, &["a", "--json"], None).ended(0).json().remove(0);
    let found = &said["found"];
    assert!(
        said["equal"] == true && said["reasons"].as_array().is_some_and(Vec::is_empty),
        "{said}"
    );
    assert!(found["logged"] == 4 && found["of"] == 4 && found["hashes"]["steps"] == 4, "{said}");
    let tensors = found["weights"]["tensors"].as_u64();
    assert!(found["weights"]["step"] == 4 && tensors > Some(20), "{said}");
    assert!(contents(&place.path("a")) == before, "the run was changed");
    assert!(place.path("a-reproduced/step-4").is_dir());
    // What is there is not taken for a run that was just made, and a run's own folder not for another.
    let again = reproduce(&place, &["a"], None);
    assert!(again.ended(2).stderr.contains("not empty"), "{}", again.stderr);
    let inside = reproduce(&place, &["a", "--out", "a/new/one"], None);
    assert!(inside.ended(2).stderr.contains("is in the run's folder"), "{}", inside.stderr);
    assert!(contents(&place.path("a")) == before, "the run was changed");
}

#[test]
fn what_differs_is_named_by_step_and_tensor() {
    let place = Place::new(ANNULUS);
    place.train("a", &SHORT).ended(0);
    let loss = |line: &mut Value| {
        let loss = line["train/loss"].as_f64().expect("a loss");
        line["train/loss"] = loss.next_up().into();
    };
    change(&place, "a/metrics.jsonl", |text| change_line(&text, 3, loss));
    let hash = |line: &mut Value| {
        let tensors = line["tensors"].as_object_mut().expect("tensors");
        tensors["weights.model.norm.weight"] = "0123456789abcdef".into();
    };
    change(&place, "a/hashes.jsonl", |text| change_line(&text, 2, hash));
    let said = reproduce(&place, &["a", "--json"], None).ended(10).json().remove(0);
    let found = &said["found"];
    assert!(found["value"]["step"] == 3 && found["value"]["tag"] == "train/loss", "{said}");
    let first = &found["hashes"]["first"];
    assert!(first["step"] == 2 && found["hashes"]["alike"] == 1, "{said}");
    assert_eq!(first["kinds"]["weights"][0], serde_json::json!(["model.norm.weight"]), "{said}");
    assert_eq!(first["kinds"]["gradients"][0], serde_json::json!([]), "{said}");
    assert!(found["weights"]["differing"].as_array().is_some_and(Vec::is_empty), "{said}");
    let said = reproduce(&place, &["a", "--out", "b"], None).ended(10).stdout.clone();
    for part in
        ["first at step 2", "model.norm.weight", "`train/loss` of step 3", "not what it computed"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn vector_instructions_are_those_of_the_run_unless_others_are_asked_for() {
    let place = Place::new(ANNULUS);
    let mut portable = place.command("portable", &SHORT);
    Ran::of(&portable.env(VECTOR, "portable").output().unwrap()).ended(0);
    assert_eq!(vector(&place, "portable"), "portable");
    let said = reproduce(&place, &["portable"], None).ended(0).stdout.clone();
    assert!(said.starts_with("equal to the bit") && !said.contains("may differ"), "{said}");
    assert_eq!(vector(&place, "portable-reproduced"), "portable");
    // Asked for others: it says so, whatever came of it.
    Ran::of(&place.command("own", &SHORT).env_remove(VECTOR).output().unwrap()).ended(0);
    let own = vector(&place, "own");
    if own == "portable" {
        return;
    }
    let ran = reproduce(&place, &["own"], Some("portable"));
    let wanted = format!("computed with portable, the run with {own}: bits may differ");
    assert!(ran.stdout.contains(&wanted) && ran.stderr.contains(&wanted), "{ran:?}");
    assert!(ran.code == Some(0) || ran.stdout.contains("this is possible"), "{ran:?}");
    assert!(!ran.stdout.contains("was changed"), "{ran:?}");
    // What this processor lacks.
    let lacking = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
    change(&place, "own/manifest.json", |text| {
        text.replace(&format!("\"{own}\""), &format!("\"{lacking}\""))
    });
    let said = reproduce(&place, &["own", "--out", "c"], None).ended(2).stderr.clone();
    assert!(
        said.contains(&format!("computed with {lacking}, and this processor has {own}")),
        "{said}"
    );
    assert!(said.contains(VECTOR) && !place.path("c").exists(), "{said}");
}

#[test]
fn a_fork_begins_where_it_began_though_its_origin_went_on() {
    let place = Place::new(ANNULUS);
    let level = ["schedule.decay=constant", "keep=9"];
    place.train("base", &[&level[..], &["schedule.steps=2"]].concat()).ended(0);
    let fork =
        [&level[..], &["schedule.steps=4", "--from", "base", "optimizer.learning_rate=5e-3"]];
    place.train("fork", &fork.concat()).ended(0);
    place.train("base", &[&level[..], &["schedule.steps=3"]].concat()).ended(0);
    let said = reproduce(&place, &["fork"], None).ended(0).stdout.clone();
    assert!(said.contains("losses of 2 logged steps, no hashes"), "{said}");
    fs::remove_dir_all(place.path("base/step-2")).unwrap();
    let said = reproduce(&place, &["fork", "--out", "b"], None).ended(4).stderr.clone();
    assert!(said.contains("began from `base/step-2`, which is not there"), "{said}");
}

/// A fork reads the checkpoint again that it began from, and says nothing of steps before it but where they were computed.
#[test]
fn the_checkpoint_of_a_fork_is_kept_for_it_and_its_steps_count_from_there() {
    let place = Place::new(ANNULUS);
    let base = |steps: &str| {
        let words = ["schedule.decay=constant", "keep=1", steps];
        place.train("base", &words).ended(0).stderr.clone()
    };
    base("schedule.steps=2");
    let own = ["schedule.decay=constant", "schedule.steps=5", "data.batch=4"];
    let said = place.train("fork", &[&own[..], &["--from", "base"]].concat());
    assert!(
        said.ended(0).stderr.contains(" sequences for training: 3 steps of 4 are "),
        "{said:?}"
    );
    let said = base("schedule.steps=4");
    assert!(said.contains("`base/step-2` is kept, whatever `keep` is: `"), "{said}");
    assert!(place.path("base/step-2").is_dir() && !place.path("base/step-3").exists());
    reproduce(&place, &["fork"], None).ended(0);
    // Two steps of two sequences of 48 tokens, then of four.
    let tokens: Vec<_> =
        metrics(&place.path("fork")).iter().map(|line| line["train/tokens"].as_f64()).collect();
    assert_eq!(tokens, [384, 576, 768].map(|tokens| Some(f64::from(tokens))));
    let state = fs::read_to_string(place.path("fork/step-5/state.json")).expect("a state");
    let state: Value = serde_json::from_str(&state).expect("JSON");
    assert_eq!(state["tokens"], 768);
    let show = |words: &[&str]| {
        run(ANNULUS, &place.path(""), &[&["data", "show", "fork"], words].concat())
    };
    let said = show(&["--step", "2"]).ended(2).stderr.clone();
    assert!(said.contains("`fork` began after step 2"), "{said}");
    assert!(said.contains("step 2 was computed in `base`"), "{said}");
    let first = show(&["--step", "3", "--tokens", "8"]).ended(0).stdout.clone();
    let unasked = show(&["--tokens", "8"]).ended(0).stdout.clone();
    assert!(
        first.contains("3 steps of 4 are ") && unasked.contains("3 steps of 4 are "),
        "{first}"
    );
    // Without documents and places the same lines.
    let all_there = unasked.lines().all(|line| first.lines().any(|other| other == line));
    assert!(all_there, "{first}\n{unasked}");
}

/// What changes no bit is no reason why bits may differ.
#[test]
fn keys_that_change_no_bit_are_not_named() {
    let place = Place::new(ANNULUS);
    place.train("plain", &SHORT).ended(0);
    place.train("strict", &[&SHORT[..], &["reproducible=strict"]].concat()).ended(0);
    for (of, changes) in [
        ("plain", &["parallel.state=zero3", "memory.recompute=layer"][..]),
        (
            "strict",
            &[
                "mesh.sequence=1",
                "attention.strategy=local",
                "attention.stripe=null",
                "memory.micro_batch=1",
            ],
        ),
    ] {
        let ran = reproduce(&place, &[&[of], changes].concat(), None);
        let said = format!("{}{}", ran.ended(0).stdout, ran.stderr);
        assert!(said.contains("equal to the bit") && !said.contains("bits may differ"), "{said}");
    }
}

/// As if the fork had been killed before it saved anything.
#[test]
fn a_fork_that_begins_anew_is_a_run_of_its_own_from_there() {
    let place = Place::new(ANNULUS);
    let level = ["schedule.decay=constant", "keep=9", "every.checkpoint=0"];
    let base = |steps: &str| place.train("base", &[&level[..], &[steps]].concat());
    base("schedule.steps=2").ended(0);
    let fork = |from: &str, rate: &str| {
        let own = ["schedule.steps=5", "--from", from, rate];
        place.train("fork", &[&level[..], &own].concat()).ended(0);
    };
    fork("base", "optimizer.learning_rate=5e-3");
    fs::remove_dir_all(place.path("fork/step-5")).unwrap();
    fs::remove_file(place.path("fork/LATEST")).unwrap();
    base("schedule.steps=3").ended(0);
    fork("base/step-3", "optimizer.learning_rate=2e-3");
    let steps: Vec<_> =
        metrics(&place.path("fork")).iter().map(|line| line["step"].clone()).collect();
    assert!(steps.iter().all(|step| step.as_u64() >= Some(3)), "{steps:?}");
    let said = reproduce(&place, &["fork"], None).ended(0).stdout.clone();
    assert!(said.contains("losses of 2 logged steps"), "{said}");
    let words = ["replay", "fork", "--step", "3"];
    let said = run(ANNULUS, &place.path(""), &words).ended(2).stderr.clone();
    assert!(said.contains("`fork` began after step 3"), "{said}");
    assert!(!place.path("fork-replayed-3").exists());
}

#[test]
fn other_data_and_keys_are_named_before_a_run_begins_again() {
    let place = Place::new(ANNULUS);
    place.train("a", &SHORT).ended(0);
    let said = reproduce(&place, &["a", "optimizer.clip=0.01"], None);
    said.ended(10);
    let wanted = "`optimizer.clip` is `0.01`, in the run `1.0`";
    assert!(said.stdout.contains(wanted) && said.stderr.contains(wanted), "{said:?}");
    change(&place, "text.txt", |text| text.replace("gamma", "sigma"));
    let said = reproduce(&place, &["a", "--out", "b"], None);
    said.ended(10);
    let [before, _] = said.stderr.split_once("step 1/").map(<[&str; 2]>::from).expect("a step");
    assert!(before.contains("other data: the run's hash was"), "{said:?}");
    assert!(
        said.stdout.contains("other data") && said.stdout.contains("this is possible"),
        "{said:?}"
    );
}

#[test]
fn a_run_that_is_not_finished_is_refused() {
    let place = Place::new(ANNULUS);
    let mut live = place.start("a", &["schedule.steps=2000"]);
    // The last checkpoints alone are kept: the first may be gone before it is seen.
    live.wait_for(|output| last_saved(output) > 0);
    assert!(live.kill());
    let said = reproduce(&place, &["a"], None).ended(2).stderr.clone();
    assert!(said.contains("`a` is not finished") && said.contains("annulus train a"), "{said}");
    let said = reproduce(&place, &["."], None).ended(2).stderr.clone();
    assert!(said.contains("has no manifest.json"), "{said}");
}

#[test]
fn a_reproduction_that_was_killed_goes_on() {
    let place = Place::new(ANNULUS);
    place.train("a", &["schedule.steps=60"]).ended(0);
    let mut command = Command::new(ANNULUS);
    command.args(["reproduce", "a"]).current_dir(place.path("")).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    while last_saved(&place.path("a-reproduced")) < 3 {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it was killed");
        sleep(Duration::from_micros(200));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // By whatever spelling of its path.
    let ran = reproduce(&place, &["./a"], None);
    assert!(ran.ended(0).stdout.starts_with("equal to the bit: losses of 60 logged steps"));
    assert!(ran.stderr.contains("from step "), "{}", ran.stderr);
}

/// What is there until a manifest is.
#[test]
fn a_reproduction_that_was_killed_before_it_began_begins() {
    let place = Place::new(ANNULUS);
    place.train("a", &["schedule.steps=4"]).ended(0);
    fs::create_dir_all(place.path("b/flight")).unwrap();
    for name in ["run.lock", "experiment.yaml", "given.yaml", "flight/0", "notes.txt"] {
        place.write(&format!("b/{name}"), "");
    }
    let ran = reproduce(&place, &["a", "--out", "b"], None);
    assert!(ran.ended(2).stderr.contains("`b` already exists and is not empty"), "{}", ran.stderr);
    fs::remove_file(place.path("b/notes.txt")).unwrap();
    // Without a run's lock, files of these names are somebody's own.
    fs::create_dir(place.path("own")).unwrap();
    place.write("own/experiment.yaml", "# mine");
    let own = reproduce(&place, &["a", "--out", "own"], None);
    assert!(own.ended(2).stderr.contains("`own` already exists and is not empty"), "{own:?}");
    let ran = reproduce(&place, &["a", "--out", "b"], None);
    assert!(ran.ended(0).stdout.starts_with("equal to the bit"), "{}", ran.stdout);
}

#[test]
fn files_of_a_run_that_were_changed_are_named_before_it_begins_again() {
    let place = Place::new(ANNULUS);
    place.train("a", &SHORT).ended(0);
    change(&place, "a/experiment.yaml", |text| text.replace("seed: 3", "seed: 4"));
    let said = reproduce(&place, &["a"], None);
    let wanted = "`seed` of `experiment.yaml` is `4`, and `step-4` was trained with `3`";
    assert!(said.ended(10).stderr.starts_with(&format!("warning: {wanted}")), "{said:?}");
    assert!(said.stdout.contains("this is possible") && said.stdout.contains(wanted), "{said:?}");
    flip(&place.path("a/step-4/optimizer.safetensors"));
    let said = reproduce(&place, &["a", "--out", "b"], None).ended(4).stderr.clone();
    assert!(said.contains("step-4` is refused: `optimizer.safetensors`"), "{said}");
    change(&place, "a/hashes.jsonl", |text| text.replacen("{\"step\":2", "{\"stop\":2", 1));
    let said = reproduce(&place, &["a", "--out", "b"], None).ended(3).stderr.clone();
    assert!(said.contains("a/hashes.jsonl`, line 2") && !place.path("b").exists(), "{said}");
}
