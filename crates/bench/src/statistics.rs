//! Medians and quartiles of a few samples.

use crate::subject::Sample;

/// The middle and the quarters of some numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Quartiles {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

impl Quartiles {
    /// Quartiles of `numbers`, interpolated between neighbours; NaN where there is none.
    pub(crate) fn of(numbers: &[f64]) -> Quartiles {
        let mut sorted = numbers.to_vec();
        sorted.sort_by(f64::total_cmp);
        let [low, median, high] = [0.25, 0.5, 0.75].map(|share| quantile(&sorted, share));
        Quartiles { low, median, high }
    }

    /// Quartiles of the samples' times.
    pub(crate) fn of_seconds<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Quartiles {
        let seconds: Vec<f64> = samples.into_iter().map(|sample| sample.seconds).collect();
        Quartiles::of(&seconds)
    }
}

fn quantile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = share * last as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_lie_between_neighbours() {
        for (numbers, wanted) in [
            (&[4.0, 1.0, 3.0, 2.0][..], (1.75, 2.5, 3.25)),
            (&[5.0, 1.0, 9.0], (3.0, 5.0, 7.0)),
            (&[7.0], (7.0, 7.0, 7.0)),
        ] {
            let Quartiles { low, median, high } = Quartiles::of(numbers);
            assert_eq!((low, median, high), wanted);
        }
        assert!(Quartiles::of(&[]).median.is_nan());
    }
}
