//! The sweet spot of a strategy: sequence lengths against numbers of devices.
//!
//! Too short a sequence leaves devices waiting for links; too long a one does not fit into their memory. Between the two, splitting is
//! exact and nearly free.

use std::cmp::Ordering::Equal;

use annulus_experiment::{Experiment, Resolved};
use annulus_plan::{Plan, heads_of, label};
use annulus_sequence::{Heads, Strategy};
use annulus_text::{duration, plural, stacked};

use crate::choose::under;
use crate::families::{bare, tried};
use crate::table::{fits, on_all_cores};
use crate::{Cluster, Estimate};

/// The least fraction of time spent computing at a sweet spot.
pub(crate) const SWEET: f64 = 0.9;

/// Steps of one sequence each, by its length and by the number of devices that share it.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    /// The strategy, whatever its shape.
    pub strategy: Strategy,
    /// Numbers of devices, ascending.
    pub devices: Vec<usize>,
    /// Lengths of the sequence in tokens, ascending.
    pub tokens: Vec<usize>,
    /// The experiment's tensor-parallel ranks, which are left out here.
    pub tensor: usize,
    /// The strategy of layers with a sliding window; `None`: no layers slide.
    pub sliding: Option<Strategy>,
    /// Steps by tokens, then by devices; `None`: it cannot run so.
    pub cells: Vec<Vec<Option<Cell>>>,
}

/// The estimate of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Seconds of the step.
    pub step: f64,
    /// The fraction of the step in which the mean device computes.
    pub efficiency: f64,
    /// Whether the step fits into every device's memory.
    pub fits: bool,
}

/// Tokens of the first row, and the number of rows, each with twice as many tokens as the one before.
const ROWS: (usize, u32) = (4096, 11);
/// The most ranks of a sequence.
const MOST_RANKS: usize = 256;
/// The most ranks for which every shape is tried.
const EVERY_SHAPE: usize = 32;

impl Cell {
    /// Whether the step fits and hardly waits.
    pub fn is_sweet(&self) -> bool {
        self.fits && self.efficiency >= SWEET
    }
}

impl Grid {
    /// Estimates the experiment's model under `strategy` on `cluster`, with layers that slide under theirs: 4k to 4M tokens on 1, 2, 4, …
    /// devices, each in the strategy's best shape (beyond 32 devices, with the cluster's groups), with equal shards.
    pub fn of(resolved: &Resolved, strategy: Strategy, cluster: &Cluster) -> Grid {
        let (experiment, strategy) = (one_sequence(resolved.experiment.clone()), bare(strategy));
        let cluster = &cluster.budgeted(&experiment.memory);
        let most = cluster.devices().min(MOST_RANKS);
        let devices: Vec<usize> = (0..=most.ilog2()).map(|power| 1 << power).collect();
        let tokens: Vec<usize> = (0..ROWS.1).map(|row| ROWS.0 << row).collect();
        let heads = resolved.shape().map_or(Heads::equal(1), |shape| heads_of(&shape));
        let best = |[tokens, devices]: &[usize; 2]| {
            let mut experiment = experiment.clone();
            (experiment.data.tokens, experiment.mesh.sequence) = (*tokens, *devices);
            let shapes = tried(strategy, *devices, heads, cluster, EVERY_SHAPE);
            let cells = shapes.into_iter().filter_map(|shape| {
                cell(&resolved.with(under(&experiment, 0, shape, cluster)), cluster)
            });
            cells.min_by(|a, b| (b.fits, a.step).partial_cmp(&(a.fits, b.step)).unwrap_or(Equal))
        };
        let row = |tokens: &usize| devices.iter().map(|devices| [*tokens, *devices]).collect();
        let all: Vec<[usize; 2]> = tokens.iter().flat_map::<Vec<_>, _>(row).collect();
        let cells = on_all_cores(&all, best);
        let cells = cells.chunks(devices.len()).map(<[_]>::to_vec).collect();
        let sliding = experiment.attention.sliding.map(|sliding| sliding.strategy);
        let tensor = resolved.experiment.mesh.tensor;
        Grid { strategy, devices, tokens, tensor, sliding, cells }
    }

    /// The shortest and the longest sweet sequence of a column's number of devices.
    pub fn sweet(&self, column: usize) -> Option<(usize, usize)> {
        let sweet = |row: &usize| self.cells[*row][column].is_some_and(|cell| cell.is_sweet());
        let mut rows = (0..self.tokens.len()).filter(sweet);
        let first = rows.next()?;
        Some((self.tokens[first], self.tokens[rows.next_back().unwrap_or(first)]))
    }

