//! Data goes to standard output, talk to standard error. A closed pipe never ends a run.

use std::io::{self, Write};

use crate::failure::Failure;

/// One line of data.
pub(crate) fn line(text: &str) {
    let _ = writeln!(io::stdout().lock(), "{text}");
}

/// One line of talk.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// What went wrong, and the way out.
pub(crate) fn error(failure: &Failure) {
    if failure.text.starts_with("error: ") {
        say(&failure.text);
    } else {
        say(&format!("error: {}", failure.text));
    }
    if let Some(hint) = &failure.hint {
        say(&format!("hint: {hint}"));
    }
}
