//! Plans of ranks that several processes share.

use annulus_experiment::{
    ClusterDevices, Device, Experiment, Offload, Override, State, StateAxes, parse,
};
use annulus_memory::Class;
use annulus_plan::{Plan, devices_for};

use crate::common::planned;
use crate::small::SMALL;

fn experiment(ranks: usize) -> Experiment {
    experiment_with(ranks, &[])
}

fn experiment_with(ranks: usize, more: &[&str]) -> Experiment {
    let arguments = [format!("mesh.sequence={ranks}"), format!("data.tokens={}", 4 * ranks)];
    let split = |argument: &String| Override::split(argument).expect("it has a `=`");
    let more = ["mesh.data=1", "attention.strategy=ring"].iter().chain(more);
    let more: Vec<String> = more.map(|argument| (*argument).to_owned()).collect();
    let overrides: Vec<Override> = arguments.iter().chain(&more).map(split).collect();
    parse("small.yaml", SMALL, &overrides).unwrap_or_else(|problems| panic!("{problems}"))
}

fn plan(ranks: usize) -> Plan {
    planned(experiment(ranks)).unwrap_or_else(|problems| panic!("{problems}"))
}

#[test]
fn processes_have_as_many_ranks_each_or_there_is_no_plan() {
    for processes in [0, 3, 8] {
        let mut experiment = experiment(4);
        experiment.host.processes = processes;
        let problems = planned(experiment).expect_err("uneven").to_string();
        let said = format!("{processes} processes cannot share 4 ranks evenly");
        assert!(problems.contains(&said), "{problems}");
    }
    let over = plan(4).over(2);
    assert_eq!(over.processes(&over.ranks).len(), 2);
}

#[test]
fn processes_lie_along_the_axes_that_share() {
    let mut experiment = experiment(4);
    (experiment.mesh.data, experiment.mesh.sequence) = (3, 4);
    (experiment.data.batch, experiment.host.processes) = (3, 4);
    assert!(planned(experiment.clone()).is_ok());
    experiment.parallel.state_axes = StateAxes::Data;
    let problems = planned(experiment.clone()).expect_err("3 of 4").to_string();
    let said = "processes of 3 ranks do not lie along the axis `data` of a mesh of 3 by 4";
    assert!(problems.contains(said), "{problems}");
    experiment.host.processes = 6;
    experiment.parallel.state = State::Zero3;
    let plan = planned(experiment).unwrap_or_else(|problems| panic!("{problems}"));
    assert!(plan.to_text().contains("state zero3 along data"), "{}", plan.to_text());
}

/// The plan of 4 ranks on this many GPUs.
fn on_gpus(devices: usize, word: &str) -> Experiment {
    placed(experiment(4), devices, word)
}

fn placed(mut experiment: Experiment, devices: usize, word: &str) -> Experiment {
    experiment.device = Device::from_word(word).unwrap_or(Device::Cpu);
    (experiment.host.gpu_memory, experiment.host.devices) = (Some(1 << 40), devices);
    experiment
}

#[test]
fn ranks_on_devices_hold_what_they_hold_in_processes() {
    let mut of_processes = experiment(4);
    (of_processes.host.gpu_memory, of_processes.host.processes) = (Some(1 << 40), 2);
    let [devices, processes] = [on_gpus(2, "cuda"), of_processes]
        .map(|experiment| planned(experiment).unwrap_or_else(|problems| panic!("{problems}")));
    let held = |plan: &Plan| plan.ranks.iter().map(|rank| rank.peak).collect::<Vec<_>>();
    assert_eq!(held(&devices), held(&processes));
    // What the fullest GPU holds is held to what it has.
    let fullest = held(&devices).chunks(2).map(|ranks| ranks.iter().sum::<u64>()).max();
    assert_eq!(devices.memory_need().map(|need| need.needed), fullest);
    let all = planned(on_gpus(1, "cuda")).unwrap_or_else(|problems| panic!("{problems}"));
    assert!(all.needed() > devices.needed() && all.needed() < held(&devices).iter().sum());
    let said = "device  cuda:0 (ranks 0 to 1), cuda:1 (ranks 2 to 3)\n";
    assert!(devices.to_text().contains(said), "{}", devices.to_text());
    assert_eq!(processes.gpus(), [""; 0]);
}

/// From GPUs, what is offloaded goes to the memory of the host, which is checked before a run; to a folder on request.
#[test]
fn what_gpus_offload_must_fit_into_the_memory_of_the_host() {
    const LARGE: [&str; 3] =
        ["data.tokens=256M", "model.hidden_size=16384", "model.intermediate_size=16"];
    let of = |what: Offload, more: &[&str], folder: Option<&str>| {
        let mut experiment = placed(experiment_with(4, more), 2, "cuda");
        experiment.host.gpu_memory = Some(1 << 50);
        experiment.memory.offload = what;
        experiment.memory.offload_folder = folder.map(Into::into);
        planned(experiment).unwrap_or_else(|problems| panic!("{problems}"))
    };
    let small = of(Offload::Both, &[], None);
    assert!(small.misfit().is_none());
    let said = "to page-locked memory of the host";
    assert!(small.to_text().contains(said), "{}", small.to_text());
    let long = of(Offload::Activations, &LARGE, None);
    let misfit = long.misfit().expect("256 Mi tokens of 16,384 dimensions");
    let [_, bytes] = long.offloaded_at_once(4);
    assert!(misfit.to_string().starts_with("offloading needs "), "{misfit}");
    assert!(misfit.to_string().contains(&annulus_text::size(bytes)), "{misfit}");
    assert!(misfit.hint().starts_with("offload to a disk (`memory.offload_folder`)"));
    let on_disk = of(Offload::Activations, &LARGE, Some("away"));
    assert!(on_disk.misfit().is_none() && on_disk.to_text().contains("to `away`"));
}

