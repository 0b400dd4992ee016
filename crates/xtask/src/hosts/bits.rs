//! Compares the bits of a training over hosts with those over threads.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

use super::Arguments;
use super::job::Job;
use super::network::{BRIDGE, Network, WIRE};
use super::table::Report;
use super::wire::Wire;
use crate::tool;

const FILE: &str = "experiments/quickstart.yaml";
const STEPS: u64 = 20;

/// Trains over two hosts, as in the file.
pub(super) fn on_two_hosts(
    folder: &Path,
    arguments: &Arguments,
    report: &mut Report,
) -> Result<()> {
    let _network = Network::shaped(2, arguments.rate)?;
    let job = Job::new(folder, 2, BRIDGE)?;
    compare(&job, 8, &format!("two hosts at {} Mbit/s", arguments.rate), report)
}

/// Trains over four hosts joined by the wire; the launcher uses the bridge.
pub(super) fn over_the_wire(
    folder: &Path,
    arguments: &Arguments,
    report: &mut Report,
) -> Result<()> {
    let _network = Network::plain(4)?;
    let wire = Wire::between(4, arguments.delay, arguments.lost)?;
    let job = Job::new(folder, 4, WIRE)?;
    let name = format!(
        "four hosts, {} ms each way, {} of 1000 packets lost",
        arguments.delay, arguments.lost
    );
    compare(&job, 4, &name, report)?;
    let (carried, lost) = wire.counts();
    tool::print(&format!("the wire carried {carried} packets and lost {lost}"));
    report.require("the wire lost packets", lost > 0 || arguments.lost == 0);
    Ok(())
}

/// Trains over threads and over hosts, and compares.
fn compare(job: &Job, ranks: usize, name: &str, report: &mut Report) -> Result<()> {
    let [threads, hosts] = ["threads", "hosts"].map(|one| job.folder.join(one));
    for old in [&threads, &hosts] {
        tool::remove_old(old)?;
    }
    let changes = [format!("mesh.sequence={ranks}"), format!("schedule.steps={STEPS}")];
    tool::train("release", FILE, &changes, &threads)?;
    let mut words = vec!["train".to_owned(), FILE.to_owned()];
    words.extend(changes);
    words.push(format!("output={}", hosts.display()));
    let start = Instant::now();
    job.annulus(&words)?;
    let seconds = start.elapsed().as_secs_f64();
    let weights = |run: &Path| {
        let path = run.join(format!("step-{STEPS}/model.safetensors"));
        fs::read(&path).with_context(|| path.display().to_string())
    };
    let equal = weights(&threads)? == weights(&hosts)?;
    report.require(
        &format!("{name}: the weights after {STEPS} steps are those of threads ({seconds:.0} s)"),
        equal,
    );
    Ok(())
}
