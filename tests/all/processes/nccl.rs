//! Tensors between processes by NCCL: the bits of threads, an end in time whatever goes wrong, and what is refused. The library is
//! our own: with tensors of the CPU it does what NCCL does with those of GPUs.

use std::fs;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use annulus_tests::Ran;
use annulus_tests::nccl::{MODEL, environment};
use annulus_tests::runs::{Place, last_saved};

use super::{ANNULUS, Job, MPICH, Mpi, OPEN_MPI, PATIENCE, wait_until_gone, weights};

impl Mpi {
    /// With the emulator of NCCL, where so something is to go wrong.
    fn run_by_nccl(
        self,
        place: &Place,
        processes: usize,
        arguments: &[&str],
        wrong: &str,
    ) -> Option<Ran> {
        let mut command = self.command(place, processes, arguments)?;
        command.envs(environment(wrong, None));
        Some(Ran::of(&command.output().expect("the launcher starts")))
    }
}

const RING: &str = "attention.strategy=ring";

fn place() -> Place {
    let place = Place::new(ANNULUS);
    place.write("small.yaml", MODEL);
    place
}

#[test]
fn every_strategy_and_mask_has_the_bits_of_threads() {
    let place = place();
    for (mpi, processes) in [(MPICH, 2), (OPEN_MPI, 3), (MPICH, 4)] {
        let split = format!("mesh.sequence={processes}");
        let words = ["agree", "small.yaml", "--engines", "threads,nccl", "--steps", "2", "--json"];
        let arguments = [&words[..], &[&split]].concat();
        let Some(ran) = mpi.run_by_nccl(&place, processes, &arguments, "") else { return };
        let found = &ran.ended(0).json()[0];
        assert_eq!((found["equal"].as_u64(), found["of"].as_u64()), (Some(40), Some(40)));
    }
}

/// Replicas, with the state sharded in every way: sums over several groups of ranks use NCCL, too.
#[test]
fn meshes_and_shares_of_the_state_have_the_bits_of_threads() {
    let place = place();
    let more = ["data.batch=2", "schedule.steps=4", "attention.strategy=striped"];
    let changes = [&["mesh.data=2", "mesh.sequence=2"][..], &more].concat();
    let train = ["train", "small.yaml", "data.evaluate=2"];
    let threads = [&train[..], &changes, &["output=threads"]].concat();
    annulus_tests::run(ANNULUS, &place.path(""), &threads).ended(0);
    for (mpi, state) in [(MPICH, "zero3"), (OPEN_MPI, "replicated"), (MPICH, "zero1")] {
        let (state, output) = (format!("parallel.state={state}"), format!("output={state}"));
        let more = [&state, &output, "mesh.engine=nccl"];
        let arguments = [&train[..], &changes, &more].concat();
        let Some(ran) = mpi.run_by_nccl(&place, 4, &arguments, "") else { return };
        let ran = ran.ended(0);
        assert_eq!(ran.stderr.matches("tensors go by NCCL 2.28.9 (").count(), 1, "{}", ran.stderr);
        let output = &output["output=".len()..];
        assert_eq!(weights(&place, output, 4), weights(&place, "threads", 4), "{output}");
        let manifest = fs::read_to_string(place.path(output).join("manifest.json")).unwrap();
        assert!(manifest.contains("\"nccl\": {\n        \"version\": \"2.28.9\""), "{manifest}");
    }
}

/// How a training of two steps over three ranks with a planted fault ends, where ranks wait at most `deadline`.
fn wrong(mpi: Mpi, place: &Place, wrong: &str, deadline: &str) -> Option<(Option<i32>, String)> {
    let words = ["train", "small.yaml", "mesh.sequence=3", "schedule.steps=2", "output=wrong"];
    let deadline = format!("mesh.deadline={deadline}");
    let more = ["mesh.engine=nccl", "attention.strategy=ring", &deadline];
    // What is left of another.
    let _ = fs::remove_dir_all(place.path("wrong"));
    let ran = mpi.run_by_nccl(place, 3, &[&words[..], &more].concat(), wrong)?;
    wait_until_gone(place);
    Some((ran.code, ran.stderr))
}

/// A fault at each group of transfers of a rank, until there are no more, with both families in turn; it ends long before a deadline.
#[test]
fn an_error_at_any_hop_ends_the_job_at_once() {
    let (place, mut groups) = (place(), 0);
    loop {
        let (fault, began) = (format!("error@1:{groups}"), Instant::now());
        let mpi = [MPICH, OPEN_MPI][groups % 2];
        let Some((code, said)) = wrong(mpi, &place, &fault, "5min") else { return };
        if code == Some(0) {
            break;
        }
        assert_eq!((code, said.matches("error: ").count()), (Some(13), 1), "{fault}: {said}");
        let why = ": remote process exited or there was a network error";
        assert!(said.contains("NCCL, rank 1 with ") && said.contains(why), "{fault}: {said}");
        assert!(began.elapsed() < Duration::from_secs(60), "{fault}: {said}");
        groups += 1;
    }
    // Two steps of two hops forward, and more backward.
    assert!(groups >= 10, "{groups} groups");
}

