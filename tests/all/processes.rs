//! Ranks of several processes, under both families of MPI: the bits of threads, one message where something is wrong, and
//! runs that are killed or stopped.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use annulus_tests::runs::{Place, last_saved};
use annulus_tests::{Ran, root};

mod agree;
mod asked;
mod differing;
mod hosts;
mod joining;
mod launch;
mod memory;
mod mpi;
mod nccl;
mod owed;
mod phases;
mod saving;
mod state;
mod tensor;

use mpi::{MPICH, Mpi, OPEN_MPI};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");
/// How long after a death nothing may be left of a job, on a busy machine too.
const GONE: Duration = Duration::from_secs(20);
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// A model with as many heads as every strategy shares among 2, 3 and 4 ranks.
const SMALL: &str = "\
name: small
model:
  hidden_size: 24
  intermediate_size: 32
  num_hidden_layers: 1
  num_attention_heads: 12
  num_key_value_heads: 12
  head_dim: 4
data: { path: text.txt, tokenizer: bytes, tokens: 37, batch: 1, evaluate: 0 }
mesh: { sequence: 4 }
optimizer: { learning_rate: 1e-3 }
schedule: { steps: 20 }
";

/// The final weights of a run, as bytes.
fn weights(place: &Place, output: &str, step: u64) -> Vec<u8> {
    let path = place.path(output).join(format!("step-{step}/model.safetensors"));
    fs::read(path).expect("the run saved them")
}

/// Losses, gradients (by the moments after the first step), and weights after 20 steps; of more ranks, after 4.
fn every_way_has_the_bits_of_threads(mpi: Mpi) {
    let place = Place::new(ANNULUS);
    place.write("small.yaml", SMALL);
    for (processes, ranks, steps) in [(2, 2, "20"), (2, 4, "4"), (3, 3, "4"), (4, 4, "4")] {
        let split = format!("mesh.sequence={ranks}");
        let arguments = ["agree", "small.yaml", &split, "--steps", steps, "--json"];
        let Some(ran) = mpi.run(&place, processes, &arguments) else { return };
        let found = &ran.ended(0).json()[0];
        // Ten strategies, four masks and lengths.
        assert_eq!((found["equal"].as_u64(), found["of"].as_u64()), (Some(40), Some(40)));
    }
}

#[test]
fn mpich_every_strategy_and_mask_has_the_bits_of_threads() {
    every_way_has_the_bits_of_threads(MPICH);
}

#[test]
fn open_mpi_every_strategy_and_mask_has_the_bits_of_threads() {
    every_way_has_the_bits_of_threads(OPEN_MPI);
}

/// Handles are half as wide there as in the standard's ABI, which is taken where a library has both.
#[test]
fn mpich_in_its_own_abi_has_the_bits_of_threads() {
    let place = Place::new(ANNULUS);
    place.write("small.yaml", SMALL);
    let arguments = ["agree", "small.yaml", "--steps", "2", "--json"];
    let Some(mut command) = MPICH.command(&place, 2, &arguments) else { return };
    let library = root().join("target/python/mpich/lib/libmpi.so.12");
    assert!(library.exists(), "{} is not there", library.display());
    let ran = Ran::of(&command.env("ANNULUS_MPI", library).output().expect("the launcher starts"));
    let found = &ran.ended(0).json()[0];
    assert_eq!((found["equal"].as_u64(), found["of"].as_u64()), (Some(40), Some(40)));
}

/// By a process of its own, also below a launcher.
#[test]
fn doctor_says_what_mpi_is_like_once_it_has_begun() {
    let place = Place::new(ANNULUS);
    for mpi in [MPICH, OPEN_MPI] {
        let Some(launcher) = mpi.launcher() else { return };
        let library = launcher.with_file_name("../lib").join(match mpi.name {
            "mpich" => "libmpi.so.12",
            _ => "libmpi.so.40",
        });
        let mut alone = Command::new(ANNULUS);
        alone.args(["doctor", "--json"]).env("ANNULUS_MPI", &library);
        let alone = Ran::of(&alone.output().expect("the program starts"));
        let Some(below) = mpi.run(&place, 1, &["doctor", "--json"]) else { return };
        for ran in [alone, below] {
            let found = ran.ended(0).json()[0]["MPI"].as_str().expect("a text").to_owned();
            assert!(found.contains("5.0.") && found.ends_with(", MPI_THREAD_FUNNELED"), "{found}");
            assert!(found.contains(mpi.name) && found.contains("/lib/libmpi"), "{found}");
        }
    }
}

