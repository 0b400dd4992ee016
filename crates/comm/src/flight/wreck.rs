//! Who ended a job: read off the records of all its processes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Failed, Record};

/// What a supervisor saw, beside the records.
const SEEN: &str = "seen.json";

/// The records of a job.
#[derive(Clone, Debug, Default)]
pub struct Wreck {
    /// In order of processes.
    pub records: Vec<Record>,
    /// Records that cannot be read, and why.
    pub unread: Vec<(PathBuf, String)>,
    /// What a supervisor saw.
    pub seen: Seen,
}

/// What whoever started the processes saw of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// The processes in the order in which they ended.
    pub deaths: Vec<usize>,
    /// What the launcher ended with.
    pub code: Option<u8>,
}

/// Who ended a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A process ended, or stands still, without a word.
    Lost {
        /// Which.
        process: usize,
    },
    /// A rank made no progress, or sent what it should not, as another tells.
    Blamed {
        /// Who is to blame.
        rank: usize,
        /// Who noticed.
        by: usize,
        /// What that one says.
        why: String,
    },
    /// A rank failed by itself.
    Failed {
        /// Which.
        rank: usize,
        /// What it says.
        why: String,
    },
    /// A process failed by itself, outside of ranks.
    Process {
        /// Which.
        process: usize,
        /// What it says.
        why: String,
    },
    /// A process was asked to stop.
    Asked {
        /// Which.
        process: usize,
    },
    /// All ended as they were to.
    Done,
}

impl Wreck {
    /// The records in a folder.
    ///
    /// # Errors
    /// A folder that cannot be read, or has no record.
    pub fn read(folder: &Path) -> io::Result<Wreck> {
        let mut wreck = Wreck::default();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name == SEEN {
                let text = fs::read(&path)?;
                wreck.seen = serde_json::from_slice(&text).unwrap_or_default();
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
        Ok(wreck)
    }

    /// Keeps beside the records what a supervisor saw.
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

    /// The record that a rank is in.
    pub fn of_rank(&self, rank: usize) -> Option<&Record> {
        self.records.iter().find(|record| record.head.ranks.contains(&rank))
    }

    /// Who ended the job.
    pub fn verdict(&self) -> Verdict {
        // Whoever ends first without a word was ended from outside; all others end for that.
        let first = self.seen.deaths.first().and_then(|first| self.process(*first));
        if let Some(first) = first.filter(|record| record.head.ending.is_none()) {
            return Verdict::Lost { process: first.head.process };
        }
        self.told().unwrap_or_else(|| self.silent().unwrap_or(Verdict::Done))
    }

    /// What the first to fail said.
    fn told(&self) -> Option<Verdict> {
        let places = self.records.iter().flat_map(|record| &record.ranks);
        let failed = places.filter_map(|place| Some((place.rank?, place.failed.as_ref()?)));
        let first = failed.min_by_key(|(_, failed)| failed.when);
        if let Some((by, Failed { why, blames, .. })) = first {
            let why = why.clone();
            return Some(match *blames {
                Some(rank) => Verdict::Blamed { rank, by, why },
                None => Verdict::Failed { rank: by, why },
            });
        }
        let ended = self.records.iter().filter_map(|Record { head, .. }| {
            let ending = head.ending.as_ref()?;
            Some((ending.when, head.process, ending.why.clone()?))
        });
        ended.min().map(|(_, process, why)| Verdict::Process { process, why })
    }

    /// Who fell silent first, or was asked to stop.
    fn silent(&self) -> Option<Verdict> {
        let silent = self.records.iter().filter(|record| record.head.ending.is_none());
        if let Some(first) = silent.min_by_key(|record| record.last_word()) {
            return Some(Verdict::Lost { process: first.head.process });
        }
        let asked = self.records.iter().filter_map(|Record { head, .. }| Some((head.asked?, head.process)));
        asked.min().map(|(_, process)| Verdict::Asked { process })
    }
}
