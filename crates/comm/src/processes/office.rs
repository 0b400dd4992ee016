//! What ranks leave for the thread that owns MPI, and what it leaves for them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use annulus_mpi::{Launched, Leaving, Session};
use candle_core::Device;

use super::carried::Carried;
use super::clerk::Clerk;
use super::courier::{self, Orders};
use super::envelope::{Envelope, News, Parcel};
use super::express::{Express, Joined};
use super::facts::Facts;
use super::inbox::Arrived;
use crate::flight::{Flight, Log};
use crate::threads::{self, Group, Home, lock};

/// Processes that fail within so long of each other fail at once: longer than a message takes.
const AT_ONCE: Duration = Duration::from_millis(100);

/// How long MPI may take to begin: as long as the slowest process takes to be started.
const BEGIN: Duration = Duration::from_secs(120);
/// The key of the environment that names another time, in seconds.
pub const BEGINS_WITHIN: &str = "ANNULUS_MPI_BEGIN";

/// Why the processes of a job are not joined.
#[derive(Debug, thiserror::Error)]
pub enum Unjoined {
    /// There is no library, it does not begin, or it is not the launcher's.
    #[error(transparent)]
    Engine(#[from] annulus_mpi::Error),
    /// MPI did not begin: it does when all processes are there.
    #[error("MPI has not begun within {} s: a process was not started, or is stopped", .0.as_secs_f64())]
    Late(Duration),
}

/// This process among several.
pub(crate) struct Office {
    pub(crate) facts: Facts,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// NCCL by device, as it was found.
    pub(super) found: Mutex<Vec<(Device, Joined)>>,
    /// The program ends.
    is_last: Arc<AtomicBool>,
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
    /// Receives were posted, or a rank began to wait, since MPI's thread looked last.
    pub(super) is_woken: bool,
    /// How many runs there were.
    pub(super) runs: u64,
    /// By number of a process, its rank as MPI has it: processes of a host are neighbours here, wherever the launcher put them.
    pub(super) order: Vec<usize>,
    /// The run of ranks that is under way.
    pub(super) current: Option<(u64, Arc<Group>)>,
    /// What came for a run that has not begun here.
    pub(super) early: Vec<Arrived>,
    /// By rank of MPI, the exit codes of the processes that have said their last word, and whether it was their fault.
    pub(super) byes: Vec<Option<(i32, bool)>>,
    /// This process has said its own.
    pub(super) closing: bool,
    /// Why nothing goes between processes any more.
    pub(super) lost: Option<String>,
    /// Where this process says that it is alive.
    pub(super) flight: Option<Arc<Flight>>,
    /// The GPU that ranks here compute on.
    pub(super) gpu: Option<Device>,
    /// NCCL, where all processes use it.
    joined: Option<Joined>,
    /// What goes by it in the run that is under way.
    pub(super) express: Option<Arc<Express>>,
    /// The threads of runs that have ended: all processes end those together.
    couriers: Vec<JoinHandle<()>>,
}

impl Shared {
    /// Nothing goes between processes any more, in this run and in those to come.
    pub(super) fn lose(&self, why: &str) {
        let mut desk = lock(&self.desk);
        desk.lost = Some(why.to_owned());
        if let Some((_, group)) = &desk.current {
            group.lose(why.to_owned());
        }
    }
}

impl Desk {
    /// The exit code of the first process, by number, whose fault the end is.
    pub(super) fn fault(&self) -> Option<i32> {
        let bye = self.order.iter().map(|rank| self.byes[*rank]).find(|bye| is_fault(*bye));
        bye.flatten().map(|(code, _)| code)
    }

    /// Where what comes for a rank here is to be.
    pub(super) fn device_of(&self, parcel: &Parcel) -> Device {
        self.gpu.clone().filter(|_| parcel.on_gpu).unwrap_or(Device::Cpu)
    }

    /// Whether the payload of a parcel may come in this run: its rank has asked for it, or nobody will any more.
    pub(super) fn may_come(&self, run: u64, parcel: &Parcel) -> bool {
        match &self.current {
            Some((current, group)) if run == *current => {
                group.may_come(parcel.from, parcel.to, parcel.ticket())
            }
            // A run that has not begun here will ask.
            _ => run <= self.runs,
        }
    }

