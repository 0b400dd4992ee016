//! Samples and thresholds of measurements.

use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::tool;

/// Collects thresholds that are missed.
#[derive(Default)]
pub(crate) struct Report {
    missed: Vec<String>,
}

/// The bound of a figure.
#[derive(Clone, Copy)]
pub(crate) enum Threshold {
    AtMost(f64),
    AtLeast(f64),
}

impl Report {
    /// Prints a figure, its threshold, and whether it holds.
    pub(crate) fn check(&mut self, what: &str, figure: f64, threshold: Threshold) {
        let (holds, wanted) = match threshold {
            Threshold::AtMost(most) => (figure <= most, format!("at most {most:.2}")),
            Threshold::AtLeast(least) => (figure >= least, format!("at least {least:.2}")),
        };
        self.require(&format!("{what}: {figure:.3}, wanted {wanted}"), holds);
    }

    /// Prints a requirement, and whether it holds.
    pub(crate) fn require(&mut self, what: &str, holds: bool) {
        let word = if holds { "holds " } else { "MISSED" };
        tool::print(&format!("{word}  {what}"));
        if !holds {
            self.missed.push(what.to_owned());
        }
    }

    /// Prints the missed thresholds, and returns the exit code.
    pub(crate) fn end(self) -> ExitCode {
        if self.missed.is_empty() {
            return ExitCode::SUCCESS;
        }
        tool::say(&format!(
            "{} thresholds are missed: {}",
            self.missed.len(),
            self.missed.join("; ")
        ));
        ExitCode::FAILURE
    }
}

/// Samples, in the order in which they were measured.
#[derive(Clone, Debug)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    /// Reads the samples under a key of a JSON object.
    pub(crate) fn of(line: &Value, key: &str) -> Result<Samples> {
        let list = line[key].as_array().with_context(|| format!("`{key}` of {line}"))?;
        let numbers: Option<Vec<f64>> = list.iter().map(Value::as_f64).collect();
        Ok(Samples::from(numbers.with_context(|| format!("`{key}` of {line}"))?))
    }

    /// Combines two lists sample by sample.
    pub(crate) fn with(&self, other: &Samples, of: impl Fn(f64, f64) -> f64) -> Samples {
        Samples(self.0.iter().zip(&other.0).map(|(a, b)| of(*a, *b)).collect())
    }

    /// Appends another list.
    pub(crate) fn join(&mut self, other: Samples) {
        self.0.extend(other.0);
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// The median; of an even number, the mean of the two in the middle.
    pub(crate) fn median(&self) -> f64 {
        let sorted = self.sorted();
        let half = sorted.len() / 2;
        match sorted.len() {
            0 => f64::NAN,
            odd if odd % 2 == 1 => sorted[half],
            _ => f64::midpoint(sorted[half - 1], sorted[half]),
        }
    }

    /// The median and range in units of `unit`, as text.
    pub(crate) fn shown(&self, unit: f64) -> String {
        let sorted = self.sorted();
        let ends =
            [sorted.first(), sorted.last()].map(|end| end.map_or(f64::NAN, |end| end / unit));
        format!("{:.3} ({:.3} to {:.3})", self.median() / unit, ends[0], ends[1])
    }
}

impl From<Vec<f64>> for Samples {
    fn from(numbers: Vec<f64>) -> Samples {
        Samples(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_hold_or_are_missed() {
        let samples = Samples::from(vec![3.0, 1.0, 2.0]);
        assert_eq!(samples.median(), 2.0);
        assert_eq!(samples.shown(2.0), "1.000 (0.500 to 1.500)");
        assert_eq!(samples.with(&samples, |a, b| a / b).median(), 1.0);
        let mut report = Report::default();
        report.check("a ratio", 1.1, Threshold::AtMost(1.2));
        report.check("a share", f64::NAN, Threshold::AtLeast(0.5));
        assert_eq!(report.missed, ["a share: NaN, wanted at least 0.50"]);
    }
}
