//! The best strategy by length and number of devices: what a model takes from one node to the whole
//! cluster.

use annulus_experiment::Resolved;
use annulus_plan::{duration, size};
use annulus_sequence::aligned;
use serde_json::{Value, json};

use crate::grid::{count, one_sequence};
use crate::{Choice, Cluster, Estimate};

/// Lengths, each of four times as many tokens as the one before: 64k to 1G.
const LENGTHS: (usize, u32) = (1 << 16, 8);
/// Devices of the smallest world, and how many times as many the next has.
const DEVICES: usize = 8;

/// Steps of one sequence each under the best strategy, by its length and by how many devices share it.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// By tokens, then by devices, both rising.
    pub rows: Vec<Row>,
    title: String,
}

/// One length on so many devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Tokens of the sequence.
    pub tokens: usize,
    /// Devices that share it.
    pub devices: usize,
    /// The strategy that `auto` takes, whether it fits, and its step; or why none can run.
    pub outcome: Result<(String, bool, Estimate), String>,
}

impl Row {
    fn fits(&self) -> bool {
        matches!(self.outcome, Ok((_, true, _)))
    }
}

impl Scale {
    /// The experiment's model on `cluster`: sequences of 64k to 1G tokens, each split over 8, 64, …
    /// devices and over all, a batch of one, under the strategy that is the best there. The first
    /// length that fits nowhere is the last.
    pub fn of(resolved: &Resolved, cluster: &Cluster) -> Scale {
        let all = cluster.devices();
        let powers = std::iter::successors(Some(DEVICES), |devices| devices.checked_mul(DEVICES));
        let mut devices: Vec<usize> = powers.take_while(|devices| *devices < all).collect();
        devices.push(all);
        let lengths = (0..LENGTHS.1).map(|power| LENGTHS.0 << (2 * power));
        let row = |tokens: usize, devices: usize| {
            let mut experiment = one_sequence(resolved.experiment.clone());
            (experiment.data.tokens, experiment.mesh.sequence) = (tokens, devices);
            experiment.attention.leave_open();
            let outcome = Choice::among(&resolved.with(experiment), cluster)
                .map_err(|problems| problems.to_string())
                .and_then(|choice| choice.best());
            Row { tokens, devices, outcome }
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

    /// A line for each length and number of devices.
    pub fn to_text(&self) -> String {
        let head = ["tokens", "devices", "strategy", "step", "waiting %", "memory"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for Row { tokens, devices, outcome } in &self.rows {
            let mut row = vec![count(*tokens), devices.to_string()];
            match outcome {
                Err(why) => row.push(format!("cannot run: {why}")),
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
            aligned(&rows)
        )
    }

    /// The same for programs. Seconds and bytes.
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
