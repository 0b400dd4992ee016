//! `metrics.jsonl`: a line per logged step, floats with 17 significant digits, written at once so that a killed run keeps its lines.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::Result;
use crate::folder::line::{Line, Parser};
use crate::folder::{jsonl, write_atomically};
use crate::sink::{Sink, Value};

/// The file's name in a run's folder.
pub(crate) const FILE: &str = "metrics.jsonl";

/// Writes lines of `metrics.jsonl`; values of the last recorded step are added to its line.
#[derive(Debug)]
pub(crate) struct Lines {
    path: PathBuf,
    file: File,
    /// The step of the last line, 0 of an evaluation before the first step; `None`: there is none.
    last: Option<u64>,
}

impl Lines {
    /// Opens the file in `folder` to continue it after step `step`: later lines, and a torn one, are dropped first; `None`: all lines, as a run
    /// begins. Returns the lines that remain.
    pub(crate) fn resume(folder: &Path, step: Option<u64>) -> io::Result<(Lines, Vec<Line>)> {
        let path = folder.join(FILE);
        let held = |line: &Line| step.is_some_and(|step| line.step <= step);
        let parser = Parser::default();
        let kept = |text: &str| Ok(Some(parser.checked(text)?).filter(held));
        let (file, lines) = jsonl::resume(&path, kept)?;
        let last = lines.last().map(|line| line.step);
        Ok((Lines { path, file, last }, lines))
    }

    /// Writes the file again if somebody removed or replaced it: the open file still has every line.
    fn bring_back(&mut self) -> io::Result<()> {
        if is_at(&self.file, &self.path)? {
            return Ok(());
        }
        let mut text = Vec::new();
        self.file.rewind()?;
        self.file.read_to_end(&mut text)?;
        write_atomically(&self.path, &text)?;
        self.file = annulus_files::append(&self.path)?;
        Ok(())
    }

