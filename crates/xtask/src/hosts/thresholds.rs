//! What two hosts with a slow link between them must show.

use anyhow::{Context, Result};

use super::hop::Hop;
use super::job::Job;
use super::table::{Bar, Report, Samples};
use crate::tool;

/// A step over so much longer than the longer of its parts.
const STEP: Bar = Bar::AtMost(1.15);
/// Of communication, where a step computes twice as long as it sends.
const EXPOSED: Bar = Bar::AtMost(0.10);
/// The same where nothing progresses while ranks compute: else the figure above would mean nothing.
const CONTROL: Bar = Bar::AtLeast(0.50);
/// How far a plan may be off.
const PLAN: f64 = 0.15;
/// What a header and checksums may take of a message's hop.
const SURE: Bar = Bar::AtMost(0.02);
/// Plans so far apart must be right about the order.
const APART: f64 = 1.2;

/// Sixteen ranks: a ring of `P` has `P − 1` hops to hide, and the last tile behind nothing.
const RING: &str =
    "--ranks 16 --threads 1 --heads 16 --kv-heads 4 --head-dim 32 --mask full --strategies ring";
/// Rounded to as many positions for every rank.
const POSITIONS: f64 = 256.0;
const PROBE: usize = 6144;

/// A step whose computing and sending take as long, and one that computes twice as long as it sends.
pub(super) fn overlap(job: &Job, samples: usize, report: &mut Report) -> Result<()> {
    let parts = |tokens: usize, samples: usize| {
        let what = format!("--measure parts --tokens {tokens} --samples {samples} --planned");
        let line = job.measure(&format!("{RING} {what}"))?;
        Parts::of(line.first().context("nothing was printed")?)
    };
    // Computing grows with the square of positions, messages with their number.
    let probe = parts(PROBE, 3)?;
    let even = PROBE as f64 * probe.messages.median() / probe.compute.median();
    let even = (even / POSITIONS).round().max(1.0) * POSITIONS;
    tool::print("\na ring of 16 ranks on two hosts, seconds: median (range)");
    tool::print("| tokens | compute | messages | together | progress in waits only | planned |");
    tool::print("| --- | --- | --- | --- | --- | --- |");
    let balanced = parts(even as usize, samples)?;
    balanced.print(even as usize);
    let twice = parts(2 * even as usize, samples)?;
    twice.print(2 * even as usize);
    let longer = balanced.compute.with(&balanced.messages, f64::max);
    let ratio = balanced.together.with(&longer, |a, b| a / b);
    report.hold("a step over the longer of its parts", ratio.median(), STEP);
    for (name, one) in [("even", &balanced), ("twice as much to compute", &twice)] {
        let what = format!("{name}: how far the plan is from the step");
        report.hold(&what, off(&one.planned, &one.together).abs(), Bar::AtMost(PLAN));
    }
    let [hidden, control] = [&twice.together, &twice.waiting].map(|all| twice.exposed(all));
    report.hold("communication exposed, of all", hidden.median(), EXPOSED);
    report.hold("the same with progress in waits only", control.median(), CONTROL);
    Ok(())
}

/// What was measured of a step.
struct Parts {
    together: Samples,
    compute: Samples,
    messages: Samples,
    waiting: Samples,
    planned: Samples,
}

impl Parts {
    fn of(line: &serde_json::Value) -> Result<Parts> {
        let samples = |key| Samples::of(line, key);
        Ok(Parts {
            together: samples("together")?,
            compute: samples("compute")?,
            messages: samples("messages")?,
            waiting: samples("waiting")?,
            planned: samples("planned")?,
        })
    }

    /// What of communication is exposed in `all`, of its own time alone.
    fn exposed(&self, all: &Samples) -> Samples {
        all.with(&self.compute, |all, compute| all - compute)
            .with(&self.messages, |exposed, messages| exposed / messages)
    }

    fn print(&self, tokens: usize) {
        let cells = [&self.compute, &self.messages, &self.together, &self.waiting, &self.planned];
        let cells = cells.map(|one| one.shown(1.0)).join(" | ");
        tool::print(&format!("| {tokens} | {cells} |"));
    }
}

/// How far a plan is from what was measured: by the rates before each sample, in the middle.
fn off(planned: &Samples, measured: &Samples) -> f64 {
    planned.with(measured, |planned, measured| planned / measured - 1.0).median()
}

/// Strategies as planned and as they are.
pub(super) fn order(job: &Job, samples: usize, report: &mut Report) -> Result<()> {
    let words = format!(
        "--ranks 4 --threads 1 --heads 16 --head-dim 32 --mask full --tokens 4k \
         --strategies ring,double-ring,ulysses --samples {samples} --planned"
    );
    let mut found = Vec::new();
    tool::print("four ranks on two hosts, seconds: median (range)");
    tool::print("| strategy | planned | measured | off |");
    tool::print("| --- | --- | --- | --- |");
    for line in job.measure(&words)? {
        let name = line["strategy"].as_str().context("a strategy")?.to_owned();
        let (planned, measured) = (Samples::of(&line, "planned")?, Samples::of(&line, "together")?);
        let (off, cells) =
            (off(&planned, &measured), [&planned, &measured].map(|one| one.shown(1.0)));
        tool::print(&format!("| {name} | {} | {:+.1} % |", cells.join(" | "), 100.0 * off));
        report.hold(&format!("{name}: how far the plan is off"), off.abs(), Bar::AtMost(PLAN));
        found.push((name, planned.median(), measured.median()));
    }
    for (fast, slow) in found.iter().flat_map(|a| found.iter().map(move |b| (a, b))) {
        if slow.1 > APART * fast.1 {
            let what = format!("{} is faster than {}, as planned", fast.0, slow.0);
            report.say(&what, fast.2 < slow.2);
        }
    }
    Ok(())
}

/// A message of 1 MiB from each of two hosts to the other.
pub(super) fn hop(job: &Job, samples: usize, report: &mut Report) -> Result<()> {
    let measured = |what| {
        let words = format!("--measure {what} --bytes 1M --messages 8 --samples {samples}");
        job.measure(&words)?.into_iter().find(|line| line.get("bench").is_some()).context("a line")
    };
    let hop = Hop::of(&measured("raw")?, &measured("hop")?)?;
    hop.print("a message of 1 MiB both ways between two hosts");
    report.hold("a header and checksums, of the hop", hop.header() + hop.checksums(), SURE);
    Ok(())
}
