//! Sums as tables for people: of one trace, or of a measured one beside a planned one.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use annulus_text::stacked;

use crate::{AttentionTimes, Flow, Pass, Sums, Trace};

/// The number of longest waits that are listed.
const WAITS: usize = 5;

impl Trace {
    /// A line that says what the trace is.
    pub fn heading(&self) -> String {
        let step = self.step.map_or_else(String::new, |step| format!(", step {step}"));
        let how = match &self.planned {
            Some(cluster) => format!("planned on {cluster}"),
            None => String::from("measured"),
        };
        format!("{}{step}: {how}", self.title)
    }
}

impl Sums {
    /// The sums as tables: by rank and by layer for each pass, by link where there are several processes, and the longest waits. `planned`
    /// numbers follow in brackets.
    pub fn to_text(&self, planned: Option<&Sums>) -> String {
        let mut rows = vec![head("all layers, by rank", planned.is_some())];
        for pass in Pass::ALL {
            for rank in 0..self.lengths.len() {
                let of =
                    |_: usize, of_pass: Pass, of_rank: usize| (of_pass, of_rank) == (pass, rank);
                let name = format!("{} rank {rank}", pass.name());
                rows.extend(self.row(name, planned, of));
            }
        }
        let mut tables = stacked(&rows);
        let mut rows = vec![head("all ranks, by layer", planned.is_some())];
        let layers: BTreeSet<usize> = self.shares.keys().map(|(layer, ..)| *layer).collect();
        for pass in Pass::ALL {
            for &layer in &layers {
                let of = |of: usize, of_pass: Pass, _: usize| (of, of_pass) == (layer, pass);
                rows.extend(self.row(format!("{} layer {layer}", pass.name()), planned, of));
            }
        }
        tables.push('\n');
        tables.push_str(&stacked(&rows));
        if !self.flows.is_empty() {
            tables.push('\n');
            let planned = planned.map(|sums| &sums.flows[..]).filter(|flows| !flows.is_empty());
            tables.push_str(&Flow::table(&self.flows, planned));
        }
        tables + &self.waits()
    }

    fn row(
        &self,
        name: String,
        planned: Option<&Sums>,
        of: impl Fn(usize, Pass, usize) -> bool,
    ) -> Option<Vec<String>> {
        let own = self.total(&of);
        if own == AttentionTimes::default() {
            return None;
        }
        let planned = planned.map(|planned| planned.total(&of));
        let beside = |show: &dyn Fn(&AttentionTimes) -> String| {
            let planned = planned.as_ref().map(|share| format!(" [{}]", show(share)));
            show(&own) + &planned.unwrap_or_default()
        };
        Some(vec![
            name,
            beside(&|share| milliseconds(share.computing)),
            beside(&|share| milliseconds(share.waiting)),
            beside(&|share| milliseconds(share.late)),
            beside(&|share| milliseconds(share.flight)),
            beside(&|share| {
                share.overlap().map_or_else(|| "-".into(), |part| format!("{:.0} %", 100.0 * part))
            }),
            beside(&|share| share.bytes.to_string()),
        ])
    }

    /// Lists which hops were exposed, and because of whom.
    fn waits(&self) -> String {
        let mut text = String::new();
        for exposed in self.exposed.iter().filter(|one| one.waiting > 0).take(WAITS) {
            let (place, moved) = (exposed.place, &exposed.moved);
            // Late means that the sender was late.
            let why = if 2 * exposed.late > exposed.waiting {
                format!("the sender was late by {} ms", milliseconds(exposed.late))
            } else {
                String::from("in flight")
            };
            let _ = writeln!(
                text,
                "{} layer {}, hop {}: rank {} waited {} ms for {} of rank {}:\n  {why}",
                place.pass.name(),
                place.layer,
                place.hop,
                moved.to,
                milliseconds(exposed.waiting),
                moved.block,
                moved.from,
            );
        }
        if text.is_empty() { text } else { format!("\nthe longest waits\n{text}") }
    }
}

fn head(first: &str, beside: bool) -> Vec<String> {
    let first = if beside { format!("{first} [planned]") } else { first.to_owned() };
    let columns = ["computes, ms", "waits", "for late ranks", "under way", "overlap", "bytes sent"];
    std::iter::once(first).chain(columns.map(str::to_owned)).collect()
}

pub(crate) fn milliseconds(nanoseconds: u64) -> String {
    format!("{:.3}", nanoseconds as f64 / 1e6)
}