    /// Adds values to the last line of the file, that of `step`; if somebody cut it off, they become a line of their own.
    fn amend(&mut self, step: u64, values: &[(&str, Value<'_>)]) -> io::Result<()> {
        let parser = Parser::default();
        let is_it = |text: &str| parser.line(text).is_some_and(|last| last.step == step);
        if jsonl::extend_last(&self.path, is_it, &members(values))? {
            return Ok(());
        }
        let (mut file, _) = jsonl::resume(&self.path, |text| Ok(Some(parser.checked(text)?)))?;
        file.write_all(line(step, values).as_bytes())?;
        self.file = file;
        Ok(())
    }
}

impl Sink for Lines {
    fn record(&mut self, step: u64, values: &[(&str, Value<'_>)]) -> io::Result<()> {
        self.bring_back()?;
        if self.last == Some(step) {
            return self.amend(step, values);
        }
        self.last = Some(step);
        self.file.write_all(line(step, values).as_bytes())
    }
    fn flush(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// All lines of `metrics.jsonl` of the run in `folder`.
pub(crate) fn read_lines(folder: &Path) -> io::Result<Vec<Line>> {
    let path = folder.join(FILE);
    let text = jsonl::text(&path).map_err(|error| jsonl::named(&path, &error))?;
    let parser = Parser::default();
    Ok(text.lines().filter_map(|text| parser.line(text)).collect())
}

/// All lines of the run in `folder`, and whether the last one is torn: being written, or its writer was killed. Earlier ones must be whole.
pub(crate) fn checked_lines(folder: &Path) -> Result<(Vec<Line>, bool)> {
    let parser = Parser::default();
    jsonl::read(&folder.join(FILE), |text| parser.checked(text))
}

/// Whether `path` still names the open `file`.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let ours = file.metadata()?;
    let there = fs::symlink_metadata(path);
    Ok(there.is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())))
}

#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> io::Result<bool> {
    fs::exists(path)
}

fn line(step: u64, values: &[(&str, Value<'_>)]) -> String {
    format!("{{\"step\": {step}{}}}\n", members(values))
}

fn members(values: &[(&str, Value<'_>)]) -> String {
    let mut text = String::new();
    for (tag, value) in values {
        let value = match value {
            Value::Number(number) => digits(*number),
            Value::PerRank(counts) => format!("{counts:?}"),
            Value::SecondsPerRank(seconds) => {
                let seconds: Vec<String> = seconds.iter().copied().map(digits).collect();
                format!("[{}]", seconds.join(", "))
            }
        };
        // Writing to a string cannot fail.
        let _ = write!(text, ", {}: {value}", Json::from(*tag));
    }
    text
}

/// All digits of a number; `null` for what is not finite, which JSON cannot express.
fn digits(number: f64) -> String {
    if number.is_finite() { format!("{number:.16e}") } else { "null".into() }
}

#[cfg(test)]
mod tests {
    use annulus_experiment::tags::EVALUATE_LOSS;

    use super::*;

    #[test]
    fn a_line_is_json_with_17_digits() {
        let waiting = ("comm/within_host/waiting", Value::SecondsPerRank(&[0.5, 0.0]));
        let bytes = ("comm/bytes", Value::PerRank(&[3, 4]));
        let text = line(7, &[("train/loss", Value::Number(0.1)), bytes, waiting]);
        let wanted = "{\"step\": 7, \"train/loss\": 1.0000000000000001e-1, \"comm/bytes\": [3, 4], \
                      \"comm/within_host/waiting\": [5.0000000000000000e-1, 0.0000000000000000e0]}\n";
        assert_eq!(text, wanted);
        let back = Parser::default().checked(&text).unwrap();
        assert_eq!(back.step, 7);
        let each = |tag: &str| back.get(tag).unwrap().each().to_vec();
        assert_eq!(each("train/loss"), [0.1]);
        assert_eq!(each("comm/bytes"), [3.0, 4.0]);
    }

    #[test]
    fn later_and_torn_lines_are_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let text = "{\"step\": 1}\n{\"step\": 2}\n{\"step\": 3}\n{\"st";
        std::fs::write(folder.path().join(FILE), text).unwrap();
        let (mut lines, kept) = Lines::resume(folder.path(), Some(2)).unwrap();
        assert_eq!(kept.len(), 2);
        lines.record(3, &[]).unwrap();
        lines.record(3, &[(EVALUATE_LOSS, Value::Number(2.0))]).unwrap();
        lines.record(4, &[]).unwrap();
        let text = std::fs::read_to_string(folder.path().join(FILE)).unwrap();
        let third = "{\"step\": 3, \"evaluate/loss\": 2.0000000000000000e0}";
        assert_eq!(text, format!("{{\"step\": 1}}\n{{\"step\": 2}}\n{third}\n{{\"step\": 4}}\n"));
        assert!(read_lines(folder.path()).unwrap()[2].has_evaluation());
    }

    /// A line may be longer than what is read at once, and so may all before it.
    #[test]
    fn values_are_added_to_long_lines() {
        let folder = tempfile::tempdir().unwrap();
        let (mut lines, _) = Lines::resume(folder.path(), None).unwrap();
        let counts: Vec<u64> = (0..20_000).collect();
        let mut wanted = String::new();
        for (step, ranks) in [(1, 20_000), (2, 3), (3, 5000), (4, 4000)] {
            let values = [("comm/bytes", Value::PerRank(&counts[..ranks]))];
            let added = [("evaluate/loss", Value::Number(0.5))];
            lines.record(step, &values).unwrap();
            lines.record(step, &added).unwrap();
            wanted.push_str(&line(step, &[&values[..], &added].concat()));
        }
        assert_eq!(fs::read_to_string(folder.path().join(FILE)).unwrap(), wanted);
    }

    #[test]
    fn values_of_a_line_that_somebody_cut_off_have_one_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let (first, second) =
            ("{\"step\": 1}\n", "{\"step\": 2, \"evaluate/loss\": 2.0000000000000000e0}\n");
        for (left, kept) in [(0, ""), (5, ""), (first.len(), first), (first.len() + 5, first)] {
            let (mut lines, _) = Lines::resume(folder.path(), None).unwrap();
            lines.record(1, &[]).unwrap();
            lines.record(2, &[("train/loss", Value::Number(1.0))]).unwrap();
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(left as u64).unwrap();
            lines.record(2, &[(EVALUATE_LOSS, Value::Number(2.0))]).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("{kept}{second}"), "{left}");
        }
    }

    #[test]
    fn a_broken_line_is_named_but_a_torn_last_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            std::fs::write(folder.path().join(FILE), text).unwrap();
            checked_lines(folder.path()).map(|(lines, torn)| (lines.len(), torn))
        };
        assert_eq!(read("{\"step\": 1}\n{\"step\": 2}\n").unwrap(), (2, false));
        assert_eq!(read("{\"step\": 1}\n{\"st").unwrap(), (1, true));
        for (text, wanted) in [
            ("{\"step\": 1}\nwhat\n{\"step\": 2}\n", "line 2: no object of JSON"),
            ("{\"loss\": 1}\n", "line 1: no object of JSON with a whole number `step`"),
            ("{\"step\": 1, \"a\": [1, \"x\"]}\n", "line 1: `a` is neither a number nor a list"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.to_string().contains(wanted) && error.hint().is_some(), "{error}");
            assert_eq!(error.exit_code(), 3);
        }
    }
}
