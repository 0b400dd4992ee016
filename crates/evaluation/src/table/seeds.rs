//! Confidence intervals of means over seeds, and tests whether two means differ by more than seeds do.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::Mean;

/// The confidence level: the fraction of intervals that contain the true mean.
const SURE: f64 = 0.95;

/// Means that differ by no more than this fraction are equal up to rounding: sums in another order differ by as much.
const ROUNDING: f64 = 1e-6;

/// A mean over seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OverSeeds {
    /// The mean.
    pub mean: f64,
    /// Half of the 95 % confidence interval, by Student's t; `None` for a single seed.
    pub half: Option<f64>,
    /// The value of each seed, in the order of the runs.
    pub values: Vec<f64>,
}

impl OverSeeds {
    /// The mean of at least one finite value; `None` without any.
    pub fn of(values: &[f64]) -> Option<OverSeeds> {
        let (mean, error) = mean(values)?;
        let half = error.map(|error| quantile(values.len() as f64 - 1.0) * error);
        Some(OverSeeds { mean, half, values: values.to_vec() })
    }
}

/// How two means are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Test {
    /// Student's t test of the differences by seed: both rows have the same seeds, so that a seed's effect on both cancels.
    Paired,
    /// Welch's t test, for means with different variances: the rows' seeds differ.
    Welch,
}

/// A row's mean compared with the best one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ComparisonToBest {
    /// The row's mean minus the best one.
    pub difference: f64,
    /// The test that was used.
    pub test: Test,
    /// A bound on the probability that seeds alone make so large a difference between any two rows of the table, in either direction:
    /// that of these two, times the number of pairs of rows (Bonferroni), as the best row is chosen by the same values. `None`: too few
    /// seeds.
    pub p: Option<f64>,
    /// Whether the means are equal up to rounding, which seeds need not explain.
    pub is_rounding: bool,
    /// Whether the difference is larger than rounding and seeds explain: `p` is below 0.05.
    pub is_larger: Option<bool>,
}

/// Compares values by seed with the best row's, of a table with so many `pairs` of rows: paired where both have the same seeds, else by
/// Welch's test.
pub(crate) fn against(
    own: &[(u64, f64)],
    best: &[(u64, f64)],
    pairs: usize,
) -> Option<ComparisonToBest> {
    let values = |of: &[(u64, f64)]| of.iter().map(|(_, value)| *value).collect::<Vec<_>>();
    let (a, b) = (values(own), values(best));
    let (own_mean, best_mean) = (mean(&a)?.0, mean(&b)?.0);
    let difference = own_mean - best_mean;
    let is_rounding = difference.abs() <= ROUNDING * best_mean.abs();
    let of_best = |seed: u64| best.iter().find(|(other, _)| *other == seed);
    let by_seed = own.iter().map(|(seed, value)| Some(value - of_best(*seed)?.1));
    let by_seed: Option<Vec<f64>> = by_seed.collect();
    let (test, p) = match by_seed.filter(|_| own.len() == best.len()) {
        Some(differences) => (Test::Paired, paired(&differences)),
        None => (Test::Welch, welch(&a, &b)),
    };
    let p = p.map(|p| (p * pairs as f64).min(1.0));
    let is_larger = p.map(|p| p < 1.0 - SURE && !is_rounding);
    Some(ComparisonToBest { difference, test, p, is_rounding, is_larger })
}

fn paired(differences: &[f64]) -> Option<f64> {
    let (mean, error) = mean(differences)?;
    Some(two_sided(mean, error?, differences.len() as f64 - 1.0))
}

fn welch(a: &[f64], b: &[f64]) -> Option<f64> {
    let ((first, own), (second, other)) = (mean(a)?, mean(b)?);
    let (own, other) = (own?.powi(2), other?.powi(2));
    // Degrees of freedom by Welch and Satterthwaite; any number is right for two means without variance.
    let weights = own.powi(2) / (a.len() as f64 - 1.0) + other.powi(2) / (b.len() as f64 - 1.0);
    let freedom = if weights > 0.0 { (own + other).powi(2) / weights } else { 1.0 };
    Some(two_sided(first - second, (own + other).sqrt(), freedom))
}

/// The two-sided p-value of a difference with this standard error.
fn two_sided(difference: f64, error: f64, freedom: f64) -> f64 {
    if error > 0.0 {
        2.0 * student(freedom).sf((difference / error).abs())
    } else if difference == 0.0 {
        1.0
    } else {
        0.0
    }
}

/// The mean, and for two values or more its standard error.
fn mean(values: &[f64]) -> Option<(f64, Option<f64>)> {
    if values.is_empty() {
        return None;
    }
    let Mean { mean, standard_error } = Mean::of(values);
    Some((mean, standard_error))
}

/// The number of standard errors on either side that encloses the true mean at the confidence level.
fn quantile(freedom: f64) -> f64 {
    student(freedom).inverse_cdf(f64::midpoint(1.0, SURE))
}

