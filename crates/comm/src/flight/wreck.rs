//! Which process or rank ended a job, found from the flight records of all its processes.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::record::LARGEST;
use super::{Failed, RankStatus, Record};
use crate::Blame;

/// The file in which a supervisor keeps what it saw, next to the records.
pub(super) const SEEN: &str = "seen.json";

/// The flight records of a job.
#[derive(Clone, Debug, Default)]
pub struct Wreck {
    /// The records, in the order of processes.
    pub records: Vec<Record>,
    /// Records that cannot be read, and why.
    pub unread: Vec<(PathBuf, String)>,
    /// What a supervisor saw.
    pub seen: Seen,
}

/// What a supervisor, which started the processes, saw of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// The processes in the order in which they ended.
    pub deaths: Vec<Death>,
    /// The exit code of the launcher.
    pub code: Option<u8>,
    /// Where the processes were that had not ended when the first failure was seen: a launcher may let a stopped process go on
    /// before it ends it.
    pub stood: Vec<Stood>,
}

/// Where a process and its ranks were at some moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stood {
    process: usize,
    own: RankStatus,
    ranks: Vec<RankStatus>,
}

/// The end of a process, as it was seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Death {
    /// The process, by [`Head::number`](super::Head::number).
    pub number: usize,
    /// When it ended, in microseconds since 1970.
    pub when: u64,
}

/// A rank, or a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A rank.
    Rank(usize),
    /// A process, outside of ranks.
    Process(usize),
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::Rank(rank) => write!(f, "rank {rank}"),
            Who::Process(process) => write!(f, "process {process}"),
        }
    }
}

/// What ended a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A process ended, or makes no progress, without having written why.
    Lost {
        /// The process.
        process: usize,
    },
    /// A rank or process made no progress, or sent something wrong, as another one reports.
    Blamed {
        /// The rank or process to blame.
        who: Who,
        /// The one that noticed.
        by: Who,
        /// The error of the one that noticed.
        why: String,
    },
    /// A rank or process failed by its own fault.
    Failed {
        /// The rank or process.
        who: Who,
        /// Its error.
        why: String,
    },
    /// A process was asked to stop.
    Asked {
        /// The process.
        process: usize,
    },
    /// The job goes on: all processes are alive.
    Running,
    /// All processes ended without a failure.
    Done,
}

/// A failure that a rank or process has noted, and what it means for the job.
struct Failure {
    when: u64,
    verdict: Verdict,
    /// Whether the failure is one of MPI or NCCL.
    of_engine: bool,
}

impl Failure {
    /// The failure that a rank, or a process outside of ranks, has noted.
    fn of(by: Who, place: &RankStatus) -> Option<Failure> {
        let Failed { why, blames, when } = place.failed.clone()?;
        let blamed = |index| match by {
            Who::Rank(_) => Who::Rank(index),
            Who::Process(_) => Who::Process(index),
        };
        let verdict = match blames {
            Some(Blame::Rank(index)) => Verdict::Blamed { who: blamed(index), by, why },
            Some(Blame::Engine) | None => Verdict::Failed { who: by, why },
        };
        Some(Failure { when, verdict, of_engine: blames == Some(Blame::Engine) })
    }

    /// The failure with which a process ended.
    fn of_end(record: &Record) -> Option<Failure> {
        let ending = record.head.ending.as_ref()?;
        let verdict =
            Verdict::Failed { who: Who::Process(record.head.process), why: ending.why.clone()? };
        let of_engine = record.failed().any(|failed| failed.blames == Some(Blame::Engine));
        Some(Failure { when: ending.when, verdict, of_engine })
    }
}

impl Wreck {
    /// Reads the records in a folder.
    ///
    /// # Errors
    /// A folder that cannot be read, or has no record.
    pub fn read(folder: &Path) -> io::Result<Wreck> {
        let (mut wreck, mut seen) = (Wreck::default(), Seen::default());
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name == SEEN {
                let text = annulus_files::read(&path, LARGEST)?;
                seen = serde_json::from_slice(&text).unwrap_or_default();
            } else if name.starts_with("process-") {
                match Record::read(&path) {
                    Ok(record) => wreck.records.push(record),
                    Err(error) => wreck.unread.push((path, error.to_string())),
                }
            }
        }
        wreck.records.sort_by_key(|record| record.head.process);
        wreck.unread.sort();
        if wreck.records.is_empty() && wreck.unread.is_empty() {
            let why = format!("`{}` has no flight record", folder.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        }
        Ok(wreck.with(seen))
    }

    /// Reads the records of a job whose first ones are in `folder`, and from the run's folder those of processes on other hosts, which
    /// cannot write into `folder`.
    ///
    /// # Errors
    /// As [`Wreck::read`].
    pub fn of_job(folder: &Path) -> io::Result<Wreck> {
        let mut wreck = Wreck::read(folder)?;
        let moved = wreck.records.iter().filter_map(|record| record.path.parent());
        let Some(run) = moved.map(Path::to_owned).find(|parent| parent != folder) else {
            return Ok(wreck);
        };
        // If the run's folder cannot be read, the first records are used alone.
        let all = Wreck::read(&run).map(|all| all.records).unwrap_or_default();
        let is_new = |record: &Record| wreck.process(record.head.process).is_none();
        let more: Vec<Record> = all.into_iter().filter(is_new).collect();
        wreck.records.extend(more);
        wreck.records.sort_by_key(|record| record.head.process);
        Ok(wreck)
    }

