//! Numbers to pixels, and the numbers that are written at an axis.

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// What it counts.
    pub label: String,
    /// Whether equal steps are equal factors.
    pub logarithmic: bool,
    /// What it shows at least, whatever the values.
    pub range: Option<[f64; 2]>,
}

/// An axis of which the ends are known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
    /// The pixels of the ends.
    pixels: [f64; 2],
}

impl Axis {
    /// An axis of equal steps.
    pub fn plain(label: &str) -> Axis {
        Axis { label: label.to_owned(), logarithmic: false, range: None }
    }
    /// An axis of equal factors, for values above 0.
    pub fn logarithmic(label: &str) -> Axis {
        Axis { label: label.to_owned(), logarithmic: true, range: None }
    }
    /// An axis of shares: from 0 to 1.
    pub fn share(label: &str) -> Axis {
        Axis { label: label.to_owned(), logarithmic: false, range: Some([0.0, 1.0]) }
    }
}

impl Scale {
    /// Of these values, with `margin` of their range left at both ends.
    pub(crate) fn of(
        values: impl IntoIterator<Item = f64>,
        logarithmic: bool,
        pixels: [f64; 2],
        margin: f64,
    ) -> Scale {
        let finite = values.into_iter().map(|value| if logarithmic { value.log2() } else { value });
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in finite.filter(|value| value.is_finite()) {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        if low == high {
            (low, high) = (low - 0.5, high + 0.5);
        }
        let more = (high - low) * margin;
        Scale { low: low - more, high: high + more, logarithmic, pixels }
    }

    pub(crate) fn at(&self, value: f64) -> f64 {
        let value = if self.logarithmic { value.log2() } else { value };
        let [first, last] = self.pixels;
        first + (value - self.low) / (self.high - self.low) * (last - first)
    }

    /// Some round values within.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        const WANTED: f64 = 6.0;
        if self.logarithmic {
            let every = ((self.high - self.low) / (2.0 * WANTED)).ceil().max(1.0);
            let first = (self.low / every).ceil() * every;
            let count = ((self.high - first) / every).floor() as i64;
            return (0..=count).map(|index| (first + index as f64 * every).exp2()).collect();
        }
        let rough = (self.high - self.low) / WANTED;
        let power = 10.0_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|by| by * power);
        let step = step.into_iter().find(|step| *step >= rough).unwrap_or(rough);
        let first = (self.low / step).ceil();
        let count = (self.high / step - first).floor() as i64;
        (0..=count).map(|index| (first + index as f64) * step).collect()
    }
}

/// A number as it is written at an axis: counts of tokens as in `64k`.
pub(crate) fn number(value: f64) -> String {
    const K: f64 = 1024.0;
    for (unit, size) in [("M", K * K), ("k", K)] {
        if value >= size && (value / size).fract() == 0.0 {
            return format!("{}{unit}", value / size);
        }
    }
    let digits = if value.abs() < 1.0 { 3 } else { 2 };
    let text = format!("{value:.digits$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within() {
        let plain = Scale::of([1.93, 2.61], false, [0.0, 100.0], 0.0);
        let ticks: Vec<String> = plain.ticks().into_iter().map(number).collect();
        assert_eq!(ticks, ["2", "2.2", "2.4", "2.6"]);
        let lengths = Scale::of([1024.0, 16384.0], true, [0.0, 100.0], 0.0);
        let ticks: Vec<String> = lengths.ticks().into_iter().map(number).collect();
        assert_eq!(ticks, ["1k", "2k", "4k", "8k", "16k"]);
        assert_eq!(lengths.at(4096.0), 50.0);
    }

    #[test]
    fn one_value_or_none_is_a_scale_too() {
        for values in [vec![], vec![3.0], vec![f64::NAN]] {
            let scale = Scale::of(values, false, [0.0, 10.0], 0.05);
            assert!(scale.at(3.0).is_finite() && !scale.ticks().is_empty());
        }
    }
}