fn student(freedom: f64) -> StudentsT {
    StudentsT::new(0.0, 1.0, freedom).expect("degrees of freedom are above 0")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64, within: f64) {
        assert!((a - b).abs() < within, "{a} is not {b}");
    }

    #[test]
    fn intervals_are_those_of_the_tables() {
        // Fisher and Yates's table of t, two-sided 5 %.
        for (freedom, wanted) in
            [(1.0, 12.706), (2.0, 4.303), (4.0, 2.776), (9.0, 2.262), (30.0, 2.042)]
        {
            close(quantile(freedom), wanted, 5e-4);
        }
        // The values 1 and 3: a deviation of √2, whose error is 1.
        let found = OverSeeds::of(&[1.0, 3.0]).unwrap();
        assert_eq!(found.mean, 2.0);
        close(found.half.unwrap(), 12.7062, 1e-4);
        assert_eq!(OverSeeds::of(&[4.0]).unwrap().half, None);
        assert_eq!(OverSeeds::of(&[]), None);
    }

    #[test]
    fn pairs_are_student_s_own_example() {
        // Student (1908), "The probable error of a mean": hours of sleep gained by two drugs, the same ten patients.
        let first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0];
        let second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4];
        let seeded =
            |values: &[f64]| (0..).zip(values.iter().copied()).collect::<Vec<(u64, f64)>>();
        let found = against(&seeded(&second), &seeded(&first), 1).unwrap();
        assert_eq!((found.test, found.is_larger), (Test::Paired, Some(true)));
        close(found.difference, 1.58, 1e-12);
        // R: t.test(extra ~ group, sleep, paired = TRUE) gives 0.002833; without pairs, by Welch, 0.07939.
        close(found.p.unwrap(), 0.002_833, 1e-6);
        let others: Vec<(u64, f64)> =
            seeded(&first).iter().map(|(seed, x)| (seed + 1, *x)).collect();
        let found = against(&seeded(&second), &others, 1).unwrap();
        assert_eq!((found.test, found.is_larger), (Test::Welch, Some(false)));
        close(found.p.unwrap(), 0.079_39, 1e-5);
    }

    #[test]
    fn pairs_are_found_by_seed_and_not_by_order() {
        let (one, other) = ([(1, 2.0), (2, 5.0), (3, 3.0)], [(3, 2.0), (1, 1.0), (2, 4.0)]);
        let found = against(&one, &other, 1).unwrap();
        assert_eq!((found.test, found.p), (Test::Paired, Some(0.0)), "each is larger by 1");
        let found = against(&one, &one, 1).unwrap();
        assert_eq!((found.difference, found.p, found.is_larger), (0.0, Some(1.0), Some(false)));
    }

    /// The same experiment, split otherwise: all seeds differ in the same direction, by a rounding error.
    #[test]
    fn a_rounding_error_is_no_difference() {
        let best = [(1, 2.0), (2, 2.5), (3, 2.25)];
        let by = |error: f64| best.map(|(seed, loss)| (seed, loss + error));
        let found = against(&by(1e-8), &best, 1).unwrap();
        assert!(found.is_rounding && found.p < Some(0.05), "{found:?}");
        assert_eq!(found.is_larger, Some(false));
        let found = against(&by(1e-4), &best, 1).unwrap();
        assert_eq!((found.is_rounding, found.is_larger), (false, Some(true)));
    }

    /// A best row is chosen by the values that it is tested with: among equal rows of seeds, hardly any table may say that one differs.
    #[test]
    fn equal_rows_rarely_differ() {
        let mut state = 5_u64;
        // Knuth's linear congruential generator.
        let mut random = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let mut wrong = 0;
        for _ in 0..300 {
            let mut row = || (0..4).map(|seed| (seed, random())).collect::<Vec<(u64, f64)>>();
            let rows: Vec<_> = (0..10).map(|_| row()).collect();
            let sum = |row: &Vec<(u64, f64)>| row.iter().map(|(_, value)| value).sum::<f64>();
            let best = rows.iter().min_by(|a, b| sum(a).total_cmp(&sum(b))).unwrap();
            let larger =
                |row: &Vec<(u64, f64)>| against(row, best, 45).unwrap().is_larger == Some(true);
            wrong += usize::from(rows.iter().any(larger));
        }
        assert!(wrong <= 25, "{wrong} of 300 tables, expected about 5 %");
    }

    #[test]
    fn one_seed_says_nothing_of_others() {
        let found = against(&[(1, 2.0)], &[(1, 1.0)], 1).unwrap();
        assert_eq!((found.difference, found.p, found.is_larger), (1.0, None, None));
        let found = against(&[(1, 2.0), (2, 2.5)], &[(1, 1.0)], 1).unwrap();
        assert_eq!((found.test, found.p), (Test::Welch, None));
        assert_eq!(against(&[], &[(1, 1.0)], 1), None);
    }
}
