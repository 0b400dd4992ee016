//! Data goes to standard output, messages to standard error: the one place where text leaves the program.

use std::fmt::Display;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use annulus_experiment::Device;
use annulus_train::device_warning;
use serde_json::Value;

use crate::failure::{Failure, INTERNAL};
use crate::shown;

/// One line of data. A reader that has gone is no error: `annulus plan FILE | head` is meant so.
///
/// # Errors
/// The line cannot be written, on a full disk for example.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    data(&shown::escaped(text))
}

/// The data of a command: one line of JSON, or text.
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

/// One line of our own, with the colours that a terminal shows.
pub(crate) fn own(text: &str) -> Result<(), Failure> {
    data(text)
}

/// A part of a line of data, at once.
pub(crate) fn piece(text: &str) -> Result<(), Failure> {
    written(&shown::escaped(text))
}

fn data(text: &str) -> Result<(), Failure> {
    written(&format!("{text}\n"))
}

fn written(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            let hint = "free some space, or send the output elsewhere".to_owned();
            Err(Failure::new(INTERNAL, format!("cannot write the output: {error}"), Some(hint)))
        }
        _ => Ok(()),
    }
}

/// A file that was asked for: whole or not at all, but for what is no file, such as `/dev/stdout`.
///
/// # Errors
/// It cannot be written: its name is wrong, or there is no space.
pub(crate) fn file(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let written = match fs::metadata(path) {
        Ok(there) if !there.is_file() && !there.is_dir() => fs::write(path, bytes),
        _ => annulus_files::write(path, bytes),
    };
    written.map_err(|error| {
        let message = format!("cannot write `{}`: {error}", path.display());
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                let hint = "free some space, or write to another disk".to_owned();
                Failure::new(INTERNAL, message, Some(hint))
            }
            _ => Failure::usage(message, "name a file in a folder that exists and can be written"),
        }
    })
}

/// A warning where `auto` takes the CPU though this program could use a GPU.
pub(crate) fn warn_of_device(wanted: &Device) {
    device_warning(wanted).iter().for_each(warn);
}

/// A warning.
pub(crate) fn warn(warning: impl Display) {
    say(&format!("warning: {warning}"));
}

/// One message. Who does not read it does not end a run.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", shown::message(text));
}
