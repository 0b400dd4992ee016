//! The page of launchers and its files: commands that the program takes, a script that does what it says, a job whose every name
//! is one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use annulus_tests::runs::Place;
use annulus_tests::{Ran, root, run};
use granit_parser::{Event, Options, Parser};
use serde_json::{Map, Value};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(300);

/// What starts a line of the page.
const PROGRAMS: [&str; 5] = ["annulus", "kubectl", "mpirun", "pip", "sbatch"];
/// What the page says to `mpirun`, of either family.
const FLAGS: [&str; 5] = ["--hostfile", "-n", "--bind-to", "-f", "--mca"];

/// The names in an MPIJob of version `v2beta1`, and in pods as far as they are used.
const NAMES: [&str; 36] = [
    "apiVersion",
    "args",
    "backoffLimit",
    "claimName",
    "cleanPodPolicy",
    "containers",
    "cpu",
    "image",
    "initialDelaySeconds",
    "kind",
    "Launcher",
    "limits",
    "memory",
    "metadata",
    "mountPath",
    "mpiImplementation",
    "mpiReplicaSpecs",
    "name",
    "persistentVolumeClaim",
    "port",
    "readinessProbe",
    "replicas",
    "resources",
    "runAsUser",
    "runPolicy",
    "securityContext",
    "slotsPerWorker",
    "spec",
    "sshAuthMountPath",
    "tcpSocket",
    "template",
    "volumeMounts",
    "volumes",
    "Worker",
    "workingDir",
    "shared",
];

fn text(path: &str) -> String {
    let path = root().join("experiments").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The lines in the page's blocks of `sh`.
fn commands() -> Vec<String> {
    let page = text("LAUNCHERS.md");
    let blocks = page.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.flat_map(str::lines).map(str::to_owned).collect()
}

/// Whether the program takes a command line, and an experiment that it names.
fn is_taken(words: &[&str]) -> bool {
    // What a launched command has is its own.
    let inner = words.iter().skip(1).position(|word| matches!(*word, "train" | "evaluate"));
    if let Some(inner) = inner.filter(|_| words[0] == "launch") {
        return is_taken(&words[..=inner]) && is_taken(&words[inner + 1..]);
    }
    let code = |words: &[&str]| run(ANNULUS, &root(), words).code;
    let takes = code(&[words, &["--help"]].concat()) == Some(0);
    let is_right = words[0] != "train" || code(&[&["check"], &words[1..]].concat()) == Some(0);
    takes && is_right
}

#[test]
fn what_is_not_taken_is_noticed() {
    assert!(is_taken(&["launch", "-n", "2", "train", "experiments/quickstart.yaml"]));
    for words in [
        &["train", "experiments/quickstart.yaml", "--processes", "2"][..],
        &["train", "experiments/absent.yaml"],
        &["train", "experiments/quickstart.yaml", "mesh.processes=2"],
        &["launch", "-n", "none", "train", "experiments/quickstart.yaml"],
        &["launch", "-n", "2", "train", "experiments/quickstart.yaml", "--restart"],
    ] {
        assert!(!is_taken(words), "{words:?}");
    }
}

#[test]
fn every_command_of_the_page_is_one() {
    let commands = commands();
    assert!(commands.len() >= 15, "{commands:?}");
    for line in commands {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert!(PROGRAMS.contains(&words[0]), "{line}");
        let own = words.iter().position(|word| *word == "annulus");
        let flags = words[..own.unwrap_or(0)].iter().filter(|word| word.starts_with('-'));
        assert!(flags.clone().all(|flag| FLAGS.contains(flag)), "{line}");
        if let Some(own) = own.filter(|_| words[0] != "pip") {
            assert!(is_taken(&words[own + 1..]), "{line}");
        }
        for file in words.iter().filter(|word| word.starts_with("experiments/")) {
            assert!(root().join(file).exists(), "{line}");
        }
    }
}

#[test]
fn the_page_links_to_what_is_there() {
    let page = text("LAUNCHERS.md");
    for link in page.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
        let is_here = link.starts_with("http") || root().join("experiments").join(link).exists();
        assert!(is_here, "`{link}`");
    }
}

/// A text of YAML as a value; numbers and words stay texts.
fn yaml(text: &str) -> Value {
    fn value(event: Event<'_>, next: &mut dyn FnMut() -> Event<'static>) -> Value {
        match event {
            Event::Scalar(text, ..) => Value::String(text.into_owned()),
            Event::SequenceStart(..) => {
                let mut all = Vec::new();
                loop {
                    match next() {
                        Event::SequenceEnd => return Value::Array(all),
                        event => all.push(value(event, next)),
                    }
                }
            }
            Event::MappingStart(..) => {
                let mut all = Map::new();
                loop {
                    let key = match next() {
                        Event::MappingEnd => return Value::Object(all),
                        event => value(event, next),
                    };
                    let key = key.as_str().expect("a name").to_owned();
                    let of_key = next();
                    let before = all.insert(key, value(of_key, next));
                    assert!(before.is_none(), "a name is there twice");
                }
            }
            event => panic!("{event:?}"),
        }
    }
    let text: &'static str = text.to_owned().leak();
    let mut options = Options::default();
    options.set_emit_comments(false);
    let mut parser = Parser::new_from_str_with_options(text, options);
    let mut next = move || parser.next_event().expect("more").expect("YAML").0;
    loop {
        match next() {
            Event::StreamStart | Event::DocumentStart(..) => {}
            event => return value(event, &mut next),
        }
    }
}

