//! Before the first step: what is wrong is said once, and what differs between processes is found.

use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use annulus_tests::Ran;
use annulus_tests::drill::{self, Drill, What};
use annulus_tests::runs::Place;

use super::{ANNULUS, MPICH, OPEN_MPI, PATIENCE, weights};

#[test]
fn what_is_wrong_is_said_once_and_ends_the_job() {
    let place = Place::new(ANNULUS);
    for mpi in [MPICH, OPEN_MPI] {
        for (processes, change, code, wanted) in [
            // The experiment has three ranks.
            (2, "name=uneven", 2, "2 processes cannot share 3 ranks evenly"),
            (3, "data.path=absent.txt", 3, "absent.txt"),
            (3, "model.hidden_size=-1", 2, "hidden_size"),
        ] {
            let arguments = ["train", "experiment.yaml", "output=wrong", change];
            let Some(ran) = mpi.run(&place, processes, &arguments) else { return };
            let ran = ran.ended(code);
            assert_eq!(ran.stderr.matches("error: ").count(), 1, "{}", ran.stderr);
            assert!(ran.stderr.contains(wanted), "{}", ran.stderr);
            assert!(!place.path("wrong").exists(), "a run that never began leaves no folder");
        }
    }
}

/// Before processes have joined, too: the others leave it to the first.
#[test]
fn a_mistake_in_the_command_line_is_said_once() {
    let place = Place::new(ANNULUS);
    for mpi in [MPICH, OPEN_MPI] {
        for words in [&["train", "--lr", "3", "experiment.yaml"][..], &["train"], &["trian"]] {
            let Some(ran) = mpi.run(&place, 3, words) else { return };
            let said = &ran.ended(2).stderr;
            assert_eq!(said.matches("error: ").count(), 1, "{words:?}: {said}");
        }
        let Some(ran) = mpi.run(&place, 3, &["--version"]) else { return };
        assert_eq!(ran.ended(0).stdout.matches("annulus").count(), 1, "{}", ran.stdout);
    }
}

/// The bits are those of threads with the fewest instructions.
#[test]
fn processes_compute_with_the_vector_instructions_that_all_have() {
    let place = Place::new(ANNULUS);
    let changes = ["mesh.sequence=2", "output=threads"];
    let arguments = [&["train", "experiment.yaml"][..], &changes].concat();
    let mut command = Command::new(ANNULUS);
    command.args(&arguments).current_dir(place.path("")).env("ANNULUS_VECTOR", "portable");
    Ran::of(&command.output().expect("the program starts")).ended(0);
    for mpi in [MPICH, OPEN_MPI] {
        let folder = format!("output={}", mpi.name);
        let arguments = ["train", "experiment.yaml", "mesh.sequence=2", &folder];
        let Some(mut command) = mpi.command(&place, 1, &arguments) else { return };
        command.args([":", "-n", "1", "env", "ANNULUS_VECTOR=portable", ANNULUS]).args(arguments);
        let ran = Ran::of(&command.output().expect("the launcher starts"));
        ran.ended(0);
        let said = "vector instructions are `portable`, which all processes have";
        let is_said = annulus_machine::usable().len() > 1;
        assert_eq!(ran.stderr.contains(said), is_said, "{}", ran.stderr);
        assert_eq!(weights(&place, mpi.name, 20), weights(&place, "threads", 20), "{}", mpi.name);
    }
}

#[test]
fn a_time_for_mpi_that_is_no_number_is_refused() {
    let place = Place::new(ANNULUS);
    for mpi in [MPICH, OPEN_MPI] {
        let Some(mut command) = mpi.command(&place, 2, &["train", "experiment.yaml"]) else {
            return;
        };
        let ran = Ran::of(&command.env("ANNULUS_MPI_BEGIN", "2s").output().expect("it starts"));
        let said = "error: ANNULUS_MPI_BEGIN=`2s` is not a number of seconds";
        assert!(ran.ended(2).stderr.contains(said), "{}", ran.stderr);
    }
}

