//! `sample:`, what a model writes at the end of its run: what it goes on from, and what keeps it from being written.

use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use annulus_tests::runs::{Place, last_logged};
use annulus_tests::{Ran, run};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

/// Documents of 20 tokens, of which three and padding make a sequence.
fn documents(place: &Place) {
    let line = |number: usize| format!("{{\"text\": \"document {number:3} of few\"}}\n");
    place.write("documents.jsonl", &(100..160).map(line).collect::<String>());
}

fn packed(place: &Place, output: &str, more: &[&str]) -> Ran {
    let data = "data={path: documents.jsonl, format: jsonl, pack: documents, tokens: 72, batch: 2, evaluate: 2}";
    let changes = [data, "mesh.sequence=2", "schedule.steps=3", "sample={tokens: 6}"];
    place.train(output, &[&changes[..], more].concat())
}

#[test]
fn a_sample_goes_on_from_a_document_that_is_held_out_and_not_from_padding() {
    let place = Place::new(ANNULUS);
    documents(&place);
    let prompt = |output: &str, more: &[&str]| {
        let stdout = packed(&place, output, more).ended(0).stdout.clone();
        let (prompt, _) =
            stdout.split_once('▸').and_then(|(_, rest)| rest.split_once('▸')).unwrap();
        prompt.split_once('…').unwrap().1.to_owned()
    };
    let all = prompt("all", &[]);
    assert!(all.contains("document 157 of few") && all.ends_with("document 159"), "{all:?}");
    let own = prompt("own", &["attention.documents=data"]);
    assert_eq!(own, "document 159");
}

#[test]
fn what_is_written_for_whole_sequences_does_not_keep_a_sample_from_being_written() {
    let place = Place::new(ANNULUS);
    let masks: [&[&str]; 4] = [
        &["attention.documents=[24, 24]"],
        &["attention.padding=40"],
        &["attention.global=[40]", "attention.window=8"],
        // No longer than the model was extended to.
        &["extend={ rope: yarn, tokens: 50 }", "model.max_position_embeddings=48"],
    ];
    for (number, mask) in masks.into_iter().enumerate() {
        let sample = ["sample={prompt: alpha, tokens: 60}", "schedule.steps=2"];
        let run = place.train(&format!("run-{number}"), &[&sample[..], mask].concat());
        assert!(run.ended(0).stdout.contains("alpha▸"), "{}{}", run.stdout, run.stderr);
    }
}

#[test]
fn a_sample_that_cannot_be_written_does_not_fail_the_run() {
    let place = Place::new(ANNULUS);
    let ids = ["data={ format: recall, tokens: 48, batch: 2 }", "model.vocab_size=85"];
    let sample = ["sample={prompt: alpha, tokens: 3}", "schedule.steps=2"];
    let run = place.train("run", &[&ids[..], &sample].concat());
    assert!(run.ended(0).stderr.contains("there is no sample"), "{}", run.stderr);
    assert!(run.stderr.contains("has no tokenizer"), "{}", run.stderr);
}

#[test]
fn a_signal_ends_a_sample_and_the_run_is_finished() {
    let place = Place::new(ANNULUS);
    let endless = ["schedule.steps=2", "sample={prompt: alpha, tokens: 1000k}"];
    let mut live = place.start("run", &endless);
    let finished = |folder: &std::path::Path| {
        fs::read_to_string(folder.join("manifest.json"))
            .is_ok_and(|text| text.contains("\"finished\""))
    };
    assert!(live.wait_for(finished));
    // What it says of the end comes before the sample.
    sleep(Duration::from_millis(500));
    let began = Instant::now();
    live.signal(&["INT"]);
    live.end().ended(0);
    assert!(began.elapsed() < Duration::from_secs(20));
}

/// Shells without job control start what is in the background so.
#[test]
fn a_signal_that_a_run_was_started_to_ignore_does_not_stop_it() {
    let place = Place::new(ANNULUS);
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' INT; exec \"$0\" \"$@\"", ANNULUS]).current_dir(place.path(""));
    shell.args(["train", "experiment.yaml", "schedule.steps=30"]).stdout(Stdio::null());
    let mut child = shell.stderr(Stdio::null()).spawn().expect("a shell");
    let began = Instant::now();
    while last_logged(&place.path("run")) < 2 && began.elapsed() < Duration::from_secs(60) {
        sleep(Duration::from_millis(1));
    }
    for _ in 0..2 {
        let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        assert!(kill.expect("a program").success(), "it has ended before");
    }
    assert_eq!(child.wait().expect("it is ours").code(), Some(0));
    let again = run(ANNULUS, &place.path(""), &["train", "experiment.yaml", "schedule.steps=30"]);
    assert!(again.ended(0).stdout.contains("already finished at step 30"), "{}", again.stdout);
}
