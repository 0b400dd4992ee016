//! Processes that shard weights, masters and moments: the same bits, files and steps, with less memory.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use annulus_experiment::{Override, Resolved, State, parse};
use annulus_plan::Plan;
use annulus_tests::runs::{Place, last_logged, last_saved};
use annulus_train::memory::Class;
use serde_json::Value;

use super::{
    ANNULUS, Job, MPICH, Mpi, OPEN_MPI, PATIENCE, SMALL, kill_one, wait_for_step, wait_until_gone,
};

const SHARED: [State; 3] = [State::Zero1, State::Zero2, State::Zero3];

fn key(state: State) -> String {
    format!("parallel.state={}", state.word())
}

/// Trains with every strategy and mask, over processes that shard the state and over threads of one that holds everything.
fn agrees(mpi: Mpi, processes: usize, state: State, changes: &[&str]) {
    let place = Place::new(ANNULUS);
    place.write("small.yaml", SMALL);
    let key = key(state);
    let arguments = [&["agree", "small.yaml", "--steps", "2", "--json", &key], changes].concat();
    let Some(ran) = mpi.run(&place, processes, &arguments) else { return };
    let found = &ran.ended(0).json()[0];
    assert!(found["of"].as_u64().is_some_and(|of| of >= 36), "{found}");
    assert_eq!(found["equal"], found["of"], "{state:?} {changes:?}: {found}");
}

const ACCUMULATED: [&str; 2] = ["data.batch=4", "memory.micro_batch=1"];
const LORA: &str =
    "lora={ rank: 3, alpha: 6, targets: [q_proj, v_proj, down_proj], train: [norms] }";

#[test]
fn shares_of_masters_and_moments_change_no_bit() {
    agrees(MPICH, 2, State::Zero1, &["mesh.data=2", "mesh.sequence=2", "data.batch=4"]);
    agrees(OPEN_MPI, 2, State::Zero2, &ACCUMULATED);
}

#[test]
fn shares_of_weights_change_no_bit() {
    agrees(MPICH, 2, State::Zero3, &[]);
    let changes = [&ACCUMULATED[..], &["mesh.data=2", "mesh.sequence=2", "model.dtype=bf16"]];
    agrees(OPEN_MPI, 2, State::Zero3, &changes.concat());
    agrees(
        MPICH,
        2,
        State::Zero3,
        &[&["model.tie_word_embeddings=true"], &ACCUMULATED[..]].concat(),
    );
}

const CROSSED: [&str; 3] = ["mesh.data=2", "mesh.sequence=2", "data.batch=4"];