/// Whoever is there says so in time, and the launcher ends the one that never begins.
#[test]
fn a_process_that_never_begins_ends_the_job() {
    let place = Place::new(ANNULUS);
    for mpi in [MPICH, OPEN_MPI] {
        let arguments = ["train", "experiment.yaml", "mesh.sequence=2"];
        let Some(mut command) = mpi.command(&place, 1, &arguments) else { return };
        command.args([":", "-n", "1", "sleep", "600"]).env("ANNULUS_MPI_BEGIN", "2");
        let began = Instant::now();
        let ran = Ran::of(&command.output().expect("the launcher starts"));
        // Once in a while MPICH's launcher ends with the signal by which it ended the other process, who is none of ours.
        let by_launcher = mpi.name == MPICH.name && ran.code == Some(9);
        let ran = ran.ended(if by_launcher { 9 } else { 12 });
        let said = "error: MPI has not begun within 2 s";
        assert_eq!(ran.stderr.matches(said).count(), 1, "{}", ran.stderr);
        assert!(!ran.stderr.contains("ended this process instead"), "{}", ran.stderr);
        // Long before the other ends by itself, on the busiest machine.
        assert!(began.elapsed() < Duration::from_secs(300));
    }
}

/// There is nothing to save, and nobody else to ask.
#[test]
#[cfg(target_os = "linux")]
fn a_signal_ends_a_process_that_waits_for_others_at_once() {
    let place = Place::new(ANNULUS);
    for mpi in [MPICH, OPEN_MPI] {
        let Some(launcher) = mpi.launcher() else { return };
        let mut command = Command::new(launcher);
        let told =
            "\"$0\" train experiment.yaml mesh.sequence=2 & echo $! > pid; wait $!; echo $? > code";
        command.args(mpi.flags).args(["-n", "1", "sh", "-c", told, ANNULUS]);
        command.args([":", "-n", "1", "sleep", "100"]).current_dir(place.path(""));
        let began = Instant::now();
        let mut job =
            command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        let waits = || {
            let pid: i32 = fs::read_to_string(place.path("pid")).ok()?.trim().parse().ok()?;
            let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
            let mut names =
                threads.filter_map(|one| fs::read_to_string(one.path().join("comm")).ok());
            names.any(|name| name.trim() == "mpi").then_some(pid)
        };
        let pid = loop {
            assert!(began.elapsed() < PATIENCE, "{}: it does not begin", mpi.name);
            match waits() {
                Some(pid) => break pid,
                None => sleep(Duration::from_millis(5)),
            }
        };
        let asked = Instant::now();
        // SAFETY: it is a process of the job, which goes on until it is asked to end.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        let code = || fs::read_to_string(place.path("code")).unwrap_or_default();
        while !code().ends_with('\n') {
            assert!(asked.elapsed() < Duration::from_secs(60), "{}: it goes on", mpi.name);
            sleep(Duration::from_millis(5));
        }
        assert_eq!(code(), "75\n", "{}", mpi.name);
        job.kill().and_then(|()| job.wait()).expect("the launcher ends");
        for file in ["pid", "code"] {
            fs::remove_file(place.path(file)).expect("it was written");
        }
    }
}

#[test]
fn what_one_process_does_is_refused_in_several() {
    let place = Place::new(ANNULUS);
    for mpi in [MPICH, OPEN_MPI] {
        let Some(ran) = mpi.run(&place, 2, &["check", "experiment.yaml"]) else { return };
        let said = "error: 2 processes were started, but this command works in one";
        assert_eq!(ran.ended(2).stderr.matches(said).count(), 1, "{}", ran.stderr);
    }
}

/// It falls silent where the speed of all is measured for `auto`: it is waited for once, 10 s.
#[test]
fn a_process_that_is_silent_while_speeds_are_measured_is_waited_for_once() {
    let place = Place::new(ANNULUS);
    let pass = "between processes".to_owned();
    let stop = Drill { what: What::Stop, rank: 1, step: 0, layer: 0, pass, hop: 0 };
    for mpi in [MPICH, OPEN_MPI] {
        let open = ["mesh.sequence=2", "attention.strategy=auto"];
        let arguments = [&["train", "experiment.yaml"][..], &open].concat();
        let Some(mut command) = mpi.command(&place, 2, &arguments) else { return };
        command.env(drill::KEY, serde_json::to_string(&stop).expect("it is JSON"));
        let ran = Ran::of(&command.output().expect("the launcher starts"));
        let ended = SystemTime::now();
        // 10.0 seconds, or more where process 0 itself had no core for a while.
        let said = ["process 0 waited 1", " s for process 1, of which nothing was heard"];
        let stderr = &ran.ended(12).stderr;
        assert!(said.iter().all(|words| stderr.contains(words)), "{stderr}");
        let mark = fs::metadata(place.path(drill::MARK)).and_then(|mark| mark.modified());
        let after = ended.duration_since(mark.expect("it was stopped")).expect("it was before");
        assert!(after < Duration::from_secs(18), "{}: {after:?}", mpi.name);
    }
}
