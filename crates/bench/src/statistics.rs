//! Medians and quartiles of a few samples.

/// The middle and the quarters of some numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Quartiles {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

impl Quartiles {
    /// Of `numbers`, between neighbours in proportion; not a number where there is none.
    pub(crate) fn of(numbers: &[f64]) -> Quartiles {
        let mut sorted = numbers.to_vec();
        sorted.sort_by(f64::total_cmp);
        let [low, median, high] = [0.25, 0.5, 0.75].map(|share| quantile(&sorted, share));
        Quartiles { low, median, high }
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
        let Quartiles { low, median, high } = Quartiles::of(&[4.0, 1.0, 3.0, 2.0]);
        assert_eq!((low, median, high), (1.75, 2.5, 3.25));
        let Quartiles { low, median, high } = Quartiles::of(&[5.0, 1.0, 9.0]);
        assert_eq!((low, median, high), (3.0, 5.0, 7.0));
    }

    #[test]
    fn one_number_is_its_own_quartiles_and_none_has_no_median() {
        let Quartiles { low, median, high } = Quartiles::of(&[7.0]);
        assert_eq!((low, median, high), (7.0, 7.0, 7.0));
        assert!(Quartiles::of(&[]).median.is_nan());
    }
}
