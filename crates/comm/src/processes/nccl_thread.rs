//! The thread that owns a run's clique: it hands rounds to NCCL, watches them, and gives the clique up where one fails or hangs.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use annulus_nccl::{Clique, Id};

use super::envelope::Passes;
use super::nccl_transfers::{NcclTransfers, Round};
use crate::Label;
use crate::threads::{DeadlineTimer, Group};

/// How long the thread sleeps while nothing happens: if a round is under way, and if none is. A rank that posts wakes it.
const SLEEP: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(5)];
/// How long a clique may take to begin, at least.
const BEGIN: Duration = Duration::from_secs(120);
/// How long a clique may take to end once the program does.
pub(super) const LONGEST_END: Duration = Duration::from_secs(2);

/// The run that the thread serves.
pub(super) struct NcclRun {
    pub(super) transfers: Arc<NcclTransfers>,
    pub(super) group: Arc<Group>,
    /// How many processes there are, each with a rank.
    pub(super) size: usize,
    pub(super) deadline: Duration,
    /// Sends the clique's unique id to the other processes; only in the process that draws it.
    pub(super) share_id: Option<Box<dyn Fn(Vec<u8>) + Send>>,
    /// The program ends.
    pub(super) is_last: Arc<AtomicBool>,
}

/// Starts the thread of a run.
pub(super) fn start(run: NcclRun) -> std::io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name("nccl".to_owned()).spawn(move || {
        let transfers = run.transfers.clone();
        let served = catch_unwind(AssertUnwindSafe(|| serve(run)));
        match served {
            Ok(Ok(())) => {}
            Ok(Err(why)) => transfers.fail(&why),
            Err(_) => transfers.fail("the thread of NCCL panicked"),
        }
    })
}

/// What the thread keeps to itself.
struct NcclThread {
    run: NcclRun,
    clique: Clique,
    passes: Passes,
    /// Handed to NCCL, and not on the lane yet.
    submitting: Option<Round>,
    /// Labels of the rounds that are under way and the ranks that they are with, the oldest first.
    under_way: Vec<(Label, Vec<usize>)>,
    watch: Watch,
}

/// How long a wait has seen no progress.
struct Watch {
    timer: DeadlineTimer,
    /// By rank, how many operations it had done.
    seen: BTreeMap<usize, u64>,
}

impl Watch {
    fn new(deadline: Duration) -> Watch {
        Watch { timer: DeadlineTimer::new(deadline, Instant::now()), seen: BTreeMap::new() }
    }

    /// Whether the deadline has passed without progress of any rank that is waited for, with how many operations each has done.
    fn is_over(&mut self, operations: &[(usize, u64)]) -> bool {
        self.timer.check(Instant::now());
        for (rank, operations) in operations {
            if self.seen.insert(*rank, *operations) != Some(*operations) {
                self.timer.restart();
            }
        }
        self.timer.has_expired()
    }
}

/// Serves the run to its end. The clique is aborted if anything fails.
fn serve(run: NcclRun) -> Result<(), String> {
    let Some(id) = clique_id(&run)? else { return Ok(()) };
    let NcclRun { transfers, size, deadline, .. } = &run;
    let (setup, place) = (transfers.setup.clone(), [transfers.rank, *size]);
    let here = |error| format!("NCCL, rank {}: {error}", transfers.rank);
    let clique = Clique::begin(setup.found.library, setup.lane, &id, place).map_err(here)?;
    // Connecting may take longer than a deadline between ranks, which meanwhile count as making progress.
    let limit = (*deadline).max(BEGIN);
    let mut watch = Watch::new(limit);
    while !clique.is_ready().map_err(here)? {
        if run.has_failed() {
            return Ok(());
        }
        if watch.is_over(&[]) {
            return Err(format!("NCCL has not begun within {} s", limit.as_secs_f64()));
        }
        (0..*size).for_each(|rank| run.group.makes_progress(rank));
        thread::sleep(SLEEP[0]);
    }
    let (watch, passes) = (Watch::new(*deadline), Passes::default());
    let thread = NcclThread { run, clique, passes, submitting: None, under_way: Vec::new(), watch };
    thread.serve_rounds()
}

/// The clique's unique id, drawn here or received; `None`: the run ended before.
fn clique_id(run: &NcclRun) -> Result<Option<Id>, String> {
    let transfers = &run.transfers;
    if let Some(share_id) = &run.share_id {
        let id = Id::draw(&transfers.setup.found.library).map_err(|error| error.to_string())?;
        share_id(id.bytes());
        return Ok(Some(id));
    }
    loop {
        let mut state = transfers.state();
        if state.clique_id.is_some() {
            return Ok(state.clique_id);
        }
        let has_ended = state.has_ended;
        transfers.wake.wait_for(&mut state, SLEEP[1]);
        drop(state);
        if run.has_failed() || has_ended {
            return Ok(None);
        }
    }
}

