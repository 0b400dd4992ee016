//! This process as one of those that MPI joins: what its ranks and the thread that owns MPI share, and how both begin and end.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use annulus_mpi::{Launched, Leaving, Session};
use candle_core::Device;
use parking_lot::{Condvar, Mutex};

use super::envelope::{ControlMessage, Envelope, TensorHeader};
use super::facts::Facts;
use super::inbox::Arrived;
use super::mpi_thread::MpiThread;
use super::nccl_thread::{self, NcclRun};
use super::nccl_transfers::{NcclSetup, NcclTransfers};
use super::remote_transport::RemoteTransport;
use crate::flight::{Flight, Log};
use crate::threads::{self, Group, LocalRanks};
use crate::{Failure, MpiProgress};

/// How long `MPI_Init` may take: as long as the slowest process takes to be started.
const BEGIN: Duration = Duration::from_secs(120);
/// The environment variable that overrides how long MPI may take to begin, in seconds.
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
    /// The processes cannot exchange anything.
    #[error("the processes do not reach each other: {0}")]
    Apart(Failure<crate::Error>),
}

/// This process among those that MPI joins.
pub(crate) struct MpiProcess {
    pub(crate) facts: Facts,
    pub(super) shared: Arc<Shared>,
    pub(super) thread: Mutex<Option<JoinHandle<()>>>,
    /// By device, the library of NCCL that was found and its stream.
    pub(super) found: Mutex<Vec<(Device, NcclSetup)>>,
    /// The program ends: no communicator of NCCL is needed any more.
    pub(super) is_last: Arc<AtomicBool>,
}

/// What ranks share with the thread that owns MPI.
pub(super) struct Shared {
    pub(super) state: Mutex<MpiState>,
    pub(super) wake: Condvar,
    /// MPI's thread sleeps while any rank here computes.
    pub(super) only_while_waiting: AtomicBool,
}

/// The runs of this process, and what is to be sent or was received for them.
#[derive(Default)]
pub(super) struct MpiState {
    /// What MPI's thread is to send, in order.
    pub(super) outgoing: VecDeque<OutgoingMessage>,
    /// Receives were posted, or a rank began to wait, since MPI's thread looked last.
    pub(super) is_woken: bool,
    /// How often MPI's thread has read what has arrived.
    pub(super) polls: u64,
    /// How many runs have begun here.
    pub(super) runs: u64,
    /// Ranks of MPI by the number that a process has here: processes of a host are neighbours, wherever the launcher put them.
    pub(super) order: Vec<usize>,
    /// The run of ranks that is under way.
    pub(super) current: Option<(u64, Arc<Group>)>,
    /// What has arrived and is not delivered: some of it may be for a run that has not begun here.
    pub(super) undelivered: Vec<Arrived>,
    /// By rank of MPI, what processes announced as their end: the exit code, and whether it is their own fault.
    pub(super) exits: Vec<Option<(i32, bool)>>,
    /// This process has announced its own end.
    pub(super) closing: bool,
    /// Why nothing goes between processes any more.
    pub(super) lost: Option<String>,
    /// The flight record in which this process says that it is alive.
    pub(super) flight: Option<Arc<Flight>>,
    /// The GPU that ranks here compute on.
    pub(super) gpu: Option<Device>,
    /// NCCL, where all processes use it.
    nccl: Option<NcclSetup>,
    /// What goes by NCCL in the run that is under way.
    pub(super) transfers: Option<Arc<NcclTransfers>>,
    /// The threads that own communicators of NCCL, also of runs that have ended: all processes end those together.
    pub(super) nccl_threads: Vec<JoinHandle<()>>,
}

impl Shared {
    /// Nothing goes between processes any more, in this run and in those to come.
    pub(super) fn lose(&self, why: &str) {
        let mut state = self.state.lock();
        state.lost = Some(why.to_owned());
        if let Some((_, group)) = &state.current {
            group.lose(why.to_owned());
        }
    }
}

impl MpiState {
    /// The exit code of the first process, by number, whose fault the end is.
    pub(super) fn fault(&self) -> Option<i32> {
        let exit = self.order.iter().map(|rank| self.exits[*rank]).find(|exit| is_fault(*exit));
        exit.flatten().map(|(code, _)| code)
    }

    /// The device on which a tensor for a rank here is to be.
    pub(super) fn device_of(&self, header: &TensorHeader) -> Device {
        self.gpu.clone().filter(|_| header.on_gpu).unwrap_or(Device::Cpu)
    }

