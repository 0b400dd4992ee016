//! Numbers with units, wherever a file or the command line has one: `64k`, `80GB`, `450GB/s`,
//! `312TFLOP/s`, `5us`, `10min`.
//!
//! `k`, `M`, `G` and `T` alone, and `KiB` to `TiB`, are powers of 1024; before another unit they are powers of ten,
//! as vendors count. A number without a unit is tokens, bytes, operations per second or seconds; a bandwidth needs one.

use crate::kind::{real, whole};

/// The dimension of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Tokens of a sequence.
    Tokens,
    /// Bytes of memory.
    Bytes,
    /// Bytes per second over a link, one way.
    Bandwidth,
    /// Floating-point operations per second.
    Speed,
    /// A time in seconds.
    Time,
}

/// Suffixes and their factors; where one is the end of another, the longer one comes first.
type Suffixes = &'static [(&'static str, f64)];

const K: f64 = 1024.0;
/// Whole numbers of bytes or tokens are exact up to here.
const EXACT: f64 = (1_u64 << 53) as f64;
const TOKENS: Suffixes = &[("k", K), ("M", K * K), ("G", K * K * K)];
const BYTES: Suffixes = &[
    ("KiB", K),
    ("MiB", K * K),
    ("GiB", K * K * K),
    ("TiB", K * K * K * K),
    ("kB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("B", 1.0),
    ("k", K),
    ("M", K * K),
    ("G", K * K * K),
    ("T", K * K * K * K),
];
const BANDWIDTH: Suffixes = &[
    ("MiB/s", K * K),
    ("GiB/s", K * K * K),
    ("kB/s", 1e3),
    ("MB/s", 1e6),
    ("GB/s", 1e9),
    ("TB/s", 1e12),
    ("Mbit/s", 1e6 / 8.0),
    ("Gbit/s", 1e9 / 8.0),
    ("Tbit/s", 1e12 / 8.0),
    ("B/s", 1.0),
];
const SPEED: Suffixes =
    &[("MFLOP/s", 1e6), ("GFLOP/s", 1e9), ("TFLOP/s", 1e12), ("PFLOP/s", 1e15), ("FLOP/s", 1.0)];
const TIME: Suffixes = &[
    ("ns", 1e-9),
    ("us", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("min", 60.0),
    ("m", 60.0),
    ("h", 3600.0),
    ("d", 86400.0),
];

impl Unit {
    fn suffixes(self) -> Suffixes {
        match self {
            Unit::Tokens => TOKENS,
            Unit::Bytes => BYTES,
            Unit::Bandwidth => BANDWIDTH,
            Unit::Speed => SPEED,
            Unit::Time => TIME,
        }
    }

    /// The accepted values, in words.
    pub fn wanted(self) -> &'static str {
        match self {
            Unit::Tokens => "a count such as `4096` or `64k`",
            Unit::Bytes => "bytes such as `80GB` or `80GiB`, above 0",
            Unit::Bandwidth => "a bandwidth such as `450GB/s` or `100Gbit/s`, of at least 1B/s",
            Unit::Speed => "a speed such as `312TFLOP/s`, of at least 1FLOP/s",
            Unit::Time => "a time such as `5us`, of at least 0",
        }
    }

    /// The least number, of slower rates the seconds of a plan would overflow; and the largest, also as it is written.
    fn limits(self) -> (f64, f64, &'static str) {
        match self {
            Unit::Tokens => (f64::MIN_POSITIVE, EXACT, "8388608G"),
            Unit::Bytes => (f64::MIN_POSITIVE, EXACT, "8192TiB"),
            Unit::Bandwidth => (1.0, 1e30, "1e18TB/s"),
            Unit::Speed => (1.0, 1e30, "1e15PFLOP/s"),
            Unit::Time => (0.0, 1e30, "1e30s"),
        }
    }

    /// The number in tokens, bytes, bytes per second, operations per second or seconds.
    pub fn parse(self, text: &str) -> Option<f64> {
        let (least, largest, _) = self.limits();
        self.read(text).filter(|value| (least..=largest).contains(value))
    }

    /// [`Unit::parse`] without limits.
    fn read(self, text: &str) -> Option<f64> {
        let scaled = |(suffix, scale): &(&str, f64)| {
            let digits = self.without(suffix, text)?.trim_end();
            Some(real(digits)? * scale)
        };
        let bare = || real(text).filter(|_| self != Unit::Bandwidth);
        self.suffixes().iter().find_map(scaled).or_else(bare)
    }

    /// The whole number that `text` is; `None` where it is none, as `0.1k` tokens. `1.5G` is one. A fraction of a byte is dropped:
    /// `79.2GiB` is no whole number of them.
    pub fn count(self, text: &str) -> Option<u64> {
        let plain = whole(text);
        plain.or_else(|| {
            let value = self.parse(text)?;
            let is_whole = value.fract() == 0.0 || self == Unit::Bytes && value >= 1.0;
            is_whole.then_some(value as u64)
        })
    }

    /// `text` before a suffix. The case of letters matters only where a bit is no byte.
    fn without<'a>(self, suffix: &str, text: &'a str) -> Option<&'a str> {
        let (digits, end) = text.split_at_checked(text.len().checked_sub(suffix.len())?)?;
        let same =
            if self == Unit::Bandwidth { end == suffix } else { end.eq_ignore_ascii_case(suffix) };
        same.then_some(digits)
    }

    /// The way out of a value that has nearly this unit.
    pub fn hint(self, text: &str) -> Option<String> {
        if self == Unit::Bandwidth && real(text).is_some() {
            return Some(format!("bytes per second need a unit, such as `{text}GB/s`"));
        }
        let (_, largest, word) = self.limits();
        if self.read(text).is_some_and(|value| value > largest) {
            return Some(format!("the largest is `{word}`"));
        }
        let number = |letter: char| letter.is_ascii_digit() || "+-._ ".contains(letter);
        let (digits, suffix) = text.split_at(text.find(|letter| !number(letter))?);
        let bits = suffix.replace("bit", "b").replace("ps", "/s").replace('b', "bit");
        let bits =
            if self == Unit::Bandwidth && suffix.contains('b') { bits } else { suffix.into() };
        let nearly = |name: &&str| {
            let (own, name) = (plain(&bits), plain(name));
            let plural = own.strip_suffix('s').unwrap_or(&own) == name;
            let spoken = self == Unit::Time && SPOKEN.contains(&(own.trim_end_matches('s'), &name));
            plural || spoken || TAILS.iter().any(|tail| own.clone() + tail == name)
        };
        let meant = self.suffixes().iter().map(|(name, _)| *name).find(nearly)?;
        let written = format!("{}{meant}", digits.trim_end());
        self.parse(&written)
            .filter(|_| written != text)
            .map(|_| format!("did you mean `{written}`?"))
    }
}

/// Endings that are often left out of units.
const TAILS: [&str; 4] = ["", "s", "b", "bs"];

/// Times as they are spoken, without the `s` of several.
const SPOKEN: [(&str, &str); 6] =
    [("sec", "s"), ("second", "s"), ("minute", "min"), ("hour", "h"), ("hr", "h"), ("day", "d")];

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
