//! Data goes to standard output, messages to standard error: the one place where text leaves the program.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use annulus_experiment::Device;
use annulus_train::device_warning;

use crate::failure::{Failure, INTERNAL};
use crate::shown;

/// One line of data. A reader that has gone is no error: `annulus plan FILE | head` is meant so.
///
/// # Errors
/// Where the line cannot be written, on a full disk for example.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    data(&shown::escaped(text))
}

/// The same of text that is our own, with the colours that a terminal shows.
pub(crate) fn own(text: &str) -> Result<(), Failure> {
    data(text)
}

fn data(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
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
/// What the system says.
pub(crate) fn file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(there) if !there.is_file() && !there.is_dir() => fs::write(path, bytes),
        _ => annulus_files::write(path, bytes),
    }
}

/// Where `auto` takes the CPU though this program could use a GPU: why.
pub(crate) fn warn_of_device(wanted: Device) {
    if let Some(warning) = device_warning(wanted) {
        say(&format!("warning: {warning}"));
    }
}

/// One message. Who does not read it does not end a run.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", shown::message(text));
}
