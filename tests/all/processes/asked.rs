//! Answers of a model over processes: those of threads, bit for bit.

use std::fs::{self, File};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use annulus_tests::runs::Place;
use annulus_tests::{Ran, run};
use serde_json::Value;

use super::{ANNULUS, Job, MPICH, OPEN_MPI, PATIENCE, SMALL, signal_one, wait_until_gone};

/// A run of four ranks that has trained for four steps.
fn trained() -> Place {
    let place = Place::new(ANNULUS);
    place.train("run", &["mesh.sequence=2", "mesh.data=2", "schedule.steps=4"]).ended(0);
    place
}

/// Asks four ranks: as threads, and as two and four processes of both families. `told` gets each answer, threads' first, while MPI is
/// there.
fn answers(place: &Place, arguments: &[&str], told: &mut dyn FnMut(&Ran, &str)) {
    let ran = run(ANNULUS, &place.path(""), arguments);
    told(ran.ended(0), "threads");
    for mpi in [MPICH, OPEN_MPI] {
        for processes in [2, 4] {
            let Some(ran) = mpi.run(place, processes, arguments) else { return };
            told(ran.ended(0), &format!("{processes} processes, {}", mpi.name));
        }
    }
}

/// What is printed is the same, and whatever `found` reads.
fn same(place: &Place, arguments: &[&str], found: &dyn Fn() -> Vec<u8>) {
    let mut first = None;
    answers(place, arguments, &mut |ran, how| {
        let answer = (ran.stdout.clone(), found());
        assert!(!answer.0.is_empty());
        assert!(*first.get_or_insert_with(|| answer.clone()) == answer, "{how}: {}", ran.stdout);
        assert_eq!(ran.stderr.matches("processes on ").count(), usize::from(how != "threads"));
    });
}

#[test]
fn an_evaluation_over_processes_is_that_over_threads() {
    let place = trained();
    let tasks = "evaluation.tasks=[perplexity, passkey]";
    let asked = ["evaluation.lengths=[300, 320]", "evaluation.samples=1", "evaluation.depths=2"];
    let windows = ["evaluation.windows=3", "evaluation.targets=16", "evaluation.path=text.txt"];
    let arguments = [&["evaluate", "run", "--json", tasks], &asked[..], &windows].concat();
    // All digits of the numbers, window by window and answer by answer.
    let found = || {
        let folder = place.path("run/evaluation");
        let read = |name| fs::read(folder.join(name)).expect("it was written");
        [read("perplexity.json"), read("tasks.json")].concat()
    };
    same(&place, &arguments, &found);
}

#[test]
fn a_text_goes_on_over_processes_as_over_threads() {
    let place = trained();
    let asked = ["generate", "run", "--prompt", "alpha 0 al", "--tokens", "9"];
    let sampled = ["--temperature", "1.5", "--seed", "1", "mesh.sequence=4"];
    let arguments = [&asked[..], &sampled].concat();
    same(&place, &arguments, &Vec::new);
    // Two ranks are too few for four processes.
    for mpi in [MPICH, OPEN_MPI] {
        let Some(ran) = mpi.run(&place, 4, &asked) else { return };
        says_once(&ran, 2, "4 processes cannot share 2 ranks evenly");
    }
}

/// Of all ways to split, those on as many ranks as the processes can share: the errors of threads, to the last digit.
#[test]
fn strategies_over_processes_are_as_exact_as_over_threads() {
    let place = Place::new(ANNULUS);
    place.write("small.yaml", SMALL);
    let mut of_threads = Vec::new();
    let ring = "attention.strategy=ring";
    let arguments = ["verify", "small.yaml", ring, "--ranks", "4", "--json"];
    answers(&place, &arguments, &mut |ran, how| {
        let lines = ran.json();
        let verdict = lines.last().expect("a verdict");
        assert_eq!(verdict["ok"], true, "{how}: {verdict}");
        if of_threads.is_empty() {
            of_threads = lines;
            return;
        }
        let tried: Vec<&Value> = lines.iter().filter(|line| line["tensor"].is_string()).collect();
        let processes: u64 = how[..1].parse().expect("a number");
        let shared = |line: &&Value| {
            line["tensor"].is_string()
                && line["ranks"].as_u64().is_some_and(|ranks| ranks % processes == 0)
        };
        let wanted: Vec<&Value> = of_threads.iter().filter(shared).collect();
        assert!(tried == wanted && tried.len() > 60, "{how}: {}", tried.len());
        let skipped = lines.iter().filter_map(|line| line["skipped"].as_str());
        let skipped = skipped.filter(|why| why.contains("cannot share 3 ranks evenly"));
        assert_eq!(skipped.count(), 10);
    });
}

/// The files of loss, logits and gradients, and of attention's output and gradients.
#[test]
fn tensors_over_processes_are_those_over_threads() {
    let place = trained();
    ids(&place, 0);
    let model = ["score", "--model", "run/step-4", "--tokens", "ids.safetensors", "--gradients"];
    let split = ["--out", "out.safetensors", "--ranks", "4", "--strategy", "ring"];
    let file = || fs::read(place.path("out.safetensors")).expect("it was written");
    answers(&place, &[&model[..], &split].concat(), &mut same_file(&file));
    let case = ["attend", "--case", "case.safetensors"];
    answers(&place, &[&case[..], &split].concat(), &mut same_file(&file));
}

