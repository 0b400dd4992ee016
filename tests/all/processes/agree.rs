//! `annulus agree`: the launcher that it starts its processes by, and what it tries.

use std::process::Command;

use annulus_tests::runs::Place;
use annulus_tests::{Ran, run};

use super::mpi::{MPICH, OPEN_MPI};
use super::{ANNULUS, SMALL};

/// Without a launcher around it, `agree` starts its own processes, by the launcher that `launch` would take.
#[test]
fn agree_starts_its_processes_itself() {
    let place = Place::new(ANNULUS);
    place.write("small.yaml", SMALL);
    for mpi in [MPICH, OPEN_MPI] {
        let Some(launcher) = mpi.launcher() else { return };
        let agree = |words: &[&str], library: &str| {
            let mut command = Command::new(ANNULUS);
            command.args(["agree", "small.yaml"]).args(words).current_dir(place.path(""));
            command.env("ANNULUS_MPIRUN", &launcher).env("ANNULUS_MPI", library);
            if library.is_empty() {
                command.env_remove("ANNULUS_MPI");
            }
            Ran::of(&command.output().expect("the program starts"))
        };
        let ran = agree(&["--engines", "threads,mpi", "--json"], "");
        let found = &ran.ended(0).json()[0];
        assert_eq!((found["equal"].as_u64(), found["of"].as_u64()), (Some(40), Some(40)));
        for (words, library, wanted) in [
            (&["-n", "3"][..], "", "3 processes cannot share 4 ranks evenly"),
            (&["-n", "1"], "", "there is one process"),
            (&["--engines", "mpi"], "", "one engine has nothing to be compared with"),
            (&["data.tokens=none"], "", "`data.tokens` must be a count"),
            (&[], "/absent/libmpi.so", "/absent/libmpi.so"),
        ] {
            let ran = agree(words, library);
            let ran = ran.ended(2);
            assert_eq!(ran.stderr.matches("error: ").count(), 1, "{words:?}: {}", ran.stderr);
            assert!(ran.stderr.contains(wanted), "{words:?}: {}", ran.stderr);
        }
    }
}

/// The keys of the run's own strategy are no hindrance to the others.
#[test]
fn agree_tries_the_experiment_of_a_run() {
    let place = Place::new(ANNULUS);
    place.write("small.yaml", SMALL);
    let words = ["train", "small.yaml", "attention.strategy=usp", "schedule.steps=1", "output=run"];
    run(ANNULUS, &place.path(""), &words).ended(0);
    let Some(ran) = MPICH.run(&place, 2, &["agree", "run", "--steps", "1", "--json"]) else {
        return;
    };
    let found = &ran.ended(0).json()[0];
    assert_eq!((found["equal"].as_u64(), found["of"].as_u64()), (Some(40), Some(40)));
}

/// Of several phases the last one is trained, whose sequences the masks fit.
#[test]
fn agree_tries_the_last_phase_with_every_mask() {
    let place = Place::new(ANNULUS);
    let lengths =
        "stages: { short: { tokens: 24, steps: 9 }, long: { tokens: 37, steps: 1, reset: [] } }";
    let staged = SMALL.replace("tokens: 37, ", "").replace("schedule: { steps: 20 }", lengths);
    // Steps of the whole run, which the last phase alone does not have.
    place.write(
        "staged.yaml",
        &format!("{staged}schedule: {{ stop: 10 }}\ntrace: {{ steps: [10] }}\n"),
    );
    let arguments = ["agree", "staged.yaml", "--steps", "1", "--json"];
    let Some(ran) = MPICH.run(&place, 2, &arguments) else { return };
    let found = &ran.ended(0).json()[0];
    assert_eq!((found["equal"].as_u64(), found["of"].as_u64()), (Some(40), Some(40)));
}

/// What is wrong in every way is said once, and is no lack of agreement.
#[test]
fn agree_says_why_nothing_can_be_tried() {
    let place = Place::new(ANNULUS);
    place.write("small.yaml", SMALL);
    let section = SMALL.find("data:").expect("a section");
    place.write(
        "nowhere.yaml",
        &format!("name: nowhere\nmodel: {{ path: nowhere }}\n{}", &SMALL[section..]),
    );
    for mpi in [MPICH, OPEN_MPI] {
        for (words, code, wanted) in [
            (&["agree", "nowhere.yaml"][..], 3, "there is no folder `nowhere`"),
            (&["agree", "small.yaml", "data.batch=3", "mesh.data=2"], 2, "cannot be split over 2"),
            (&["agree", "small.yaml", "attention.sliding={ layers: [7], window: 5 }"], 2, "7"),
        ] {
            let Some(ran) = mpi.run(&place, 2, words) else { return };
            let ran = ran.ended(code);
            assert_eq!(ran.stderr.matches("error: ").count(), 1, "{words:?}: {}", ran.stderr);
            assert!(ran.stderr.contains(wanted), "{words:?}: {}", ran.stderr);
            assert!(!ran.stdout.contains("0 of 0"), "{words:?}: {}", ran.stdout);
        }
    }
}

#[test]
fn agree_says_how_to_get_a_launcher() {
    let place = Place::new(ANNULUS);
    let mut command = Command::new(ANNULUS);
    command.args(["agree", "experiment.yaml"]).current_dir(place.path(""));
    command.env_remove("ANNULUS_MPIRUN").env("PATH", place.path(""));
    let ran = Ran::of(&command.output().expect("the program starts"));
    let said =
        "error: there is no `mpirun` on this machine's path\nhint: install one (`pip install";
    assert!(ran.ended(2).stderr.starts_with(said), "{}", ran.stderr);
}