    /// Adds what a supervisor saw: records then say where ranks were at the first failure.
    #[must_use]
    pub fn with(mut self, seen: Seen) -> Wreck {
        for one in &seen.stood {
            let of_process = |record: &&mut Record| record.head.process == one.process;
            if let Some(record) = self.records.iter_mut().find(of_process) {
                record.own.clone_from(&one.own);
                record.ranks.clone_from(&one.ranks);
            }
        }
        self.seen = seen;
        self
    }

    /// Where the processes are that have not ended, if anything has failed.
    pub fn standing(&self) -> Option<Vec<Stood>> {
        self.failures().next()?;
        let on = self.records.iter().filter(|record| record.head.ending.is_none());
        let stood = |record: &Record| Stood {
            process: record.head.process,
            own: record.own.clone(),
            ranks: record.ranks.clone(),
        };
        Some(on.map(stood).collect())
    }

    /// Writes what a supervisor saw into the folder of the records.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn keep_seen(folder: &Path, seen: &Seen) -> io::Result<()> {
        fs::write(folder.join(SEEN), serde_json::to_vec(seen)?)
    }

    /// The record of a process.
    pub fn process(&self, process: usize) -> Option<&Record> {
        self.records.iter().find(|record| record.head.process == process)
    }

    /// The record of the process that runs a rank.
    pub fn of_rank(&self, rank: usize) -> Option<&Record> {
        self.records.iter().find(|record| record.head.ranks.contains(&rank))
    }

    /// The exit code of the job as its processes wrote it: that of the first which failed by its own fault, or the one with which all
    /// ended.
    pub fn exit_code(&self) -> Option<i32> {
        let endings = || self.records.iter().filter_map(|record| record.head.ending.as_ref());
        let failed =
            endings().filter(|ending| ending.why.is_some()).min_by_key(|ending| ending.when);
        let first = failed.or_else(|| endings().next())?;
        let of_all = |record: &Record| {
            record.head.ending.as_ref().is_some_and(|ending| ending.code == first.code)
        };
        (first.why.is_some() || self.records.iter().all(of_all)).then_some(first.code)
    }

    /// What ended the job: the first event, as all others are its consequences.
    pub fn verdict(&self) -> Verdict {
        self.verdict_beside(&|_| false)
    }

    /// What ended a job that may still be running: a process that holds its record is alive.
    pub fn verdict_so_far(&self) -> Verdict {
        self.verdict_beside(&Record::is_held)
    }

    fn verdict_beside(&self, is_there: &dyn Fn(&Record) -> bool) -> Verdict {
        let killed = self.seen.deaths.iter().find_map(|death| {
            let head = self.records.iter().map(|record| &record.head);
            let dead = head.clone().find(|head| head.number == death.number)?;
            let lost = Verdict::Lost { process: dead.process };
            dead.ending.is_none().then_some((death.when, lost))
        });
        let failures = self.failures().filter(|failure| !self.is_explained_by_a_death(failure));
        let told = failures.map(|Failure { when, verdict, .. }| (when, verdict));
        let first = told.chain(killed).min_by_key(|(when, _)| *when);
        let silent = || self.silent(is_there).unwrap_or(Verdict::Done);
        first.map_or_else(silent, |(_, verdict)| verdict)
    }

    /// Whether a failure is one of MPI or NCCL after a process fell silent, and so a consequence of its death: the memory of a killed
    /// process, which such a library reads, is gone before the supervisor's pipe closes.
    fn is_explained_by_a_death(&self, failure: &Failure) -> bool {
        let is_mute =
            |record: &&Record| record.head.ending.is_none() && record.failed().next().is_none();
        let mut mute = self.records.iter().filter(is_mute);
        failure.of_engine && mute.any(|record| record.last_word() <= failure.when)
    }

    /// All failures that ranks and processes have noted.
    fn failures(&self) -> impl Iterator<Item = Failure> {
        self.records.iter().flat_map(|record| {
            let own = (Who::Process(record.head.process), &record.own);
            let rank = |place: &RankStatus| Who::Rank(place.rank.unwrap_or_default());
            let places = record.ranks.iter().map(move |place| (rank(place), place)).chain([own]);
            places.filter_map(|(by, place)| Failure::of(by, place)).chain(Failure::of_end(record))
        })
    }

    /// Of the processes that have not written how they ended: the first that is gone, or that the job runs if all are alive. If there are
    /// none, the process that was asked to stop, if any was.
    fn silent(&self, is_there: &dyn Fn(&Record) -> bool) -> Option<Verdict> {
        let silent = self.records.iter().filter(|record| record.head.ending.is_none());
        let (there, gone): (Vec<_>, Vec<_>) = silent.partition(|record| is_there(record));
        if let Some(first) = gone.iter().min_by_key(|record| record.last_word()) {
            return Some(Verdict::Lost { process: first.head.process });
        }
        if !there.is_empty() {
            return Some(Verdict::Running);
        }
        let asked =
            self.records.iter().filter_map(|Record { head, .. }| Some((head.asked?, head.process)));
        asked.min().map(|(_, process)| Verdict::Asked { process })
    }
}
