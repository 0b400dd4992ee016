//! Reads an event file back, for tests and tools.

use std::path::Path;
use std::{fs, io};

use crate::record;
use crate::{Event, Payload};

/// The events of the file `path`, in order; one that holds several values is as many events. A file without a byte has none: its writer
/// may have just created it. A record that the file ends in the middle of, or zeros at its end, as crashes leave them, are left out.
///
/// # Errors
/// A file that cannot be read; [`io::ErrorKind::InvalidData`] where it does not begin with a whole event [`Payload::Version`], and so is no
/// event file, or where a record before its end is damaged.
pub fn read(path: &Path) -> io::Result<Vec<Event>> {
    let bytes = fs::read(path)?;
    let (mut rest, mut events) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        let at = bytes.len() - rest.len();
        if at > 0 && rest.iter().all(|byte| *byte == 0) {
            break;
        }
        let is_first = at == 0;
        let (payload, after) = match record::split(rest).ok_or_else(|| invalid(at))? {
            Some(whole) => whole,
            None if is_first => return Err(invalid(at)),
            None => break,
        };
        let found = Event::decode(payload).ok_or_else(|| invalid(at))?;
        if is_first && !is_version(&found) {
            return Err(invalid(at));
        }
        events.extend(found);
        rest = after;
    }
    Ok(events)
}

fn is_version(events: &[Event]) -> bool {
    matches!(events, [Event { payload: Payload::Version(_), .. }, ..])
}

/// What is wrong with the record at byte `at`.
fn invalid(at: usize) -> io::Error {
    let message = match at {
        0 => "no event file: it does not begin with the version of the format".to_owned(),
        _ => format!("damaged event file: the record at byte {at} is not as it was written"),
    };
    io::Error::new(io::ErrorKind::InvalidData, message)
}
