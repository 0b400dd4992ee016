//! The contents of a flight record, and how it is read.

use std::borrow::Cow;
use std::fmt;
use std::fs::TryLockError;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::lines::read;
use super::{HEAD, OWN, PULSE, now};
use crate::communicator::write_place;
use crate::{Blame, Label, World};

/// The most bytes that are read of a record, or of what a supervisor saw.
pub(super) const LARGEST: u64 = 64 << 20;
/// How often a record is read until all its lines are whole.
const GLANCES: usize = 8;

/// Which process keeps a record, and how that process ended. Times are microseconds since 1970.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Head {
    /// The number of the process.
    pub process: usize,
    /// The process's rank of MPI, by which a supervisor knows it: it differs from `process` where a launcher places processes on hosts in
    /// turn.
    pub number: usize,
    /// The number of processes.
    pub processes: usize,
    /// The host of the process.
    pub host: String,
    /// The process id on that host.
    pub pid: u32,
    /// When the record began.
    pub began: u64,
    /// The ranks of the process.
    pub ranks: Range<usize>,
    /// When the process was asked to stop, if it was the first to know.
    pub asked: Option<u64>,
    /// How the process ended, if it could still write that.
    pub ending: Option<Ending>,
    /// The record that continues this one.
    pub moved: Option<PathBuf>,
}

/// How a process ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ending {
    /// The exit code.
    pub code: i32,
    /// Why it failed, if by its own fault.
    pub why: Option<String>,
    /// When it ended.
    pub when: u64,
}

/// Where a rank stands, or a process outside of runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankStatus {
    /// The rank; `None`: the process itself.
    pub rank: Option<usize>,
    /// The optimizer step.
    pub step: u64,
    /// The layer, or 0 outside layers.
    pub layer: usize,
    /// What is being done; empty: nothing yet.
    pub pass: Cow<'static, str>,
    /// The hop within it.
    pub hop: usize,
    /// When it got there, in microseconds since 1970.
    pub since: u64,
    /// The rank that it waits for.
    pub waits: Option<Waits>,
    /// Its failure, if it failed.
    pub failed: Option<Failed>,
    /// Whether its program has returned.
    pub left: bool,
}

/// A wait of one rank for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// The rank that is waited for.
    pub peer: usize,
    /// When the wait began, in microseconds since 1970.
    pub since: u64,
}

/// A failure, as the rank that noticed it describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// The error.
    pub why: String,
    /// What is to blame, if not the rank itself.
    pub blames: Option<Blame>,
    /// When it happened, in microseconds since 1970.
    pub when: u64,
}

impl Head {
    pub(super) fn of(world: &World, ranks: Range<usize>) -> Head {
        Head {
            process: world.process(),
            number: world.number_of_mpi(),
            processes: world.processes(),
            host: annulus_machine::host_name(),
            pid: std::process::id(),
            began: now(),
            ranks,
            asked: None,
            ending: None,
            moved: None,
        }
    }
}

impl RankStatus {
    pub(super) fn at(&mut self, label: Label) {
        let Label { step, layer, pass, hop } = label;
        (self.step, self.layer, self.pass, self.hop) = (step, layer, Cow::Borrowed(pass), hop);
        (self.since, self.waits) = (now(), None);
    }
}

impl fmt::Display for RankStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RankStatus { step, layer, pass, hop, .. } = self;
        match (pass.as_ref(), step) {
            ("", _) => f.write_str("before the first communication"),
            (pass, 0) => f.write_str(pass),
            _ => write_place(f, *step, *layer, pass, *hop),
        }
    }
}

/// The record of one process, as it was left.
#[derive(Clone, Debug)]
pub struct Record {
    /// The file of the record.
    pub path: PathBuf,
    /// Which process keeps the record.
    pub head: Head,
    /// When the process was last alive, in microseconds since 1970.
    pub alive: u64,
    /// Where the process was outside of runs.
    pub own: RankStatus,
    /// Where its ranks were.
    pub ranks: Vec<RankStatus>,
}

impl Record {
    /// Reads the record in a file, or the one that continues it.
    ///
    /// # Errors
    /// A file that cannot be read, or is not a record.
    pub fn read(path: &Path) -> io::Result<Record> {
        let record = Record::of_file(path)?;
        match &record.head.moved {
            // The last one: a record continues in a run's folder only.
            Some(next) => Record::of_file(next),
            None => Ok(record),
        }
    }

    /// Reads the record in a file.
    fn of_file(path: &Path) -> io::Result<Record> {
        let glance = || Record::glance(path);
        (1..GLANCES).fold(glance(), |record, _| record.or_else(|_| glance()))
    }

    /// Reads the record in a file once. This fails if a line is overwritten twice meanwhile.
    fn glance(path: &Path) -> io::Result<Record> {
        let bytes = annulus_files::read(path, LARGEST)?;
        let head: Head = read(&bytes, HEAD)?;
        let ranks = (0..head.ranks.len()).map(|rank| read(&bytes, OWN + 1 + rank));
        Ok(Record {
            path: path.to_owned(),
            alive: read(&bytes, PULSE)?,
            own: read(&bytes, OWN)?,
            ranks: ranks.collect::<io::Result<_>>()?,
            head,
        })
    }

    /// Whether its process is alive: it holds a lock on the record as long as it lives.
    pub fn is_held(&self) -> bool {
        is_locked(&self.path)
    }

    /// The failures that its ranks, and the process outside of runs, have noted.
    pub(super) fn failed(&self) -> impl Iterator<Item = &Failed> {
        self.ranks.iter().chain([&self.own]).filter_map(|place| place.failed.as_ref())
    }

    /// When the process last wrote anything, in microseconds since 1970.
    pub fn last_word(&self) -> u64 {
        let ending = self.head.ending.as_ref().map(|ending| ending.when);
        let places = self.ranks.iter().chain([&self.own]).map(|place| place.since);
        places.chain(ending).chain([self.alive, self.head.began]).max().unwrap_or_default()
    }
}

/// The start of a text, `most` bytes at most, without characters that JSON must escape.
pub(super) fn cut(text: &str, most: usize) -> String {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    let plain = |sign: char| match sign {
        '"' | '\\' => '\'',
        sign if sign.is_control() => ' ',
        sign => sign,
    };
    text[..end.unwrap_or_default()].chars().map(plain).collect()
}

/// Whether a process holds a lock on a record.
pub(super) fn is_locked(record: &Path) -> bool {
    let lock = annulus_files::open(record).map(|file| file.try_lock_shared());
    matches!(lock, Ok(Err(TryLockError::WouldBlock)))
}
