//! Means and how sure they are.

use serde::Serialize;

/// A mean over things that were measured apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// Its standard error: the standard deviation of the things over the root of their number; 0 of one.
    pub standard_error: f64,
}

impl Mean {
    /// Of at least one value.
    pub(crate) fn of(values: &[f64]) -> Mean {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        if values.len() < 2 {
            return Mean { mean, standard_error: 0.0 };
        }
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Mean { mean, standard_error: (squares / (count - 1.0) / count).sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_those_of_the_mean() {
        let found = Mean::of(&[1.0, 2.0, 3.0, 6.0]);
        // Deviations -2, -1, 0, 3: a variance of 14 / 3, of which the mean of four has a quarter.
        assert!((found.mean - 3.0).abs() < 1e-15);
        assert!((found.standard_error - (14.0_f64 / 12.0).sqrt()).abs() < 1e-15);
        assert_eq!(Mean::of(&[4.0]), Mean { mean: 4.0, standard_error: 0.0 });
    }
}
