//! The three ways to measure a subject: alone, on request, in turn with a peer.

use std::io;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::arguments::Common;
use crate::pairs::{self, Pairs};
use crate::peer::Peer;
use crate::record::{Record, print, stamped};
use crate::serve::serve;
use crate::statistics::Quartiles;
use crate::subject::{Fields, Sample, Side, Subject, fields};

/// The outcome of a bound.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// The bound holds, or there is none.
    Fine,
    /// The reason why it does not hold.
    Missed(String),
}

impl Verdict {
    /// The verdict on a figure that may not be below `least`; NaN misses it.
    pub(crate) fn of(figure: f64, least: Option<f64>) -> Verdict {
        let missed = least.filter(|least| !(figure >= *least));
        missed.map_or(Verdict::Fine, |least| {
            Verdict::Missed(format!("{figure:.3} is below {least:.3}"))
        })
    }

    /// The verdict on a figure that may not be above `most`; NaN misses it.
    pub(crate) fn at_most(figure: f64, most: Option<f64>) -> Verdict {
        let missed = most.filter(|most| !(figure <= *most));
        missed.map_or(Verdict::Fine, |most| {
            Verdict::Missed(format!("{figure:.3} is above {most:.3}"))
        })
    }

    /// The first that is missed.
    #[must_use]
    pub(crate) fn or(self, other: Verdict) -> Verdict {
        if self == Verdict::Fine { other } else { self }
    }
}

/// Measures `subject` as `common` says.
pub(crate) fn measure(common: &Common, subject: &mut dyn Subject) -> Result<Verdict> {
    if common.serve {
        serve(subject, io::stdin().lock(), io::stdout().lock())?;
        return Ok(Verdict::Fine);
    }
    let mut record = Record::open(common.record.as_deref())?;
    match &common.against {
        None => alone(common, subject, &mut record),
        Some(command) => against(common, subject, command, &mut record),
    }
}

/// Samples one after the other, and what they come to.
fn alone(common: &Common, subject: &mut dyn Subject, record: &mut Record) -> Result<Verdict> {
    if common.at_least.is_some() && !subject.has_figure() {
        bail!(
            "`--at-least` is a ratio to something else, and there is nothing to compare with: `--against` names it"
        );
    }
    subject.sample()?;
    let mut samples = Vec::new();
    for _ in 0..common.samples {
        samples.push(subject.sample()?);
        subject.beside();
    }
    let seconds = Quartiles::of_seconds(&samples);
    let mut line = subject.describe();
    line.insert("samples".into(), json!(samples.len()));
    insert_seconds(&mut line, "", seconds);
    line.extend(subject.summary(seconds, &samples));
    record.conclude(&line)?;
    Ok(Verdict::of(subject.figure(), common.at_least))
}

/// A subject and another side, sampled in turn.
pub(crate) struct Compared {
    /// The speed-up of the subject over the other side.
    pub(crate) ratio: f64,
    /// Samples of the subject and of the other, those to warm up first.
    pub(crate) samples: [Vec<Sample>; 2],
    pairs: Pairs,
}

/// Measures `subject` in turn with another, here in this process; or with a peer, if there is one.
/// `figure` says what is held to `--at-least`, and may add to the line.
pub(crate) fn between(
    common: &Common,
    subject: &mut dyn Subject,
    other: &mut dyn Subject,
    figure: impl FnOnce(&Compared, &mut Fields) -> f64,
) -> Result<Verdict> {
    if common.serve || common.against.is_some() {
        return measure(common, subject);
    }
    let mut record = Record::open(common.record.as_deref())?;
    let first = [subject.sample()?, other.sample()?];
    let than = json!({ "than": other.describe() });
    let (compared, mut line) = in_turn(common, subject, other, first, than)?;
    let figure = figure(&compared, &mut line);
    conclude(&compared.pairs, line, &mut record)?;
    Ok(Verdict::of(figure, common.at_least))
}

/// In turn with `command`.
fn against(
    common: &Common,
    subject: &mut dyn Subject,
    command: &str,
    record: &mut Record,
) -> Result<Verdict> {
    let first = subject.sample()?;
    let mut peer = Peer::start(command).context("--against")?;
    let first = [first, peer.ready.clone()];
    let named = json!({ "against": command });
    let (compared, mut line) = in_turn(common, subject, &mut peer, first, named)?;
    drop(peer);
    line.extend(subject.agreement(&compared.samples)?);
    conclude(&compared.pairs, line, record)?;
    Ok(Verdict::of(compared.ratio, common.at_least))
}

/// Pairs of samples, and the line of both sides: how long they take, and how the pairs came about.
fn in_turn(
    common: &Common,
    subject: &mut dyn Subject,
    other: &mut dyn Side,
    [ours, theirs]: [Sample; 2],
    named: Value,
) -> Result<(Compared, Fields)> {
    let usual = pairs::limit(subject.threads(), annulus_machine::cores());
    let limit = common.foreign.unwrap_or(usual);
    let pairs = pairs::take(subject, other, common.pairs, limit)?;
    let mut line = subject.describe();
    line.extend(fields(named));
    line.extend(pairs.describe());
    let [our_seconds, their_seconds] = pairs.seconds();
    insert_seconds(&mut line, "", our_seconds);
    insert_seconds(&mut line, "their_", their_seconds);
    line.extend(subject.summary(our_seconds, &pairs.history[0]));
    let warm = [[ours], [theirs]];
    let samples = [0, 1].map(|side| [&warm[side][..], &pairs.history[side]].concat());
    Ok((Compared { ratio: pairs.ratio().median, samples, pairs }, line))
}

/// Prints the line, then the ratio; keeps both as one.
fn conclude(pairs: &Pairs, mut line: Fields, record: &mut Record) -> Result<()> {
    print(&stamped(&line));
    print(&pairs.line());
    line.extend(pairs.line());
    record.append(&line)
}

/// Median and quartiles of a time, under keys that begin with `prefix`.
fn insert_seconds(line: &mut Fields, prefix: &str, seconds: Quartiles) {
    let Quartiles { low, median, high } = seconds;
    for (key, value) in [("median_s", median), ("low_s", low), ("high_s", high)] {
        line.insert(format!("{prefix}{key}"), json!(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_is_no_number_misses_every_bound() {
        assert_ne!(Verdict::of(f64::NAN, Some(1.0)), Verdict::Fine);
        assert_ne!(Verdict::at_most(f64::NAN, Some(1.0)), Verdict::Fine);
        assert_eq!(Verdict::of(f64::NAN, None), Verdict::Fine);
        assert_eq!(Verdict::Fine.or(Verdict::at_most(1.0, Some(1.0))), Verdict::Fine);
    }
}
