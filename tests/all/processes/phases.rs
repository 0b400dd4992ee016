//! A run of several phases over processes that do not see the same: hosts with different memory, and folders that list other checkpoints.

use std::fs;
use std::process::Command;

use annulus_tests::runs::Place;
use annulus_tests::{Ran, run};
use serde_json::Value;

use super::{ANNULUS, MPICH, Mpi, OPEN_MPI, weights};

/// Two phases, whose memory settings are open.
const STAGED: &str = "\
name: staged
seed: 3
output: run
model:
  hidden_size: 64
  intermediate_size: 128
  num_hidden_layers: 4
  num_attention_heads: 4
  num_key_value_heads: 2
  max_position_embeddings: 512
data: { path: text.txt, batch: 4, evaluate: 1 }
mesh: { tensor: 2 }
attention: { strategy: ring }
optimizer: { learning_rate: 3e-3 }
schedule: { warmup: 1 }
stages:
  short: { tokens: 256, steps: 4 }
  long: { tokens: 512, steps: 2, reset: [schedule] }
";
/// The second process runs with the memory that the file `meminfo` says.
const LESS: &str = "mount --bind meminfo /proc/meminfo && exec \"$0\" \"$@\"";
/// The second process runs in another folder.
const ELSEWHERE: &str = "cd \"$0\" && exec \"$@\"";

fn staged() -> Place {
    let place = Place::new(ANNULUS);
    place.write("staged.yaml", STAGED);
    place
}

/// Whether this user may give a process another memory; if not, that is said aloud.
#[expect(clippy::print_stdout, reason = "a skipped test says so")]
fn may_have_less(place: &Place) -> bool {
    let mut tried = Command::new("unshare");
    tried.args(["--mount", "sh", "-c", LESS, "true"]).current_dir(place.path(""));
    let may = tried.output().is_ok_and(|output| output.status.success());
    if !may {
        println!("SKIPPED: a process cannot have a memory of its own here");
    }
    may
}

/// Trains over two processes, of which the second has less memory.
fn beside_less(mpi: Mpi, place: &Place, output: &str, changes: &[&str]) -> Option<Ran> {
    let folder = format!("output={output}");
    let arguments = [&["train", "staged.yaml", &folder][..], changes].concat();
    let mut command = mpi.command(place, 1, &arguments)?;
    command.args([":", "-n", "1", "unshare", "--mount", "sh", "-c", LESS, ANNULUS]);
    Some(Ran::of(&command.args(arguments).output().expect("the launcher starts")))
}

/// Alone it would compute layers again and split products, by which tensor-parallel ranks make other calls, and others other bits.
#[cfg(target_os = "linux")]
#[test]
fn settings_are_those_that_the_first_process_chose() {
    let place = staged();
    place.write("meminfo", "MemTotal: 32768 kB\n");
    if !may_have_less(&place) {
        return;
    }
    let by_sequence = ["mesh.sequence=2", "mesh.tensor=1", "parallel.state=replicated"];
    for (number, changes) in [&[][..], &by_sequence].into_iter().enumerate() {
        for mpi in [MPICH, OPEN_MPI] {
            let [alike, less] =
                ["alike", "less"].map(|name| format!("{name}-{number}-{}", mpi.name));
            let folder = format!("output={alike}");
            let arguments = [&["train", "staged.yaml", &folder][..], changes].concat();
            let Some(ran) = mpi.run(&place, 2, &arguments) else { return };
            ran.ended(0);
            let Some(ran) = beside_less(mpi, &place, &less, changes) else { return };
            ran.ended(0);
            assert_eq!(weights(&place, &less, 6), weights(&place, &alike, 6), "{changes:?}");
        }
    }
}

/// As where a host lists a folder as it was, or was later: there the second process has a checkpoint of the next phase.
#[test]
fn the_first_process_says_which_phase_is_next() {
    let (place, other) = (staged(), staged());
    let changes = ["mesh.sequence=2", "mesh.tensor=1", "parallel.state=replicated"];
    let train = [&["train", "staged.yaml"][..], &changes].concat();
    for mpi in [MPICH, OPEN_MPI] {
        let folder = format!("output={}", mpi.name);
        let stopped = [&train[..], &[&folder, "every.checkpoint=4", "schedule.stop=5"]].concat();
        let Some(ran) = mpi.run(&place, 2, &stopped) else { return };
        ran.ended(0);
        place.copy(mpi.name, "copy");
        fs::rename(place.path("copy"), other.path(mpi.name)).expect("both are scratch folders");
        let here = place.path(mpi.name);
        fs::remove_dir_all(here.join("step-5")).expect("it was saved");
        fs::write(here.join("LATEST"), "step-4\n").expect("it was written");

        let on = [&train[..], &[&folder]].concat();
        let Some(mut command) = mpi.command(&place, 1, &on) else { return };
        command.args([":", "-n", "1", "sh", "-c", ELSEWHERE]).arg(other.path("")).arg(ANNULUS);
        let ran = Ran::of(&command.args(on).output().expect("the launcher starts"));
        assert!(ran.ended(0).stdout.contains("finished at step 6"), "{}{}", ran.stdout, ran.stderr);
        let manifest = fs::read_to_string(here.join("manifest.json")).expect("a manifest");
        let manifest: Value = serde_json::from_str(&manifest).expect("JSON");
        let last = manifest["attempts"].as_array().and_then(|all| all.last()).expect("an attempt");
        assert_eq!((&last["stage"], &last["resumed_from"]), (&"long".into(), &4.into()));
    }
}

/// As where that run goes on meanwhile: there the second process has a newer checkpoint.
#[test]
fn the_first_process_says_from_which_checkpoint_a_run_is_forked() {
    let (place, other) = (Place::new(ANNULUS), Place::new(ANNULUS));
    let train = ["train", "experiment.yaml", "mesh.sequence=2"];
    let origin =
        [&train[..], &["output=origin", "schedule.steps=6", "every.checkpoint=2"]].concat();
    run(ANNULUS, &place.path(""), &origin).ended(0);
    place.copy("origin", "copy");
    fs::rename(place.path("copy"), other.path("origin")).expect("both are scratch folders");
    for step in [4, 6] {
        fs::remove_dir_all(place.path(&format!("origin/step-{step}"))).expect("it was saved");
    }
    place.write("origin/LATEST", "step-2\n");
    for mpi in [MPICH, OPEN_MPI] {
        let folder = format!("output={}", mpi.name);
        let fork = [&train[..], &[&folder, "--from", "origin", "schedule.steps=7"]].concat();
        let Some(mut command) = mpi.command(&place, 1, &fork) else { return };
        command.args([":", "-n", "1", "sh", "-c", ELSEWHERE]).arg(other.path("")).arg(ANNULUS);
        let ran = Ran::of(&command.args(fork).output().expect("the launcher starts"));
        assert!(ran.ended(0).stdout.contains("finished at step 7"), "{}{}", ran.stdout, ran.stderr);
        let manifest = fs::read_to_string(place.path(mpi.name).join("manifest.json"));
        let manifest: Value = serde_json::from_str(&manifest.expect("it is there")).expect("JSON");
        assert_eq!((&manifest["began"], &manifest["fork"]["from"]), (&2.into(), &"origin".into()));
    }
}
