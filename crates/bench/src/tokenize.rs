//! The time of a byte in a line and in one ten times as long: `tokenize`.
//!
//! A line of ten times as many bytes is tokenised in turn with the shorter one, each into a cache of its
//! own; nothing is kept between them.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use annulus_data::{Cache, Records, Texts, Tokenizer, train_tokenizer};
use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;

use crate::record::{Record, print};
use crate::resident::Watch;
use crate::session::Verdict;
use crate::statistics::Quartiles;
use crate::step::root;
use crate::subject::fields;
use crate::values::positive;

/// How much longer the longer line is.
const LONGER: usize = 10;

/// A million bytes.
const MEGABYTE: usize = 1_000_000;

/// Tokens of the tokenizer that is trained where none is given.
const VOCABULARY: usize = 8192;

/// Pages that the line is made of where no text is given, below the repository's root.
const TEXTS: [&str; 3] = ["README.md", "crates/README.md", "experiments/README.md"];

/// The command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// Millions of bytes of the shorter line
    #[arg(long, default_value_t = 10, value_parser = positive)]
    pub(crate) megabytes: usize,
    /// `bytes` or a tokenizer.json [default: one that is trained on the text]
    #[arg(long, value_name = "NAME")]
    pub(crate) tokenizer: Option<String>,
    /// The text of the lines [default: this project's pages]
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Samples of each
    #[arg(long, default_value_t = 3, value_parser = positive)]
    pub(crate) samples: usize,
    /// Exit with 10 where a byte of the longer line takes more than RATIO times as long
    #[arg(long, value_name = "RATIO")]
    pub(crate) at_most: Option<f64>,
    /// Exit with 10 where the process took more memory, in MiB
    #[arg(long, value_name = "MIB")]
    pub(crate) memory: Option<f64>,
    /// Append the result to `experiments/results/NAME.jsonl`
    #[arg(long, value_name = "NAME")]
    pub(crate) record: Option<String>,
}

/// Times both lines in turn, and compares medians.
pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    let mut record = Record::open(arguments.record.as_deref())?;
    let scratch = tempfile::tempdir()?;
    let texts = match &arguments.text {
        Some(path) => vec![path.clone()],
        None => TEXTS.iter().map(|path| root().join(path)).collect(),
    };
    let tokenizer = match &arguments.tokenizer {
        Some(name) => Tokenizer::open(name)?,
        None => trained(&texts, &scratch.path().join("tokenizer.json"))?,
    };
    let shorter = arguments.megabytes * MEGABYTE;
    let lines = [("short.txt", shorter), ("long.txt", shorter * LONGER)]
        .map(|(name, bytes)| (scratch.path().join(name), bytes));
    for (path, bytes) in &lines {
        write_line(path, &texts, *bytes)?;
    }
    Watch::start();
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..arguments.samples {
        for (line, times) in lines.iter().zip(&mut times) {
            times.push(time(line, &tokenizer, &scratch.path().join("cache"))?);
        }
    }
    let [short, long] = times.map(|times| Quartiles::of(&times).median);
    let (ratio, peak) = (long / short, Watch::peak());
    record.conclude(&fields(json!({
        "bench": "tokenize", "bytes": lines.map(|(_, bytes)| bytes), "ns_per_byte": [short, long],
        "ratio": ratio, "peak_mib": peak,
    })))?;
    let time = Verdict::at_most(ratio, arguments.at_most);
    Ok(time.or(Verdict::at_most(peak, arguments.memory)))
}

fn trained(texts: &[PathBuf], out: &Path) -> Result<Tokenizer> {
    train_tokenizer(texts, Records::Text, VOCABULARY, out)?;
    Ok(Tokenizer::open(&out.display().to_string())?)
}

/// Nanoseconds per byte; a line for every sample is printed.
fn time((path, bytes): &(PathBuf, usize), tokenizer: &Tokenizer, cache: &Path) -> Result<f64> {
    let start = Instant::now();
    let inputs = [path.clone()];
    let texts = Texts::new(&inputs, Records::Text, tokenizer);
    let tokens = Cache::open(&texts, cache, false, &mut |_| {})?.tokens();
    let seconds = start.elapsed().as_secs_f64();
    fs::remove_dir_all(cache)?;
    print(&fields(json!({
        "bench": "tokenize", "bytes": bytes, "tokens": tokens, "time_s": seconds,
    })));
    Ok(seconds * 1e9 / *bytes as f64)
}

/// `texts` without line breaks, again and again, cut off at `bytes` or at the character before.
fn write_line(path: &Path, texts: &[PathBuf], bytes: usize) -> Result<()> {
    let mut words = String::new();
    for text in texts {
        let text = fs::read_to_string(text).with_context(|| text.display().to_string())?;
        words.extend(text.split_whitespace().flat_map(|word| [word, " "]));
    }
    let mut file = BufWriter::new(File::create(path)?);
    let mut left = bytes;
    while left > 0 && !words.is_empty() {
        let part = (0..=left.min(words.len())).rev().find(|&end| words.is_char_boundary(end));
        let part = part.unwrap_or_default();
        file.write_all(&words.as_bytes()[..part])?;
        left = if part < words.len() { 0 } else { left - part };
    }
    Ok(file.flush()?)
}
