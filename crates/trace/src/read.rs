//! Reads the files that [`Trace::to_json`] writes.

use std::fmt;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::chrome::{VERSION, VERSION_OF_PROCESSES};
use crate::{Activity, RankLocation, Span, Trace, Track};

/// The most ranks of a trace: those of a run, by the rules of an experiment.
pub const MOST_RANKS: usize = 1 << 14;

/// The reason why a file is not a trace of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable(String);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unreadable {}

#[derive(Deserialize)]
struct File<'a> {
    #[serde(rename = "otherData")]
    other: Other,
    #[serde(rename = "traceEvents", borrow)]
    events: Vec<Event<'a>>,
}

#[derive(Deserialize)]
struct Other {
    annulus: About,
}

#[derive(Deserialize)]
struct About {
    version: u64,
    title: String,
    step: Option<u64>,
    planned: Option<String>,
    ranks: usize,
    #[serde(rename = "seats", default)]
    locations: Vec<RankLocation>,
}

/// Fields that all events have; only complete events have the rest.
#[derive(Deserialize)]
struct Event<'a> {
    ph: String,
    pid: usize,
    #[serde(default)]
    tid: usize,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    /// Kept as text until it is needed: parsed, it takes ten times the memory.
    #[serde(borrow)]
    args: Option<&'a RawValue>,
}

impl Trace {
    /// Reads a trace from the text of its file.
    ///
    /// # Errors
    /// The first thing that is not as it was written.
    pub fn from_json(text: &str) -> Result<Trace, Unreadable> {
        let file: File<'_> = serde_json::from_str(text)
            .map_err(|error| Unreadable(format!("not a trace that this program wrote: {error}")))?;
        let About { version, title, step, planned, ranks, locations } = file.other.annulus;
        let wanted = if locations.is_empty() { VERSION } else { VERSION_OF_PROCESSES };
        if version != wanted || ranks > MOST_RANKS {
            let message = format!(
                "a trace of {ranks} ranks in version {version}, expected at most {MOST_RANKS} in {wanted}"
            );
            return Err(Unreadable(message));
        }
        if !locations.is_empty() && locations.len() != ranks {
            return Err(Unreadable(format!(
                "{} ranks have a process, of {ranks}",
                locations.len()
            )));
        }
        let mut trace = Trace { title, step, planned, locations, ranks: vec![Vec::new(); ranks] };
        for event in file.events.into_iter().filter(|event| event.ph == "X") {
            let apart = !trace.locations.is_empty();
            let rank = if apart { event.tid / Track::ALL.len() } else { event.pid };
            let spans = trace.ranks.get_mut(rank).ok_or_else(|| {
                Unreadable(format!("a span of rank {rank}, but there are {ranks} ranks"))
            })?;
            spans.push(span(&event)?);
        }
        Ok(trace)
    }
}

fn span(event: &Event<'_>) -> Result<Span, Unreadable> {
    let args = event.args.map_or("null", RawValue::get);
    let activity: Activity = serde_json::from_str(args).map_err(|error| {
        Unreadable(format!("a span at {} µs is not as it was written: {error}", event.ts))
    })?;
    let nanoseconds = |microseconds: f64| (microseconds * 1e3).round() as u64;
    let begin = nanoseconds(event.ts);
    Ok(Span { begin, end: begin.saturating_add(nanoseconds(event.dur)), activity })
}
