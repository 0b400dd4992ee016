//! What a run over processes says of its hosts: manifest, metrics, curves and a recorded step.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use annulus_tests::drill::{self, Drill, What};
use annulus_tests::runs::Place;
use annulus_tests::{Ran, run};
use annulus_trace::testing::check;
use annulus_trace::{Sums, Trace};
use serde_json::Value;

use super::{ANNULUS, MPICH, Mpi, OPEN_MPI, weights};
use crate::tensorboard;

/// Four ranks, recorded in the third of four steps, of which there may be more later.
const CHANGES: [&str; 5] = [
    "mesh.sequence=4",
    "attention.strategy=ring",
    "schedule.steps=6",
    "schedule.stop=4",
    "trace.steps=[3]",
];
/// The command of the second process where it must be on a host of its own: it sees another host name.
const RENAMED: &str = "echo right > /proc/sys/kernel/hostname && exec \"$0\" \"$@\"";

/// Trains over two processes, on one host or on two.
fn trained(mpi: Mpi, place: &Place, output: &str, hosts: usize, changes: &[&str]) -> Option<Ran> {
    let folder = format!("output={output}");
    let arguments = [&["train", "experiment.yaml", &folder][..], changes].concat();
    if hosts == 1 {
        return mpi.run(place, 2, &arguments);
    }
    let mut command = mpi.command(place, 1, &arguments)?;
    command.args([":", "-n", "1", "unshare", "--uts", "sh", "-c", RENAMED, ANNULUS]);
    command.args(&arguments);
    Some(Ran::of(&command.output().expect("the launcher starts")))
}

/// Whether this user may give a process a host's name of its own; if not, that is said aloud.
#[expect(clippy::print_stdout, reason = "a skipped test says so")]
fn may_rename() -> bool {
    let tried = Command::new("unshare").args(["--uts", "sh", "-c", RENAMED, "true"]).output();
    let may = tried.is_ok_and(|output| output.status.success());
    if !may {
        println!("SKIPPED: a process cannot have a host's name of its own here");
    }
    may
}

fn json(place: &Place, path: &str) -> Value {
    let text = fs::read_to_string(place.path(path)).expect("it was written");
    serde_json::from_str(&text).expect("JSON")
}

