//! What moves when, hop by hop: one attention of a trace as text and as JSON.

use std::fmt::Write as _;

use annulus_sequence::stacked;
use serde_json::{Value, json};

use crate::words::milliseconds;
use crate::{Doing, Pass, Span, Trace};

impl Trace {
    /// The spans of the first time that a rank goes through `pass` of `layer`, in order: those within the
    /// stage that the first of them is in.
    pub(crate) fn first_time(&self, rank: usize, layer: usize, pass: Pass) -> Vec<&Span> {
        let here = |span: &&Span| {
            span.doing.place().is_some_and(|place| (place.layer, place.pass) == (layer, pass))
        };
        let mut spans: Vec<&Span> = self.ranks[rank].iter().filter(here).collect();
        spans.sort_by_key(|span| (span.begin, std::cmp::Reverse(span.end)));
        let Some(first) = spans.first().map(|span| span.begin) else { return spans };
        let around = |span: &&Span| span.begin <= first && first < span.end;
        let stages =
            self.ranks[rank].iter().filter(|span| matches!(span.doing, Doing::Stage { .. }));
        if let Some(stage) = stages.filter(around).min_by_key(|span| span.length()) {
            spans.retain(|span| span.begin < stage.end);
        }
        spans
    }

    /// What every rank computes, sends and waits for in `layer`, hop by hop, both passes.
    pub fn moves(&self, layer: usize) -> String {
        let mut text = String::new();
        for pass in Pass::ALL {
            let ranks: Vec<Vec<&Span>> =
                (0..self.ranks.len()).map(|rank| self.first_time(rank, layer, pass)).collect();
            let Some(start) = ranks.iter().flatten().map(|span| span.begin).min() else { continue };
            let last = ranks.iter().flatten().filter_map(|span| span.doing.place());
            let hops = 1 + last.map(|place| place.hop).max().unwrap_or_default();
            let noun = if hops == 1 { "hop" } else { "hops" };
            let _ = writeln!(text, "{} of layer {layer}, {hops} {noun}", pass.name());
            let head =
                ["", "at, ms", "computes", "pairs", "ms", "sends", "bytes", "waits for", "ms"];
            let mut rows = vec![head.map(str::to_owned).to_vec()];
            for hop in 0..hops {
                for (rank, spans) in ranks.iter().enumerate() {
                    rows.push(Row::of(spans, hop).cells(&format!("hop {hop} rank {rank}"), start));
                }
            }
            text.push_str(&stacked(&rows));
            text.push('\n');
        }
        text
    }

    /// The same for programs: seconds on the clock of the trace.
    pub fn moves_json(&self, layer: usize) -> Value {
        let mut shown = Vec::new();
        for pass in Pass::ALL {
            for rank in 0..self.ranks.len() {
                shown.extend(self.first_time(rank, layer, pass).iter().map(|span| {
                    let [begin, end] = [span.begin, span.end].map(|at| at as f64 / 1e9);
                    json!({"rank": rank, "begin": begin, "end": end, "span": span.doing})
                }));
            }
        }
        Value::from(shown)
    }
}

/// One hop of one rank.
#[derive(Default)]
struct Row {
    begin: Option<u64>,
    tiles: Vec<String>,
    pairs: u64,
    computing: u64,
    sends: Vec<String>,
    bytes: u64,
    waits: Vec<String>,
    waiting: u64,
}

impl Row {
    fn of(spans: &[&Span], hop: usize) -> Row {
        let mut row = Row::default();
        for span in spans.iter().filter(|span| span.doing.place().is_some_and(|p| p.hop == hop)) {
            row.begin = Some(row.begin.map_or(span.begin, |begin| begin.min(span.begin)));
            match &span.doing {
                Doing::Compute { tiles, pairs, .. } => {
                    row.tiles.extend(tiles.iter().map(ToString::to_string));
                    row.pairs += pairs;
                    row.computing += span.length();
                }
                Doing::Finish { .. } | Doing::Fold { .. } => row.computing += span.length(),
                Doing::Send { moved, .. } => {
                    row.sends.push(format!("{}>{}", moved.block, moved.to));
                    row.bytes += moved.bytes;
                }
                Doing::Wait { moved, .. } => {
                    row.waits.push(format!("{}<{}", moved.block, moved.from));
                    row.waiting += span.length();
                }
                _ => {}
            }
        }
        row
    }

    fn cells(&self, name: &str, start: u64) -> Vec<String> {
        let begin = self.begin.map_or_else(String::new, |begin| milliseconds(begin - start));
        vec![
            name.to_owned(),
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

/// All of a few, or how many.
fn fitting(names: &[String]) -> String {
    const WIDTH: usize = 24;
    let all = names.join(" ");
    if all.chars().count() <= WIDTH { all } else { format!("{} of them", names.len()) }
}
