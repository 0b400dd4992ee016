//! The three ways to measure a subject: alone, on request, in turn with a peer.

use std::io;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::arguments::Common;
use crate::machine;
use crate::pairs::{self, Pairs, Sides};
use crate::peer::Peer;
use crate::record::{Record, print};
use crate::serve::serve;
use crate::statistics::Quartiles;
use crate::subject::{Fields, Sample, Subject};

/// Whether a figure is what was asked for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// It is, or nothing was asked for.
    Fine,
    /// It is not, and why.
    Missed(String),
}

impl Verdict {
    /// Of a figure that may not be below `least`; one that is not a number is.
    pub(crate) fn of(figure: f64, least: Option<f64>) -> Verdict {
        match least {
            Some(least) if !(figure >= least) => {
                Verdict::Missed(format!("{figure:.3} is below {least:.3}"))
            }
            _ => Verdict::Fine,
        }
    }

    /// Of a figure that may not be above `most`.
    pub(crate) fn at_most(figure: f64, most: Option<f64>) -> Verdict {
        match most {
            Some(most) if !(figure <= most) => {
                Verdict::Missed(format!("{figure:.3} is above {most:.3}"))
            }
            _ => Verdict::Fine,
        }
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

/// Measures `subject` in turn with another, here in this process; or with a peer, if there is one.
/// `figure` says what is held to `--at-least`, of what was compared, and may add to the line.
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
    let limit = limit(common, subject);
    let mut line = subject.describe();
    line.insert("than".into(), Value::Object(other.describe()));
    let pairs = pairs::take(&mut Two { subject, other }, common.pairs, limit)?;
    line.extend(compared(&pairs));
    line.extend(subject.summary(pairs.seconds()[0], &pairs.history[0]));
    let [ours, theirs] = [0, 1].map(|side| [&first[side..=side], &pairs.history[side]].concat());
    let compared = Compared { ratio: pairs.ratio().median, ours, theirs };
    let figure = figure(&compared, &mut line);
    conclude(&pairs, line, &mut record)?;
    Ok(Verdict::of(figure, common.at_least))
}

/// What two subjects came to.
pub(crate) struct Compared {
    /// How many times faster the first is.
    pub(crate) ratio: f64,
    /// Its samples, the one to warm up first.
    pub(crate) ours: Vec<Sample>,
    /// Those of the other.
    pub(crate) theirs: Vec<Sample>,
}

/// Two subjects of this process.
struct Two<'a> {
    subject: &'a mut dyn Subject,
    other: &'a mut dyn Subject,
}

impl Sides for Two<'_> {
    fn ours(&mut self) -> Result<Sample> {
        self.subject.sample()
    }
    fn theirs(&mut self) -> Result<Sample> {
        self.other.sample()
    }
    fn processor_seconds(&self) -> f64 {
        machine::processor_seconds(std::process::id())
    }
}

/// Cores that others may keep busy.
fn limit(common: &Common, subject: &dyn Subject) -> f64 {
    common.foreign.unwrap_or_else(|| pairs::limit(subject.threads(), annulus_machine::cores()))
}

/// Samples one after the other, and what they come to.
fn alone(common: &Common, subject: &mut dyn Subject, record: &mut Record) -> Result<Verdict> {
    subject.sample()?;
    let mut samples = Vec::new();
    for _ in 0..common.samples {
        samples.push(subject.sample()?);
        subject.beside();
    }
    let seconds: Vec<f64> = samples.iter().map(|sample| sample.seconds).collect();
    let seconds = Quartiles::of(&seconds);
    let mut line = subject.describe();
    line.insert("samples".into(), json!(samples.len()));
    insert_seconds(&mut line, "", seconds);
    line.extend(subject.summary(seconds, &samples));
    print(&stamped(&line));
    record.append(&line)?;
    let figure = subject.figure(seconds);
    Ok(figure.map_or(Verdict::Fine, |figure| Verdict::of(figure, common.at_least)))
}

/// A subject and a peer.
struct Both<'a> {
    subject: &'a mut dyn Subject,
    peer: Peer,
}

impl Sides for Both<'_> {
    fn ours(&mut self) -> Result<Sample> {
        let sample = self.subject.sample()?;
        self.subject.beside();
        Ok(sample)
    }
    fn theirs(&mut self) -> Result<Sample> {
        self.peer.sample()
    }
    fn processor_seconds(&self) -> f64 {
        machine::processor_seconds(std::process::id()) + self.peer.processor_seconds()
    }
}

/// In turn with `command`.
fn against(
    common: &Common,
    subject: &mut dyn Subject,
    command: &str,
    record: &mut Record,
) -> Result<Verdict> {
    let mut first = [vec![subject.sample()?], Vec::new()];
    let peer = Peer::start(command).context("--against")?;
    first[1].push(peer.ready.clone());
    let limit = limit(common, subject);
    let mut both = Both { subject, peer };
    let pairs = pairs::take(&mut both, common.pairs, limit)?;
    let Both { subject, peer } = both;
    drop(peer);
    let [ours, theirs] = [0, 1].map(|side| [&first[side][..], &pairs.history[side]].concat());
    let mut line = subject.describe();
    line.insert("against".into(), Value::from(command));
    line.extend(compared(&pairs));
    line.extend(subject.summary(pairs.seconds()[0], &ours[1..]));
    line.extend(subject.agreement(&ours, &theirs)?);
    conclude(&pairs, line, record)?;
    Ok(Verdict::of(pairs.ratio().median, common.at_least))
}

/// Both sides' times, and how the pairs came about.
fn compared(pairs: &Pairs) -> Fields {
    let mut line = pairs.describe();
    let [ours, theirs] = pairs.seconds();
    insert_seconds(&mut line, "", ours);
    insert_seconds(&mut line, "their_", theirs);
    line
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

/// With the processor and the commit.
pub(crate) fn stamped(line: &Fields) -> Fields {
    let mut line = line.clone();
    line.insert("processor".into(), machine::describe()["processor"].clone());
    line.insert("commit".into(), Value::from(machine::commit()));
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::tests::Counter;

    fn common(at_least: Option<f64>, against: Option<String>) -> Common {
        Common { samples: 3, pairs: 3, at_least, against, ..Common::default() }
    }

    #[test]
    fn the_figure_of_a_subject_alone_is_held_to_the_bound() -> Result<()> {
        // After one to warm up, samples take 2, 3 and 4 seconds: the figure is a third.
        let alone = |bound| measure(&common(Some(bound), None), &mut Counter::default());
        assert_eq!(alone(0.3)?, Verdict::Fine);
        assert_eq!(alone(0.4)?, Verdict::Missed("0.333 is below 0.400".into()));
        Ok(())
    }

    #[test]
    #[cfg(unix)]
    fn the_ratio_to_a_peer_is_held_to_the_bound() -> Result<()> {
        let against = |bound| {
            let peer = crate::peer::tests::fake("6");
            measure(&common(Some(bound), Some(peer)), &mut Counter::default())
        };
        assert_eq!(against(2.0)?, Verdict::Fine);
        assert_eq!(against(2.1)?, Verdict::Missed("2.000 is below 2.100".into()));
        Ok(())
    }

    #[test]
    fn what_is_no_number_is_below() {
        assert_ne!(Verdict::of(f64::NAN, Some(1.0)), Verdict::Fine);
        assert_ne!(Verdict::at_most(f64::NAN, Some(1.0)), Verdict::Fine);
        assert_eq!(Verdict::of(f64::NAN, None), Verdict::Fine);
        assert_eq!(Verdict::Fine.or(Verdict::at_most(1.0, Some(1.0))), Verdict::Fine);
    }
}