fn same_file(file: &dyn Fn() -> Vec<u8>) -> impl FnMut(&Ran, &str) {
    let mut first = None;
    move |_, how| assert!(*first.get_or_insert_with(file) == file(), "{how}")
}

/// `input_ids` for a model of bytes, from `first` on, and a case of attention.
pub(super) fn ids(place: &Place, first: i64) {
    use candle_core::{DType, Device, Tensor};
    let device = Device::Cpu;
    let whole = |end: i64| Tensor::arange(0, end, &device).expect("a tensor");
    let ids = Tensor::arange(first, first + 72, &device).and_then(|ids| ids.reshape((2, 36)));
    let ids = ids.expect("two rows");
    let save = |tensors: &[(&str, Tensor)], name: &str, metadata| {
        let tensors = tensors.iter().map(|(name, tensor)| (*name, tensor));
        safetensors::serialize_to_file(tensors, metadata, &place.path(name))
            .expect("it is written");
    };
    save(&[("input_ids", ids)], "ids.safetensors", None);
    let waves = |phase: f64| {
        let count = Tensor::arange(0.0, 4.0 * 36.0 * 8.0, &device).expect("a tensor");
        let waves = count.affine(0.37, phase).and_then(|angle| angle.sin()?.to_dtype(DType::F32));
        waves.and_then(|waves| waves.reshape((1, 4, 36, 8))).expect("a tensor")
    };
    let [q, k, v, dout] = [0.0, 1.0, 2.0, 3.0].map(|phase| waves(phase + first as f64));
    let scale = Tensor::new(&[0.35_f64], &device).expect("a tensor");
    let case = [("q", q), ("k", k), ("v", v), ("dout", dout), ("scale", scale)];
    let case = [&case[..], &[("q_pos", whole(36)), ("k_pos", whole(36))]].concat();
    let mask = [("mask".to_owned(), "causal".to_owned())];
    save(&case, "case.safetensors", Some(mask.into()));
}

#[test]
fn what_cannot_be_asked_is_said_once() {
    let place = trained();
    let commands: [(&[&str], u8, &str); 5] = [
        (&["evaluate", "run", "evaluation.path=absent.txt"], 3, "absent.txt"),
        (&["evaluate", "run", "evaluation.windows=999"], 2, "tokens held out"),
        (&["evaluate", "absent"], 2, "absent"),
        (&["generate", "run", "--file", "absent.txt"], 2, "absent.txt"),
        (&["verify", "experiment.yaml", "--ranks", "1"], 2, "2 processes cannot share 1 rank"),
    ];
    for mpi in [MPICH, OPEN_MPI] {
        for (arguments, code, wanted) in commands {
            let Some(ran) = mpi.run(&place, 2, arguments) else { return };
            says_once(&ran, code.into(), wanted);
        }
        // Three processes of two ranks each do not lie along one axis of this mesh.
        let state = ["mesh.sequence=3", "parallel.state=zero3", "parallel.state_axes=data"];
        let evaluate = [&["evaluate", "run"], &state[..]].concat();
        let Some(ran) = mpi.run(&place, 3, &evaluate) else { return };
        says_once(&ran, 2, "parallel.state_axes");
    }
}

/// Which of them libraries of MPI would take for themselves differs from one to the other.
#[cfg(target_os = "linux")]
#[test]
fn a_signal_ends_what_has_nothing_to_save() {
    let place = trained();
    let long = ["evaluation.tasks=[needle]", "evaluation.lengths=[160]", "evaluation.samples=9999"];
    let arguments = [&["evaluate", "run"], &long[..]].concat();
    for mpi in [MPICH, OPEN_MPI] {
        for signal in [libc::SIGUSR1, libc::SIGHUP] {
            let talk = place.path("talk");
            let Some(mut command) = mpi.command(&place, 2, &arguments) else { return };
            let to = File::create(&talk).expect("a scratch file");
            command.stdout(Stdio::null()).stderr(to);
            let mut job = Job(command.spawn().expect("the launcher starts"));
            let began = Instant::now();
            while !fs::read_to_string(&talk).is_ok_and(|said| said.contains("2 processes on")) {
                assert!(began.elapsed() < PATIENCE, "it does not begin");
                sleep(Duration::from_millis(1));
            }
            signal_one(&place, signal);
            assert_ne!(job.ended(), Some(0), "signal {signal} under {}", mpi.name);
            wait_until_gone(&place);
        }
    }
}

#[track_caller]
fn says_once(ran: &Ran, code: i32, wanted: &str) {
    let ran = ran.ended(code);
    assert_eq!(ran.stderr.matches("error: ").count(), 1, "{}", ran.stderr);
    assert!(ran.stderr.contains(wanted) && ran.stdout.is_empty(), "{} {}", ran.stderr, ran.stdout);
}