impl NcclRun {
    /// Whether a rank, or MPI, has failed, so that nobody wants what is under way.
    fn has_failed(&self) -> bool {
        self.group.first().is_some() || self.group.is_lost()
    }
}

impl NcclThread {
    fn serve_rounds(mut self) -> Result<(), String> {
        loop {
            if self.run.has_failed() {
                // Before the abort, so that nobody takes an aborted transfer for one that has ended.
                self.run.transfers.give_up("NCCL's transfers were aborted, as a rank has failed");
                self.clique.abort();
                return Ok(());
            }
            let busy = match self.poll() {
                Ok(busy) => busy,
                Err(why) => {
                    let why = self.at(&why);
                    // Before the abort, so that a rank that waits for the device finds the reason when it goes on.
                    self.run.transfers.fail(&why);
                    self.clique.abort();
                    return Err(why);
                }
            };
            let transfers = self.run.transfers.clone();
            let mut state = transfers.state();
            let is_idle = self.submitting.is_none() && self.under_way.is_empty();
            // Rounds that were not submitted by then are such as the rank did not wait for.
            if state.has_ended && is_idle {
                drop(state);
                self.end();
                return Ok(());
            }
            if !std::mem::take(&mut state.is_new) && !busy {
                let time = SLEEP[usize::from(is_idle)];
                transfers.wake.wait_for(&mut state, time);
            }
        }
    }

    /// Submits the next round, delivers one that is on the lane, and drops those that have ended. Returns whether anything happened.
    fn poll(&mut self) -> Result<bool, String> {
        let transfers = self.run.transfers.clone();
        let text = |error: annulus_nccl::Error| error.to_string();
        let mut busy = false;
        if self.submitting.is_none()
            && let Some(mut round) = transfers.next().map_err(|error| error.to_string())?
        {
            let transfers_of_round = round.transfers();
            self.under_way.push((round.label, round.peers()));
            self.submitting = Some(round);
            self.clique.submit(transfers_of_round).map_err(text)?;
            busy = true;
        }
        if self.submitting.is_some()
            && let Some(mark) = self.clique.submitted().map_err(text)?
        {
            if let Some(round) = self.submitting.take() {
                transfers.deliver(round, &mark, &mut self.passes);
            }
            busy = true;
        }
        let left = self.clique.poll().map_err(text)?;
        let over = self.under_way.len() - left;
        self.under_way.drain(..over);
        self.check_oldest(over > 0)?;
        Ok(busy || over > 0)
    }

    /// Checks for how long the device has waited for the oldest round. If that has not begun, the device computes what it is to run after:
    /// this rank is alive, however long that takes.
    fn check_oldest(&mut self, is_new: bool) -> Result<(), String> {
        let has_begun = self.clique.has_begun().map_err(|error| error.to_string())?;
        let NcclRun { transfers, group, deadline, .. } = &self.run;
        let oldest = self.under_way.first().map_or(&[][..], |(_, peers)| peers);
        let awaited = if has_begun { oldest } else { &[] };
        transfers.set_under_way(self.under_way.len(), awaited);
        if !has_begun && !oldest.is_empty() {
            group.makes_progress(transfers.rank);
        }
        if is_new || !has_begun {
            self.watch.timer.restart();
        }
        if self.watch.is_over(&group.operations_behind(awaited)) {
            let deadline = deadline.as_secs_f64();
            return Err(format!("a transfer has not ended within {deadline} s"));
        }
        Ok(())
    }

    /// `why`, with the label and the ranks of the oldest round under way.
    fn at(&self, why: &str) -> String {
        let Some((label, peers)) = self.under_way.first() else { return why.to_owned() };
        let peers: Vec<String> = peers.iter().map(usize::to_string).collect();
        let (rank, peers) = (self.run.transfers.rank, peers.join(", "));
        format!("NCCL, rank {rank} with {peers} ({label}): {why}")
    }

    /// Ends the clique. The others may be in the run for long: they are waited for as long as the program lasts.
    fn end(self) {
        let NcclThread { clique, run, .. } = self;
        let until = || {
            let is_last = run.is_last.load(Ordering::Relaxed);
            run.group.first().is_none() && !is_last
        };
        // Even if the clique does not end, all its transfers have.
        let _ = clique.end(LONGEST_END, until);
    }
}
