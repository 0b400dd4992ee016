//! Data goes to standard output, talk to standard error. A closed pipe never ends a run.

use std::io::{self, Write};

use annulus_experiment::Device;
use annulus_train::device_warning;

/// One line of data.
pub(crate) fn line(text: &str) {
    let _ = writeln!(io::stdout().lock(), "{text}");
}

/// Where `auto` takes the CPU though this program could use a GPU: why.
pub(crate) fn warn_of_device(wanted: Device) {
    if let Some(warning) = device_warning(wanted) {
        say(&format!("warning: {warning}"));
    }
}

/// One line of talk.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