/// The names in a value, at any depth.
fn names(value: &Value) -> Vec<&str> {
    match value {
        Value::Object(all) => all
            .iter()
            .flat_map(|(key, value)| [vec![key.as_str()], names(value)].concat())
            .collect(),
        Value::Array(all) => all.iter().flat_map(names).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn the_job_of_kubernetes_names_what_there_is() {
    let job = yaml(&text("launchers/mpijob.yaml"));
    let strange: Vec<&str> = names(&job).into_iter().filter(|name| !NAMES.contains(name)).collect();
    assert!(strange.is_empty(), "{strange:?}");
    assert_eq!(
        (&job["apiVersion"], &job["kind"]),
        (&"kubeflow.org/v2beta1".into(), &"MPIJob".into())
    );
    let implementation = job["spec"]["mpiImplementation"].as_str().expect("a word");
    assert!(["OpenMPI", "MPICH", "Intel"].contains(&implementation));
    let [launcher, worker] =
        ["Launcher", "Worker"].map(|role| &job["spec"]["mpiReplicaSpecs"][role]);
    let of = |role: &Value| role["template"]["spec"]["containers"][0].clone();
    let arguments = of(launcher)["args"].clone();
    let words: Vec<&str> =
        arguments.as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    // A process for every worker.
    assert_eq!(words[..3], ["mpirun", "-n", worker["replicas"].as_str().expect("a number")]);
    assert_eq!(words[3], "annulus");
    assert!(is_taken(&words[4..]), "{words:?}");
    assert_eq!(of(launcher)["image"], of(worker)["image"]);
    for role in [launcher, worker] {
        let mounted = &of(role)["volumeMounts"][0]["name"];
        assert_eq!(*mounted, role["template"]["spec"]["volumes"][0]["name"]);
    }
    let key = &of(worker)["args"][3];
    assert!(key.as_str().is_some_and(|path| path.starts_with("/home/mpiuser/")), "{key}");
}

/// A program of a place, in front of all others of its name.
fn program(place: &Place, name: &str, script: &str) {
    place.write(&format!("bin/{name}"), &format!("#!/bin/sh\n{script}\n"));
    let path = place.path("bin").join(name);
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a script");
}

/// The batch script, where Slurm's programs and `mpirun` only say how they were called.
fn batch(place: &Place, by: &str, launcher: &str, words: &[&str]) -> Child {
    fs::create_dir_all(place.path("bin")).expect("a folder");
    for name in ["srun", "mpirun"] {
        program(place, name, &format!("echo {name} \"$@\"\n{launcher}"));
    }
    program(place, "scontrol", "echo scontrol \"$@\"");
    let path = std::env::var("PATH").expect("a path");
    let mut command = Command::new("bash");
    command.arg(root().join("experiments/launchers/slurm.sh")).args(words);
    command.env("PATH", format!("{}:{path}", place.path("bin").display()));
    command.env("ANNULUS_SLURM", by).envs([
        ("SLURM_NTASKS", "2"),
        ("SLURM_CPUS_PER_TASK", "8"),
        ("SLURM_JOB_ID", "17"),
    ]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).current_dir(place.path(""));
    command.spawn().expect("bash starts")
}

fn ended(child: Child) -> Ran {
    Ran::of(&child.wait_with_output().expect("it is ours"))
}

#[test]
fn the_batch_script_starts_what_it_says_and_is_queued_again() {
    let place = Place::new(ANNULUS);
    let script = root().join("experiments/launchers/slurm.sh");
    let read = Command::new("bash").arg("-n").arg(&script).status().expect("bash starts");
    assert!(read.success());
    let srun = "srun --mpi=pmi2 --cpus-per-task=8 annulus train f.yaml a=1\n";
    let mpirun = "mpirun -n 2 annulus train f.yaml a=1\n";
    for (by, line) in [("pmi2", srun), ("mpirun", mpirun)] {
        for code in [0, 13, 75] {
            let ran = ended(batch(&place, by, &format!("exit {code}"), &["f.yaml", "a=1"]));
            let again = if code == 75 { "scontrol requeue 17\n" } else { "" };
            assert_eq!(ran.ended(code).stdout, format!("{line}{again}"));
        }
    }
    let ran = ended(batch(&place, "pmix", "exit 0", &[]));
    assert!(ran.code != Some(0) && ran.stderr.contains("sbatch slurm.sh FILE"), "{}", ran.stderr);
}

/// Slurm sends the script, and nobody else, the signal ahead of the end.
#[test]
fn the_batch_script_passes_the_signal_on() {
    let place = Place::new(ANNULUS);
    let waits =
        "trap 'touch asked; sleep 0.3; exit 75' USR1; touch waits; while :; do sleep 0.05; done";
    let child = batch(&place, "pmix", waits, &["f.yaml"]);
    let there = |name: &str| Path::new(&place.path(name)).exists();
    let began = Instant::now();
    while !there("waits") {
        assert!(began.elapsed() < PATIENCE, "it does not start");
        sleep(Duration::from_millis(5));
    }
    // SAFETY: a signal to a child of ours.
    unsafe { libc::kill(child.id() as i32, libc::SIGUSR1) };
    let ran = ended(child);
    assert!(ran.ended(75).stdout.ends_with("scontrol requeue 17\n"), "{}", ran.stdout);
    assert!(there("asked"));
}
