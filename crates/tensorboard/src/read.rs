//! Reads an event file back, for tests and tools.

use std::path::Path;
use std::{fs, io};

use crate::Event;
use crate::record;

/// The events of the file `path`, in order. A torn tail, as a crash leaves it, is left out.
///
/// # Errors
/// A file that cannot be read, or is no event file.
pub fn read(path: &Path) -> io::Result<Vec<Event>> {
    let bytes = fs::read(path)?;
    let mut rest = &bytes[..];
    let mut events = Vec::new();
    while let Some((payload, after)) = record::split(rest) {
        events.push(Event::decode(payload).ok_or(io::ErrorKind::InvalidData)?);
        rest = after;
    }
    Ok(events)
}
