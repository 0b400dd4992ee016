//! Ranks of one process on several devices compute the same bits as on one. Devices are emulated, each with a memory of its own: a kernel
//! that reached into another's, or a copy out of order, would end the run.
#![cfg(feature = "emulator")]

use std::sync::Arc;
use std::time::Duration;

use annulus_comm::World;
use annulus_data::Sequence;
use annulus_experiment::Kernel;
use annulus_model::Llama;
use annulus_ops::gpu::Processor;
use annulus_ops::testing::{Counted, random};
use annulus_plan::Plan;
use annulus_sequence::{Mask, Route, Strategy};
use annulus_train::verify::whole::{Answer, Question, Split, attend};
use annulus_train::{
    Ending, GenerateRequest, Outcome, Processors, RunOptions, Sampling, Setup, Silent, Verdict,
    generate, judge, process_memory, run,
};
use candle_core::DType;

use crate::common::{BASE, Place, difference, losses, state};
use crate::kernels::{SHAPE, emulated, emulator, train};

/// `many` emulated devices.
fn devices(many: usize) -> Processors {
    devices_of(80, many)
}

fn devices_of(architecture: u32, many: usize) -> Processors {
    let all = emulator(architecture).apart(many).into_iter();
    all.map(|one| Arc::new(one) as Arc<dyn Processor>).collect::<Vec<_>>().into()
}

/// Trains on `many` devices, in a folder named by their number.
fn on(place: &Place, many: usize, changes: &[(&str, &str)]) -> Outcome {
    on_these(place, devices(many), changes)
}

fn on_these(place: &Place, processors: Processors, changes: &[(&str, &str)]) -> Outcome {
    let many = processors.devices();
    let output = place.path(&format!("on-{many}"));
    let own = [("output", output.to_str().unwrap())];
    let plan = place.plan_on(many, &[&SHAPE[..], &OWN, &own, changes].concat());
    let outcome =
        run(&plan, RunOptions { processors, ..RunOptions::new(BASE, 2) }, &mut Silent).unwrap();
    assert_eq!((outcome.ending, outcome.step), (Ending::Finished, 2), "{changes:?} on {many}");
    outcome
}

const OWN: [(&str, &str); 5] = [
    ("model.num_hidden_layers", "1"),
    ("model.num_key_value_heads", "2"),
    ("data.tokens", "128"),
    ("schedule.stop", "2"),
    ("every.hash", "1"),
];

/// The losses and the state of a run, to the bit, and its hashes.
fn bits(place: &Place, outcome: &Outcome, many: usize) -> (Vec<u64>, Vec<Vec<u8>>, String) {
    let numbers = losses(outcome)
        .into_iter()
        .chain([outcome.last["train/grad_norm"], outcome.last["evaluate/loss"]]);
    let hashes = std::fs::read_to_string(place.path(&format!("on-{many}")).join("hashes.jsonl"));
    let state = state(outcome.checkpoint.as_ref().unwrap());
    (numbers.map(f64::to_bits).collect(), state, hashes.unwrap())
}

/// Checks that a run on each number of devices has the bits of one device, and that this has those of the CPU.
fn check(many: &[usize], changes: &[(&str, &str)]) {
    let place = Place::new();
    let one = on(&place, 1, changes);
    let cpu = train(&place, "cpu", None, &[&OWN, changes].concat());
    let off = difference(&losses(&one), &losses(&cpu));
    assert!(off <= 1e-5, "{changes:?}: losses are off by {off:e}");
    let wanted = bits(&place, &one, 1);
    for many in many {
        let found = bits(&place, &on(&place, *many, changes), *many);
        assert!(found == wanted, "{changes:?} has other bits on {many} devices");
    }
}

/// The keys of `ranks` ranks that share a sequence by `strategy`.
fn split<'a>(strategy: &'a str, ranks: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![("mesh.sequence", ranks), ("attention.strategy", strategy)]
}

#[test]
fn two_ranks_on_two_devices_are_two_on_one() {
    for strategy in ["ring", "striped", "megatron", "ulysses"] {
        check(&[2], &split(strategy, "2"));
    }
}

#[test]
fn four_ranks_on_two_and_four_devices_are_four_on_one() {
    for strategy in ["ring", "double-ring"] {
        check(&[2, 4], &split(strategy, "4"));
    }
    let replicas = [("mesh.data", "2"), ("mesh.order", "data_first")];
    check(&[2], &[&split("striped", "2")[..], &replicas].concat());
}

