//! Checkpoints of a sharded state: every rank writes its own elements, in the background too.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use annulus_tests::Ran;
use annulus_tests::runs::{Place, is_saving, last_logged, last_saved};

use super::{ANNULUS, Job, MPICH, Mpi, OPEN_MPI, PATIENCE, kill_one, wait_until_gone};

const CHANGES: [&str; 5] = [
    "mesh.data=2",
    "mesh.sequence=2",
    "model.dtype=bf16",
    "every.checkpoint=2",
    "background_saves=true",
];
const ZERO3: &str = "parallel.state=zero3";

/// All files of a checkpoint, except the one that says when it was written.
fn files(place: &Place, output: &str, step: u64) -> Vec<(String, Vec<u8>)> {
    let folder = place.path(output).join(format!("step-{step}"));
    let entries = fs::read_dir(folder).expect("the run saved it").map(|entry| entry.unwrap());
    let mut files: Vec<_> = entries
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .filter(|(name, _)| name.ends_with(".safetensors"))
        .collect();
    files.sort();
    assert!(files.len() >= 2, "{output}: {} files", files.len());
    files
}

#[test]
fn shares_that_are_written_beside_training_are_the_files_of_a_run_without() {
    let place = Place::new(ANNULUS);
    let steps = "schedule.steps=7";
    let base = "model={ path: whole/step-7 }";
    let lora = "lora={ rank: 3, alpha: 6, targets: [q_proj, v_proj, down_proj], train: [norms] }";
    for (name, mesh, others) in [
        ("whole", &CHANGES[..4], &[(MPICH, 2, "zero3"), (OPEN_MPI, 4, "zero1")][..]),
        ("adapters", &[CHANGES[0], CHANGES[1], CHANGES[3], base, lora], &[(MPICH, 2, "zero3")]),
        (
            "parts",
            &["mesh.tensor=2", "mesh.sequence=2", "every.checkpoint=2"],
            &[(MPICH, 4, "replicated"), (OPEN_MPI, 2, "zero3")],
        ),
    ] {
        place.train(name, &[mesh, &[steps]].concat()).ended(0);
        for (mpi, processes, state) in others {
            let output = format!("{name}-{processes}-{state}");
            let (folder, state) = (format!("output={output}"), format!("parallel.state={state}"));
            let words = ["train", "experiment.yaml", &folder, &state, steps, CHANGES[4]];
            let Some(ran) = mpi.run(&place, *processes, &[&words[..], mesh].concat()) else {
                return;
            };
            ran.ended(0);
            for step in [6, 7] {
                let same = files(&place, &output, step) == files(&place, name, step);
                assert!(same, "{output}: step {step} differs");
            }
        }
    }
}

/// Trains until a save is under way behind `from`.
fn saving(mpi: Mpi, place: &Place, arguments: &[&str], from: u64) -> Option<Job> {
    let job = Job::start(mpi, place, arguments)?;
    let (output, began) = (place.path("run"), Instant::now());
    while last_saved(&output) <= from || !is_saving(&output) {
        assert!(began.elapsed() < PATIENCE, "no save is under way");
        sleep(Duration::from_micros(200));
    }
    Some(job)
}

/// What some ranks have written and others have not is no checkpoint.
#[cfg(target_os = "linux")]
#[test]
fn a_run_that_is_killed_or_stopped_while_shares_are_written_goes_on_to_the_same_bits() {
    let place = Place::new(ANNULUS);
    let changes = [&CHANGES[..], &["schedule.steps=160", "every.evaluate=0"]].concat();
    place.train("whole", &changes).ended(0);
    let words = [&["train", "experiment.yaml", "output=run", ZERO3], &changes[..]].concat();
    for mpi in [MPICH, OPEN_MPI, MPICH, OPEN_MPI] {
        let from = last_saved(&place.path("run"));
        let Some(mut job) = saving(mpi, &place, &words, from) else { return };
        kill_one(&place);
        assert_ne!(job.ended(), Some(0), "it ended before it was killed");
        wait_until_gone(&place);
        // Asked to stop, it ends what it has begun and loses no step.
        let from = last_saved(&place.path("run"));
        let Some(mut job) = saving(mpi, &place, &words, from) else { return };
        job.signal(libc::SIGUSR1);
        assert_eq!(job.ended(), Some(75));
        wait_until_gone(&place);
        let run = place.path("run");
        assert_eq!(last_saved(&run), last_logged(&run));
    }
    let Some(ran) = MPICH.run(&place, 4, &words) else { return };
    ran.ended(0);
    assert!(files(&place, "run", 160) == files(&place, "whole", 160), "the last step differs");
}

