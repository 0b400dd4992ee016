//! Parsers of arguments' values: numbers with units, paths, devices, replacements.

use std::path::PathBuf;

use annulus_experiment::{Device, MOST_TOKENS, Override, Unit};
use clap::builder::RangedU64ValueParser;

/// A number of ranks that run as threads of this process, or that are compared or drawn: fewer than a planned mesh may have.
pub(crate) fn ranks() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=256)
}

/// A size or count of a model.
pub(crate) fn elements() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1 << 20)
}

/// A whole number of at least 1.
pub(crate) fn at_least_one<T: std::str::FromStr + From<u8> + PartialOrd>(
    word: &str,
) -> Result<T, String> {
    let number = word.parse().ok().filter(|number| *number >= T::from(1));
    number.ok_or_else(|| "expected a whole number of at least 1".to_owned())
}

/// A number of bytes, such as 5GB or 5G.
pub(crate) fn bytes(word: &str) -> Result<u64, String> {
    let bytes = Unit::Bytes.count(word).filter(|bytes| (1..=1 << 40).contains(bytes));
    bytes.ok_or_else(|| "expected bytes such as 5GB or 512M, from 1 to 1T".to_owned())
}

/// The path of a picture, which must end in `.svg`.
pub(crate) fn svg(word: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(word);
    let is_svg = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("svg"));
    if is_svg {
        Ok(path)
    } else {
        Err("the picture is SVG: expected a name that ends in .svg".to_owned())
    }
}

/// A number of tokens, bounded as in an experiment so that their pairs can be counted in 64 bits.
pub(crate) fn tokens(word: &str) -> Result<usize, String> {
    let count = Unit::Tokens.count(word).filter(|count| (1..=MOST_TOKENS).contains(count));
    let count = count.and_then(|count| usize::try_from(count).ok());
    count
        .ok_or_else(|| format!("expected a count such as 4096, 64k or 1M, from 1 to {MOST_TOKENS}"))
}

pub(crate) fn bandwidth(word: &str) -> Result<f64, String> {
    let read = annulus_experiment::binary_bandwidth(word);
    read.ok_or_else(|| "expected bytes per second such as 200GB/s".to_owned())
}

pub(crate) fn device(word: &str) -> Result<Device, String> {
    Device::from_word(word)
        .ok_or_else(|| "expected auto, cpu, cuda, cuda:N, or several as cuda:0-3".to_owned())
}

pub(crate) fn replacement(word: &str) -> Result<Override, String> {
    Override::split(word).ok_or_else(|| {
        "expected KEY=VALUE without spaces around `=`, as in `data.tokens=64k`".to_owned()
    })
}