/// Devices hold all of the state, or shards of it.
#[test]
fn devices_share_the_state_as_processes_do() {
    for state in ["zero1", "zero3"] {
        let shared = [("parallel.state", state), ("model.dtype", "bf16")];
        let place = Place::new();
        let [one, two, four] =
            [1, 2, 4].map(|many| on(&place, many, &[&split("striped", "4")[..], &shared].concat()));
        let wanted = bits(&place, &one, 1);
        assert!(bits(&place, &two, 2) == wanted, "{state} has other bits on 2 devices");
        assert!(bits(&place, &four, 4) == wanted, "{state} has other bits on 4 devices");
    }
}

/// What is offloaded to the memory of the host comes back with its bits, however late it is copied there; a run goes on with or without.
#[test]
fn devices_offload_to_their_host_to_the_bit() {
    let place = Place::new();
    let changes = [&split("ring", "2")[..], &[("model.num_hidden_layers", "3")]].concat();
    let micro = [("memory.micro_batch", "1"), ("data.batch", "2")];
    let changes = [&changes[..], &micro].concat();
    let wanted = bits(&place, &on(&place, 1, &changes), 1);
    std::fs::remove_dir_all(place.path("on-1")).unwrap();
    for (what, many) in [("activations", 1), ("optimizer", 2), ("both", 2)] {
        let all: Vec<Arc<Counted>> = emulator(80)
            .apart(many)
            .into_iter()
            .map(|one| Counted::new(Arc::new(one)).into())
            .collect();
        let processors: Vec<Arc<dyn Processor>> = all.iter().map(|one| one.clone() as _).collect();
        let changes = [&changes[..], &[("memory.offload", what)]].concat();
        let found = bits(&place, &on_these(&place, processors.into(), &changes), many);
        assert!(found == wanted, "offloading {what} has other bits");
        let copied = |one: &Arc<Counted>| one.calls().contains_key("copy to the host");
        assert!(all.iter().all(copied), "{what} stayed, or went to a disk");
        std::fs::remove_dir_all(place.path(&format!("on-{many}"))).unwrap();
    }
}

/// Tensor-parallel ranks compute the same on one device or on several.
#[test]
fn tensor_parallel_ranks_on_devices_are_those_on_one() {
    let tensor = [("mesh.tensor", "2"), ("parallel.state", "replicated")];
    check(&[2, 4], &[&split("ring", "2")[..], &tensor].concat());
}

/// A run that was saved on some devices resumes on others.
#[test]
fn a_run_goes_on_on_other_devices_to_the_bit() {
    let place = Place::new();
    let changes = [&split("ring", "4")[..], &[("parallel.state", "zero1")]].concat();
    let wanted = on(&place, 4, &changes);
    let parts = place.path("parts");
    let part = |many, stop| {
        let own = [("output", parts.to_str().unwrap()), ("schedule.stop", stop)];
        let plan = place.plan_on(many, &[&SHAPE[..], &OWN, &changes, &own].concat());
        run(
            &plan,
            RunOptions { processors: devices(many), ..RunOptions::new(BASE, 2) },
            &mut Silent,
        )
        .unwrap()
    };
    assert_eq!(part(2, "1").step, 1);
    let found = part(1, "2");
    assert_eq!(found.resumed_from, Some(1));
    assert!(state(&found.checkpoint.unwrap()) == state(&wanted.checkpoint.unwrap()));
}

/// Which rank computes on which would be seen in the bits.
#[test]
fn devices_of_several_generations_are_refused() {
    let place = Place::new();
    let plan = place.plan_on(2, &[&SHAPE[..], &OWN, &split("ring", "2")].concat());
    let mixed: Vec<Arc<dyn Processor>> = [80, 90].map(emulated).into_iter().collect();
    let options = RunOptions { processors: mixed.into(), ..RunOptions::new(BASE, 2) };
    let error = run(&plan, options, &mut Silent).unwrap_err();
    let said = error.to_string();
    assert_eq!(error.exit_code(), 2, "{said}");
    assert!(said.contains("`a GPU of sm_80 with "), "{said}");
    assert!(said.contains("`a GPU of sm_90 with "), "{said}");
    assert!(error.hint().is_some_and(|hint| hint.contains("device: cuda:")), "{said}");
}