    /// Whether the payload that `header` announces may be received in this run: its rank has posted the receive, or will post none
    /// any more.
    pub(super) fn may_receive(&self, run: u64, header: &TensorHeader) -> bool {
        match &self.current {
            Some((current, group)) if run == *current => {
                group.may_receive(header.from, header.to, header.ticket())
            }
            // The ranks of a run that has not begun here will post their receives, if it still begins.
            _ => run <= self.runs || self.closing,
        }
    }

    /// Fails `group`, a run that the process of this number, and rank of MPI, is not in, if that process has failed.
    pub(super) fn fail_if_process_failed(&self, process: usize, rank: usize, group: &Group) {
        if is_fault(self.exits[rank]) {
            group.fail(process * group.here().len());
        }
    }
}

/// A message for another process that MPI does not have yet.
pub(super) struct OutgoingMessage {
    /// The rank of MPI that it is for.
    pub(super) to: usize,
    pub(super) envelope: Envelope,
    pub(super) payload: Option<Leaving>,
}

impl MpiProcess {
    /// Begins MPI on a thread of its own, in a process that a launcher started.
    pub(crate) fn open(launched: Launched) -> Result<MpiProcess, Unjoined> {
        let limit = begins_within()?;
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            wake: Condvar::new(),
            only_while_waiting: AtomicBool::new(false),
        });
        let (sender, receiver) = mpsc::channel();
        let shared_with_thread = shared.clone();
        let begin = move || {
            let session = annulus_mpi::find(Some(launched)).and_then(Session::begin)?;
            match launched.check(&session) {
                Ok(()) => Ok(session),
                Err(error) => session.end().and(Err(error)),
            }
        };
        let work = move || match begin() {
            Err(error) => drop(sender.send(Err(error))),
            Ok(session) => {
                let facts = Facts::of(&session);
                {
                    let mut state = shared_with_thread.state.lock();
                    state.exits = vec![None; facts.processes];
                    state.order = (0..facts.processes).collect();
                }
                // `open` waits for this.
                let _ = sender.send(Ok(facts));
                MpiThread::new(session, shared_with_thread).serve();
            }
        };
        let failed = |why: String| annulus_mpi::Error { what: "MPI's thread".to_owned(), why };
        let thread = thread::Builder::new().name("mpi".to_owned()).spawn(work);
        let thread = thread.map_err(|error| failed(error.to_string()))?;
        let facts = in_time(&receiver, limit, || failed("it ended at once".to_owned()).into())??;
        let (found, is_last) = (Mutex::default(), Arc::default());
        Ok(MpiProcess { facts, shared, thread: Mutex::new(Some(thread)), found, is_last })
    }

    /// Gives the processes new numbers, between two runs: `order` has the rank of MPI of each number, and is the same for all.
    pub(crate) fn renumber(&mut self, order: Vec<usize>) {
        let mut state = self.shared.state.lock();
        let own = state.order[self.facts.process];
        self.facts.process = order.iter().position(|rank| *rank == own).unwrap_or(own);
        state.order = order;
    }

    /// The rank of MPI that this process is.
    pub(crate) fn number_of_mpi(&self) -> usize {
        self.shared.state.lock().order[self.facts.process]
    }

    /// From now on MPI's thread says in `flight` that this process is alive.
    pub(crate) fn keep_alive_in(&self, flight: Arc<Flight>) {
        self.shared.state.lock().flight = Some(flight);
    }

    /// From now on ranks here compute on `device`.
    pub(crate) fn computes_on(&self, device: &Device) {
        self.shared.state.lock().gpu = Some(device.clone()).filter(Device::is_cuda);
    }

    /// Sets when messages progress.
    pub(crate) fn set_progress(&self, progress: MpiProgress) {
        let only = progress == MpiProgress::WhileWaiting;
        self.shared.only_while_waiting.store(only, Ordering::Relaxed);
    }

    /// Begins a run of `options.world` ranks over all processes: the group of which this process runs its share.
    pub(crate) fn begin(
        &self,
        options: &threads::Options,
        log: Option<Log>,
        of_processes: bool,
    ) -> Arc<Group> {
        let Facts { process, processes, .. } = self.facts;
        let ranks_each = options.world / processes;
        let mut state = self.shared.state.lock();
        state.runs += 1;
        let run = state.runs;
        let nccl = state.nccl.clone().filter(|_| ranks_each == 1 && !of_processes);
        let transfers = nccl.map(|nccl| NcclTransfers::new(nccl, process));
        state.transfers.clone_from(&transfers);
        let (shared, order, nccl) = (self.shared.clone(), state.order.clone(), transfers.clone());
        let transport = RemoteTransport { shared, run, ranks_each, process, order, nccl };
        let local = LocalRanks {
            ranks: process * ranks_each..(process + 1) * ranks_each,
            transport: Some(Arc::new(transport)),
            process: [process as u64, processes as u64],
            log,
            device_copy: None,
            of_processes,
        };
        let group = Group::new(options, local);
        if let Some(transfers) = transfers {
            self.start_nccl(transfers, &group, &mut state, options.deadline);
        }
        if let Some(why) = &state.lost {
            group.lose(why.clone());
        }
        for (process, rank) in state.order.iter().enumerate() {
            state.fail_if_process_failed(process, *rank, &group);
        }
        state.current = Some((run, group.clone()));
        drop(state);
        self.shared.wake.notify_one();
        group
    }

    /// Starts the thread that owns the communicator of NCCL of the run that begins.
    fn start_nccl(
        &self,
        transfers: Arc<NcclTransfers>,
        group: &Arc<Group>,
        state: &mut MpiState,
        deadline: Duration,
    ) {
        transfers.set_group(group);
        let Facts { process, processes: size, .. } = self.facts;
        let (shared, run, order) = (self.shared.clone(), state.runs, state.order.clone());
        let share_id = move |id: Vec<u8>| {
            let others = order.iter().enumerate().filter(|(other, _)| *other != process);
            let outgoing = |to: usize| {
                let envelope = Envelope { run, message: ControlMessage::Clique(id.clone()) };
                OutgoingMessage { to, envelope, payload: None }
            };
            shared.state.lock().outgoing.extend(others.map(|(_, to)| outgoing(*to)));
            shared.wake.notify_one();
        };
        let run = NcclRun {
            transfers,
            group: group.clone(),
            size,
            deadline,
            share_id: (process == 0).then(|| Box::new(share_id) as _),
            is_last: self.is_last.clone(),
        };
        match nccl_thread::start(run) {
            Ok(thread) => state.nccl_threads.push(thread),
            Err(error) => group.lose(format!("the thread of NCCL could not start: {error}")),
        }
    }

    /// Ends the run that is under way here.
    pub(crate) fn finish(&self) {
        let mut state = self.shared.state.lock();
        state.current = None;
        if let Some(transfers) = state.transfers.take() {
            transfers.end();
        }
        state.nccl_threads.retain(|thread| !thread.is_finished());
    }

    /// From now on tensors go between processes by `nccl`, in runs of one rank per process; `None`: by MPI.
    pub(crate) fn use_nccl(&self, nccl: Option<NcclSetup>) {
        self.shared.state.lock().nccl = nccl;
    }

    /// What tensors go by between processes, if not by MPI.
    pub(crate) fn nccl_in_use(&self) -> Option<NcclSetup> {
        self.shared.state.lock().nccl.clone()
    }

    /// Blocks until all that the run under way has posted to NCCL has been sent and received.
    pub(crate) fn settle(&self) -> crate::Result<()> {
        let transfers = self.shared.state.lock().transfers.clone();
        transfers.map_or(Ok(()), |transfers| transfers.settle())
    }
}

