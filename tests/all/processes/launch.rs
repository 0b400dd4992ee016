//! `annulus launch`: one process per host or as many as are asked for, started again where one was lost.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
#[cfg(target_os = "linux")]
use std::thread::sleep;
#[cfg(target_os = "linux")]
use std::time::{Duration, Instant};

use annulus_tests::Ran;
use annulus_tests::runs::Place;

use super::{ANNULUS, MPICH};
#[cfg(target_os = "linux")]
use super::{OPEN_MPI, PATIENCE, wait_for_step, weights};

/// A launcher that says what it is told, in place of starting anything.
const TELLS: &str = "#!/bin/sh
[ \"$1\" = --version ] && echo \"$VERSION\" && exit
printf '%s\\n' \"$*\"
";
#[cfg(target_os = "linux")]
const CHANGES: [&str; 3] = ["mesh.sequence=4", "attention.strategy=ring", "schedule.steps=40"];

/// The program in a place, with a launcher of this path.
fn launched(place: &Place, launcher: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(ANNULUS);
    command.arg("launch").args(arguments).current_dir(place.path(""));
    command.env("ANNULUS_MPIRUN", launcher).env_remove("SLURM_JOB_NUM_NODES");
    command
}

/// Trains into `output`, and kills the last process that there is once a step is saved.
#[cfg(target_os = "linux")]
fn killed(place: &Place, launcher: &str, before: &[&str], output: &str) -> Ran {
    let folder = format!("output={output}");
    let train = ["train", "experiment.yaml", &folder];
    let mut command = launched(place, launcher, &[before, &train, &CHANGES].concat());
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let child = child.expect("the program starts");
    let launch = child.id();
    wait_for_step(place, output, 3);
    let ranks: Vec<u32> = place.processes().into_iter().filter(|one| *one != launch).collect();
    let victim = *ranks.last().expect("a process");
    // SAFETY: a signal to a process that a child of ours started.
    unsafe { libc::kill(victim as i32, libc::SIGKILL) };
    Ran::of(&child.wait_with_output().expect("it is ours"))
}

#[cfg(target_os = "linux")]
#[test]
fn a_lost_process_is_started_again_from_the_last_checkpoint() {
    let place = Place::new(ANNULUS);
    place.train("whole", &CHANGES).ended(0);
    let again = |launcher: &str, processes: &[&str], output: &str| {
        let ran = killed(&place, launcher, &[processes, &["--restarts", "1"]].concat(), output);
        assert!(ran.ended(0).stderr.contains("restarting, 0 restarts left"), "{}", ran.stderr);
        assert_eq!(weights(&place, output, 40), weights(&place, "whole", 40));
    };
    // One process needs no launcher.
    again("/absent", &[], "alone");
    if let Some(launcher) = MPICH.launcher() {
        again(&launcher.to_string_lossy(), &["-n", "2"], "two");
    }
}

#[test]
fn the_exit_code_is_that_of_the_processes_even_if_the_launcher_crashes() {
    let place = Place::new(ANNULUS);
    let Some(mpirun) = MPICH.launcher() else { return };
    let crashes = format!("#!/bin/sh\n'{}' \"$@\"\nkill -SEGV $$\n", mpirun.display());
    place.write("mpirun", &crashes);
    let launcher = place.path("mpirun");
    fs::set_permissions(&launcher, PermissionsExt::from_mode(0o755)).unwrap();
    let train = ["-n", "2", "train", "experiment.yaml", "mesh.sequence=2"];
    for (change, code) in [("output=right", 0), ("data.path=absent.txt", 3)] {
        let arguments = [&train[..], &[change]].concat();
        let ran = launched(&place, &launcher.to_string_lossy(), &arguments).output().unwrap();
        let said = "the launcher was ended by signal 11, after its processes";
        assert!(Ran::of(&ran).ended(code).stderr.contains(said), "{change}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn one_process_is_watched_as_several_are() {
    let place = Place::new(ANNULUS);
    let ran = killed(&place, "/absent", &[], "lost");
    assert!(ran.ended(13).stderr.contains("process 0"), "{}", ran.stderr);
    let told = annulus_tests::run(ANNULUS, &place.path(""), &["post-mortem", "lost"]);
    assert!(told.ended(0).stdout.contains("process 0"), "{}", told.stdout);
    // Of a plain mistake nothing is said but the mistake.
    let wrong = launched(&place, "/absent", &["train", "absent.yaml"]).output().unwrap();
    let wrong = Ran::of(&wrong);
    assert!(!wrong.ended(2).stderr.contains("ended with 2"), "{}", wrong.stderr);
}

#[cfg(target_os = "linux")]
#[test]
fn a_signal_reaches_one_process_that_no_launcher_started() {
    let place = Place::new(ANNULUS);
    let train = ["train", "experiment.yaml", "output=run", "schedule.steps=4000"];
    let mut child = launched(&place, "/absent", &train).stdout(Stdio::null()).spawn().unwrap();
    wait_for_step(&place, "run", 3);
    // SAFETY: a signal to a child of ours.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    assert_eq!(child.wait().unwrap().code(), Some(75));
}

/// Signals would end a process that does not handle them yet, and a launcher that is starting may ignore them.
#[cfg(target_os = "linux")]
#[test]
fn a_signal_reaches_a_job_that_is_only_starting() {
    let place = Place::new(ANNULUS);
    let ended = |mut command: Command, is_there: &dyn Fn() -> bool| {
        let mut child = command.stdout(Stdio::null()).spawn().expect("the program starts");
        let began = Instant::now();
        while !is_there() {
            assert!(began.elapsed() < PATIENCE, "it does not start");
            sleep(Duration::from_millis(1));
        }
        // SAFETY: a signal to a child of ours.
        unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
        child.wait().expect("it is ours").code()
    };
    let train = ["train", "experiment.yaml", "output=run", "schedule.steps=4000"];
    let alone = launched(&place, "/absent", &train);
    assert_eq!(ended(alone, &|| place.processes().len() > 1), Some(75));

    let waits = "[ \"$1\" = --version ] && exit\ntrap '' USR1\ntouch there\nsleep 7\ntrap 'exit 75' USR1\n\
                 for i in $(seq 600); do sleep 0.05; done\n";
    place.write("mpirun", &format!("#!/bin/sh\n{waits}"));
    let launcher = place.path("mpirun");
    fs::set_permissions(&launcher, PermissionsExt::from_mode(0o755)).unwrap();
    let deaf = launched(&place, &launcher.to_string_lossy(), &[&["-n", "2"], &train[..]].concat());
    assert_eq!(ended(deaf, &|| place.path("there").exists()), Some(75));
}

/// Of several processes one makes it, and the others have ended: nothing is lost with it.
#[cfg(target_os = "linux")]
#[test]
fn a_signal_ends_a_sample_and_the_job_is_finished() {
    let place = Place::new(ANNULUS);
    for mpi in [MPICH, OPEN_MPI] {
        let Some(launcher) = mpi.launcher() else { return };
        let output = format!("output={}", mpi.name);
        let train = ["-n", "2", "train", "experiment.yaml", &output, "mesh.sequence=2"];
        let sample = ["schedule.steps=2", "sample={prompt: alpha, tokens: 1000k}"];
        let arguments = [&train[..], &sample].concat();
        let mut command = launched(&place, &launcher.to_string_lossy(), &arguments);
        let said = place.path("said.txt");
        command.stdout(fs::File::create(&said).expect("a file")).stderr(Stdio::piped());
        let child = command.spawn().expect("the program starts");
        let began = Instant::now();
        while !fs::read_to_string(&said).is_ok_and(|text| text.contains("a sample, ")) {
            assert!(began.elapsed() < PATIENCE, "there is no sample");
            sleep(Duration::from_millis(5));
        }
        // SAFETY: a signal to a child of ours.
        unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
        let ran = Ran::of(&child.wait_with_output().expect("it is ours"));
        assert!(!ran.ended(0).stderr.contains("was lost"), "{}", ran.stderr);
    }
}

#[test]
fn hosts_of_an_allocation_get_a_process_each() {
    let place = Place::new(ANNULUS);
    place.write("mpirun", TELLS);
    let launcher = place.path("mpirun");
    fs::set_permissions(&launcher, PermissionsExt::from_mode(0o755)).unwrap();
    let told = |nodes: &str, version: &str, processes: &[&str]| {
        let arguments = [processes, &["check", "experiment.yaml"]].concat();
        let mut command = launched(&place, &launcher.to_string_lossy(), &arguments);
        let command = command.env("SLURM_JOB_NUM_NODES", nodes).env("VERSION", version);
        Ran::of(&command.output().unwrap()).ended(0).stdout.clone()
    };
    let [hydra, open] = ["HYDRA build details", "mpirun (Open MPI) 5.0"];
    assert!(told("3", hydra, &[]).starts_with("-ppn 1 -n 3 "));
    let by_node = told("3", open, &[]);
    assert!(
        by_node.contains("--bind-to none") && by_node.contains("--map-by ppr:1:node -n 3 "),
        "{by_node}"
    );
    assert!(told("3", hydra, &["-n", "2"]).starts_with("-n 2 "));
    // The program itself answers.
    assert!(!told("1", hydra, &[]).contains("check"));
}
