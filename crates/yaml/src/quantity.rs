//! Numbers with units: `450GB/s`, `312TFLOP/s`, `80GiB`, `5us`.
//!
//! Prefixes are powers of ten, as vendors count; `KiB` to `TiB` are powers of 1024. A number
//! without a unit is in bytes, bytes per second, operations per second or seconds.

use crate::kind::real;

/// The dimension of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes of memory.
    Bytes,
    /// Bytes per second over a link, one way.
    Bandwidth,
    /// Floating-point operations per second.
    Speed,
    /// Seconds that a message takes besides its bytes.
    Latency,
}

/// Suffixes and their factors; where one is the end of another, the longer one comes first.
const BYTES: &[(&str, f64)] = &[
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
    ("kB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("B", 1.0),
];
const BANDWIDTH: &[(&str, f64)] = &[
    ("MiB/s", 1_048_576.0),
    ("GiB/s", 1_073_741_824.0),
    ("kB/s", 1e3),
    ("MB/s", 1e6),
    ("GB/s", 1e9),
    ("TB/s", 1e12),
    ("Mbit/s", 1e6 / 8.0),
    ("Gbit/s", 1e9 / 8.0),
    ("Tbit/s", 1e12 / 8.0),
    ("B/s", 1.0),
];
const SPEED: &[(&str, f64)] =
    &[("MFLOP/s", 1e6), ("GFLOP/s", 1e9), ("TFLOP/s", 1e12), ("PFLOP/s", 1e15), ("FLOP/s", 1.0)];
const LATENCY: &[(&str, f64)] = &[("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];

impl Unit {
    fn suffixes(self) -> &'static [(&'static str, f64)] {
        match self {
            Unit::Bytes => BYTES,
            Unit::Bandwidth => BANDWIDTH,
            Unit::Speed => SPEED,
            Unit::Latency => LATENCY,
        }
    }

    /// The accepted values, in words.
    pub fn wanted(self) -> &'static str {
        match self {
            Unit::Bytes => "bytes such as `80GB` or `80GiB`, above 0",
            Unit::Bandwidth => "a bandwidth such as `450GB/s` or `100Gbit/s`, above 0",
            Unit::Speed => "a speed such as `312TFLOP/s`, above 0",
            Unit::Latency => "a time such as `5us`, of at least 0",
        }
    }

    /// The number in bytes, bytes per second, operations per second or seconds.
    pub fn parse(self, text: &str) -> Option<f64> {
        const LARGEST: f64 = 1e30;
        let scaled = |(suffix, scale): &(&str, f64)| {
            let digits = text.strip_suffix(suffix)?.trim_end();
            Some(real(digits)? * scale)
        };
        let value = self.suffixes().iter().find_map(scaled).or_else(|| real(text))?;
        let least = if self == Unit::Latency { 0.0 } else { f64::MIN_POSITIVE };
        (least..=LARGEST).contains(&value).then_some(value)
    }

    /// The way out of a value that has nearly this unit.
    pub fn hint(self, text: &str) -> Option<String> {
        let number = |letter: char| letter.is_ascii_digit() || "+-._ ".contains(letter);
        let (digits, suffix) = text.split_at(text.find(|letter| !number(letter))?);
        let bits = suffix.replace("bit", "b").replace("ps", "/s").replace('b', "bit");
        let bits =
            if self == Unit::Bandwidth && suffix.contains('b') { bits } else { suffix.into() };
        let nearly = |name: &&str| TAILS.iter().any(|tail| plain(&bits) + tail == plain(name));
        let meant = self.suffixes().iter().map(|(name, _)| *name).find(nearly)?;
        let written = format!("{}{meant}", digits.trim_end());
        self.parse(&written).map(|_| format!("did you mean `{written}`?"))
    }
}

/// Endings that are often left out of units.
const TAILS: [&str; 4] = ["", "s", "b", "bs"];

/// A unit's letters alone: `TFLOPS` and `TFLOP/s` are the same.
fn plain(unit: &str) -> String {
    unit.chars()
        .filter(char::is_ascii_alphabetic)
        .map(|letter| letter.to_ascii_lowercase())
        .collect()
}

/// Bytes per second, as in `200GB/s`; `None` where the text says no bandwidth above 0.
pub fn bandwidth(text: &str) -> Option<f64> {
    Unit::Bandwidth.parse(text)
}

/// Bytes per second where prefixes are powers of 1024, as in textbooks that count tokens in such units; `None` as for [`bandwidth`].
pub fn binary_bandwidth(text: &str) -> Option<f64> {
    const PREFIXES: [(&str, f64); 3] = [("MB/s", 1e6), ("GB/s", 1e9), ("TB/s", 1e12)];
    let decimal = bandwidth(text)?;
    let power = PREFIXES.iter().position(|(suffix, _)| text.ends_with(suffix));
    let binary = |index: usize| 1024_f64.powi(index as i32 + 2) / PREFIXES[index].1;
    Some(decimal * power.map_or(1.0, binary))
}
