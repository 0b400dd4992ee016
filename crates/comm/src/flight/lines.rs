//! The lines of a flight record: a file mapped into memory whose lines are overwritten in place, and read back whole or not at all.
//!
//! A line has two slots, written in turn, each with the number of the write and a checksum. A process that is killed during a write
//! leaves the slot before it intact; a reader takes the newest slot that is whole.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::Path;

use memmap2::MmapMut;
use parking_lot::Mutex;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;
use twox_hash::XxHash3_64;

/// Bytes of a slot: a divisor of the page size, so that a slot lies in one page.
const SLOT: usize = 512;
/// The first line, the head, is so many times as long as the others.
const LONG: usize = 4;
/// Bytes of a number in a slot: a space and sixteen hexadecimal digits.
const SIGNS: usize = 17;
/// Bytes at the end of a slot: the checksum of all before it, and a newline.
const SUM: usize = SIGNS + 1;
/// Bytes at the end of a slot with the number of the write, the checksum and a newline.
const TAIL: usize = SIGNS + SUM;

/// The lines of a record that this process writes.
#[derive(Debug)]
pub(super) struct Lines {
    /// Held for its lock, which shows that the process is alive.
    _file: File,
    written: Mutex<Written>,
}

#[derive(Debug)]
struct Written {
    memory: MmapMut,
    /// How often each line was written.
    numbers: Vec<u64>,
}

impl Lines {
    /// Creates a file of so many lines.
    pub(super) fn new(path: &Path, lines: usize) -> io::Result<Lines> {
        // A crash may have left one.
        let _ = fs::remove_file(path);
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        // On file systems without locks nothing shows that this process is alive.
        let _ = file.try_lock();
        take(&file, slots(lines).start)?;
        // SAFETY: the file is ours and keeps its length. Nobody else writes it; readers copy it, and look at checksums.
        let memory = unsafe { MmapMut::map_mut(&file) }.map_err(|error| unmapped(path, &error))?;
        let written = Mutex::new(Written { memory, numbers: vec![0; lines] });
        Ok(Lines { _file: file, written })
    }

    /// Overwrites a line. Returns whether it could: what is too long for the line, or no JSON, is not written.
    pub(super) fn write(&self, line: usize, what: &impl Serialize) -> bool {
        let slots = slots(line);
        let mut text = [b' '; LONG * SLOT];
        let text = &mut text[..slots.len() / 2];
        let end = text.len() - TAIL;
        if serde_json::to_writer(&mut text[..end], what).is_err() {
            return false;
        }
        let mut written = self.written.lock();
        let Written { memory, numbers } = &mut *written;
        numbers[line] += 1;
        seal(text, numbers[line]);
        let at = slots.start + (numbers[line] % 2) as usize * text.len();
        memory[at..at + text.len()].copy_from_slice(text);
        true
    }
}

/// Allocates so many bytes on the disk: writing into mapped memory without disk space kills a process.
fn take(file: &File, length: usize) -> io::Result<()> {
    stay(file);
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, length as u64) {
        // Some file systems allocate space only for what is written.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
        Err(error) => return Err(error.into()),
    }
    io::Write::write_all(&mut &*file, &vec![b' '; length])
}

/// Asks for a file that is overwritten in place: on copy-on-write file systems (Btrfs) a later write otherwise needs new space.
#[cfg(target_os = "linux")]
fn stay(file: &File) {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    // Other file systems have no such flag, and need none.
    let _ = ioctl_getflags(file).and_then(|flags| ioctl_setflags(file, flags | IFlags::NOCOW));
}

#[cfg(not(target_os = "linux"))]
fn stay(_: &File) {}

fn unmapped(path: &Path, error: &io::Error) -> io::Error {
    let kind = match error.raw_os_error() {
        Some(code) if code == Errno::NODEV.raw_os_error() => io::ErrorKind::Unsupported,
        _ => error.kind(),
    };
    io::Error::new(kind, format!("`{}` cannot be mapped into memory: {error}", path.display()))
}

/// The bytes of the file in which the two slots of a line are.
fn slots(line: usize) -> Range<usize> {
    let slots = |lines: usize| lines * 2 * SLOT;
    match line {
        0 => 0..slots(LONG),
        line => slots(LONG + line - 1)..slots(LONG + line),
    }
}

/// Ends a slot with the number of its write and its checksum.
fn seal(text: &mut [u8], number: u64) {
    let (said, sum) = text.split_at_mut(text.len() - SUM);
    let end = said.len() - SIGNS;
    sign(&mut said[end..], number);
    sign(sum, XxHash3_64::oneshot(said));
    sum[SIGNS] = b'\n';
}

/// Writes a number as a space and sixteen hexadecimal digits.
fn sign(into: &mut [u8], number: u64) {
    for (at, digit) in into[1..SIGNS].iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(number >> (60 - 4 * at)) as usize & 15];
    }
}

fn signed(text: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(text.get(1..SIGNS)?).ok()?, 16).ok()
}

/// Reads the newest of the whole slots of a line.
///
/// # Errors
/// A file that ends before the line; a line that was never written, or is being overwritten just now; text that is no `T`.
pub(super) fn read<T: DeserializeOwned>(bytes: &[u8], line: usize) -> io::Result<T> {
    let slots = bytes.get(slots(line)).ok_or(io::ErrorKind::UnexpectedEof)?;
    let newest = slots.chunks(slots.len() / 2).filter_map(whole).max_by_key(|(number, _)| *number);
    let torn = || io::Error::new(io::ErrorKind::InvalidData, format!("line {line} is torn"));
    let (_, text) = newest.ok_or_else(torn)?;
    Ok(serde_json::from_slice(text)?)
}

/// The number of a slot's write and its text; `None` if its checksum is wrong.
fn whole(slot: &[u8]) -> Option<(u64, &[u8])> {
    let (said, sum) = slot.split_at_checked(slot.len().checked_sub(SUM)?)?;
    let (text, number) = said.split_at_checked(said.len().checked_sub(SIGNS)?)?;
    (signed(sum)? == XxHash3_64::oneshot(said)).then_some((signed(number)?, text))
}
