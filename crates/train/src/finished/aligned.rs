//! One curve of several runs at the steps that they have in common.

use std::collections::BTreeMap;

use serde::Serialize;

/// The most steps that a table shows.
const SHOWN: usize = 10;

/// A curve of several runs, each compared with the first.
#[derive(Clone, Debug, Serialize)]
pub struct Aligned {
    /// The curve's tag.
    pub tag: String,
    /// The number of steps that all runs have logged.
    pub common: usize,
    /// Some of the common steps: the first, the last, and evenly between.
    pub rows: Vec<Row>,
    /// For each run but the first: how it differs from the first at all steps that these two have logged.
    pub against_first: Vec<Distance>,
    /// The last step of each run, common or not, with its value.
    pub last: Vec<(u64, f64)>,
}

/// The values of all runs at a common step.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The common step.
    pub step: u64,
    /// The values, one for each run.
    pub values: Vec<f64>,
}

/// How a run's curve differs from the first run's, at the steps that both have logged.
#[derive(Clone, Debug, Serialize)]
pub struct Distance {
    /// The number of these steps.
    pub common: usize,
    /// Whether all values have equal bits; false without a common step.
    pub equal_bits: bool,
    /// The first common step at which the bits differ.
    pub first: Option<u64>,
    /// The common step with the largest absolute difference, and the difference: the run minus the first. `None`: no value is known to
    /// differ.
    pub largest: Option<(u64, f64)>,
    /// The first common step at which the value of either run is not finite, so that their difference is unknown.
    pub not_finite: Option<u64>,
}

/// Aligns a curve of several runs, each of which has a value at one step at least.
pub(crate) fn align(tag: &str, runs: &[Vec<(u64, f64)>]) -> Aligned {
    let maps: Vec<BTreeMap<u64, f64>> =
        runs.iter().map(|run| run.iter().copied().collect()).collect();
    let all: Vec<&BTreeMap<u64, f64>> = maps.iter().collect();
    let common = rows(&all);
    let pair = |run| distance(&rows(&[&maps[0], run]));
    let last = |run: &BTreeMap<u64, f64>| run.last_key_value().map(|(&step, &value)| (step, value));
    Aligned {
        tag: tag.to_owned(),
        common: common.len(),
        against_first: maps.iter().skip(1).map(pair).collect(),
        rows: spread(common.len()).map(|index| common[index].clone()).collect(),
        last: maps.iter().filter_map(last).collect(),
    }
}

/// The values of these runs at the steps that all of them have.
fn rows(runs: &[&BTreeMap<u64, f64>]) -> Vec<Row> {
    let at = |step| runs.iter().map(|run| run.get(&step).copied()).collect::<Option<Vec<f64>>>();
    let steps = runs.first().into_iter().flat_map(|run| run.keys());
    steps.filter_map(|&step| Some(Row { step, values: at(step)? })).collect()
}

/// At most [`SHOWN`] indices below `count`, evenly spread, both ends included.
fn spread(count: usize) -> Box<dyn Iterator<Item = usize>> {
    if count <= SHOWN {
        return Box::new(0..count);
    }
    Box::new((0..SHOWN).map(move |index| index * (count - 1) / (SHOWN - 1)))
}

/// How the second run differs from the first, whose values the rows hold.
fn distance(common: &[Row]) -> Distance {
    let differs = |row: &&Row| row.values[1].to_bits() != row.values[0].to_bits();
    let first = common.iter().find(differs).map(|row| row.step);
    let differences = common.iter().map(|row| (row.step, row.values[1] - row.values[0]));
    // Of equal differences the first.
    let larger = |a: (u64, f64), b: (u64, f64)| if b.1.abs() > a.1.abs() { b } else { a };
    let largest = differences.filter(|(_, by)| by.is_finite() && *by != 0.0).reduce(larger);
    let unknown = |row: &&Row| !(row.values[1] - row.values[0]).is_finite();
    let not_finite = common.iter().find(unknown).map(|row| row.step);
    let equal_bits = first.is_none() && !common.is_empty();
    Distance { common: common.len(), equal_bits, first, largest, not_finite }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(steps: impl IntoIterator<Item = u64>, value: impl Fn(u64) -> f64) -> Vec<(u64, f64)> {
        steps.into_iter().map(|step| (step, value(step))).collect()
    }

    #[test]
    fn curves_meet_at_their_common_steps_alone() {
        let runs = [run(1..=300, |_| 2.0), run((2..=400).step_by(2), |step| 2.0 + step as f64)];
        let aligned = align("train/loss", &runs);
        assert_eq!(aligned.common, 150);
        let steps: Vec<u64> = aligned.rows.iter().map(|row| row.step).collect();
        assert_eq!((steps.len(), steps[0], steps[9]), (10, 2, 300));
        assert!(steps.is_sorted_by(|a, b| a < b), "{steps:?}");
        let found = &aligned.against_first[0];
        assert_eq!(
            (found.equal_bits, found.first, found.largest),
            (false, Some(2), Some((300, 300.0)))
        );
        assert_eq!(found.not_finite, None);
        let unknown = run(1..=300, |step| if step == 7 { f64::NAN } else { 2.0 });
        let found = &align("train/loss", &[runs[0].clone(), unknown]).against_first[0];
        assert_eq!(
            (found.first, found.largest, found.not_finite),
            (Some(7), None, Some(7)),
            "a difference of 0 is none"
        );
        assert_eq!(aligned.last, [(300, 2.0), (400, 402.0)]);
    }

    #[test]
    fn equal_bits_are_equal_and_the_last_bit_is_not() {
        let value = |step: u64| 1.0 / step as f64;
        let nearly = |step: u64| if step == 7 { value(7).next_up() } else { value(step) };
        let runs = [run(1..=9, value), run(1..=9, value), run(1..=9, nearly)];
        let found = align("train/loss", &runs).against_first;
        assert!(found[0].equal_bits && !found[1].equal_bits);
        assert_eq!(found[1].first, Some(7));
    }

    /// A third run that logged fewer steps, or other ones, changes nothing that is said of the other two.
    #[test]
    fn a_pair_is_compared_at_all_steps_that_it_shares() {
        let runs = [run(1..=12, |_| 2.0), run(1..=12, |step| if step == 9 { 3.0 } else { 2.0 })];
        let short = run(1..=4, |_| 2.0);
        let aligned = align("train/loss", &[&runs[..], &[short]].concat());
        assert_eq!((aligned.common, aligned.rows.len()), (4, 4));
        let [pair, shorter] = &aligned.against_first[..] else { panic!("two pairs") };
        assert_eq!((pair.common, pair.equal_bits, pair.largest), (12, false, Some((9, 1.0))));
        assert_eq!((shorter.common, shorter.equal_bits), (4, true));
    }

    #[test]
    fn runs_without_a_common_step_have_their_last_values() {
        let aligned = align("train/loss", &[run(1..=5, |_| 1.0), run(6..=9, |_| f64::NAN)]);
        assert_eq!((aligned.common, aligned.rows.len()), (0, 0));
        assert_eq!(aligned.last[0], (5, 1.0));
        assert!(!aligned.against_first[0].equal_bits);
    }
}