#[test]
fn what_hangs_ends_at_the_deadline_and_who_is_refused_says_so() {
    let place = place();
    for (fault, wanted) in [
        ("hang@1:2", "a transfer has not ended within 3 s"),
        ("refuse@1:0", "rank 1: ncclCommInitRankConfig: invalid usage (Duplicate GPU detected"),
    ] {
        // Longer than a busy machine takes between two signs of life of a rank.
        let Some((code, said)) = wrong(MPICH, &place, fault, "3s") else { return };
        assert_eq!((code, said.matches("error: ").count()), (Some(13), 1), "{fault}: {said}");
        assert!(said.contains(wanted), "{fault}: {said}");
    }
}

/// What a device computes before a transfer may take longer than a deadline: the transfer has not begun, and the rank is alive.
#[test]
fn what_computes_for_long_is_waited_for() {
    let place = place();
    for fault in ["late@1:1", "late@0:6"] {
        let began = Instant::now();
        let Some((code, said)) = wrong(MPICH, &place, fault, "2s") else { return };
        assert_eq!(code, Some(0), "{fault}: {said}");
        assert!(began.elapsed() > Duration::from_secs(3), "{fault} was not late");
    }
}

/// All ranks stop after the same step, whichever is asked, and the stopped run resumes as threads to the same bits.
#[cfg(target_os = "linux")]
#[test]
fn a_stop_is_saved_and_goes_on() {
    let place = place();
    let words = ["train", "small.yaml", RING, "schedule.steps=300", "every.checkpoint=300"];
    let whole = [&words[..], &["output=whole"]].concat();
    annulus_tests::run(ANNULUS, &place.path(""), &whole).ended(0);
    for (mpi, state) in [(MPICH, "replicated"), (OPEN_MPI, "zero3")] {
        let (folder, state) = (format!("output={state}"), format!("parallel.state={state}"));
        let more = [folder.as_str(), &state, "mesh.engine=nccl"];
        let Some(mut command) = mpi.command(&place, 4, &[&words[..], &more].concat()) else {
            return;
        };
        command.envs(environment("", Some(3))).stdout(Stdio::null()).stderr(Stdio::null());
        let mut job = Job(command.spawn().expect("the launcher starts"));
        let output = &folder["output=".len()..];
        let logged = place.path(output).join("metrics.jsonl");
        let began = Instant::now();
        while !fs::read_to_string(&logged).is_ok_and(|text| text.lines().count() > 2) {
            assert!(began.elapsed() < PATIENCE, "no steps in {output}");
            sleep(Duration::from_millis(1));
        }
        let one = *place.processes().last().expect("four processes");
        // SAFETY: a signal to a child of a child of ours.
        unsafe { libc::kill(one as i32, libc::SIGTERM) };
        assert_eq!(job.ended(), Some(75), "{output}");
        let saved = last_saved(&place.path(output));
        assert!(2 < saved && saved < 300, "{output}: step {saved}");
        let on = [&words[..], &[&folder]].concat();
        annulus_tests::run(ANNULUS, &place.path(""), &on).ended(0);
        assert_eq!(weights(&place, output, 300), weights(&place, "whole", 300), "{output}");
    }
}

/// `mesh.engine: nccl` is NCCL or an error; `auto` says nothing of it on a CPU.
#[test]
fn where_nccl_cannot_be_it_is_refused_by_name() {
    let place = place();
    for (processes, library, change, wanted) in [
        (2, None, "mesh.sequence=2", "`mesh.engine: nccl`: process 0: it computes on a CPU"),
        (2, Some("/absent/nccl.so"), "mesh.sequence=2", "/absent/nccl.so"),
        (
            2,
            Some(""),
            "mesh.sequence=4",
            "4 ranks on 2 processes: NCCL joins those of one rank each",
        ),
    ] {
        let words = ["train", "small.yaml", "mesh.engine=nccl", RING, "output=refused", change];
        let Some(mut command) = MPICH.command(&place, processes, &words) else { return };
        match library {
            None => command.env_remove(annulus_nccl::NAMED),
            Some("") => command.envs(environment("", None)),
            Some(path) => command.env(annulus_nccl::NAMED, path),
        };
        let ran = Ran::of(&command.output().expect("the launcher starts"));
        let said = &ran.ended(2).stderr;
        assert_eq!(said.matches("error: ").count(), 1, "{said}");
        assert!(said.contains(wanted) && said.contains("hint: set `mesh.engine: mpi`"), "{said}");
    }
    let words = ["train", "small.yaml", "mesh.sequence=2", RING, "schedule.steps=1", "output=auto"];
    let Some(ran) = MPICH.run(&place, 2, &words) else { return };
    assert!(!ran.ended(0).stderr.contains("tensors go by"), "{}", ran.stderr);
}
