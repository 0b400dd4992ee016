//! What ranks leave for the thread that owns MPI, and what it leaves for them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread::{self, JoinHandle};

use annulus_mpi::{Launched, Session};

use super::clerk::Clerk;
use super::envelope::{Envelope, News, Parcel};
use super::inbox::Arrived;
use crate::flight::{Flight, Log};
use crate::threads::{self, Carrier, Group, Home, lock};

/// This process among several.
pub(crate) struct Office {
    pub(crate) facts: Facts,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What MPI says of itself and of this process.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The number of this process.
    pub process: usize,
    /// How many there are.
    pub processes: usize,
    /// The library's own first line.
    pub library: String,
    /// Its file.
    pub path: std::path::PathBuf,
}

/// Between ranks and the office.
pub(super) struct Shared {
    pub(super) desk: Mutex<Desk>,
    pub(super) wake: Condvar,
    /// MPI's thread rests unless all ranks here wait.
    pub(super) only_in_waits: AtomicBool,
}

#[derive(Default)]
pub(super) struct Desk {
    pub(super) letters: VecDeque<Letter>,
    /// How many runs there were.
    pub(super) runs: u64,
    /// The run of ranks that is under way.
    pub(super) current: Option<(u64, Arc<Group>)>,
    /// What came for a run that has not begun here.
    pub(super) early: Vec<Arrived>,
    /// The exit codes of the processes that have said their last word, and whether it was their fault.
    pub(super) byes: Vec<Option<(i32, bool)>>,
    /// This process has said its own.
    pub(super) closing: bool,
    /// Where this process says that it is alive.
    pub(super) flight: Option<Arc<Flight>>,
}

/// For the office of a process.
pub(super) struct Letter {
    pub(super) to: usize,
    pub(super) envelope: Envelope,
    pub(super) tensor: Option<candle_core::Tensor>,
}

impl Office {
    /// Begins MPI, for a process that a launcher started.
    pub(crate) fn open(launched: Launched) -> annulus_mpi::Result<Office> {
        let shared = Arc::new(Shared {
            desk: Mutex::default(),
            wake: Condvar::new(),
            only_in_waits: AtomicBool::new(false),
        });
        let (say, hear) = mpsc::channel();
        let of_thread = shared.clone();
        let begin = move || {
            let session = annulus_mpi::find(Some(launched)).and_then(Session::begin)?;
            match launched.check(&session) {
                Ok(()) => Ok(session),
                Err(error) => session.end().and(Err(error)),
            }
        };
        let work = move || match begin() {
            Err(error) => drop(say.send(Err(error))),
            Ok(session) => {
                let facts = Facts::of(&session);
                lock(&of_thread.desk).byes = vec![None; facts.processes];
                // Whoever opened the office waits for this.
                let _ = say.send(Ok(facts));
                Clerk::new(session, of_thread).serve();
            }
        };
        let failed = |why: String| annulus_mpi::Error { what: "MPI's thread".to_owned(), why };
        let thread = thread::Builder::new().name("mpi".to_owned()).spawn(work);
        let thread = thread.map_err(|error| failed(error.to_string()))?;
        let facts = hear.recv().map_err(|_| failed("it ended at once".to_owned()))??;
        Ok(Office { facts, shared, thread: Mutex::new(Some(thread)) })
    }

    /// From now on this process says in `flight` that it is alive.
    pub(crate) fn record(&self, flight: Arc<Flight>) {
        lock(&self.shared.desk).flight = Some(flight);
    }

    /// From now on, or no more, MPI's thread rests unless all ranks here wait.
    pub(crate) fn progresses_in_waits_only(&self, only: bool) {
        self.shared.only_in_waits.store(only, Ordering::Relaxed);
    }

    /// A group of so many ranks over all processes: those of this one begin.
    pub(crate) fn begin(
        &self,
        options: &threads::Options,
        log: Option<Log>,
        of_processes: bool,
    ) -> Arc<Group> {
        let Facts { process, processes, .. } = self.facts;
        let here = options.world / processes;
        let mut desk = lock(&self.shared.desk);
        desk.runs += 1;
        let run = desk.runs;
        let carrier = Carried { shared: self.shared.clone(), run, here, process, processes };
        let home = Home {
            here: process * here..(process + 1) * here,
            carrier: Some(Arc::new(carrier)),
            process: [process as u64, processes as u64],
            log,
            of_processes,
        };
        let group = Group::new(options, home);
        desk.current = Some((run, group.clone()));
        drop(desk);
        self.shared.wake.notify_one();
        group
    }

    /// The run is over here.
    pub(crate) fn finish(&self) {
        lock(&self.shared.desk).current = None;
    }

    /// Says this process's last word and waits for those of the others: the exit code of the job.
    pub(crate) fn close(&self, code: i32, own_fault: bool) -> i32 {
        let Facts { process, processes, .. } = self.facts;
        let mut desk = lock(&self.shared.desk);
        let run = desk.runs;
        if !std::mem::replace(&mut desk.closing, true) {
            desk.byes[process] = Some((code, own_fault));
            let others = (0..processes).filter(|other| *other != process);
            let bye = |to| Letter {
                to,
                envelope: Envelope { run, news: News::Bye(code, own_fault) },
                tensor: None,
            };
            desk.letters.extend(others.map(bye));
        }
        drop(desk);
        self.shared.wake.notify_one();
        if let Some(thread) = lock(&self.thread).take() {
            // A panic there is as good as an end.
            let _ = thread.join();
        }
        let byes = &lock(&self.shared.desk).byes;
        let culprit = byes.iter().flatten().find(|(_, own_fault)| *own_fault);
        culprit.map_or(code, |(code, _)| *code)
    }
}

impl fmt::Debug for Office {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Office").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl Facts {
    fn of(session: &Session) -> Facts {
        Facts {
            process: session.rank,
            processes: session.size,
            library: session.version(),
            path: session.path.clone(),
        }
    }
}

/// What a run's ranks leave for other processes.
struct Carried {
    shared: Arc<Shared>,
    run: u64,
    /// Ranks of a process.
    here: usize,
    process: usize,
    processes: usize,
}

impl Carried {
    fn post(&self, to: usize, news: News, tensor: Option<candle_core::Tensor>) {
        let envelope = Envelope { run: self.run, news };
        lock(&self.shared.desk).letters.push_back(Letter { to, envelope, tensor });
        self.shared.wake.notify_one();
    }

    fn tell(&self, news: impl Fn() -> News) {
        for to in (0..self.processes).filter(|to| *to != self.process) {
            self.post(to, news(), None);
        }
    }
}

impl Carrier for Carried {
    fn send(&self, from: usize, to: usize, parcel: threads::Parcel) {
        let news = News::Parcel(Parcel::new(from, to, &parcel));
        self.post(to / self.here, news, Some(parcel.tensor));
    }
    fn failed(&self, rank: usize) {
        self.tell(|| News::Failed(rank));
    }
    fn left(&self, rank: usize) {
        self.tell(|| News::Left(rank));
    }
    fn stopped(&self) {
        self.tell(|| News::Stop);
    }
}
