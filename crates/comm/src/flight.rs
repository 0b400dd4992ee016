//! Flight records: where every rank stands, in files that outlive their processes.
//!
//! A process that is killed (SIGKILL, out of memory, a launcher that ends a job) cannot report where it was. So every
//! process keeps a file, `flight/process-K` of the run's folder, that is current at every call: the file is mapped into memory, so that
//! what is written is in the system's page cache at once, without a system call, and stays when the process is gone. A file consists of
//! lines of JSON of fixed length, which are overwritten in place.

mod lines;
mod record;
mod wreck;

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rustix::fs::OFlags;

pub use record::{Ending, Failed, Head, RankStatus, Record, Waits};
pub use wreck::{Death, Seen, Stood, Verdict, Who, Wreck};

use self::lines::Lines;
use self::wreck::SEEN;
use crate::{Blame, Label, World};

/// The folder of a run's flight records, within the run's folder.
pub const FOLDER: &str = "flight";
/// The environment variable by which a supervisor names a folder for the records of a job whose run is not known yet.
pub const EARLY: &str = "ANNULUS_FLIGHT";

/// Opening a pipe does not wait for its other end.
const NONBLOCK: i32 = OFlags::NONBLOCK.bits().cast_signed();

/// Bytes of the reason of a process's end, at most.
const LONGEST_WHY: usize = 1200;
/// Bytes of that reason where the head would be too long for its line.
const SHORT_WHY: usize = 200;

/// The line of the head.
const HEAD: usize = 0;
/// The line that tells when the process was alive last.
const PULSE: usize = 1;
/// The line that says where the process is outside of ranks; those of its ranks follow.
const OWN: usize = 2;

/// The record that a process keeps of itself.
#[derive(Debug)]
pub struct Flight {
    lines: Lines,
    path: PathBuf,
    head: Mutex<Head>,
    /// The first rank of the process.
    first: usize,
    /// What the lines from [`OWN`] on say: of the process, then of its ranks.
    places: Vec<Mutex<RankStatus>>,
    /// The pipe by which a supervisor sees how long this process lives.
    _life: Option<File>,
    /// The record that this one continues.
    before: Mutex<Option<Arc<Flight>>>,
}

/// Opens the writing end of `pipe` if a supervisor has made it; otherwise nothing would read it, and opening would block.
fn supervised(pipe: &Path) -> Option<File> {
    let is_read = fs::symlink_metadata(pipe).is_ok_and(|pipe| pipe.file_type().is_fifo());
    if !is_read {
        return None;
    }
    // Nobody reads the pipe of a supervisor that was killed: opening it would wait for ever.
    File::options().write(true).custom_flags(NONBLOCK).open(pipe).ok()
}

