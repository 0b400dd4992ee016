//! Tensor-parallel ranks in several processes: the bits and files of threads, however the state is sharded.

use std::fs;

use annulus_tests::runs::Place;

use super::{ANNULUS, MPICH, Mpi, OPEN_MPI, SMALL};

/// Trains with every strategy and mask, over this many processes and over threads of one.
fn agrees(mpi: Mpi, processes: usize, changes: &[&str]) {
    let place = Place::new(ANNULUS);
    place.write("small.yaml", SMALL);
    // Every shard's tokens are even.
    let words = ["agree", "small.yaml", "--steps", "2", "--json", "mesh.tensor=2"];
    let sizes = ["data.tokens=48", "mesh.sequence=2"];
    let arguments = [&words[..], &sizes, changes].concat();
    let Some(ran) = mpi.run(&place, processes, &arguments) else { return };
    let found = &ran.ended(0).json()[0];
    assert!(found["of"].as_u64().is_some_and(|of| of >= 36), "{found}");
    assert_eq!(found["equal"], found["of"], "{processes} processes, {changes:?}: {found}");
}

#[test]
fn parts_of_layers_in_one_process_or_in_several_change_no_bit() {
    agrees(MPICH, 2, &[]);
    // Every process has one part of each parameter.
    agrees(OPEN_MPI, 4, &[]);
}

#[test]
fn shares_of_parts_change_no_bit() {
    let data = ["mesh.data=2", "data.batch=4", "memory.micro_batch=1"];
    agrees(OPEN_MPI, 2, &["parallel.state=zero3", "model.tie_word_embeddings=true"]);
    agrees(MPICH, 4, &[&data[..], &["parallel.state=zero3", "model.dtype=bf16"]].concat());
}

#[test]
fn checkpoints_are_those_of_threads() {
    let place = Place::new(ANNULUS);
    let changes = ["mesh.tensor=2", "mesh.sequence=2", "schedule.steps=6", "data.evaluate=3"];
    let files = |output: &str| {
        let folder = place.path(output).join("step-6");
        ["model.safetensors", "optimizer.safetensors"]
            .map(|name| fs::read(folder.join(name)).expect("the run saved them"))
    };
    place.train("threads", &changes).ended(0);
    for (processes, state) in [(2, "zero3"), (4, "zero1"), (4, "replicated")] {
        let output = format!("output={processes}-{state}");
        let state = format!("parallel.state={state}");
        let words = ["train", "experiment.yaml", &output, &state];
        let arguments = [&words[..], &changes].concat();
        let Some(ran) = MPICH.run(&place, processes, &arguments) else { return };
        ran.ended(0);
        assert!(files(&output["output=".len()..]) == files("threads"), "{output} differs");
    }
}

/// Tensor-parallel groups that would straddle processes unevenly are refused.
#[test]
fn processes_that_do_not_fit_are_refused() {
    let place = Place::new(ANNULUS);
    place.write("small.yaml", SMALL);
    let changes = ["mesh.tensor=2", "mesh.sequence=3", "attention.strategy=ring", "data.tokens=48"];
    let arguments = [&["train", "small.yaml"], &changes[..]].concat();
    let Some(ran) = MPICH.run(&place, 2, &arguments) else { return };
    let wanted = "2 tensor-parallel ranks do not fit evenly into processes of 3 ranks";
    assert!(ran.ended(2).stderr.contains(wanted), "{}", ran.stderr);
}
