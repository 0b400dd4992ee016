//! The measurements over two hosts with a slow link, and their thresholds.

use anyhow::{Context, Result};

use super::hop::Hop;
use super::job::Job;
use super::table::{Report, Samples, Threshold};
use crate::tool;

/// The time of a step, relative to the longer of computing and sending.
const STEP: Threshold = Threshold::AtMost(1.15);
/// The fraction of communication that is exposed if a step computes twice as long as it sends.
const EXPOSED: Threshold = Threshold::AtMost(0.10);
/// The exposed fraction if messages make no progress while ranks compute: the control of the measurement above.
const CONTROL: Threshold = Threshold::AtLeast(0.50);
/// The largest relative error of a plan.
const PLAN: f64 = 0.15;
/// The cost of a header and checksums together, relative to a hop.
const OVERHEAD: Threshold = Threshold::AtMost(0.02);
/// Plans that differ by this factor must predict which is faster.
const DISTINCT: f64 = 1.2;

/// A ring of 16 ranks: of a ring's `P` tiles, `P − 1` can hide a hop, so many ranks come close to hiding all.
const RING: &str =
    "--ranks 16 --threads 1 --heads 16 --kv-heads 4 --head-dim 32 --mask full --strategies ring";
/// Lengths are rounded to multiples of this, so that all ranks hold equally many positions.
const POSITIONS: f64 = 256.0;
const PROBE: usize = 6144;

/// Measures a step that computes as long as it sends, and one that computes twice as long.
pub(super) fn overlap(job: &Job, samples: usize, report: &mut Report) -> Result<()> {
    let parts = |tokens: usize, samples: usize| {
        let what = format!("--measure parts --tokens {tokens} --samples {samples} --planned");
        let line = job.measure(&format!("{RING} {what}"))?;
        Parts::of(line.first().context("nothing was printed")?)
    };
    // Computing grows with the square of the length, messages grow linearly.
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
    report.check("a step over the longer of its parts", ratio.median(), STEP);
    for (name, one) in [("even", &balanced), ("twice as much to compute", &twice)] {
        let what = format!("{name}: relative error of the plan");
        report.check(&what, off(&one.planned, &one.together).abs(), Threshold::AtMost(PLAN));
    }
    let [hidden, control] = [&twice.together, &twice.waiting].map(|all| twice.exposed(all));
    report.check("exposed communication, relative to all", hidden.median(), EXPOSED);
    report.check("exposed communication with progress in waits only", control.median(), CONTROL);
    Ok(())
}

/// Measured times of a step and of its parts.
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

    /// Exposed communication in `all`, relative to the time of communication alone.
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

/// The relative error of plans, each made from rates that were measured just before its sample: the median.
fn off(planned: &Samples, measured: &Samples) -> f64 {
    planned.with(measured, |planned, measured| planned / measured - 1.0).median()
}

/// Compares planned and measured step times of strategies, and their order.
pub(super) fn strategies(job: &Job, samples: usize, report: &mut Report) -> Result<()> {
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
        report.check(
            &format!("{name}: relative error of the plan"),
            off.abs(),
            Threshold::AtMost(PLAN),
        );
        found.push((name, planned.median(), measured.median()));
    }
    for (fast, slow) in found.iter().flat_map(|a| found.iter().map(move |b| (a, b))) {
        if slow.1 > DISTINCT * fast.1 {
            let what = format!("{} is faster than {}, as planned", fast.0, slow.0);
            report.require(&what, fast.2 < slow.2);
        }
    }
    Ok(())
}

/// Measures a message of 1 MiB from each of two hosts to the other.
pub(super) fn hop(job: &Job, samples: usize, report: &mut Report) -> Result<()> {
    let measured = |what| {
        let words = format!("--measure {what} --bytes 1M --messages 8 --samples {samples}");
        job.measure(&words)?.into_iter().find(|line| line.get("bench").is_some()).context("a line")
    };
    let hop = Hop::of(&measured("raw")?, &measured("hop")?)?;
    hop.print("a message of 1 MiB both ways between two hosts");
    report.check(
        "a header and checksums, relative to the hop",
        hop.header() + hop.checksums(),
        OVERHEAD,
    );
    Ok(())
}
