//! The only place where the program prints: data to standard output, messages to standard error.

use std::env;
use std::ffi::OsString;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};

use annulus_experiment::Device;
use annulus_train::{Exit, device_warning};
use serde_json::Value;

use crate::failure::Failure;
use crate::{output, shown};

/// Prints a line of data. A closed pipe is no error, as in `annulus plan FILE | head`.
///
/// # Errors
/// The line cannot be written, on a full disk for example.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    data(&annulus_text::escaped(text))
}

/// Prints the data of a command: one line of JSON, or text.
///
/// # Errors
/// The line cannot be written.
pub(crate) fn either(
    json: bool,
    value: impl FnOnce() -> Value,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    line(&if json { value().to_string() } else { text() })
}

/// Prints text of this program with its terminal colours, which are not escaped.
pub(crate) fn styled(text: &str) -> Result<(), Failure> {
    data(text)
}

/// Whether standard output is a terminal that shows styles, and whose user wants them.
pub(crate) fn shows_styles() -> bool {
    io::stdout().is_terminal() && wants_styles(|name| env::var_os(name))
}

/// Whether these environment variables let a terminal have colours, bold and underlined text.
fn wants_styles(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let is_refused = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
    !is_refused && variable("TERM").is_none_or(|terminal| terminal != "dumb")
}

/// Prints part of a line of data, without buffering.
pub(crate) fn piece(text: &str) -> Result<(), Failure> {
    written(&annulus_text::escaped(text))
}

fn data(text: &str) -> Result<(), Failure> {
    written(&format!("{text}\n"))
}

fn written(text: &str) -> Result<(), Failure> {
    piped(text.as_bytes()).map_err(|error| {
        let hint = "free some space, or send the output elsewhere".to_owned();
        Failure::new(Exit::Internal, format!("cannot write the output: {error}"), Some(hint))
    })
}

/// Writes to standard output, of which a reader may take only the beginning.
fn piped(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Writes an output file, whole or not at all; where it is a link, what that leads to. An open file, such as `/dev/stdout`, and something
/// that is no regular file are written directly.
///
/// # Errors
/// It is a file of a run or a model, or cannot be written, for example because of its name or of a full disk.
pub(crate) fn file(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    output::check(path, &[])?;
    let there = led_to(path);
    let is_special = |there: fs::Metadata| !there.is_file() && !there.is_dir();
    let written = match open_file(&there) {
        // By its own descriptor: what is printed later goes behind it.
        Some("1") => piped(bytes),
        Some(_) => File::options().append(true).open(path).and_then(|mut to| to.write_all(bytes)),
        None if fs::metadata(path).is_ok_and(is_special) => fs::write(path, bytes),
        None => annulus_files::write(&there, bytes),
    };
    written.map_err(|error| {
        let message = format!("cannot write `{}`: {error}", path.display());
        if annulus_files::is_full(&error) {
            let hint = "free some space, or write to another disk".to_owned();
            Failure::new(Exit::Internal, message, Some(hint))
        } else {
            Failure::usage(message, "name a file in a folder that exists and can be written")
        }
    })
}

/// The file that a path leads to through links, up to one that a process has open.
pub(crate) fn led_to(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    // More links than a path may have.
    for _ in 0..40 {
        let to = fs::read_link(&path).ok().filter(|_| open_file(&path).is_none());
        let Some(to) = to else { break };
        path = path.parent().unwrap_or(Path::new("")).join(to);
    }
    path
}

/// The number of a file that a process has open, as in `/proc/self/fd/1`, to which `/dev/stdout` leads.
fn open_file(path: &Path) -> Option<&str> {
    let folder = path.parent()?;
    let is_open =
        folder == Path::new("/dev/fd") || (folder.starts_with("/proc") && folder.ends_with("fd"));
    path.file_name()?.to_str().filter(|_| is_open)
}

/// Warns if `auto` selects the CPU though this program could use a GPU.
pub(crate) fn warn_of_device(wanted: &Device) {
    device_warning(wanted).iter().for_each(warn);
}

/// Prints a warning.
pub(crate) fn warn(warning: impl Display) {
    say(&format!("warning: {warning}"));
}

/// Prints a message. A closed standard error is ignored, since it must not end a run.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", shown::message(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn styles_are_left_out_where_they_are_refused() {
        let wants = |given: &[(&str, &str)]| {
            let value = |name: &str| given.iter().find(|(key, _)| *key == name).map(|one| one.1);
            wants_styles(|name| value(name).map(OsString::from))
        };
        assert!(wants(&[]) && wants(&[("TERM", "xterm"), ("NO_COLOR", "")]));
        assert!(!wants(&[("TERM", "dumb")]) && !wants(&[("TERM", "xterm"), ("NO_COLOR", "1")]));
    }
}
