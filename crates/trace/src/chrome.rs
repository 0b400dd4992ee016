//! A trace as a file of Chrome's Trace Event Format, which Perfetto (ui.perfetto.dev) and
//! `chrome://tracing` open: a process for every rank, a thread for every track, and an arrow for
//! every block from its send to the end of the wait for it. Where ranks are of several processes,
//! those are the processes, and every track of every rank is a thread.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::{Activity, Link, Span, Trace, Track, links};

/// The version of files of a single process: it marks a file as ours, and says how to read it.
pub(crate) const VERSION: u64 = 1;
/// The version of files with several processes: it marks a file as ours, and says how to read it.
pub(crate) const VERSION_OF_PROCESSES: u64 = 2;

impl Trace {
    /// The trace as a file of Chrome's Trace Event Format. Its clock starts with the first span.
    pub fn to_json(&self) -> String {
        let start = self.ranks.iter().flatten().map(|span| span.begin).min().unwrap_or_default();
        let mut about = json!({
            "version": VERSION, "title": self.title, "step": self.step, "planned": self.planned,
            "ranks": self.ranks.len(),
        });
        if !self.locations.is_empty() {
            about["version"] = json!(VERSION_OF_PROCESSES);
            about["seats"] = json!(self.locations);
        }
        let mut text = format!(
            "{{\"displayTimeUnit\": \"ms\",\n\"otherData\": {{\"annulus\": {about}}},\n\"traceEvents\": ["
        );
        let mut separator = "\n";
        // Events are written one by one, so that a long trace is not held twice.
        self.events(start, &mut |event| {
            let _ = write!(text, "{separator}{event}");
            separator = ",\n";
        });
        text.push_str("\n]}\n");
        text
    }

    /// Hands names, spans and arrows to `each`.
    fn events(&self, start: u64, each: &mut dyn FnMut(Value)) {
        for (rank, spans) in self.ranks.iter().enumerate() {
            self.names(rank).into_iter().for_each(&mut *each);
            let mut spans: Vec<&Span> = spans.iter().collect();
            // A span comes before the ones that it contains, even if it is no longer.
            spans.sort_by_key(|span| {
                let inner = matches!(span.activity, Activity::Send { .. });
                (span.activity.track(), span.begin, std::cmp::Reverse(span.end), inner)
            });
            for span in spans {
                each(self.complete(rank, span, start));
            }
        }
        for (id, link) in links(self).iter().enumerate() {
            self.arrow(id, link, start).into_iter().for_each(&mut *each);
        }
    }

    /// The numbers `pid` and `tid` of a rank's track.
    fn lane(&self, rank: usize, track: Track) -> [usize; 2] {
        match self.locations.get(rank) {
            Some(location) => [location.process, rank * Track::ALL.len() + track as usize],
            None => [rank, track as usize],
        }
    }

    /// Both ends of the arrow of a block.
    fn arrow(&self, id: usize, link: &Link<'_>, start: u64) -> [Value; 2] {
        let Link { moved, sent, came, .. } = link;
        let end = |ph: &str, rank: usize, at: u64| {
            let [pid, tid] = self.lane(rank, Track::Communication);
            json!({
                "ph": ph, "id": id, "name": moved.block.to_string(), "cat": "block",
                "pid": pid, "tid": tid, "ts": microseconds(at - start),
            })
        };
        // An arrow is tied to the span around its end: a span contains its last instant.
        let mut last = end("f", moved.to, came.end.saturating_sub(1).max(came.begin));
        last["bp"] = json!("e");
        [end("s", moved.from, sent.begin), last]
    }

    /// The names and the order of a rank and its tracks.
    fn names(&self, rank: usize) -> Vec<Value> {
        let named = |name: &str, [pid, tid]: [usize; 2], arguments: Value| json!({"ph": "M", "name": name, "pid": pid, "tid": tid, "args": arguments});
        let location = self.locations.get(rank);
        let [process, _] = self.lane(rank, Track::Model);
        let (of_process, of_track) = match location {
            None => (format!("rank {rank}"), String::new()),
            // Planned nodes are not processes yet.
            Some(location) if self.planned.is_some() => {
                (location.host.clone(), format!("rank {rank} "))
            }
            Some(location) => {
                (format!("{}, process {process}", location.host), format!("rank {rank} "))
            }
        };
        let mut names = Vec::new();
        if rank == 0
            || location.is_none_or(|location| self.locations[rank - 1].process != location.process)
        {
            names.push(named("process_name", [process, 0], json!({"name": of_process})));
            names.push(named("process_sort_index", [process, 0], json!({"sort_index": process})));
        }
        for track in Track::ALL {
            let lane = self.lane(rank, track);
            let name = format!("{of_track}{}", track.name());
            names.push(named("thread_name", lane, json!({"name": name})));
            names.push(named("thread_sort_index", lane, json!({"sort_index": lane[1]})));
        }
        names
    }

    fn complete(&self, rank: usize, span: &Span, start: u64) -> Value {
        let (name, category) = title(&span.activity);
        let [pid, tid] = self.lane(rank, span.activity.track());
        json!({
            "ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid,
            "ts": microseconds(span.begin - start),
            "dur": microseconds(span.length()),
            "args": span.activity,
        })
    }
}

/// The title of a span, and the category by which it is found.
fn title(activity: &Activity) -> (String, &'static str) {
    match activity {
        Activity::Stage { name } => (name.clone(), "stage"),
        Activity::Compute { tiles, .. } => {
            let tiles: Vec<String> = tiles.iter().take(4).map(ToString::to_string).collect();
            (tiles.join(" "), "compute")
        }
        Activity::Finish { .. } => (String::from("finish"), "compute"),
        Activity::Fold { block, .. } => (format!("add {block}"), "compute"),
        Activity::Post { place, .. } => (format!("post hop {}", place.hop), "communication"),
        Activity::Send { moved, .. } => {
            (format!("{} > {}", moved.block, moved.to), "communication")
        }
        Activity::Wait { moved, .. } => (format!("{} < {}", moved.block, moved.from), "waiting"),
        Activity::Drain { .. } => (String::from("sent?"), "waiting"),
        Activity::Sum { name, .. } => (format!("sum {name}"), "waiting"),
    }
}

/// Microseconds with three decimals: no nanosecond is lost.
fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}