#[test]
fn a_gpu_that_is_named_has_as_many_ranks_as_the_others() {
    let said = planned(on_gpus(3, "cuda:4,0-1")).expect_err("uneven").to_string();
    assert!(said.contains("`cuda:4,0,1`: 3 GPUs cannot share 4 ranks evenly"), "{said}");
    assert!(said.contains("name 2 of them"), "{said}");
    let plan = planned(on_gpus(4, "cuda:3,0-2")).unwrap_or_else(|problems| panic!("{problems}"));
    let wanted = ["cuda:3 (rank 0)", "cuda:0 (rank 1)", "cuda:1 (rank 2)", "cuda:2 (rank 3)"];
    assert_eq!(plan.gpus(), wanted);
    // As many as there is any use for.
    assert_eq!([1, 2, 3, 4, 8].map(|there| devices_for(&experiment(4), there)), [1, 2, 2, 4, 4]);
}

#[test]
#[should_panic(expected = "3 processes cannot share 4 ranks evenly")]
fn a_plan_over_processes_that_cannot_share_its_ranks_is_a_mistake() {
    let _ = plan(4).over(3);
}

#[test]
fn what_this_machine_would_hold_is_said_of_ranks_that_may_be_on_it() {
    const TITLE: &str = "this machine ";
    assert!(plan(64).to_text().contains(TITLE));
    // A process for each of many takes long to plan.
    assert!(!plan(65).to_text().contains(TITLE));
    let mut described = experiment(4);
    described.host.cluster =
        Some(ClusterDevices { ranks: 4, memory: None, offload: None, are_gpus: true });
    let described = planned(described).unwrap_or_else(|problems| panic!("{problems}"));
    assert!(!described.to_text().contains(TITLE));
}

/// Settings that are left open are chosen for the processes of a line, as they are where so many train.
#[test]
fn open_settings_are_those_of_as_many_processes() {
    let over_two = |budget| {
        let mut experiment = experiment(4);
        (experiment.host.processes, experiment.memory.budget) = (2, Some(budget));
        experiment
    };
    let planned = |experiment| planned(experiment).unwrap_or_else(|problems| panic!("{problems}"));
    let replicated = planned(over_two(1 << 40));
    assert_eq!(replicated.memory.state, State::Replicated);
    // A budget that two processes keep to only by sharing the state.
    let two = over_two(replicated.needed() - 1);
    let mut one = two.clone();
    one.host.processes = 1;
    let (one, two) = (planned(one), planned(two));
    let over = one.over(2);
    assert_eq!((over.memory, &over.ranks), (two.memory, &two.ranks));
    assert_eq!(two.memory.state, State::Zero1);
    let text = one.to_text();
    let line = text.lines().find(|line| line.starts_with("  2 processes")).expect("a line");
    assert!(line.ends_with("  state zero1, recompute layer"), "{text}");
}

/// A background checkpoint takes memory once more: where the state is sharded, every rank copies its own shard.
#[test]
fn copies_of_shares_are_planned() {
    let of = |changes: &[&str]| {
        let mut experiment = experiment(4);
        experiment.host.processes = 2;
        for change in changes {
            match *change {
                "background" => experiment.background_saves = true,
                // Devices of a described cluster: processors with one core each, or GPUs.
                "processors" | "gpus" => {
                    let are_gpus = *change == "gpus";
                    let devices =
                        ClusterDevices { ranks: 4, memory: None, offload: None, are_gpus };
                    experiment.host.cluster = Some(devices);
                }
                _ => experiment.parallel.state = State::Zero3,
            }
        }
        planned(experiment).unwrap_or_else(|problems| panic!("{problems}"))
    };
    let held = |plan: &Plan| {
        let ranks = plan.ranks.iter();
        ranks
            .map(|rank| rank.peak_by_class[Class::Weights] + rank.peak_by_class[Class::Optimizer])
            .collect::<Vec<_>>()
    };
    let copied = |changes: &[&str]| -> Vec<u64> {
        let with = held(&of(&[&["background"], changes].concat()));
        std::iter::zip(with, held(&of(changes))).map(|(with, without)| with - without).collect()
    };
    let elements = of(&[]).shape.elements();
    // Weights and two moments, in f32.
    assert_eq!(copied(&[]), [12 * elements, 0, 0, 0]);
    let shares = copied(&["zero3"]);
    assert!(shares.iter().all(|share| share.abs_diff(3 * elements) <= 12), "{shares:?}");
    // A GPU's copy lies on its host.
    assert_eq!(copied(&["processors"]), copied(&[]));
    assert_eq!(copied(&["gpus"]), [0; 4]);
}
