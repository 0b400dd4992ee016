//! Numbers to pixels, and the numbers that are written at an axis.

/// About how many are written.
const WANTED: f64 = 6.0;

/// How many digits stand behind a point; smaller numbers are written with an exponent.
const DIGITS: usize = 6;

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// The label: the quantity and its unit.
    pub label: String,
    /// Whether the scale is logarithmic: equal steps are equal factors.
    pub logarithmic: bool,
    /// A range that the axis includes, whatever the values are.
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
    /// A linear axis.
    pub fn plain(label: &str) -> Axis {
        Axis { label: label.to_owned(), logarithmic: false, range: None }
    }
    /// A logarithmic axis, for values above 0.
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

    /// Some round values within, each as it is written at the axis: no two the same.
    pub(crate) fn ticks(&self) -> Vec<(f64, String)> {
        if self.logarithmic {
            let text = |value| counted(value).unwrap_or_else(|| number(value, value / 1000.0));
            return self.powers().into_iter().map(|value| (value, text(value))).collect();
        }
        let (step, values) = self.multiples();
        // `125k` between 124000 and 126000 would be read as another unit.
        let all: Option<Vec<String>> = values.iter().map(|&value| counted(value)).collect();
        let texts = all.unwrap_or_else(|| values.iter().map(|&v| number(v, step)).collect());
        values.into_iter().zip(texts).collect()
    }

    /// Powers of two within.
    fn powers(&self) -> Vec<f64> {
        let every = ((self.high - self.low) / (2.0 * WANTED)).ceil().max(1.0);
        let first = (self.low / every).ceil() * every;
        let count = ((self.high - first) / every).floor() as i64;
        (0..=count).map(|index| (first + index as f64 * every).exp2()).collect()
    }

    /// A round step, and its multiples within.
    fn multiples(&self) -> (f64, Vec<f64>) {
        let rough = (self.high - self.low) / WANTED;
        let power = 10.0_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|by| by * power);
        let step = step.into_iter().find(|step| *step >= rough).unwrap_or(rough);
        let first = (self.low / step).ceil();
        let count = (self.high / step - first).floor() as i64;
        // Plus 0: never −0.
        (step, (0..=count).map(|index| (first + index as f64) * step + 0.0).collect())
    }
}

/// A count of tokens, as in `64k`; `None`: it is no multiple of 1024, nor 0.
fn counted(value: f64) -> Option<String> {
    const K: f64 = 1024.0;
    let units = [("M", K * K), ("k", K)];
    let unit = units.iter().find(|(_, size)| value >= *size && (value / size).fract() == 0.0);
    let text = unit.map(|(unit, size)| format!("{}{unit}", value / size));
    text.or_else(|| (value == 0.0).then(|| "0".to_owned()))
}

/// A number as it is written at an axis, with as many digits as tell it from one that is `step` away.
fn number(value: f64, step: f64) -> String {
    let order = |value: f64| (value.abs().log10() + 1e-9).floor();
    let digits = (-order(step)).max(0.0) as usize;
    if digits > DIGITS && value != 0.0 {
        let digits = (order(value) - order(step)).max(0.0) as usize;
        return format!("{value:.digits$e}");
    }
    let text = format!("{value:.digits$}");
    if digits == 0 {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(scale: &Scale) -> Vec<String> {
        scale.ticks().into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn ticks_are_round_and_within() {
        let plain = Scale::of([1.93, 2.61], false, [0.0, 100.0], 0.0);
        assert_eq!(texts(&plain), ["2", "2.2", "2.4", "2.6"]);
        let lengths = Scale::of([1024.0, 16384.0], true, [0.0, 100.0], 0.0);
        assert_eq!(texts(&lengths), ["1k", "2k", "4k", "8k", "16k"]);
        assert_eq!(lengths.at(4096.0), 50.0);
    }

    #[test]
    fn no_two_ticks_are_written_alike() {
        let of = |low: f64, high: f64| texts(&Scale::of([low, high], false, [0.0, 100.0], 0.0));
        assert_eq!(of(2.3117, 2.3148), ["2.312", "2.313", "2.314"]);
        assert_eq!(of(0.0, 1e-5), ["0", "0.000002", "0.000004", "0.000006", "0.000008", "0.00001"]);
        assert_eq!(of(0.0, 1.5e-9), ["0", "5e-10", "1.0e-9", "1.5e-9"]);
        assert_eq!(of(100.0, 250.0), ["100", "150", "200", "250"]);
        assert_eq!(of(127_000.0, 129_000.0)[2..4], ["128000", "128500"]);
        assert_eq!(of(0.0, 4096.0)[..2], ["0", "1000"]);
        let small = Scale::of([2.0_f64.powi(-11), 2.0_f64.powi(-7)], true, [0.0, 100.0], 0.0);
        let wanted = ["4.883e-4", "9.766e-4", "0.001953", "0.003906", "0.007812"];
        assert_eq!(texts(&small), wanted);
        for low in [0.0, -1.0, 2.5, 1e3, 123_456.7] {
            for span in (-9..8).map(|power| 3.17 * 10.0_f64.powi(power)) {
                let ticks = of(low, low + span);
                let different: std::collections::BTreeSet<_> = ticks.iter().collect();
                assert_eq!(different.len(), ticks.len(), "{low} + {span}: {ticks:?}");
            }
        }
    }

    #[test]
    fn one_value_or_none_is_a_scale_too() {
        for values in [vec![], vec![3.0], vec![f64::NAN]] {
            let scale = Scale::of(values, false, [0.0, 10.0], 0.05);
            assert!(scale.at(3.0).is_finite() && !scale.ticks().is_empty());
        }
    }
}