/// It begins, but every process alone: `train` refuses it, too.
#[test]
fn doctor_says_that_a_library_is_not_the_launchers() {
    let (Some(launcher), Some(other)) = (MPICH.launcher(), OPEN_MPI.launcher()) else { return };
    let place = Place::new(ANNULUS);
    let mut command = Command::new(launcher);
    command.args(["-n", "2", ANNULUS, "doctor", "--json"]).current_dir(place.path(""));
    command.env("ANNULUS_MPI", other.with_file_name("../lib/libmpi.so.40")).stdin(Stdio::null());
    let ran = Ran::of(&command.output().expect("the launcher starts"));
    let found = ran.ended(0).json()[0]["MPI"].as_str().expect("a text").to_owned();
    assert!(found.contains("is not the launcher's library"), "{found}");
}

#[test]
fn a_training_over_processes_is_that_over_threads() {
    let place = Place::new(ANNULUS);
    let changes = ["mesh.sequence=4", "attention.strategy=ring"];
    place.train("threads", &changes).ended(0);
    for mpi in [MPICH, OPEN_MPI] {
        for processes in [2, 4] {
            let output = format!("{}-{processes}", mpi.name);
            let folder = format!("output={output}");
            let arguments = [&["train", "experiment.yaml", &folder][..], &changes].concat();
            let Some(ran) = mpi.run(&place, processes, &arguments) else { return };
            ran.ended(0);
            assert_eq!(weights(&place, &output, 20), weights(&place, "threads", 20), "{output}");
            let said = format!("{processes} processes on ");
            assert_eq!(ran.stderr.matches(&said).count(), 1, "{}", ran.stderr);
            assert_eq!(ran.stdout.matches("finished at step 20").count(), 1, "{}", ran.stdout);
        }
    }
}

/// A running job, which is killed when dropped.
struct Job(Child);

impl Job {
    fn start(mpi: Mpi, place: &Place, arguments: &[&str]) -> Option<Job> {
        let mut command = mpi.command(place, 2, arguments)?;
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Some(Job(command.spawn().expect("the launcher starts")))
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a signal to a child of ours.
        unsafe { libc::kill(self.0.id() as i32, signal) };
    }

