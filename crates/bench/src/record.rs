//! Lines for programs: printed, and kept in `experiments/results/NAME.jsonl` where that is asked.

use std::fs::{File, OpenOptions, create_dir_all};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::machine;
use crate::subject::{Fields, fields};

/// Where results are kept.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/results");

/// Prints a line of JSON.
#[expect(clippy::print_stdout, reason = "standard output is what programs read")]
pub(crate) fn print(fields: &Fields) {
    println!("{}", Value::Object(fields.clone()));
}

/// A line with the processor and the commit.
pub(crate) fn stamped(line: &Fields) -> Fields {
    let mut line = line.clone();
    line.insert("processor".into(), machine::describe()["processor"].clone());
    line.insert("commit".into(), Value::from(machine::commit()));
    line
}

/// A file that lines are appended to; or none.
pub(crate) struct Record(Option<File>);

impl Record {
    /// Opens the file of `name`, to append.
    pub(crate) fn open(name: Option<&str>) -> Result<Record> {
        Record::open_in(Path::new(FOLDER), name)
    }

    fn open_in(folder: &Path, name: Option<&str>) -> Result<Record> {
        let Some(name) = name else { return Ok(Record(None)) };
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) {
            bail!("`--record {name}`: expected a name of letters, digits, `-` and `_`");
        }
        create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let path = folder.join(name).with_extension("jsonl");
        let file = OpenOptions::new().create(true).append(true).open(&path);
        Ok(Record(Some(file.with_context(|| path.display().to_string())?)))
    }

    /// Prints a line, and appends it.
    pub(crate) fn tell(&mut self, line: &Fields) -> Result<()> {
        print(line);
        self.append(line)
    }

    /// Prints a line with the processor and the commit, and appends it.
    pub(crate) fn conclude(&mut self, line: &Fields) -> Result<()> {
        print(&stamped(line));
        self.append(line)
    }

    /// Appends `line` with the day, the machine, the commit and the command.
    pub(crate) fn append(&mut self, line: &Fields) -> Result<()> {
        let Some(file) = &mut self.0 else { return Ok(()) };
        let found = line.clone();
        let mut line = fields(json!({
            "date": machine::date(), "commit": machine::commit(), "machine": machine::describe(),
            "command": command(),
        }));
        line.extend(found);
        for word in ["command", "against"] {
            if let Some(Value::String(text)) = line.get_mut(word) {
                *text = without_folders(text);
            }
        }
        // One call: lines of two processes do not mix.
        file.write_all(format!("{}\n", Value::Object(line)).as_bytes())?;
        Ok(())
    }
}

/// A command with absolute paths cut to their last part: where programs lie on one machine means nothing on another.
fn without_folders(command: &str) -> String {
    let last = |word: &str| match (word.find('/'), word.rfind('/')) {
        (Some(first), Some(end)) if word[..first].trim_matches(['\'', '"']).is_empty() => {
            format!("{}{}", &word[..first], &word[end + 1..])
        }
        _ => word.to_owned(),
    };
    command.split(' ').map(last).collect::<Vec<_>>().join(" ")
}

/// The words after `cargo xtask bench`.
fn command() -> String {
    let words: Vec<String> = std::env::args().skip(1).map(|word| quoted(&word)).collect();
    words.join(" ")
}

/// A word as a shell reads it.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=.,:/+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_appended_with_day_machine_commit_and_command() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let results = folder.path().join("results");
        for ratio in [1.0, 2.0] {
            let mut record = Record::open_in(&results, Some("points"))?;
            record.append(&fields(json!({ "ratio": ratio })))?;
        }
        let text = std::fs::read_to_string(results.join("points.jsonl"))?;
        let lines: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        assert_eq!(lines.iter().map(|line| &line["ratio"]).collect::<Vec<_>>(), [1.0, 2.0]);
        assert!(lines[0]["machine"]["processor"].as_str().is_some_and(|name| !name.is_empty()));
        assert!(["date", "commit", "command"].iter().all(|key| lines[0][key].is_string()));
        Ok(())
    }

    #[test]
    fn recorded_commands_name_no_folder_of_this_machine() {
        let typed =
            "step --python /a/b/python --against '/a/python /c/peer.py --n 4' --text some/book.txt";
        let kept = "step --python python --against 'python peer.py --n 4' --text some/book.txt";
        assert_eq!(without_folders(typed), kept);
    }

    #[test]
    fn words_are_quoted_where_a_shell_would_cut_them() {
        let words = ["--tokens", "4k,8k", "python a.py", "it's", ""].map(quoted);
        assert_eq!(words, ["--tokens", "4k,8k", "'python a.py'", "'it'\\''s'", "''"]);
    }
}