    /// Where the process of this number, and rank of MPI, has failed, a run that it is not in ends, too.
    pub(super) fn end_with_it(&self, process: usize, rank: usize, group: &Group) {
        if is_fault(self.byes[rank]) {
            group.fail(process * group.here().len());
        }
    }
}

/// For the office of a process.
pub(super) struct Letter {
    /// The rank that MPI has for it.
    pub(super) to: usize,
    pub(super) envelope: Envelope,
    pub(super) payload: Option<Leaving>,
}

impl Office {
    /// Begins MPI, for a process that a launcher started.
    pub(crate) fn open(launched: Launched) -> Result<Office, Unjoined> {
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
                {
                    let mut desk = lock(&of_thread.desk);
                    desk.byes = vec![None; facts.processes];
                    desk.order = (0..facts.processes).collect();
                }
                // Whoever opened the office waits for this.
                let _ = say.send(Ok(facts));
                Clerk::new(session, of_thread).serve();
            }
        };
        let failed = |why: String| annulus_mpi::Error { what: "MPI's thread".to_owned(), why };
        let thread = thread::Builder::new().name("mpi".to_owned()).spawn(work);
        let thread = thread.map_err(|error| failed(error.to_string()))?;
        let facts = in_time(&hear, || failed("it ended at once".to_owned()).into())??;
        let (found, is_last) = (Mutex::default(), Arc::default());
        Ok(Office { facts, shared, thread: Mutex::new(Some(thread)), found, is_last })
    }

    /// Numbers the processes anew, between two runs: `order` has the ranks of MPI by number, and is the same for all.
    pub(crate) fn number(&mut self, order: Vec<usize>) {
        let mut desk = lock(&self.shared.desk);
        let own = desk.order[self.facts.process];
        self.facts.process = order.iter().position(|rank| *rank == own).unwrap_or(own);
        desk.order = order;
    }

    /// The number of this process as MPI has it.
    pub(crate) fn number_of_mpi(&self) -> usize {
        lock(&self.shared.desk).order[self.facts.process]
    }

    /// From now on this process says in `flight` that it is alive.
    pub(crate) fn record(&self, flight: Arc<Flight>) {
        lock(&self.shared.desk).flight = Some(flight);
    }

    /// From now on ranks here compute on this device.
    pub(crate) fn computes_on(&self, device: &Device) {
        lock(&self.shared.desk).gpu = Some(device.clone()).filter(Device::is_cuda);
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
        let (shared, order) = (self.shared.clone(), desk.order.clone());
        let joined = desk.joined.clone().filter(|_| here == 1 && !of_processes);
        let express = joined.map(|joined| Express::new(joined, process));
        desk.express.clone_from(&express);
        let carrier = Carried { shared, run, here, process, order, express: express.clone() };
        let home = Home {
            here: process * here..(process + 1) * here,
            carrier: Some(Arc::new(carrier)),
            process: [process as u64, processes as u64],
            log,
            between: None,
            of_processes,
        };
        let group = Group::new(options, home);
        if let Some(express) = express {
            self.send_by(express, &group, &mut desk, options.deadline);
        }
        if let Some(why) = &desk.lost {
            group.lose(why.clone());
        }
        for (process, rank) in desk.order.iter().enumerate() {
            desk.end_with_it(process, *rank, &group);
        }
        desk.current = Some((run, group.clone()));
        drop(desk);
        self.shared.wake.notify_one();
        group
    }

    /// Starts the thread of a run that goes by NCCL.
    fn send_by(
        &self,
        express: Arc<Express>,
        group: &Arc<Group>,
        desk: &mut Desk,
        deadline: Duration,
    ) {
        express.is_of(group);
        let Facts { process, processes: size, .. } = self.facts;
        let (shared, run, order) = (self.shared.clone(), desk.runs, desk.order.clone());
        let tell = move |id: Vec<u8>| {
            let others = order.iter().enumerate().filter(|(other, _)| *other != process);
            let letter = |to: usize| {
                let envelope = Envelope { run, news: News::Clique(id.clone()) };
                Letter { to, envelope, payload: None }
            };
            lock(&shared.desk).letters.extend(others.map(|(_, to)| letter(*to)));
            shared.wake.notify_one();
        };
        let orders = Orders {
            express,
            group: group.clone(),
            size,
            deadline,
            tell: (process == 0).then(|| Box::new(tell) as _),
            is_last: self.is_last.clone(),
        };
        match courier::start(orders) {
            Ok(thread) => desk.couriers.push(thread),
            Err(error) => group.lose(format!("the thread of NCCL could not start: {error}")),
        }
    }

    /// The run is over here.
    pub(crate) fn finish(&self) {
        let mut desk = lock(&self.shared.desk);
        desk.current = None;
        if let Some(express) = desk.express.take() {
            express.ends();
        }
        desk.couriers.retain(|thread| !thread.is_finished());
    }

    /// From now on tensors go between processes by this, in runs of as many ranks; none: by MPI.
    pub(crate) fn sends_by(&self, joined: Option<Joined>) {
        lock(&self.shared.desk).joined = joined;
    }

    /// What they go by, if not by MPI.
    pub(crate) fn joined(&self) -> Option<Joined> {
        lock(&self.shared.desk).joined.clone()
    }

    /// Blocks until what was posted in the run that is under way has gone and come by NCCL.
    pub(crate) fn settle(&self) -> crate::Result<()> {
        let express = lock(&self.shared.desk).express.clone();
        express.map_or(Ok(()), |express| express.settle())
    }

    /// Says this process's last word, unless it has: its exit code, and whether it ends by its own fault.
    fn bye(&self, desk: &mut Desk, code: i32, own_fault: bool) {
        if std::mem::replace(&mut desk.closing, true) {
            return;
        }
        let (run, own) = (desk.runs, desk.order[self.facts.process]);
        desk.byes[own] = Some((code, own_fault));
        let bye = |to| {
            let envelope = Envelope { run, news: News::Bye(code, own_fault) };
            Letter { to, envelope, payload: None }
        };
        let others = (0..desk.byes.len()).filter(|other| *other != own);
        desk.letters.extend(others.map(bye));
        self.shared.wake.notify_one();
    }

    /// Whether this process, which fails with `code` by its own fault, is the one to say so: the first of all, and of those that
    /// fail at once the one with the lowest rank. The others are told.
    pub(crate) fn is_first_to_fail(&self, code: i32) -> bool {
        let mut desk = lock(&self.shared.desk);
        if desk.byes.iter().copied().any(is_fault) {
            return false;
        }
        self.bye(&mut desk, code, true);
        let own = desk.order[self.facts.process];
        drop(desk);
        let begun = Instant::now();
        loop {
            let lower = lock(&self.shared.desk).byes[..own].to_vec();
            if lower.iter().copied().any(is_fault) {
                return false;
            }
            if lower.iter().all(Option::is_some) || begun.elapsed() > AT_ONCE {
                return true;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Says this process's last word and waits for those of the others: the exit code of the job.
    pub(crate) fn close(&self, code: i32, own_fault: bool) -> i32 {
        self.bye(&mut lock(&self.shared.desk), code, own_fault);
        if let Some(thread) = lock(&self.thread).take() {
            // A panic there is as good as an end.
            let _ = thread.join();
        }
        // All have said their last word: nobody's clique is used any more. One that does not end is left to the end of the process.
        self.is_last.store(true, Ordering::Relaxed);
        let (couriers, begun) =
            (std::mem::take(&mut lock(&self.shared.desk).couriers), Instant::now());
        while couriers.iter().any(|courier| !courier.is_finished())
            && begun.elapsed() < 2 * courier::LAST
        {
            thread::sleep(Duration::from_millis(1));
        }
        lock(&self.shared.desk).fault().unwrap_or(code)
    }
}

/// What MPI's thread says once MPI has begun; `ended`: it is gone.
fn in_time<T>(hear: &Receiver<T>, ended: impl FnOnce() -> Unjoined) -> Result<T, Unjoined> {
    let named = std::env::var(BEGINS_WITHIN).ok().and_then(|seconds| seconds.parse().ok());
    let patience = named.map_or(BEGIN, Duration::from_secs);
    hear.recv_timeout(patience).map_err(|error| match error {
        RecvTimeoutError::Timeout => {
            annulus_mpi::give_up_beginning();
            Unjoined::Late(patience)
        }
        RecvTimeoutError::Disconnected => ended(),
    })
}

impl fmt::Debug for Office {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Office").field("facts", &self.facts).finish_non_exhaustive()
    }
}

/// Whether a last word is that of a process which ends by its own fault.
fn is_fault(bye: Option<(i32, bool)>) -> bool {
    bye.is_some_and(|(_, own_fault)| own_fault)
}
