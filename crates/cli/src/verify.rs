//! `annulus verify`: every strategy against dense attention, on an experiment's shape and mask.

use std::collections::BTreeMap;

use annulus_simulate::plan;
use annulus_train::verify::{Line, verify};
use serde_json::json;

use crate::Done;
use crate::arguments::Verify;
use crate::failure::{EXPECT, Failure};
use crate::{check, print};

pub(crate) fn run(arguments: &Verify) -> Done {
    let plan = plan(&check::opened(&arguments.file)?.here())?;
    let cores = annulus_machine::cores();
    let mut table = Table::default();
    let mut written = Ok(());
    let lines = verify(&plan, arguments.ranks, cores, &mut |line| {
        if written.is_ok() {
            written = if arguments.json { print::line(&as_json(line)) } else { table.show(line) };
        }
    })?;
    written?;
    let worst = lines.iter().filter_map(share).fold(0.0, f64::max);
    let ok = lines.iter().filter_map(share).all(|share| share <= 1.0);
    let value = || json!({"worst": finite(worst), "limit": 1.0, "ok": ok});
    let verdict = if ok { "exact" } else { "NOT EXACT" };
    let text = || format!("{verdict}: the worst error is {worst:.2} of its limit");
    print::either(arguments.json, value, text)?;
    Ok(if ok { 0 } else { EXPECT })
}

/// An error as a share of what is allowed.
fn share(line: &Line) -> Option<f64> {
    match line {
        Line::Error { error, limit, .. } => Some(error / limit),
        Line::Skipped { .. } => None,
    }
}

/// JSON has no infinity: the largest number stands for it.
fn finite(number: f64) -> f64 {
    if number.is_finite() { number } else { f64::MAX }
}

fn as_json(line: &Line) -> String {
    match line {
        Line::Error { strategy, ranks, own, tensor, error, limit } => json!({
            "strategy": strategy.name(), "ranks": ranks, "own": own, "tensor": tensor,
            "error": finite(*error), "limit": limit,
        }),
        Line::Skipped { strategy, ranks, own, reason } => {
            json!({"strategy": strategy.name(), "ranks": ranks, "own": own, "skipped": reason})
        }
    }
    .to_string()
}

/// A star marks the way that the file splits.
fn named(strategy: &str, own: bool) -> String {
    format!("{strategy}{}", if own { "*" } else { "" })
}

/// One row per strategy and number of ranks, printed when its last line is there.
#[derive(Default)]
struct Table {
    started: bool,
    row: BTreeMap<String, f64>,
}

impl Table {
    const COLUMNS: [&str; 8] = ["out", "lse", "dq", "dk", "dv", "visibility", "loss", "gradient"];

    fn show(&mut self, line: &Line) -> Result<(), Failure> {
        self.begin()?;
        match line {
            Line::Error { strategy, ranks, own, tensor, error, .. } => {
                let tensor = tensor.split(' ').next().unwrap_or(tensor);
                let worst = self.row.entry(tensor.to_owned()).or_default();
                *worst = worst.max(*error);
                if tensor == "gradient" {
                    self.end(&named(strategy.name(), *own), *ranks)?;
                }
            }
            Line::Skipped { strategy, ranks, own, reason } => {
                let name = named(strategy.name(), *own);
                print::line(&format!("{name:<12}{ranks:>6}  skipped: {reason}"))?;
            }
        }
        Ok(())
    }

    /// The heading, once.
    fn begin(&mut self) -> Result<(), Failure> {
        if !std::mem::replace(&mut self.started, true) {
            let columns = Self::COLUMNS.map(|column| format!("{column:>11}")).concat();
            print::line(&format!("{:<12}{:>6}{columns}", "strategy", "ranks"))?;
        }
        Ok(())
    }

    /// The row of one strategy on a number of ranks.
    fn end(&mut self, strategy: &str, ranks: usize) -> Result<(), Failure> {
        let cells = Self::COLUMNS.map(|column| match self.row.get(column) {
            Some(error) => format!("{error:>11.1e}"),
            None => format!("{:>11}", "-"),
        });
        self.row.clear();
        print::line(&format!("{strategy:<12}{ranks:>6}{}", cells.concat()))
    }
}
