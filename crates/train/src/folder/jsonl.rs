//! Files with a JSON object per line, to which a run appends. The last line may be torn: it is being written, or its writer was killed.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use annulus_files::Pending;

use crate::error::failure;
use crate::{Result, TrainError};

/// The largest JSON-lines file that is read, in bytes: some million lines.
const LARGEST: u64 = 1 << 32;
/// How much of a file's end is read at once, in bytes.
const BLOCK: u64 = 1 << 14;

/// The content of a JSON-lines file; empty if there is no file yet.
pub(crate) fn text(path: &Path) -> io::Result<String> {
    match annulus_files::read(path, LARGEST) {
        Ok(bytes) => Ok(String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

/// Opens a file to append to it after the lines that `kept` keeps, which are returned; those of which it returns `None`, and a torn one, are
/// dropped. The file may be longer than memory: one line at a time is read.
///
/// # Errors
/// What the system says, and a whole line that `kept` refuses, by its number; all with the file's name.
pub(crate) fn resume<L>(
    path: &Path,
    kept: impl Fn(&str) -> std::result::Result<Option<L>, String>,
) -> io::Result<(File, Vec<L>)> {
    resumed(path, kept).map_err(|error| named(path, &error))
}

/// The error with the file's name, for those who know the folder alone.
pub(crate) fn named(path: &Path, error: &io::Error) -> io::Error {
    let name = path.file_name().unwrap_or_default().display();
    io::Error::new(error.kind(), format!("`{name}`: {error}"))
}

fn resumed<L>(
    path: &Path,
    kept: impl Fn(&str) -> std::result::Result<Option<L>, String>,
) -> io::Result<(File, Vec<L>)> {
    let (mut lines, mut number) = (Vec::new(), 0);
    let all_kept = each_line(path, |line| {
        number += 1;
        let (is_whole, is_blank) = (line.ends_with(b"\n"), line.trim_ascii().is_empty());
        let read = match kept(text_of(line)) {
            Err(why) if is_whole && !is_blank => {
                let message = format!("line {number}: {why}; delete that line");
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
            read => read.unwrap_or_default(),
        };
        let is_kept = read.is_some();
        lines.extend(read);
        Ok(is_kept && is_whole)
    })?;
    if !all_kept {
        let mut left = Pending::create(path)?;
        each_line(path, |line| {
            if matches!(kept(text_of(line)), Ok(Some(_))) {
                left.file_mut().write_all(line)?;
                // An editor may have left out the last line's end.
                left.file_mut().write_all(if line.ends_with(b"\n") { b"" } else { b"\n" })?;
            }
            Ok(true)
        })?;
        left.commit()?;
    }
    Ok((annulus_files::append(path)?, lines))
}

/// Adds `members`, each after a comma, to the object of the last line if `is_it` says that it is the one; returns whether it was. No other line
/// is read or written.
pub(crate) fn extend_last(
    path: &Path,
    is_it: impl FnOnce(&str) -> bool,
    members: &str,
) -> io::Result<bool> {
    const END: &[u8] = b"}\n";
    let mut file = File::options().read(true).write(true).open(path)?;
    let line = last_line(&mut file)?;
    if !line.ends_with(END) || !is_it(text_of(&line)) {
        return Ok(false);
    }
    let end = file.seek(SeekFrom::End(-(END.len() as i64)))?;
    let written = file.write_all(&[members.as_bytes(), END].concat());
    if written.is_err() {
        // As on a full disk: the line is as it was. Should that fail, too, it is torn, as after a kill.
        let _ = file.seek(SeekFrom::Start(end)).and_then(|_| file.write_all(END));
        let _ = file.set_len(end + END.len() as u64);
    }
    written.map(|()| true)
}

/// The last line of a file, with its end.
fn last_line(file: &mut File) -> io::Result<Vec<u8>> {
    let mut start = file.seek(SeekFrom::End(0))?;
    let mut tail = Vec::new();
    while start > 0 {
        let mut block = vec![0; start.min(BLOCK) as usize];
        start -= block.len() as u64;
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut block)?;
        block.append(&mut tail);
        tail = block;
        let before = &tail[..tail.len() - 1];
        if let Some(end) = before.iter().rposition(|byte| *byte == b'\n') {
            return Ok(tail.split_off(end + 1));
        }
    }
    Ok(tail)
}

/// Calls `of_line` for every line, with its end; whether all calls returned true. A file that is not there has no lines.
fn each_line(path: &Path, mut of_line: impl FnMut(&[u8]) -> io::Result<bool>) -> io::Result<bool> {
    let mut file = match annulus_files::open(path) {
        Ok(file) => BufReader::new(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error),
    };
    let (mut line, mut all) = (Vec::new(), true);
    while file.read_until(b'\n', &mut line)? > 0 {
        all &= of_line(&line)?;
        line.clear();
    }
    Ok(all)
}

/// A line without its end; empty where it is not UTF-8.
fn text_of(line: &[u8]) -> &str {
    std::str::from_utf8(line).unwrap_or_default().trim_end_matches(['\r', '\n'])
}

/// All lines, each read by `parse`, and whether the last one is torn.
///
/// # Errors
/// A file that cannot be read, and a line before the last that `parse` refuses, by its number.
pub(crate) fn read<L>(
    path: &Path,
    parse: impl Fn(&str) -> std::result::Result<L, String>,
) -> Result<(Vec<L>, bool)> {
    let text = text(path).map_err(|error| failure("read", path, &error))?;
    let mut lines = Vec::new();
    for (index, line) in text.split_inclusive('\n').enumerate() {
        match parse(line) {
            Ok(line) => lines.push(line),
            Err(_) if !line.ends_with('\n') => return Ok((lines, true)),
            Err(why) => {
                let message = format!("`{}`, line {}: {why}", path.display(), index + 1);
                let hint = "delete that line";
                return Err(TrainError::unreadable(message, hint));
            }
        }
    }
    Ok((lines, false))
}
