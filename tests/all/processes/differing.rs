//! Processes on hosts with their own copies of the files, of which one differs: nothing is computed, and the error says what differs.

use std::fs;
use std::path::Path;
use std::process::Command;

use annulus_tests::runs::Place;
use annulus_tests::{Ran, run};

use super::asked::ids;
use super::{ANNULUS, MPICH, Mpi, OPEN_MPI};

const RING: &str = "attention.strategy=ring";

/// A copy of all that is in a place.
fn copied(place: &Place) -> Place {
    let other = Place::new(ANNULUS);
    let from = place.path("").join(".");
    let copy = Command::new("cp").arg("-r").arg(from).arg(other.path("")).status();
    assert!(copy.expect("cp starts").success());
    other
}

/// Runs the program in two processes, of which the second is in the folder `other`; `None`: MPI is not there.
fn beside(mpi: Mpi, place: &Place, other: &Place, arguments: &[&str]) -> Option<Ran> {
    let mut command = mpi.command(place, 1, arguments)?;
    let there = "cd \"$0\" && exec \"$@\"";
    command.args([":", "-n", "1", "sh", "-c", there]).arg(other.path("")).arg(ANNULUS);
    Some(Ran::of(&command.args(arguments).output().expect("the launcher starts")))
}

fn edited(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).expect("it is there");
    assert!(text.contains(from), "{text}");
    fs::write(path, text.replacen(from, to, 1)).expect("it can be written");
}

fn done(place: &Place, arguments: &[&str]) {
    run(ANNULUS, &place.path(""), arguments).ended(0);
}

/// Both families say `wanted` and end with `code`.
fn told(place: &Place, other: &Place, arguments: &[&str], wanted: &str, code: i32) {
    for mpi in [MPICH, OPEN_MPI] {
        let Some(ran) = beside(mpi, place, other, arguments) else { return };
        let ran = ran.ended(code);
        assert!(ran.stderr.contains(wanted), "{}: {}", mpi.name, ran.stderr);
        assert_eq!(ran.stderr.matches("error: ").count(), 1, "{}: {}", mpi.name, ran.stderr);
    }
}

#[test]
fn a_text_that_differs_is_told_before_the_first_step() {
    let place = Place::new(ANNULUS);
    let other = copied(&place);
    edited(&other.path("text.txt"), "e", "E");
    let arguments = ["train", "experiment.yaml", "mesh.sequence=2"];
    told(&place, &other, &arguments, "processes differ in the data", 2);
    // An error of the other process has the code that it would have alone.
    fs::remove_file(other.path("text.txt")).expect("it was there");
    told(&place, &other, &arguments, "process 1 on ", 3);
}

/// Weights that are equal compute something else beside another config.json.
#[test]
fn a_config_that_differs_is_told() {
    let place = Place::new(ANNULUS);
    place.train("run", &["mesh.sequence=2", "schedule.steps=2"]).ended(0);
    done(&place, &["export", "run", "--out", "base"]);
    let other = copied(&place);
    edited(&other.path("base/config.json"), "\"rms_norm_eps\": ", "\"rms_norm_eps\": 2");
    let wanted = "processes differ in the model's `rms_norm_eps`";
    let train =
        ["train", "experiment.yaml", "mesh.sequence=2", "model={ path: base }", "output=next"];
    told(&place, &other, &train, wanted, 2);
    let generate = ["generate", "base", "--prompt", "a", "mesh.sequence=2", RING];
    told(&place, &other, &generate, wanted, 2);
}

#[test]
fn what_is_read_differently_is_told() {
    let place = Place::new(ANNULUS);
    for (vocabulary, text) in [("one", "text.txt"), ("two", "experiment.yaml")] {
        let out = format!("{vocabulary}/tokenizer.json");
        done(&place, &["tokenizer", "train", text, "--vocab", "270", "--out", &out]);
    }
    let tokenizer = ["data.tokenizer=one/tokenizer.json", "data.tokens=24", "schedule.steps=2"];
    place.train("run", &[&["mesh.sequence=2"][..], &tokenizer].concat()).ended(0);
    done(&place, &["export", "run", "--out", "base"]);
    ids(&place, 0);
    let other = copied(&place);
    edited(&other.path("text.txt"), "e", "E");
    ids(&other, 1);
    let split = ["--out", "out.safetensors", "--ranks", "2", "--strategy", "ring"];
    for (command, wanted) in [
        (&["score", "--model", "base", "--tokens", "ids.safetensors"][..], "the tokens"),
        (&["attend", "--case", "case.safetensors"], "the tensors"),
    ] {
        let wanted = format!("processes differ in {wanted}");
        told(&place, &other, &[command, &split].concat(), &wanted, 2);
    }
    let generate = ["generate", "base", "--file", "text.txt", "mesh.sequence=2", RING];
    told(&place, &other, &generate, "processes differ in the prompt", 2);
    let evaluate = ["evaluate", "base", "evaluation.path=text.txt", "mesh.sequence=2", RING];
    let windows = ["data.tokens=24", "evaluation.windows=2", "evaluation.targets=4"];
    let evaluate = [&evaluate[..], &windows].concat();
    told(&place, &other, &evaluate, "processes differ in the texts", 2);
    fs::copy(other.path("two/tokenizer.json"), other.path("base/tokenizer.json")).expect("a copy");
    let generate = ["generate", "base", "--prompt", "a", "mesh.sequence=2", RING];
    told(&place, &other, &generate, "processes differ in the tokenizer", 2);
}

/// The newest checkpoint is another's choice.
#[test]
fn a_checkpoint_that_one_process_lacks_is_told() {
    let place = Place::new(ANNULUS);
    place.train("run", &["mesh.sequence=2", "schedule.steps=2", "every.checkpoint=1"]).ended(0);
    let other = copied(&place);
    fs::remove_dir_all(other.path("run/step-2")).expect("it was saved");
    let generate = ["generate", "run", "--prompt", "a"];
    told(&place, &other, &generate, "process 1 on `", 2);
}

/// A described core computes with its own instructions.
#[test]
fn a_cluster_with_other_instructions_is_told() {
    let Some(best) = annulus_machine::usable().into_iter().next() else { return };
    let place = Place::new(ANNULUS);
    let cluster = |word: &str| {
        format!(
            "name: pair\ndevices_per_node: 2\nmemory: 8GB\n\
             compute: {{ forward: 100GFLOP/s, backward: 90GFLOP/s, products: 100GFLOP/s }}\n\
             inside: {{ bandwidth: 5GB/s, latency: 20us }}\ncore: {{ cache: 1MiB, vector: {word} }}\n"
        )
    };
    place.write("cluster.yaml", &cluster(best.word()));
    let other = copied(&place);
    other.write("cluster.yaml", &cluster("portable"));
    let arguments = ["train", "experiment.yaml", "mesh.sequence=2", "mesh.cluster=cluster.yaml"];
    if best.word() != "portable" {
        told(&place, &other, &arguments, "processes differ in the vector instructions", 2);
    }
}
