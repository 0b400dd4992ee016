//! Run folders that something happened to.

use std::fs::{self, File};

use crate::scene::{Case, Scene, answers};

const TRAIN: &str = "train tiny.yaml";
/// Finished at the older checkpoint: nothing but the refusal of the newer one is said.
const OLDER: &str = "train tiny.yaml schedule.stop=2";

/// Leaves the newest checkpoint alone.
fn only(scene: &Scene) {
    fs::remove_dir_all(scene.path("run/step-2")).unwrap();
}

#[test]
fn damaged_checkpoints() {
    let cases: &[Case] = &[
        ("a flipped bit, and one before", |s| s.flip("run/step-4/model.safetensors"), OLDER),
        ("cut short, and one before", |s| s.cut("run/step-4/optimizer.safetensors", 1000), OLDER),
        ("one file gone, and one before", |s| s.remove("run/step-4/state.json"), OLDER),
        (
            "a flipped bit",
            |s| {
                only(s);
                s.flip("run/step-4/optimizer.safetensors");
            },
            TRAIN,
        ),
        (
            "cut short",
            |s| {
                only(s);
                s.cut("run/step-4/model.safetensors", 1000);
            },
            TRAIN,
        ),
        (
            "one file gone",
            |s| {
                only(s);
                s.remove("run/step-4/config.json");
            },
            TRAIN,
        ),
        (
            "no hashes",
            |s| {
                only(s);
                s.remove("run/step-4/hashes.json");
            },
            TRAIN,
        ),
        (
            "hashes of nothing",
            |s| {
                only(s);
                s.write("run/step-4/hashes.json", "{}");
            },
            TRAIN,
        ),
        (
            "a file too many",
            |s| {
                only(s);
                s.write("run/step-4/notes.txt", "mine");
            },
            TRAIN,
        ),
        (
            "both damaged",
            |s| {
                s.flip("run/step-2/model.safetensors");
                s.flip("run/step-4/state.json");
            },
            TRAIN,
        ),
    ];
    insta::assert_snapshot!(answers(cases));
}

#[test]
fn folders_that_are_no_checkpoints() {
    let cases: &[Case] = &[
        (
            "not a checkpoint",
            |s| {
                only(s);
                fs::remove_dir_all(s.path("run/step-4")).unwrap();
                fs::create_dir(s.path("run/step-4")).unwrap();
            },
            TRAIN,
        ),
        (
            "a checkpoint under another name",
            |s| {
                only(s);
                fs::rename(s.path("run/step-4"), s.path("run/step-3")).unwrap();
            },
            TRAIN,
        ),
    ];
    insta::assert_snapshot!(answers(cases));
}

#[test]
fn run_folders_that_do_not_fit() {
    let cases: &[Case] = &[
        ("LATEST pointing nowhere", |s| s.write("run/LATEST", "step-9\n"), TRAIN),
        ("no LATEST", |s| s.remove("run/LATEST"), TRAIN),
        ("another seed", |_| (), "train tiny.yaml seed=8"),
        ("other sizes", |_| (), "train tiny.yaml model.hidden_size=32 data.tokens=32"),
        (
            "more steps of a cosine",
            |_| (),
            "train tiny.yaml schedule.steps=8 schedule.decay=cosine",
        ),
        ("another split", |_| (), "train tiny.yaml mesh.sequence=2 attention.strategy=ring"),
        (
            "another text",
            |s| {
                fs::remove_dir_all(s.path("run/step-4")).unwrap();
                s.write("text.txt", "each unhappy family ".repeat(40));
            },
            TRAIN,
        ),
        (
            "in use",
            |s| {
                let lock = File::options().write(true).open(s.path("run/run.lock")).unwrap();
                lock.lock().unwrap();
                s.write("run/run.lock", format!("{}\n", std::process::id()));
                // Held until this process ends.
                std::mem::forget(lock);
            },
            TRAIN,
        ),
    ];
    insta::assert_snapshot!(answers(cases));
}
