//! A model's files are opened once by a command, whatever the ranks, where nothing else is to be made
//! sure of.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use annulus_tests::runs::Place;
use annulus_tests::{root, run};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

/// How often each file of weights in `folder` is opened while `act` acts, as the system counts.
fn opened(folder: &Path, act: impl FnOnce()) -> BTreeMap<String, usize> {
    let mut all = all_opened(folder, act);
    all.retain(|name, _| name.ends_with(".safetensors"));
    all
}

/// How often each file in `folder` is opened while `act` acts.
fn all_opened(folder: &Path, act: impl FnOnce()) -> BTreeMap<String, usize> {
    let watch = Inotify::init(InitFlags::IN_NONBLOCK).expect("the system counts");
    watch.add_watch(folder, AddWatchFlags::IN_OPEN).expect("a folder");
    act();
    let mut counts = BTreeMap::new();
    loop {
        match watch.read_events() {
            Err(Errno::EAGAIN) => return counts,
            events => {
                let names = events.expect("events").into_iter().filter_map(|event| event.name);
                let names = names.map(|name| name.to_string_lossy().into_owned());
                for name in names {
                    *counts.entry(name).or_default() += 1;
                }
            }
        }
    }
}

/// A model in several files.
fn model(place: &Place) -> Vec<String> {
    place.train("run", &["schedule.stop=2"]).ended(0);
    let words = ["export", "run", "--out", "model", "--shard", "8k"];
    run(ANNULUS, &place.path(""), &words).ended(0);
    let entries = fs::read_dir(place.path("model")).expect("the export");
    let names = entries.map(|entry| entry.expect("readable").file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    let files: Vec<_> = names.filter(|name| name.ends_with(".safetensors")).collect();
    assert!(files.len() > 3, "{files:?}");
    files
}

#[test]
fn weights_are_read_once_whatever_the_ranks() {
    let place = Place::new(ANNULUS);
    let files = model(&place);
    let once: BTreeMap<_, _> = files.into_iter().map(|file| (file, 1)).collect();
    let folder = place.path("model");
    for ranks in ["1", "4"] {
        let count = |act: &dyn Fn()| assert_eq!(opened(&folder, act), once, "{ranks} ranks");
        let sequence = format!("mesh.sequence={ranks}");
        let strategy = if ranks == "1" { "local" } else { "striped" };
        let split = [sequence.as_str(), &format!("attention.strategy={strategy}")];
        count(&|| {
            let output = format!("tuned-{ranks}");
            let small = ["model={ path: model }", "schedule.steps=1", "schedule.warmup=0"];
            place.train(&output, &[&small[..], &split].concat()).ended(0);
        });
        count(&|| {
            let tokens = root().join("tests/fixtures/tied/golden.safetensors");
            let tokens = tokens.to_string_lossy();
            let words = ["score", "--model", "model", "--tokens", &tokens, "--out", "out"];
            let split = ["--ranks", ranks, "--strategy", strategy];
            run(ANNULUS, &place.path(""), &[&words[..], &split].concat()).ended(0);
        });
    }
}

/// A checkpoint's hashes are made sure of besides, of files that are opened again for it.
#[test]
fn checkpoints_are_read_as_often_by_four_ranks_as_by_one() {
    let place = Place::new(ANNULUS);
    place.train("one", &["schedule.stop=2"]).ended(0);
    place.copy("one", "four");
    let goes_on = |name: &str, split: &[&str]| {
        let folder = place.path(name).join("step-2");
        opened(&folder, || {
            let changes = [&["schedule.stop=3"], split].concat();
            place.train(name, &changes).ended(0);
        })
    };
    let one = goes_on("one", &["mesh.sequence=1", "attention.strategy=local"]);
    assert_eq!(goes_on("four", &["mesh.sequence=4"]), one);
    assert_eq!(one.len(), 2, "{one:?}");
    assert!(one.values().all(|&count| count <= 2), "{one:?}");
}

/// Its description for all, its weights and their index where they are needed, or held to the model.
#[test]
fn a_command_opens_config_tokenizer_and_weights_once() {
    let place = Place::new(ANNULUS);
    let files = model(&place);
    let folder = place.path("model");
    let described = ["config.json", "tokenizer.json"].map(|name| (name.to_owned(), 1));
    let described = BTreeMap::from(described);
    let mut whole = described.clone();
    whole.extend(files.into_iter().map(|file| (file, 1)));
    whole.insert("model.safetensors.index.json".to_owned(), 1);
    // Checkpoints take the tokenizer along, as it was when training began.
    let mut trained = whole.clone();
    trained.insert("tokenizer.json".to_owned(), 2);
    let on_file = |command: &[&str]| {
        let keys = ["model={ path: model }", "schedule.steps=2", "schedule.warmup=0"];
        let text = ["evaluation.path=text.txt", "evaluation.lengths=[24, 48]"];
        run(ANNULUS, &place.path(""), &[command, &keys, &text].concat()).ended(0);
    };
    let file = "experiment.yaml";
    let cases: [(&[&str], _); 7] = [
        (&["check", file], &whole),
        (&["plan", file], &described),
        (&["prove", file], &described),
        (&["data", "show", file], &described),
        (&["train", file, "output=again"], &trained),
        (&["evaluate", file, "--out", "found"], &whole),
        (&["generate", file, "--prompt", "al", "--tokens", "2"], &whole),
    ];
    for (command, wanted) in cases {
        let mut found = all_opened(&folder, || on_file(command));
        // What a checkpoint takes along besides.
        found.remove("generation_config.json");
        found.remove("tokenizer_config.json");
        assert_eq!(&found, wanted, "{command:?}");
    }
}
