//! Means and rates with their uncertainty.

use serde::{Deserialize, Serialize};

/// The mean of independent measurements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// The standard error: the standard deviation over the root of the number of values; `None` for a single value, of which files of
    /// earlier versions say 0.
    pub standard_error: Option<f64>,
}

impl Mean {
    /// The mean of at least one value.
    pub(crate) fn of(values: &[f64]) -> Mean {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        if values.len() < 2 {
            return Mean { mean, standard_error: None };
        }
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Mean { mean, standard_error: Some((squares / (count - 1.0) / count).sqrt()) }
    }

    /// The mean over all tokens of at least one group, each a sum over its tokens and their number. The standard error is that of a ratio, over
    /// groups: tokens of one depend on each other.
    pub(crate) fn of_tokens(groups: &[(f64, usize)]) -> Mean {
        let (sum, tokens) = groups.iter().fold((0.0, 0), |all, own| (all.0 + own.0, all.1 + own.1));
        let (mean, count) = (sum / tokens as f64, groups.len() as f64);
        if groups.len() < 2 {
            return Mean { mean, standard_error: None };
        }
        let off = |(sum, tokens): &(f64, usize)| (sum - mean * *tokens as f64).powi(2);
        let squares: f64 = groups.iter().map(off).sum();
        let error = (squares * count / (count - 1.0)).sqrt() / tokens as f64;
        Mean { mean, standard_error: Some(error) }
    }

    /// The standard error as tables show it; a dash where there is none.
    pub fn shown_error(&self) -> String {
        self.standard_error.map_or_else(|| "–".to_owned(), |error| format!("{error:.4}"))
    }
}

/// A rate with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// The number of right answers.
    pub right: usize,
    /// The number of all answers.
    pub of: usize,
    /// The lower end of Wilson's 95 % interval.
    pub low: f64,
    /// The upper end of Wilson's 95 % interval.
    pub high: f64,
}

impl Rate {
    /// The rate of `right` among at least one answer.
    pub(crate) fn of(right: usize, of: usize) -> Rate {
        /// Standard deviations on either side of a 95 % interval.
        const WIDE: f64 = 1.96;
        let (count, share) = (of as f64, right as f64 / of as f64);
        let by = 1.0 + WIDE * WIDE / count;
        let middle = (share + WIDE * WIDE / (2.0 * count)) / by;
        let spread = (share * (1.0 - share) / count + (WIDE / (2.0 * count)).powi(2)).sqrt();
        let half = WIDE * spread / by;
        Rate { right, of, low: (middle - half).max(0.0), high: (middle + half).min(1.0) }
    }

    /// The rate, from 0 to 1.
    pub fn value(self) -> f64 {
        self.right as f64 / self.of as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_wilson_s() {
        let Rate { low, high, .. } = Rate::of(8, 10);
        // Newcombe (1998): 0.4902 to 0.9433.
        assert!((low - 0.4902).abs() < 1e-4 && (high - 0.9433).abs() < 1e-4, "{low} {high}");
        assert_eq!(Rate::of(0, 5).low, 0.0);
        assert!(Rate::of(5, 5).high > 0.999 && Rate::of(5, 5).low < 0.6);
    }

    #[test]
    fn errors_are_those_of_the_mean() {
        let found = Mean::of(&[1.0, 2.0, 3.0, 6.0]);
        // Deviations -2, -1, 0, 3: a variance of 14 / 3, of which the mean of four has a quarter.
        assert!((found.mean - 3.0).abs() < 1e-15);
        let error = found.standard_error.unwrap();
        assert!((error - (14.0_f64 / 12.0).sqrt()).abs() < 1e-15);
        assert_eq!(found.shown_error(), "1.0801");
    }

    #[test]
    fn of_groups_of_tokens_every_token_counts() {
        let found = Mean::of_tokens(&[(6.0, 3), (2.0, 1), (12.0, 4)]);
        assert_eq!(found.mean, 20.0 / 8.0);
        // Off by 6 - 7.5, 2 - 2.5 and 12 - 10.
        let error = (1.5 * (2.25 + 0.25 + 4.0_f64)).sqrt() / 8.0;
        assert!((found.standard_error.unwrap() - error).abs() < 1e-15);
        // Of groups of the same size it is the error of the mean of their means.
        let alike = Mean::of_tokens(&[(2.0, 2), (4.0, 2), (6.0, 2), (12.0, 2)]);
        let wanted = Mean::of(&[1.0, 2.0, 3.0, 6.0]);
        assert!((alike.mean - wanted.mean).abs() < 1e-15);
        let errors = [alike, wanted].map(|one| one.standard_error.unwrap());
        assert!((errors[0] - errors[1]).abs() < 1e-15);
        assert_eq!(Mean::of_tokens(&[(6.0, 3)]), Mean { mean: 2.0, standard_error: None });
    }

    #[test]
    fn one_value_has_no_error() {
        let found = Mean::of(&[4.0]);
        assert_eq!(found, Mean { mean: 4.0, standard_error: None });
        assert_eq!(found.shown_error(), "–");
        let written = serde_json::to_value(found).unwrap();
        assert_eq!(written, serde_json::json!({ "mean": 4.0, "standard_error": null }));
        assert_eq!(serde_json::from_value::<Mean>(written).unwrap(), found);
        let earlier: Mean =
            serde_json::from_str(r#"{"mean": 4.0, "standard_error": 0.0}"#).unwrap();
        assert_eq!(earlier.standard_error, Some(0.0));
    }
}