/// How long MPI may take to begin.
fn begins_within() -> Result<Duration, Unjoined> {
    let Ok(seconds) = std::env::var(BEGINS_WITHIN) else { return Ok(BEGIN) };
    seconds.parse().map(Duration::from_secs).map_err(|_| {
        let what = format!("{BEGINS_WITHIN}=`{seconds}` is not a number of seconds");
        annulus_mpi::Error { what, why: format!("set {BEGINS_WITHIN} to whole seconds, as in 300") }
            .into()
    })
}

/// What MPI's thread sends once MPI has begun; `ended` is the error where the thread has ended instead.
fn in_time<T>(
    receiver: &Receiver<T>,
    limit: Duration,
    ended: impl FnOnce() -> Unjoined,
) -> Result<T, Unjoined> {
    receiver.recv_timeout(limit).map_err(|error| match error {
        RecvTimeoutError::Timeout => {
            annulus_mpi::give_up_beginning();
            Unjoined::Late(limit)
        }
        RecvTimeoutError::Disconnected => ended(),
    })
}

impl fmt::Debug for MpiProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MpiProcess").field("facts", &self.facts).finish_non_exhaustive()
    }
}

/// Whether an announced end is that of a process which ends by its own fault.
pub(super) fn is_fault(exit: Option<(i32, bool)>) -> bool {
    exit.is_some_and(|(_, own_fault)| own_fault)
}
