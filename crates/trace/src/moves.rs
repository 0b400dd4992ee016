//! The moves of one attention of a trace, hop by hop, as text and as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use annulus_text::{count, stacked};
use serde_json::{Value, json};

use crate::words::milliseconds;
use crate::{Activity, Pass, Place, Span, Trace};

impl Trace {
    /// The spans of a rank's first pass through `layer`, in order: those within the same model stage as the first.
    pub(crate) fn first_time(&self, rank: usize, layer: usize, pass: Pass) -> Vec<&Span> {
        let here = |span: &&Span| {
            span.activity.place().is_some_and(|place| (place.layer, place.pass) == (layer, pass))
        };
        let mut spans: Vec<&Span> = self.ranks[rank].iter().filter(here).collect();
        spans.sort_by_key(|span| (span.begin, std::cmp::Reverse(span.end)));
        let Some(first) = spans.first().map(|span| span.begin) else { return spans };
        let around = |span: &&Span| span.begin <= first && first < span.end;
        let stages =
            self.ranks[rank].iter().filter(|span| matches!(span.activity, Activity::Stage { .. }));
        if let Some(stage) = stages.filter(around).min_by_key(|span| span.length()) {
            spans.retain(|span| span.begin < stage.end);
        }
        spans
    }

    /// A text of what every rank computes, sends and waits for in `layer`, hop by hop, in both passes.
    pub fn moves(&self, layer: usize) -> String {
        let mut text = String::new();
        for pass in Pass::ALL {
            let found = self.by_hop(layer, pass);
            let Some(start) = found.values().filter_map(|hop| hop.begin).min() else { continue };
            let hops: BTreeSet<usize> = found.keys().map(|(hop, _)| *hop).collect();
            let number = count(hops.len(), "hop");
            let _ = writeln!(text, "{} of layer {layer}, {number}", pass.name());
            let head =
                ["", "at, ms", "computes", "pairs", "ms", "sends", "bytes", "waits for", "ms"];
            let mut rows = vec![head.map(str::to_owned).to_vec()];
            for hop in hops {
                for rank in 0..self.ranks.len() {
                    let none = Hop { hop, rank, ..Hop::default() };
                    rows.push(found.get(&(hop, rank)).unwrap_or(&none).cells(start));
                }
            }
            text.push_str(&stacked(&rows));
            text.push('\n');
        }
        text
    }

    /// The hops of the ranks' first pass through `layer`, by hop, then by rank.
    pub fn hops(&self, layer: usize, pass: Pass) -> Vec<Hop> {
        self.by_hop(layer, pass).into_values().collect()
    }

    fn by_hop(&self, layer: usize, pass: Pass) -> BTreeMap<(usize, usize), Hop> {
        let mut found = BTreeMap::new();
        for rank in 0..self.ranks.len() {
            for span in self.first_time(rank, layer, pass) {
                let Some(Place { hop, .. }) = span.activity.place() else { continue };
                let of = found.entry((hop, rank)).or_insert(Hop { hop, rank, ..Hop::default() });
                of.add(span);
            }
        }
        found
    }

    /// Every rank's first pass through `layer` as JSON, for programs: seconds on the clock of the trace.
    pub fn moves_json(&self, layer: usize) -> Value {
        let mut shown = Vec::new();
        for pass in Pass::ALL {
            for rank in 0..self.ranks.len() {
                shown.extend(self.first_time(rank, layer, pass).iter().map(|span| {
                    let [begin, end] = [span.begin, span.end].map(|at| at as f64 / 1e9);
                    json!({"rank": rank, "begin": begin, "end": end, "span": span.activity})
                }));
            }
        }
        Value::from(shown)
    }
}

/// One rank's work in one hop. Times are nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hop {
    /// The number of the hop, from 0.
    pub hop: usize,
    /// The number of the rank.
    pub rank: usize,
    /// When its first span begins, on the clock of the trace; `None` where the rank does nothing.
    pub begin: Option<u64>,
    /// The tiles that are computed, as `q0xk1`.
    pub tiles: Vec<String>,
    /// Visible pairs of these tiles.
    pub pairs: u64,
    /// Time spent on tiles, results and sums.
    pub computing: u64,
    /// The blocks that are sent, as `k0>1`.
    pub sends: Vec<String>,
    /// Bytes of payload of the sent blocks.
    pub bytes: u64,
    /// The blocks that are waited for, as `k2<2`.
    pub waits: Vec<String>,
    /// Time spent waiting for these blocks.
    pub waiting: u64,
}

impl Hop {
    fn add(&mut self, span: &Span) {
        self.begin = Some(self.begin.map_or(span.begin, |begin| begin.min(span.begin)));
        match &span.activity {
            Activity::Compute { tiles, pairs, .. } => {
                self.tiles.extend(tiles.iter().map(ToString::to_string));
                self.pairs = self.pairs.saturating_add(*pairs);
                self.computing = self.computing.saturating_add(span.length());
            }
            Activity::Finish { .. } | Activity::Fold { .. } => {
                self.computing = self.computing.saturating_add(span.length());
            }
            Activity::Send { moved, .. } => {
                self.sends.push(format!("{}>{}", moved.block, moved.to));
                self.bytes = self.bytes.saturating_add(moved.bytes);
            }
            Activity::Wait { moved, .. } => {
                self.waits.push(format!("{}<{}", moved.block, moved.from));
                self.waiting = self.waiting.saturating_add(span.length());
            }
            _ => {}
        }
    }

    fn cells(&self, start: u64) -> Vec<String> {
        let begin = self.begin.map_or_else(String::new, |begin| milliseconds(begin - start));
        vec![
            format!("hop {} rank {}", self.hop, self.rank),
            begin,
            fitting(&self.tiles),
            self.pairs.to_string(),
            milliseconds(self.computing),
            fitting(&self.sends),
            self.bytes.to_string(),
            fitting(&self.waits),
            milliseconds(self.waiting),
        ]
    }
}

/// The names of a few things, or the number of many.
fn fitting(names: &[String]) -> String {
    const WIDTH: usize = 24;
    let all = names.join(" ");
    if all.chars().count() <= WIDTH { all } else { format!("{} of them", names.len()) }
}