/// Removes from a folder what earlier attempts left in it: records that no process holds, which would be taken for those of processes that
/// were killed. Records of this job's processes, from a phase before, stay until they are replaced, and so does the folder: on NFS it
/// cannot be removed while a record in it is open.
///
/// # Errors
/// A folder that cannot be read or changed.
pub fn drop_unheld(folder: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_record = name.starts_with("process-") || name.starts_with("new-");
        if name == SEEN || is_record && !record::is_locked(&path) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Removes a file, if possible.
fn forget(file: &Path) {
    let _ = fs::remove_file(file);
}

impl Flight {
    /// Begins the record of this process of `world`, whose ranks are `ranks`, in `folder`.
    ///
    /// # Errors
    /// A folder that cannot be written, or whose files cannot be mapped into memory; the space that the record takes is taken here.
    pub fn begin(folder: &Path, world: &World, ranks: Range<usize>) -> io::Result<Arc<Flight>> {
        fs::create_dir_all(folder)?;
        let process = world.process();
        let path = folder.join(format!("process-{process}"));
        // Written under another name and renamed: readers see whole records, and an older record stays intact for processes that have
        // it mapped, which would be killed if the file became shorter.
        let new = folder.join(format!("new-{process}-{}", std::process::id()));
        let lines = Lines::new(&new, OWN + 1 + ranks.len()).inspect_err(|_| forget(&new))?;
        let head = Head::of(world, ranks.clone());
        let first = ranks.start;
        let of_ranks = ranks.map(|rank| RankStatus { rank: Some(rank), ..RankStatus::default() });
        let places =
            std::iter::once(RankStatus::default()).chain(of_ranks).map(Mutex::new).collect();
        let flight = Arc::new(Flight {
            lines,
            path,
            head: Mutex::new(head),
            first,
            places,
            _life: supervised(&life(folder, world.number_of_mpi())),
            before: Mutex::default(),
        });
        flight.change(|_| ());
        for (index, place) in flight.places.iter().enumerate() {
            flight.lines.write(OWN + index, &*place.lock());
        }
        flight.pulse();
        fs::rename(&new, &flight.path).inspect_err(|_| forget(&new))?;
        Ok(flight)
    }

    /// Sets the number of the process, which may differ from that when the record began.
    pub(crate) fn is_now(&self, process: usize) {
        self.change(|head| head.process = process);
    }

    /// Writes that the process is alive now.
    pub(crate) fn pulse(&self) {
        self.lines.write(PULSE, &now());
    }

    /// Writes that the process was asked to stop, from outside.
    fn asked(&self) {
        let when = now();
        self.change_all(&|head| head.asked = head.asked.or(Some(when)));
    }

    /// Writes how the process ends.
    pub(crate) fn ended(&self, code: i32, why: Option<&str>) {
        let (why, when) = (why.map(|why| record::cut(why, LONGEST_WHY)), now());
        let ending = Ending { code, why, when };
        self.change_all(&|head| head.ending = head.ending.take().or(Some(ending.clone())));
    }

    /// Writes that the record `to` continues this one, and keeps this one open as long as `to`.
    pub(crate) fn moved(self: Arc<Flight>, to: &Flight) {
        let path = fs::canonicalize(&to.path).unwrap_or_else(|_| to.path.clone());
        self.change(|head| head.moved = Some(path));
        *to.before.lock() = Some(self);
    }

    /// Changes the head, and those of the records that this one continues: where the path of this one is too long for a head, readers
    /// do not find it from there.
    fn change_all(&self, change: &dyn Fn(&mut Head)) {
        self.change(change);
        if let Some(before) = &*self.before.lock() {
            before.change_all(change);
        }
    }

    /// Changes the head. Of one that is too long for its line, first the reason of the end is shortened, then the path of the next record
    /// left out: how the process ended is always written.
    fn change(&self, change: impl FnOnce(&mut Head)) {
        let mut head = self.head.lock();
        change(&mut head);
        let mut short = head.clone();
        if let Some(why) = short.ending.as_mut().and_then(|ending| ending.why.as_mut()) {
            *why = record::cut(why, SHORT_WHY);
        }
        let shortest = Head { moved: None, ..short.clone() };
        let _ = [&*head, &short, &shortest].into_iter().any(|head| self.lines.write(HEAD, head));
    }

    fn place(&self, rank: Option<usize>, change: impl FnOnce(&mut RankStatus)) {
        // A rank may have no line here, in a record from before the run.
        let index = rank.map_or(Some(0), |rank| Some(1 + rank.checked_sub(self.first)?));
        let Some((index, place)) = index.and_then(|at| Some((at, self.places.get(at)?))) else {
            return;
        };
        let mut place = place.lock();
        change(&mut place);
        self.lines.write(OWN + index, &*place);
    }
}

/// Writes for the ranks of one run, or for the process outside of runs, into a flight record.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    flight: Arc<Flight>,
    /// Whether it writes for the process.
    of_process: bool,
}

impl Log {
    pub(crate) fn of_ranks(flight: Arc<Flight>) -> Log {
        Log { flight, of_process: false }
    }

    pub(crate) fn of_process(flight: Arc<Flight>) -> Log {
        Log { flight, of_process: true }
    }

    fn place(&self, rank: usize, change: impl FnOnce(&mut RankStatus)) {
        self.flight.place((!self.of_process).then_some(rank), change);
    }

    /// Writes that `rank` is at `label` now, and waits for nobody.
    pub(crate) fn at(&self, rank: usize, label: Label) {
        self.place(rank, |place| place.at(label));
    }

    /// Writes that `rank` waits for `peer`; `None`: for nobody any more.
    pub(crate) fn waits(&self, rank: usize, peer: Option<usize>) {
        self.place(rank, |place| place.waits = peer.map(|peer| Waits { peer, since: now() }));
    }

    /// Writes why `rank` failed, and what is to blame.
    pub(crate) fn failed(&self, rank: usize, why: &str, blames: Option<Blame>) {
        self.place(rank, |place| {
            let why = record::cut(why, 200);
            place.failed = Some(Failed { why, blames, when: now() });
        });
    }

    /// Writes that this process was asked to stop, from outside.
    pub(crate) fn asked(&self) {
        self.flight.asked();
    }

    /// Writes that the program of `rank` has returned.
    pub(crate) fn left(&self, rank: usize) {
        self.place(rank, |place| place.left = true);
    }
}

/// The pipe that a process holds open so that its supervisor sees when it ends: in the folder of its first record, by its rank of MPI.
pub fn life(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("life-{number}"))
}

/// Microseconds since 1970.
pub fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_micros() as u64)
}