    /// The strategies' names, each in backquotes.
    pub(crate) fn named(&self) -> String {
        let sliding =
            self.sliding.map(|sliding| format!(" and `{}` where layers slide", label(sliding)));
        let whole = if self.tensor > 1 { ", layers whole on every device" } else { "" };
        format!("`{}`{}{whole}", label(self.strategy), sliding.unwrap_or_default())
    }

    /// The grid as text, with the sweet lengths for every number of devices.
    pub fn to_text(&self) -> String {
        let head = self.devices.iter().map(ToString::to_string);
        let mut rows = vec![[String::from("tokens \\ devices")].into_iter().chain(head).collect()];
        for (tokens, cells) in self.tokens.iter().zip(&self.cells) {
            let shown = cells.iter().map(|cell| shown(cell.as_ref()));
            rows.push([count(*tokens)].into_iter().chain(shown).collect());
        }
        let ranges = self.devices.iter().enumerate().map(|(column, devices)| {
            let noun = plural("device", *devices);
            let range = self.sweet(column).map_or_else(
                || String::from("none of these lengths"),
                |(least, most)| match count(most) {
                    most if most == count(least) => format!("{most} tokens"),
                    most => format!("{} to {most} tokens", count(least)),
                },
            );
            format!("{devices:>4} {noun}: {range}\n")
        });
        format!(
            "sweet spot of {}, one sequence per step:\n\
             per cent of the time that devices compute\n\
             (* at least {:.0} % and it fits, ! does not fit, . cannot run)\n{}{}",
            self.named(),
            100.0 * SWEET,
            stacked(&rows),
            ranges.collect::<String>()
        )
    }

    /// The grid as JSON, for programs: a row per length and number of devices.
    pub fn to_json(&self) -> serde_json::Value {
        let rows = self.tokens.iter().zip(&self.cells).flat_map(|(tokens, cells)| {
            self.devices.iter().zip(cells).map(move |(devices, cell)| {
                serde_json::json!({
                    "tokens": tokens,
                    "devices": devices,
                    "step": cell.map(|cell| cell.step),
                    "efficiency": cell.map(|cell| cell.efficiency),
                    "fits": cell.map(|cell| cell.fits),
                    "sweet": cell.is_some_and(|cell| cell.is_sweet()),
                })
            })
        });
        serde_json::Value::Array(rows.collect())
    }
}

/// The experiment with one sequence per step, shared by the devices of all replicas.
pub(crate) fn one_sequence(mut experiment: Experiment) -> Experiment {
    (experiment.mesh.data, experiment.mesh.tensor) = (1, 1);
    experiment.data.batch = 1;
    experiment.memory.micro_batch = None;
    experiment.mesh.weights = None;
    experiment.extend = None;
    if let Some(sliding) = &mut experiment.attention.sliding {
        sliding.strategy = bare(sliding.strategy);
    }
    experiment
}

fn cell(resolved: &Resolved, cluster: &Cluster) -> Option<Cell> {
    let plan = Plan::new(resolved).ok()?;
    let (_, estimate) = Estimate::fastest(plan, cluster).ok()?;
    let (step, efficiency) = (estimate.step, estimate.efficiency());
    Some(Cell { step, efficiency, fits: fits(&estimate, cluster) })
}

fn shown(cell: Option<&Cell>) -> String {
    match cell {
        None => String::from("."),
        Some(cell) => {
            let mark = match (cell.is_sweet(), cell.fits) {
                (true, _) => "*",
                (_, false) => "!",
                _ => " ",
            };
            format!("{:.0}{mark}", 100.0 * cell.efficiency)
        }
    }
}

/// A number of tokens as text: `64k`, `1M`.
pub(crate) fn count(tokens: usize) -> String {
    const K: usize = 1024;
    match tokens {
        n if n >= K * K * K && n.is_multiple_of(K * K * K) => format!("{}G", n / (K * K * K)),
        n if n >= K * K && n.is_multiple_of(K * K) => format!("{}M", n / (K * K)),
        n if n >= K && n.is_multiple_of(K) => format!("{}k", n / K),
        n => n.to_string(),
    }
}

/// The tooltip of a cell.
pub(crate) fn told(cell: Option<&Cell>) -> String {
    match cell {
        None => String::from("cannot run"),
        Some(cell) => {
            let fits = if cell.fits { "" } else { ", does not fit" };
            let step = duration(cell.step);
            format!("{step} a step, {:.1} % computing{fits}", 100.0 * cell.efficiency)
        }
    }
}