/// The logged steps, each as values by tag.
fn lines(place: &Place, output: &str) -> Vec<BTreeMap<String, Value>> {
    let text = fs::read_to_string(place.path(output).join("metrics.jsonl")).expect("metrics");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

fn by_rank(line: &BTreeMap<String, Value>, tag: &str) -> Vec<f64> {
    let ranks = line.get(tag).and_then(Value::as_array).unwrap_or_else(|| panic!("no {tag}"));
    ranks.iter().map(|rank| rank.as_f64().expect("a number")).collect()
}

/// All bytes are within a host or between hosts, and ranks lie around their mean.
fn check_metrics(line: &BTreeMap<String, Value>, hosts: &[String]) {
    let of = |tag: &str| by_rank(line, tag);
    let (within, between) = (of("comm/within_host/bytes"), of("comm/between_hosts/bytes"));
    let sum: Vec<f64> = within.iter().zip(&between).map(|(one, other)| one + other).collect();
    assert_eq!(sum, of("comm/bytes"));
    assert!(within.iter().all(|bytes| *bytes > 0.0), "{line:?}");
    let several = hosts.len() > 1;
    assert!(between.iter().all(|bytes| (*bytes > 0.0) == several), "{line:?}");
    // Sums of gradients are waited for by all ranks.
    assert!(of("comm/between_hosts/waiting").iter().all(|time| (*time > 0.0) == several));
    let number = |tag: &str| line[tag].as_f64().expect("a number");
    let scores: Vec<f64> = (0..4).map(|rank| number(&format!("stragglers/rank-{rank}"))).collect();
    assert!(scores.iter().sum::<f64>().abs() < 1e-9, "{scores:?}");
    assert!(scores.iter().all(|score| score.abs() <= 3.0_f64.sqrt() + 1e-9), "{scores:?}");
    let of_hosts: f64 = hosts.iter().map(|host| number(&format!("stragglers/host-{host}"))).sum();
    assert!(of_hosts.abs() < 1e-9, "{line:?}");
    for host in hosts {
        assert!(number(&format!("comm/within_host/bytes/host-{host}")) > 0.0);
        assert!(number(&format!("comm/between_hosts/waiting/host-{host}")) >= 0.0);
    }
}

/// Checks that the recorded step is on one clock: no block arrives before it is sent.
fn check_trace(place: &Place, output: &str, hosts: &[String]) {
    let path = place.path(output).join("trace-3.json");
    let text = fs::read_to_string(&path).expect("the step was recorded");
    assert!(check(&text).expect("a trace") > 0);
    let trace = Trace::from_json(&text).expect("ours");
    let locations: Vec<(usize, &str)> =
        trace.locations.iter().map(|location| (location.process, location.host.as_str())).collect();
    let last = &hosts[hosts.len() - 1];
    assert_eq!(locations, [(0, &*hosts[0]), (0, &*hosts[0]), (1, last), (1, last)]);
    let names: Vec<&str> = Sums::of(&trace).flows.iter().map(|flow| flow.name).collect();
    let wanted = match hosts.len() {
        1 => vec!["blocks within a host", "sums within a host"],
        _ => vec!["blocks within a host", "blocks between hosts", "sums between hosts"],
    };
    assert_eq!(names, wanted);
    // Ranks do the step together: none is off by more than a step takes.
    let begins = trace.ranks.iter().map(|spans| spans.iter().map(|span| span.begin).min());
    let ends = trace.ranks.iter().map(|spans| spans.iter().map(|span| span.end).max());
    assert!(begins.max() < ends.min(), "{:?}", Sums::of(&trace).lengths);
    let shown = run(ANNULUS, &place.path(""), &["trace", output]);
    assert!(shown.ended(0).stdout.contains("by link"), "{}", shown.stdout);
}

fn check_manifest(place: &Place, output: &str, hosts: &[String]) {
    let manifest = json(place, &format!("{output}/manifest.json"));
    let attempt = &manifest["attempts"][0];
    let process = |number: usize, ranks: [u64; 2]| {
        let host = &hosts[number.min(hosts.len() - 1)];
        serde_json::json!({"host": host, "ranks": ranks})
    };
    let mut found = attempt["processes"].clone();
    for process in found.as_array_mut().expect("processes") {
        let process = process.as_object_mut().expect("a process");
        for key in ["resident", "planned"] {
            let bytes = process.remove(key).and_then(|bytes| bytes.as_u64());
            assert!(bytes.is_some_and(|bytes| bytes > 1 << 20), "{key}: {bytes:?}");
        }
    }
    assert_eq!(found, serde_json::json!([process(0, [0, 1]), process(1, [2, 3])]));
    let library = attempt["mpi"]["library"].as_str().expect("a library");
    assert!(library.contains("MPI"), "{library}");
}

fn a_run_knows_its_hosts(count: usize) {
    let place = Place::new(ANNULUS);
    let own = fs::read_to_string("/proc/sys/kernel/hostname").expect("a name").trim().to_owned();
    let hosts = [own, "right".to_owned()][..count].to_vec();
    for mpi in [MPICH, OPEN_MPI] {
        let Some(ran) = trained(mpi, &place, mpi.name, count, &CHANGES) else { return };
        ran.ended(0);
        check_manifest(&place, mpi.name, &hosts);
        check_metrics(&lines(&place, mpi.name)[3], &hosts);
        check_trace(&place, mpi.name, &hosts);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_run_over_processes_says_where_they_are() {
    a_run_knows_its_hosts(1);
}

#[cfg(target_os = "linux")]
#[test]
fn what_goes_between_hosts_is_logged_and_traced_apart() {
    if may_rename() {
        a_run_knows_its_hosts(2);
    }
}

/// What every rank is planned to send for attention, bytes of a step.
#[cfg(target_os = "linux")]
fn attention(place: &Place, changes: &[&str]) -> Vec<f64> {
    let asked = [&["plan", "experiment.yaml", "--json"], changes].concat();
    let planned = &run(ANNULUS, &place.path(""), &asked).ended(0).json()[0];
    let sent = |rank: &Value| {
        let passes = ["forward", "backward"].map(|pass| rank["bytes"][pass].as_f64());
        passes.into_iter().map(|bytes| bytes.expect("bytes")).sum()
    };
    planned["ranks"].as_array().expect("ranks").iter().map(sent).collect()
}

/// Two replicas of two ranks on two hosts of two: keys and values stay within hosts or go between them, as planned.
#[cfg(target_os = "linux")]
#[test]
fn the_order_of_the_mesh_says_what_goes_between_hosts() {
    if !may_rename() {
        return;
    }
    let place = Place::new(ANNULUS);
    let mesh = ["mesh.sequence=2", "mesh.data=2", "attention.strategy=ring"];
    let changes = [&mesh[..], &["data.batch=2", "schedule.steps=6", "schedule.stop=4"]].concat();
    let attention = attention(&place, &changes);
    let mut found = Vec::new();
    for order in ["sequence_first", "data_first"] {
        let turned = format!("mesh.order={order}");
        let changes = [&changes[..], &[&turned]].concat();
        let Some(ran) = trained(MPICH, &place, order, 2, &changes) else { return };
        ran.ended(0);
        let line = &lines(&place, order)[3];
        let bytes = ["within_host", "between_hosts"]
            .map(|which| by_rank(line, &format!("comm/{which}/bytes")));
        found.push((bytes, weights(&place, order, 4)));
    }
    let [([near, sums], one), ([within, far], other)] = &found[..] else { panic!("{found:?}") };
    // Sums of gradients go both within hosts and between them, in either order.
    let more = |one: &[f64], other: &[f64]| -> Vec<f64> {
        one.iter().zip(other).map(|(one, other)| one - other).collect()
    };
    assert!(within.iter().chain(sums).all(|bytes| *bytes > 0.0), "{found:?}");
    assert_eq!((&more(near, within), &more(far, sums)), (&attention, &attention));
    assert!(one == other, "weights differ");
}

/// In place of a launcher: the real one, with every second process on a host of another name, as where processes are placed on two
/// hosts in turn.
fn in_turn(mpi: Mpi, place: &Place) -> Option<PathBuf> {
    let (launcher, flags) = (mpi.launcher()?, mpi.flags.join(" "));
    let apart = format!("exec unshare --uts sh -c '{RENAMED}' \"$@\"");
    let number = "${PMI_RANK:-$OMPI_COMM_WORLD_RANK}";
    place.write("placed.sh", &format!("[ $(({number} % 2)) = 0 ] && exec \"$@\"\n{apart}\n"));
    let real = launcher.display();
    let script = format!(
        "#!/bin/sh\n[ $1 = --version ] && exec {real} --version\nwhile [ $1 != -n ]; do shift; done\ncount=$2; shift 2\n\
         exec {real} {flags} -n $count sh {} \"$@\"\n",
        place.path("placed.sh").display()
    );
    place.write("in-turn", &script);
    let path = place.path("in-turn");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a script");
    Some(path)
}

/// The second process here is the third of the launcher, which sees it die.
#[cfg(target_os = "linux")]
#[test]
fn a_dead_process_is_named_by_its_rank_where_hosts_take_turns() {
    if !may_rename() {
        return;
    }
    let place = Place::new(ANNULUS);
    let own = fs::read_to_string("/proc/sys/kernel/hostname").expect("a name").trim().to_owned();
    for (rank, host) in [(1, own.as_str()), (2, "right")] {
        for mpi in [MPICH, OPEN_MPI] {
            let Some(launcher) = in_turn(mpi, &place) else { return };
            let (pass, what) = ("forward".to_owned(), What::Kill);
            let killed = Drill { what, rank, step: 3, layer: 0, pass, hop: 0 };
            let folder = format!("output={}-{rank}", mpi.name);
            let mut command = Command::new(ANNULUS);
            command.args(["launch", "-n", "4", "train", "experiment.yaml", &folder]).args(CHANGES);
            command.env("ANNULUS_MPIRUN", launcher).current_dir(place.path(""));
            command.env(drill::KEY, serde_json::to_string(&killed).expect("it is JSON"));
            let ran = Ran::of(&command.output().expect("the program starts"));
            let ran = ran.ended(13);
            let said = format!(
                "┌─ ended with 13: process {rank} was lost\n│ who      process {rank} of 4 on {host}, "
            );
            assert!(ran.stderr.contains(&said), "{}", ran.stderr);
            let at = format!("│ where    rank {rank}: step 3, layer 0, forward, hop 0");
            assert!(ran.stderr.contains(&at), "{}", ran.stderr);
            let after = run(ANNULUS, &place.path(""), &["post-mortem", &folder["output=".len()..]]);
            assert!(after.ended(0).stdout.contains(&said), "{}", after.stdout);
        }
    }
}

/// It computes while the others wait for it.
#[test]
fn a_slow_rank_stands_out() {
    let place = Place::new(ANNULUS);
    let (pass, what) = ("forward".to_owned(), What::Slow);
    let slow = Drill { what, rank: 2, step: 3, layer: 0, pass, hop: 0 };
    for mpi in [MPICH, OPEN_MPI] {
        let folder = format!("output={}", mpi.name);
        let arguments = [&["train", "experiment.yaml", &folder][..], &CHANGES].concat();
        let Some(mut command) = mpi.command(&place, 2, &arguments) else { return };
        command.env(drill::KEY, serde_json::to_string(&slow).expect("it is JSON"));
        Ran::of(&command.output().expect("the launcher starts")).ended(0);
        let line = &lines(&place, mpi.name)[2];
        // Of four ranks one alone is the root of three away.
        let score = line["stragglers/rank-2"].as_f64().expect("a number");
        assert!(score > 1.7, "{line:?}");
        let waited = by_rank(line, "comm/within_host/waiting");
        assert!(waited[3] > 1.0 && waited[2] < 1.0, "{line:?}");
    }
}

/// Also where it began as threads, TensorBoard's page has the charts of processes.
#[test]
fn a_run_that_goes_on_over_processes_has_their_charts() {
    let Some(python) = tensorboard::python() else { return };
    let place = Place::new(ANNULUS);
    let titles = |output: &str| -> Vec<String> {
        let seen = tensorboard::read(&python, &place.path(output));
        seen.layout.into_iter().map(|(title, _)| title).collect()
    };
    let changes = [&CHANGES[..], &["schedule.stop=2", "trace.steps=[]"]].concat();
    place.train("run", &changes).ended(0);
    let before = titles("run");
    let Some(ran) = trained(MPICH, &place, "run", 1, &CHANGES) else { return };
    ran.ended(0);
    assert_eq!(titles("run"), [&before[..], &["processes".to_owned()]].concat());
}

/// Resumed as threads a run has no processes any more, and `compare` says what two runs have.
#[test]
fn a_resumed_run_says_what_it_has_now() {
    let place = Place::new(ANNULUS);
    let Some(ran) = trained(MPICH, &place, "run", 1, &CHANGES) else { return };
    ran.ended(0);
    let changes = [&CHANGES[..], &["schedule.stop=6"]].concat();
    place.train("run", &changes).ended(0);
    let attempts = json(&place, "run/manifest.json")["attempts"].clone();
    assert_eq!(attempts[0]["processes"].as_array().map(Vec::len), Some(2));
    assert!(attempts[1]["processes"].is_null() && attempts[1]["mpi"].is_null(), "{attempts}");
    let lines = lines(&place, "run");
    let has = |line: &BTreeMap<String, Value>| line.contains_key("stragglers/rank-0");
    assert_eq!(lines.iter().map(has).collect::<Vec<_>>(), [true, true, true, true, false, false]);

    let Some(ran) = trained(MPICH, &place, "other", 1, &CHANGES) else { return };
    ran.ended(0);
    let compared = run(ANNULUS, &place.path(""), &["compare", "run", "other", "--json"]);
    let compared = compared.ended(0).json().remove(0);
    let origins = compared["origins"].as_array().expect("what differs");
    let row = |name: &str| origins.iter().find(|row| row["name"] == name).expect("a row");
    assert_eq!(row("processes")["values"], serde_json::json!(["1", "2"]));
    assert!(row("MPI")["values"][0].is_null() && row("MPI")["values"][1].is_string());
}

/// What is chosen is a strategy like any other: the run goes on as threads to the same bits.
#[test]
fn a_strategy_is_chosen_by_what_all_processes_achieve() {
    let place = Place::new(ANNULUS);
    for (mpi, hosts) in [(MPICH, 1), (OPEN_MPI, 2)] {
        if hosts > 1 && !may_rename() {
            continue;
        }
        let arguments = ["train", "experiment.yaml", "mesh.sequence=4", "attention.strategy=auto"];
        let output = format!("output={}", mpi.name);
        let arguments = [&arguments[..], &[&output]].concat();
        let Some(mut command) = mpi.command(&place, 2, &arguments) else { return };
        if hosts > 1 {
            command.args([":", "-n", "2", "unshare", "--uts", "sh", "-c", RENAMED, ANNULUS]);
            command.args(&arguments);
        }
        let ran = Ran::of(&command.output().expect("the launcher starts"));
        let ran = ran.ended(0);
        let cluster = format!("processes of this job: {} x {} devices", 2 * hosts, 2 / hosts);
        assert_eq!(ran.stderr.matches(&cluster).count(), 1, "{}", ran.stderr);
        assert_eq!(
            ran.stderr.contains("from host to host of 2 nodes"),
            hosts > 1,
            "{}",
            ran.stderr
        );
        let resolved = fs::read_to_string(place.path(mpi.name).join("experiment.yaml"));
        assert!(!resolved.expect("it was written").contains("strategy: auto"), "a choice is kept");
    }
}