/// Verdicts, generated text and attention alone are the same on several devices, too.
#[test]
fn what_is_asked_of_devices_is_what_is_asked_of_one() {
    let place = Place::new();
    let ring = [("mesh.sequence", "2"), ("mesh.data", "2"), ("attention.strategy", "ring")];
    let plan = place.plan(&[&SHAPE[..], &OWN, &ring].concat());
    let ids: Vec<u32> = (0..128).map(|index| index * index % 257).collect();
    let targets = ids.iter().map(|id| i64::from(id * 7 % 257)).collect();
    let sequence = Sequence { inputs: ids.clone(), targets, documents: Vec::new() };
    let sampling = Sampling { temperature: 0.0, top_k: None, top_p: 1.0, seed: 0 };
    let wanted = GenerateRequest { tokens: 3, ends: Vec::new(), sampling };
    let of = |many: usize| {
        let setup = Setup { micro_batch: 1, ..Setup::new(&plan, 2) }.on(devices(many));
        let weights = setup.placed(&Llama::random(&setup.config, 5).unwrap()).unwrap();
        let judged = judge(&setup, &weights, 2, &|_| Ok(sequence.clone()), &|| ()).unwrap();
        let bits =
            |verdict: &Verdict| (verdict.position, verdict.loss.to_bits(), verdict.predicted);
        let judged: Vec<_> = judged.concat().iter().map(bits).collect();
        (judged, generate(&setup, &weights, &ids, &wanted, &|_| ()).unwrap())
    };
    let one = of(1);
    assert!(of(2) == one && of(4) == one);
}

/// Attention alone: every rank copies its rows to its device, and all results are on the host again.
#[test]
fn attention_on_devices_is_that_on_one() {
    for dtype in [DType::F32, DType::BF16] {
        attention_on_devices(dtype);
    }
}

fn attention_on_devices(dtype: DType) {
    let of = |name: &str, heads: usize| {
        random(name, &[1, heads, 96, 64]).unwrap().to_dtype(dtype).unwrap()
    };
    let (q, k, v, gradient) = (of("q", 4), of("k", 2), of("v", 2), of("dout", 4));
    let question = Question { q, k, v, gradient, mask: Mask::causal(), scale: 0.125 };
    let answer = |many: usize| {
        let split = Split {
            strategy: Strategy::Ring,
            layout: None,
            ranks: 4,
            weights: None,
            route: Route::default(),
            kernel: Kernel::Fused,
            deterministic: true,
            deadline: Duration::from_secs(20),
            cores: 2.into(),
            processes: World::alone(),
            processors: devices_of(90, many),
        };
        let Answer { out, lse, dq, dk, dv } = attend(&question, &split).unwrap();
        [out, lse, dq, dk, dv].map(|tensor| {
            let all: Vec<f32> = tensor.flatten_all().unwrap().to_vec1().unwrap();
            all.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        })
    };
    let one = answer(1);
    assert!(answer(2) == one && answer(4) == one);
}

/// What the host's allocator counts says nothing of a GPU, nor does the plan of a GPU of the host.
#[test]
fn memory_on_devices_is_what_their_pools_say() {
    let place = Place::new();
    let step = 12_001;
    let pool = || Arc::new(emulator(80).with_pool_peaks([1 << 50, step])) as Arc<dyn Processor>;
    let ranks = split("ring", "4");
    for (devices, shared_by) in [(1_u64, 4), (2, 2)] {
        let output = place.path(&format!("pool-{devices}"));
        let own = [("output", output.to_str().unwrap())];
        let mut plan = place.plan_on(devices as usize, &[&SHAPE[..], &OWN, &own, &ranks].concat());
        let all: Vec<_> = (0..devices).map(|_| pool()).collect();
        let options = RunOptions { processors: all.into(), ..RunOptions::new(BASE, 2) };
        let outcome = run(&plan, options, &mut Silent).unwrap();
        assert_eq!(outcome.last["memory/peak"] as u64, step.div_ceil(shared_by), "{devices}");
        assert!(!outcome.last.contains_key("memory/weights"));
        let has_plan = |plan: &Plan| -> Vec<bool> {
            let all = process_memory(plan, &outcome.last).into_iter();
            all.map(|one| one.planned.is_some()).collect()
        };
        assert!(!has_plan(&plan).contains(&false));
        plan.experiment.host.gpu_memory = Some(1 << 37);
        assert!(!has_plan(&plan).contains(&true));
    }
}