    /// The job's exit code; `None`: a signal ended it.
    fn ended(&mut self) -> Option<i32> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().expect("it is ours") {
                return status.code();
            }
            assert!(began.elapsed() < PATIENCE, "the job goes on");
            sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_for_step(place: &Place, output: &str, step: u64) {
    let began = Instant::now();
    while !place.path(output).is_dir() || last_saved(&place.path(output)) < step {
        assert!(began.elapsed() < PATIENCE, "no step {step}");
        sleep(Duration::from_millis(1));
    }
}

/// Kills the last process of a job.
fn kill_one(place: &Place) {
    signal_one(place, libc::SIGKILL);
}

/// Sends a signal to the last process of a job.
fn signal_one(place: &Place, signal: i32) {
    let one = *place.processes().last().expect("several processes");
    // SAFETY: a signal to a child of a child of ours.
    unsafe { libc::kill(one as i32, signal) };
}

fn wait_until_gone(place: &Place) {
    let began = Instant::now();
    while !place.processes().is_empty() {
        assert!(began.elapsed() < GONE, "{:?} are left", place.processes());
        sleep(Duration::from_millis(20));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_training_whose_process_is_killed_goes_on_as_threads_to_the_same_bits() {
    let place = Place::new(ANNULUS);
    let changes = ["mesh.sequence=4", "attention.strategy=ring", "schedule.steps=40"];
    place.train("whole", &changes).ended(0);
    for mpi in [MPICH, OPEN_MPI] {
        let folder = format!("output={}", mpi.name);
        let arguments = [&["train", "experiment.yaml", &folder][..], &changes].concat();
        let Some(mut job) = Job::start(mpi, &place, &arguments) else { return };
        wait_for_step(&place, mpi.name, 3);
        kill_one(&place);
        assert_ne!(job.ended(), Some(0));
        wait_until_gone(&place);
        place.train(mpi.name, &changes).ended(0);
        assert_eq!(weights(&place, mpi.name, 40), weights(&place, "whole", 40), "{}", mpi.name);
    }
}

/// The others see no progress there: one of them says for whom it waited, and the launcher ends the stopped one, too.
#[cfg(target_os = "linux")]
#[test]
fn a_process_that_is_stopped_ends_the_job_at_the_deadline() {
    let place = Place::new(ANNULUS);
    for mpi in [MPICH, OPEN_MPI] {
        // The one that leads, the other, and the last of three: of two that end for it, its launcher may let it go on before it
        // ends it, and it has nobody to blame then.
        for (count, victim) in [(2, 0), (2, 1), (3, 2), (3, 2)] {
            let output = format!("{}-{count}-{victim}", mpi.name);
            let folder = format!("output={output}");
            let ranks = if count == 2 { 4 } else { 3 };
            let split = format!("mesh.sequence={ranks}");
            let changes = [&split, "mesh.deadline=2s", "schedule.steps=4000"];
            let arguments = [&["train", "experiment.yaml", &folder][..], &changes].concat();
            let Some(mut command) = mpi.command(&place, count, &arguments) else { return };
            command.stdout(Stdio::null()).stderr(Stdio::piped());
            let child = command.spawn().expect("the launcher starts");
            wait_for_step(&place, &output, 2);
            let mut processes = place.processes();
            processes.sort_unstable();
            // SAFETY: a signal to a child of a child of ours.
            unsafe { libc::kill(processes[victim] as i32, libc::SIGSTOP) };
            let ran = Ran::of(&child.wait_with_output().expect("it is ours"));
            // Open MPI's launcher at times crashes once it has ended an aborted job.
            let has_crashed = ran.code.is_none() && ran.stderr.contains("Errorcode: 12\n");
            let ran = if has_crashed { &ran } else { ran.ended(12) };
            assert_eq!(ran.stderr.matches("error: ").count(), 1, "{}", ran.stderr);
            let each = ranks / count;
            let mut waited = (victim * each..(victim + 1) * each).map(|r| format!("for rank {r} "));
            assert!(waited.any(|rank| ran.stderr.contains(&rank)), "{}", ran.stderr);
            wait_until_gone(&place);
            fs::remove_dir_all(place.path(&output)).expect("a run");
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_signal_to_the_launcher_or_to_a_process_saves_and_ends_with_75() {
    let place = Place::new(ANNULUS);
    let changes = ["mesh.sequence=4", "schedule.steps=400", "every.checkpoint=400"];
    for mpi in [MPICH, OPEN_MPI] {
        // Libraries below MPI would take the last for themselves.
        for (to_launcher, signal) in
            [(true, libc::SIGUSR1), (false, libc::SIGTERM), (false, libc::SIGHUP)]
        {
            let output = format!("{}-{signal}", mpi.name);
            let folder = format!("output={output}");
            let arguments = [&["train", "experiment.yaml", &folder][..], &changes].concat();
            let Some(mut job) = Job::start(mpi, &place, &arguments) else { return };
            let logged = place.path(&output).join("metrics.jsonl");
            let began = Instant::now();
            while !fs::read_to_string(&logged).is_ok_and(|text| text.lines().count() > 2) {
                assert!(began.elapsed() < PATIENCE, "no steps in {output}");
                sleep(Duration::from_millis(1));
            }
            if to_launcher {
                job.signal(signal);
            } else {
                signal_one(&place, signal);
            }
            assert_eq!(job.ended(), Some(75), "{output}");
            assert!(last_saved(&place.path(&output)) > 2, "{output}");
        }
    }
}
