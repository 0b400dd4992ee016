//! The best strategy by sequence length and number of devices, from one node to the whole cluster.

use annulus_experiment::Resolved;
use annulus_text::{aligned, duration, size, wrapped};
use serde_json::{Value, json};

use crate::grid::{count, one_sequence};
use crate::{Choice, Cluster, Estimate};

/// The shortest length, and the number of lengths, each four times the one before: 64k to 1G.
const LENGTHS: (usize, u32) = (1 << 16, 8);
/// The fewest devices, and the factor to the next number.
const DEVICES: usize = 8;

/// Steps of one sequence each under the best strategy, by its length and by the number of devices that share it.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// Rows by tokens, then by devices, both ascending.
    pub rows: Vec<Row>,
    title: String,
}

/// One length on one number of devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Tokens of the sequence.
    pub tokens: usize,
    /// The number of devices that share the sequence.
    pub devices: usize,
    /// The strategy that `auto` takes, whether it fits, and its estimate; or why none can run.
    pub outcome: Result<(String, bool, Estimate), String>,
}

impl Row {
    fn fits(&self) -> bool {
        matches!(self.outcome, Ok((_, true, _)))
    }

    /// The row in a few words: `64k tokens on 8 devices: ring, 1.20 s`.
    pub fn in_short(&self) -> String {
        let what = match &self.outcome {
            Ok((strategy, fits, estimate)) => {
                let over = if *fits { "" } else { ", does not fit" };
                format!("{strategy}, {}{over}", duration(estimate.step))
            }
            Err(_) => String::from("cannot run"),
        };
        let devices = annulus_text::count(self.devices, "device");
        format!("{} tokens on {devices}: {what}", count(self.tokens))
    }
}

impl Scale {
    /// Estimates the experiment's model on `cluster`: sequences of 64k to 1G tokens, each split over 8, 64, … devices and over all, with a
    /// batch of one, under the best strategy. The first length that fits nowhere is the last. `told` gets every row as soon as it is known: all
    /// take minutes on a large cluster.
    pub fn of(resolved: &Resolved, cluster: &Cluster, mut told: impl FnMut(&Row)) -> Scale {
        let all = cluster.devices();
        let powers = std::iter::successors(Some(DEVICES), |devices| devices.checked_mul(DEVICES));
        let mut devices: Vec<usize> = powers.take_while(|devices| *devices < all).collect();
        devices.push(all);
        let lengths = (0..LENGTHS.1).map(|power| LENGTHS.0 << (2 * power));
        let mut row = |tokens: usize, devices: usize| {
            let mut experiment = one_sequence(resolved.experiment.clone());
            (experiment.data.tokens, experiment.mesh.sequence) = (tokens, devices);
            experiment.attention.leave_open();
            let outcome = Choice::among(&resolved.with(experiment), cluster)
                .map_err(|problems| problems.to_string())
                .and_then(|choice| choice.best());
            let row = Row { tokens, devices, outcome };
            told(&row);
            row
        };
        let mut rows = Vec::new();
        for tokens in lengths {
            rows.extend(devices.iter().map(|devices| row(tokens, *devices)));
            let of_length = &rows[rows.len() - devices.len()..];
            if !of_length.iter().any(Row::fits) {
                break;
            }
        }
        let title = format!("{} on `{}`", resolved.experiment.name, cluster.name);
        Scale { rows, title }
    }

    /// The table as text: a line per length and number of devices.
    pub fn to_text(&self) -> String {
        let head = ["tokens", "devices", "strategy", "step", "waiting %", "memory"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        let mut reasons: Vec<String> = Vec::new();
        for Row { tokens, devices, outcome } in &self.rows {
            let mut row = vec![count(*tokens), devices.to_string()];
            match outcome {
                Err(why) => {
                    row.push("cannot run".to_owned());
                    let shape = format!("{} on {devices}", count(*tokens));
                    reasons.push(wrapped(&format!("{shape}: {why}"), 4));
                }
                Ok((strategy, fits, estimate)) => {
                    let share = |part: f64| format!("{:.1}", 100.0 * part / estimate.step);
                    let over = if *fits { "" } else { " !" };
                    row.extend([
                        strategy.clone(),
                        duration(estimate.step),
                        format!("{} + {}", share(estimate.exposed), share(estimate.uneven)),
                        size(estimate.fullest()) + over,
                    ]);
                }
            }
            rows.push(row);
        }
        format!(
            "{}: the best strategy for one sequence per step\n\
             (waiting for links (exposed) + for slower ranks (uneven), per cent of the step;\n\
             memory of the fullest device, ! does not fit)\n{}",
            self.title,
            [aligned(&rows)].into_iter().chain(reasons).collect::<Vec<_>>().join("\n")
        )
    }

    /// The table as JSON, for programs: seconds and bytes.
    pub fn to_json(&self) -> Value {
        let row = |Row { tokens, devices, outcome }: &Row| match outcome {
            Err(why) => json!({ "tokens": tokens, "devices": devices, "why": why }),
            Ok((strategy, fits, estimate)) => json!({
                "tokens": tokens,
                "devices": devices,
                "strategy": strategy,
                "fits": fits,
                "step": estimate.step,
                "exposed": estimate.exposed,
                "uneven": estimate.uneven,
                "peak": estimate.fullest(),
            }),
        };
        self.rows.iter().map(row).collect()
    }
}
