//! Data goes to standard output, talk to standard error. A closed pipe never ends a run.

use std::io::{self, Write};

/// One line of data.
pub(crate) fn line(text: &str) {
    let _ = writeln!(io::stdout().lock(), "{text}");
}

/// One line of talk.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