/// Two processes, each in a folder and behind words of its own.
fn apart(each: [(PathBuf, &[&str]); 2], words: &[&str]) -> Option<Ran> {
    let mut command = Command::new(MPICH.launcher()?);
    for (between, (folder, before)) in [None, Some(":")].into_iter().zip(each) {
        command.args(between).args(["-n", "1", "-wdir"]).arg(folder);
        command.args(before).arg(ANNULUS).args(words);
    }
    command.stdin(Stdio::null());
    Some(Ran::of(&command.output().expect("the launcher starts")))
}

/// Hosts without a disk in common: rank 0 writes for all, and says so.
#[test]
fn a_process_that_does_not_see_the_folder_hands_its_share_over() {
    let place = Place::new(ANNULUS);
    let changes = [&CHANGES[..], &["schedule.steps=4"]].concat();
    place.train("whole", &changes).ended(0);
    let other = place.path("other");
    fs::create_dir(&other).expect("a folder");
    for name in ["experiment.yaml", "text.txt"] {
        fs::copy(place.path(name), other.join(name)).expect("a copy");
    }
    let words = [&["train", "experiment.yaml", "output=run", ZERO3], &changes[..]].concat();
    let Some(ran) = apart([(place.path(""), &[]), (other, &[])], &words) else { return };
    let said = "2 ranks do not see `run`, rank 2 the first of them";
    assert!(ran.ended(0).stderr.contains(said), "{}", ran.stderr);
    assert!(files(&place, "run", 4) == files(&place, "whole", 4), "the last step differs");
}

/// A rank that cannot write says so, and nobody commits what others have written.
#[test]
fn a_share_that_cannot_be_written_leaves_the_checkpoint_before() {
    let place = Place::new(ANNULUS);
    let large = ["model.hidden_size=256", "model.intermediate_size=1024", "schedule.steps=4"];
    let changes = [&CHANGES[..2], &["every.checkpoint=2"], &large[..]].concat();
    let words = [&["train", "experiment.yaml", "output=run", ZERO3], &changes[..]].concat();
    place.train("whole", &changes).ended(0);
    let Some(ran) = MPICH.run(&place, 2, &[&words[..], &["schedule.stop=2"]].concat()) else {
        return;
    };
    ran.ended(0);
    let before = files(&place, "run", 2);
    // Blocks of 512 bytes that a file may have: enough for MPI's own, too few for the last weights. The signal that comes with the
    // error would end the process.
    let limited = ["sh", "-c", r#"trap "" XFSZ; ulimit -f 10000; exec "$0" "$@""#];
    for beside in ["background_saves=false", CHANGES[4]] {
        let folders = [(place.path(""), &[][..]), (place.path(""), &limited)];
        let Some(ran) = apart(folders, &[&words[..], &[beside]].concat()) else { return };
        let said = "cannot write `run/step-4/model.safetensors`";
        assert_eq!(ran.ended(4).stderr.matches(said).count(), 1, "{}", ran.stderr);
        assert_eq!(last_saved(&place.path("run")), 2);
        assert!(files(&place, "run", 2) == before, "the checkpoint before has changed");
    }
    let Some(ran) = MPICH.run(&place, 2, &words) else { return };
    ran.ended(0);
    assert!(files(&place, "run", 4) == files(&place, "whole", 4), "the last step differs");
}
