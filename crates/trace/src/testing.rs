//! For tests: checks a file against the Trace Event Format, reading it as any program would.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::Track;

/// A span as in the file: nanoseconds, and its title.
struct Bar {
    begin: u64,
    end: u64,
    name: String,
}

/// Checks a file: every event has what its kind must have; ranks and tracks have names; spans of a
/// track lie one in another or apart; every arrow has one beginning and one end, in this order, each
/// in a span that is about sending and waiting. How many arrows there are.
///
/// # Errors
/// The first thing that is not so.
pub fn check(text: &str) -> Result<usize, String> {
    let file: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let events = file["traceEvents"].as_array().ok_or("no list of events")?;
    let mut named = Vec::new();
    let mut bars: BTreeMap<(u64, u64), Vec<Bar>> = BTreeMap::new();
    let mut arrows: BTreeMap<u64, [Vec<&Value>; 2]> = BTreeMap::new();
    for event in events {
        let [pid, tid] = ["pid", "tid"].map(|key| event[key].as_u64());
        let track = pid.zip(tid).ok_or_else(|| format!("no place: {event}"))?;
        let name = event["name"].as_str().ok_or_else(|| format!("no name: {event}"))?;
        match event["ph"].as_str() {
            Some("M") => named.push((track, name)),
            Some("X") => {
                let (begin, length) = (instant(&event["ts"])?, instant(&event["dur"])?);
                let bar = Bar { begin, end: begin + length, name: name.to_owned() };
                bars.entry(track).or_default().push(bar);
            }
            Some(ph @ ("s" | "f")) => {
                let id = event["id"].as_u64().ok_or_else(|| format!("no id: {event}"))?;
                arrows.entry(id).or_default()[usize::from(ph == "f")].push(event);
            }
            other => return Err(format!("{other:?} is no kind of event that is written")),
        }
    }
    for (track, bars) in &mut bars {
        for wanted in [((track.0, 0), "process_name"), (*track, "thread_name")] {
            if !named.contains(&wanted) {
                return Err(format!("{track:?} has no {}", wanted.1));
            }
        }
        nested(*track, bars)?;
    }
    let processes = file["otherData"]["annulus"]["seats"].is_array();
    arrows.values().try_for_each(|ends| arrow(ends, &bars, processes))?;
    Ok(arrows.len())
}

/// Checks that the spans of a track are nested or apart.
fn nested(track: (u64, u64), bars: &[Bar]) -> Result<(), String> {
    let mut around: Vec<&Bar> = Vec::new();
    let mut last = 0;
    for bar in bars {
        if bar.begin < last {
            return Err(format!("{track:?}: `{}` comes too late in the file", bar.name));
        }
        last = bar.begin;
        while around.last().is_some_and(|outer| outer.end <= bar.begin) {
            around.pop();
        }
        if let Some(outer) = around.last().filter(|outer| outer.end < bar.end) {
            return Err(format!("{track:?}: `{}` outlives `{}`", bar.name, outer.name));
        }
        around.push(bar);
    }
    Ok(())
}

fn arrow(
    [begins, ends]: &[Vec<&Value>; 2],
    bars: &BTreeMap<(u64, u64), Vec<Bar>>,
    processes: bool,
) -> Result<(), String> {
    let ([begin], [end]) = (&begins[..], &ends[..]) else {
        return Err(format!("an arrow with ends {begins:?} and {ends:?}"));
    };
    if instant(&begin["ts"])? > instant(&end["ts"])? {
        return Err(format!("an arrow that goes back: {begin} {end}"));
    }
    let called = |key: &str| begin[key] == end[key];
    if !called("name") || !called("cat") || end["bp"] != "e" {
        return Err(format!("the ends of an arrow do not match: {begin} {end}"));
    }
    let rank = |event: &Value| match event["tid"].as_u64() {
        Some(track) if processes => json!(track / Track::ALL.len() as u64),
        _ => event["pid"].clone(),
    };
    for (event, sign, peer) in [(begin, '>', rank(end)), (end, '<', rank(begin))] {
        let (track, at) = ((&event["pid"], &event["tid"]), instant(&event["ts"])?);
        let track = track.0.as_u64().zip(track.1.as_u64()).unwrap_or_default();
        let wanted = format!("{} {sign} {peer}", event["name"].as_str().unwrap_or_default());
        let holds = |bar: &Bar| bar.name == wanted && bar.begin <= at && at < bar.end;
        if !bars.get(&track).is_some_and(|bars| bars.iter().any(holds)) {
            return Err(format!("no span `{wanted}` around {event}"));
        }
    }
    Ok(())
}

/// Microseconds with three decimals, as nanoseconds.
fn instant(value: &Value) -> Result<u64, String> {
    let microseconds = value.as_f64().filter(|at| *at >= 0.0);
    let nanoseconds = microseconds.ok_or_else(|| format!("no time: {value}"))? * 1e3;
    let whole = nanoseconds.round();
    if (nanoseconds - whole).abs() > 1e-3 {
        return Err(format!("a fraction of a nanosecond: {value}"));
    }
    Ok(whole as u64)
}