/// Hybrid sharding: along the other axis processes hold the same.
#[test]
fn shares_along_an_axis_change_no_bit() {
    let along = |axes, more: &[&'static str]| [&CROSSED[..], &[axes], more].concat();
    let (sequence, data) = ("parallel.state_axes=sequence", "parallel.state_axes=data");
    agrees(MPICH, 4, State::Zero3, &along(sequence, &["memory.micro_batch=1"]));
    agrees(OPEN_MPI, 4, State::Zero3, &along(data, &["model.dtype=bf16"]));
    agrees(OPEN_MPI, 4, State::Zero1, &along(sequence, &["mesh.order=data_first"]));
    // A process has a whole sequence.
    agrees(MPICH, 2, State::Zero3, &along(sequence, &[]));
}

const CHANGES: [&str; 4] =
    ["mesh.data=2", "mesh.sequence=2", "model.dtype=bf16", "schedule.steps=12"];

/// Trains to the end.
fn trained(
    place: &Place,
    mpi: Mpi,
    processes: usize,
    output: &str,
    changes: &[&str],
) -> Option<()> {
    let folder = format!("output={output}");
    let arguments = [&["train", "experiment.yaml", &folder], &CHANGES[..], changes].concat();
    mpi.run(place, processes, &arguments)?.ended(0);
    Some(())
}

/// The tensors of a checkpoint.
fn files(place: &Place, output: &str) -> [Vec<u8>; 2] {
    let folder = place.path(output).join("step-12");
    ["model.safetensors", "optimizer.safetensors"]
        .map(|name| fs::read(folder.join(name)).expect("the run saved them"))
}

#[test]
fn checkpoints_are_those_of_processes_that_hold_everything() {
    let place = Place::new(ANNULUS);
    let hashing = "every.hash=4";
    place.train("threads", &[&CHANGES[..], &["data.evaluate=3", hashing]].concat()).ended(0);
    let wanted = files(&place, "threads");
    let hashes = |output: &str| fs::read(place.path(output).join("hashes.jsonl")).unwrap();
    for (mpi, state, offload, axes) in [
        (MPICH, State::Zero1, "none", "all"),
        (OPEN_MPI, State::Zero3, "none", "data"),
        (MPICH, State::Zero3, "both", "all"),
        (MPICH, State::Zero1, "optimizer", "sequence"),
    ] {
        let output = format!("{}-{}-{axes}", mpi.name, state.word());
        let (offload, along) =
            (format!("memory.offload={offload}"), format!("parallel.state_axes={axes}"));
        // A replica more often than the other has nothing to evaluate.
        let changes =
            [&key(state), &offload, &along, "data.evaluate=3", "every.evaluate=3", hashing];
        let processes = if axes == "all" { 2 } else { 4 };
        let Some(()) = trained(&place, mpi, processes, &output, &changes) else { return };
        assert!(files(&place, &output) == wanted, "{output} differs");
        assert!(hashes(&output) == hashes("threads"), "{output} is hashed otherwise");
    }
}

/// A frozen model beside adapters is sharded, too.
#[test]
fn adapters_of_a_shared_model_are_those_of_a_whole_one() {
    let place = Place::new(ANNULUS);
    place.train("base", &CHANGES).ended(0);
    let model = ["model={ path: base/step-12 }", LORA, "schedule.steps=4"];
    let weights = |output: &str| {
        let path = place.path(output).join("step-4/adapter_model.safetensors");
        fs::read(path).expect("the run saved them")
    };
    place.train("whole", &[&CHANGES[..2], &model[..]].concat()).ended(0);
    for state in SHARED {
        let (output, key) = (state.word(), key(state));
        let folder = format!("output={output}");
        let words = ["train", "experiment.yaml", &folder, &key];
        let arguments = [&words[..], &CHANGES[..2], &model[..]].concat();
        let Some(ran) = MPICH.run(&place, 2, &arguments) else { return };
        ran.ended(0);
        assert!(weights(output) == weights("whole"), "{output} differs");
    }
}

/// No process has the whole state then: all end after the same step, and every process saves its shard.
#[cfg(target_os = "linux")]
#[test]
fn a_training_with_shares_is_stopped_saved_and_goes_on_as_threads_and_otherwise_shared() {
    let place = Place::new(ANNULUS);
    let changes = [&CHANGES[..3], &["schedule.steps=60", "every.checkpoint=60"]].concat();
    place.train("whole", &changes).ended(0);
    let last = |output: &str| {
        let path = place.path(output).join("step-60/optimizer.safetensors");
        fs::read(path).expect("the run saved them")
    };
    for mpi in [MPICH, OPEN_MPI] {
        for (state, then) in [(State::Zero3, None), (State::Zero1, Some(State::Zero3))] {
            let output = format!("{}-{}", mpi.name, state.word());
            let (folder, key) = (format!("output={output}"), key(state));
            let words = ["train", "experiment.yaml", &folder, &key];
            let arguments = [&words[..], &changes].concat();
            let Some(mut job) = Job::start(mpi, &place, &arguments) else { return };
            wait_for_logged(&place, &output, 3);
            job.signal(libc::SIGUSR1);
            assert_eq!(job.ended(), Some(75), "{output}");
            wait_until_gone(&place);
            let saved = last_saved(&place.path(&output));
            assert!((3..60).contains(&saved), "{output}: step {saved} is saved");
            match then {
                None => {
                    place.train(&output, &changes).ended(0);
                }
                Some(then) => {
                    let then = self::key(then);
                    let arguments = [&words[..3], &[&then], &changes].concat();
                    let Some(ran) = mpi.run(&place, 4, &arguments) else { return };
                    ran.ended(0);
                }
            }
            assert!(last(&output) == last("whole"), "{output} differs");
        }
    }
}

fn wait_for_logged(place: &Place, output: &str, step: u64) {
    let began = Instant::now();
    while last_logged(&place.path(output)) < step {
        assert!(began.elapsed() < PATIENCE, "step {step} is not logged");
        sleep(Duration::from_millis(1));
    }
}

/// The others cannot save without its shard: they end, and the run resumes from the last checkpoint.
#[cfg(target_os = "linux")]
#[test]
fn a_process_that_is_killed_with_its_share_leaves_the_last_checkpoint() {
    let place = Place::new(ANNULUS);
    let changes = [&CHANGES[..3], &["schedule.steps=40", "every.checkpoint=2"]].concat();
    place.train("whole", &changes).ended(0);
    for mpi in [MPICH, OPEN_MPI] {
        let folder = format!("output={}", mpi.name);
        let words = ["train", "experiment.yaml", &folder, "parallel.state=zero3"];
        let Some(mut job) = Job::start(mpi, &place, &[&words[..], &changes].concat()) else {
            return;
        };
        wait_for_step(&place, mpi.name, 4);
        kill_one(&place);
        assert_ne!(job.ended(), Some(0));
        wait_until_gone(&place);
        place.train(mpi.name, &changes).ended(0);
        let weights = |output: &str| super::weights(&place, output, 40);
        assert!(weights(mpi.name) == weights("whole"), "{}", mpi.name);
    }
}

/// Nothing reads whole weights or moments to cut a shard from them.
#[cfg(target_os = "linux")]
#[test]
fn a_run_with_shares_begins_and_goes_on_with_no_more_than_its_share_in_memory() {
    const WHOLE: &[&str] = &[
        "model.hidden_size=256",
        "model.intermediate_size=1024",
        "model.head_dim=64",
        "model.num_hidden_layers=8",
        "model.vocab_size=4096",
        "parallel.state=zero3",
        "output=shares",
    ];
    let place = Place::new(ANNULUS);
    place.write("held.yaml", MODEL);
    let elements = planned(&WHOLE[..6], 4).shape.elements();
    // Weights and moments, f32.
    let whole = 3 * 4 * elements;
    for steps in ["schedule.steps=2", "schedule.steps=4"] {
        let arguments = [&["train", "held.yaml", steps], WHOLE].concat();
        let Some(ran) = MPICH.run(&place, 4, &arguments) else { return };
        ran.ended(0);
        let found = last_metrics(&place, "shares");
        for process in 0..4 {
            let of = |what: &str| found[format!("memory/{what}/process-{process}")].as_f64();
            let (Some(most), Some(base)) = (of("resident"), of("base")) else { return };
            let held = (most - base) as u64;
            assert!(held < whole, "{steps}: process {process} had {held} bytes, all are {whole}");
        }
    }
}

/// The last line of a run's metrics.
fn last_metrics(place: &Place, output: &str) -> Value {
    let text = fs::read_to_string(place.path(output).join("metrics.jsonl")).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

/// Parameters whose shard is large enough to be counted.
const MODEL: &str = "\
name: held
model:
  hidden_size: 128
  intermediate_size: 384
  num_hidden_layers: 3
  num_attention_heads: 4
  num_key_value_heads: 4
  head_dim: 32
  vocab_size: 1024
data: { format: recall, tokens: 256, batch: 1, evaluate: 0 }
mesh: { sequence: 4 }
attention: { strategy: striped }
memory: { recompute: layer, loss_chunk: 64, mlp_chunk: 64 }
optimizer: { learning_rate: 1e-3 }
schedule: { steps: 3 }
";

#[test]
fn shares_are_what_is_planned_in_memory_and_in_messages() {
    const WHOLE: &[&str] = &["data.batch=2"];
    const ALONG: &[&str] =
        &["mesh.data=2", "mesh.sequence=2", "data.batch=2", "parallel.state_axes=sequence"];
    let place = Place::new(ANNULUS);
    place.write("held.yaml", MODEL);
    for (mpi, state, dtype, mesh) in [
        (MPICH, State::Zero1, "f32", WHOLE),
        (MPICH, State::Zero3, "bf16", WHOLE),
        (OPEN_MPI, State::Zero3, "f32", WHOLE),
        (OPEN_MPI, State::Zero3, "bf16", ALONG),
        (MPICH, State::Zero1, "f32", ALONG),
    ] {
        for processes in [2, 4] {
            let output =
                format!("{}-{}-{dtype}-{}-{processes}", mpi.name, state.word(), mesh.len());
            let (folder, key) = (format!("output={output}"), key(state));
            let dtype = format!("model.dtype={dtype}");
            let changes = [&[key.as_str(), &dtype], mesh].concat();
            let arguments = [&["train", "held.yaml", &folder], &changes[..]].concat();
            let Some(ran) = mpi.run(&place, processes, &arguments) else { return };
            ran.ended(0);
            let found = last_metrics(&place, &output);
            hold(&found, &planned(&changes, processes), &output);
        }
    }
}

/// The plan of the model above with these changes, over this many processes.
fn planned(changes: &[&str], processes: usize) -> Plan {
    let changes = changes.iter().map(|change| Override::split(change).expect("a key and a value"));
    let parsed = parse("held.yaml", MODEL, &changes.collect::<Vec<_>>()).expect("right");
    let plan = Resolved::read(parsed, None).and_then(|resolved| Plan::new(&resolved));
    plan.expect("a plan").over(processes)
}

/// Compares what a run logged with its plan.
fn hold(found: &Value, plan: &Plan, what: &str) {
    let of = |tag: &str| -> Vec<u64> { serde_json::from_value(found[tag].clone()).unwrap() };
    let here = plan.ranks.len() / plan.experiment.host.processes;
    for (class, tag) in [(Class::Weights, "memory/weights"), (Class::Optimizer, "memory/optimizer")]
    {
        let (found, planned) = (of(tag), plan.ranks.iter().map(|rank| rank.peak_by_class[class]));
        let planned: Vec<u64> = planned.collect();
        let said = format!("{what}: {tag} is {found:?}, planned {planned:?}");
        for (found, planned) in found.iter().zip(&planned) {
            assert!(*found as f64 <= 1.02 * *planned as f64, "{said}");
        }
        // What comes next may come when what came before is gone.
        let sums =
            |all: &[u64]| all.chunks(here).map(|of| of.iter().sum::<u64>()).collect::<Vec<_>>();
        for (found, planned) in sums(&found).into_iter().zip(sums(&planned)) {
            assert!(found as f64 >= 0.8 * planned as f64, "{said}");
        }
    }
    for (rank, held) in plan.ranks.iter().enumerate() {
        let planned = held.forward + held.backward + held.tensor + held.gradients + held.weights;
        assert_eq!(of("comm/bytes")[rank], planned, "{what}: rank {rank} sends");
    }
}
