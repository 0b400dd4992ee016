//! The thread that owns MPI.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use annulus_mpi::Session;
use parking_lot::MutexGuard;

use super::envelope::{ControlMessage, Envelope, HEARTBEATS, Passes, TAGS};
use super::inbox::{Arrived, Inbox};
use super::mpi_process::{MpiState, OutgoingMessage, Shared};
use super::outbox::Outbox;
use crate::threads::Group;

/// How often other processes are told how far the ranks here are.
const HEARTBEAT: Duration = Duration::from_millis(20);
/// How many heartbeats are sent to a process from which nothing comes. One that is stopped reads none, and MPI would keep them all:
/// MPICH has memory for 64 unread messages of a process, and with none left it sends nothing to anybody.
const UNANSWERED: usize = 4;
/// How often the flight record says that this process is alive.
const PULSE: Duration = Duration::from_millis(1);
/// How long the thread sleeps while nothing happens and all ranks here wait, at least and at most.
const SLEEP_WHILE_WAITING: [Duration; 2] = [Duration::from_micros(50), Duration::from_micros(400)];
/// How long the thread sleeps while nothing happens and a rank here computes, at least and at most. Each poll takes a core from that
/// rank and evicts its data from the caches, so the thread polls less often, and ever less the longer nothing has happened; but MPI
/// goes on with a message only when it is called. A rank that begins to wait wakes the thread.
const SLEEP_WHILE_COMPUTING: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(1)];
/// Between least and most, the thread sleeps one part in so many of the time since something happened last: so whatever happens is
/// noticed with a delay of at most that part.
const SLEEP_SHARE: u32 = 8;
/// Polls in a row while a payload is on its way: at each, an MPI over TCP reads no more of it than one of its buffers holds.
const POLLS: usize = 4;
/// For so long after something was sent or received the thread polls without sleeping if a rank waits, as the next message may come
/// in less time than a sleep takes. It yields its core between two polls.
const BUSY_POLLING: Duration = Duration::from_micros(200);
/// How long a process that has announced its end waits for that of a silent one: after a failure, which may be that the silent one is
/// gone, and otherwise. A process that is not silent may have files to write, and is waited for.
const EXIT_WAIT: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

/// The exit code where a rank does not end though its run has: that of a deadline.
const STUCK: i32 = 12;

/// How far the job is in ending.
enum Shutdown {
    /// It goes on.
    No,
    /// All processes have announced their end.
    Complete,
    /// One is silent, or a rank is stuck: the exit code with which to abort the job.
    Abort(i32),
}

/// What the thread that owns MPI keeps to itself.
pub(super) struct MpiThread {
    session: Session,
    shared: Arc<Shared>,
    passes: Passes,
    outbox: Outbox,
    inboxes: Vec<Inbox>,
    /// When the other processes were last told how far the ranks here are.
    heartbeat_at: Instant,
    /// When the flight record was last told that this process is alive.
    pulse_at: Instant,
    /// The last run for which the request to stop was passed on.
    stopped: u64,
    /// When something was last sent or received.
    active_at: Instant,
    /// By rank of MPI, how many heartbeats were sent to a process since anything came from it.
    unanswered: Vec<usize>,
    /// By rank of MPI, for how long nothing has come from a process; counted once this process has announced its end.
    silence: Vec<Duration>,
    /// When the silence was counted last.
    counted_at: Instant,
    /// How many operations the ranks here had done when one last made progress, and when that was.
    progress: (u64, Instant),
}

impl MpiThread {
    pub(super) fn new(session: Session, shared: Arc<Shared>) -> MpiThread {
        let silence = vec![Duration::ZERO; session.size];
        let unanswered = vec![0; session.size];
        MpiThread {
            shared,
            passes: Passes::default(),
            outbox: Outbox::new(session.size),
            inboxes: Vec::new(),
            heartbeat_at: Instant::now(),
            pulse_at: Instant::now(),
            stopped: 0,
            active_at: Instant::now(),
            unanswered,
            silence,
            counted_at: Instant::now(),
            progress: (0, Instant::now()),
            session,
        }
    }

    /// Serves the ranks here until all processes have announced their end.
    pub(super) fn serve(mut self) {
        annulus_mpi::wake_soon();
        let served = catch_unwind(AssertUnwindSafe(|| self.poll_until_the_end()));
        let failed = match served {
            Ok(Ok(())) => None,
            // It cannot be told which process is at fault.
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("its thread panicked".to_owned()),
        };
        if let Some(why) = failed {
            self.shared.lose(&why);
            return;
        }
        let inboxes = std::mem::take(&mut self.inboxes);
        for inbox in inboxes {
            // The process ends next, and with it what MPI has left of this.
            let _ = inbox.close(&self.session);
        }
        // The process ends next, whatever MPI says.
        let _ = self.session.end();
    }

    fn open_inboxes(&mut self) -> annulus_mpi::Result<()> {
        for from in (0..self.session.size).filter(|from| *from != self.session.rank) {
            for tag in TAGS {
                self.inboxes.push(Inbox::open(&self.session, from, tag)?);
            }
        }
        Ok(())
    }

    fn poll_until_the_end(&mut self) -> annulus_mpi::Result<()> {
        self.open_inboxes()?;
        loop {
            if let Some((_, group)) = &self.shared.state.lock().current {
                group.begins_to_poll(Instant::now());
            }
            if self.shared.only_while_waiting.load(Ordering::Relaxed) && self.ranks_compute() {
                std::thread::sleep(SLEEP_WHILE_WAITING[0]);
                continue;
            }
            let posted = self.post()?;
            let has_moved = self.progress_mpi()?;
            let busy = posted | self.outbox.poll(&self.session, &self.shared)? | self.receive()?;
            self.send_heartbeats();
            let shared = self.shared.clone();
            let mut state = shared.state.lock();
            state.polls += 1;
            let group = state.current.as_ref().map(|(_, group)| &**group);
            let waits = group.is_some_and(Group::is_waiting);
            match self.shutdown(&state) {
                Shutdown::No => {}
                Shutdown::Complete => return Ok(()),
                Shutdown::Abort(code) => {
                    drop(state);
                    self.session.abort(code);
                    return Ok(());
                }
            }
            if busy {
                self.active_at = Instant::now();
            } else if !has_moved {
                self.sleep(state, waits);
            }
        }
    }

    /// Lets MPI progress. Returns whether anything has left or arrived.
    fn progress_mpi(&self) -> annulus_mpi::Result<bool> {
        let is_moving = !self.outbox.is_empty() || self.inboxes.iter().any(Inbox::is_receiving);
        let mut any = false;
        for _ in 0..if is_moving { POLLS } else { 1 } {
            any |= self.session.progress()?;
        }
        Ok(any)
    }

    /// Sleeps until the next poll, as nothing happened in this one.
    fn sleep(&mut self, mut state: MutexGuard<'_, MpiState>, waits: bool) {
        if waits && self.active_at.elapsed() < BUSY_POLLING {
            drop(state);
            std::thread::yield_now();
        } else if state.outgoing.is_empty() && !std::mem::take(&mut state.is_woken) {
            let is_idle = state.current.as_ref().is_none_or(|(_, group)| group.are_all_waiting());
            let [least, most] = if is_idle { SLEEP_WHILE_WAITING } else { SLEEP_WHILE_COMPUTING };
            let time = (self.active_at.elapsed() / SLEEP_SHARE).clamp(least, most);
            // A rank that sends, posts a receive or begins to wait ends the sleep; what arrives from other processes does not.
            self.shared.wake.wait_for(&mut state, time);
        }
    }

    /// How far the job is in ending: over once this process has announced its end and all others theirs.
    fn shutdown(&mut self, state: &MpiState) -> Shutdown {
        if let Some((_, group)) = &state.current
            && self.is_stuck(group)
        {
            return Shutdown::Abort(state.fault().unwrap_or(STUCK));
        }
        if !state.closing || !state.outgoing.is_empty() {
            return Shutdown::No;
        }
        let is_all_read = self.inboxes.iter().all(Inbox::is_empty);
        let is_all_sent = self.outbox.is_empty();
        if state.exits.iter().all(Option::is_some) && is_all_sent && is_all_read {
            return Shutdown::Complete;
        }
        // A pause of this process, however long, counts as one heartbeat: the others may have been paused with it.
        let passed = self.counted_at.elapsed().min(HEARTBEAT);
        self.counted_at = Instant::now();
        let fault = state.fault();
        let limit = EXIT_WAIT[usize::from(fault.is_none())];
        let mut lost = false;
        for (rank, exit) in
            state.exits.iter().enumerate().filter(|(rank, _)| *rank != self.session.rank)
        {
            self.silence[rank] += passed;
            // A process that has announced its end may still have to read what was sent to it.
            let is_awaited = exit.is_none() || !is_all_sent;
            lost |= is_awaited && self.silence[rank] > limit;
        }
        let own = state.exits[self.session.rank].map_or(0, |(code, _)| code);
        // The job has not succeeded if a process is silent.
        let code = fault.unwrap_or(if own == 0 { STUCK } else { own });
        if lost { Shutdown::Abort(code) } else { Shutdown::No }
    }

    /// Whether the run failed so long ago that a rank here which has made no progress since will not end by itself.
    fn is_stuck(&mut self, group: &Group) -> bool {
        let far = group.here().map(|rank| group.operations(rank)).fold(0, u64::wrapping_add);
        if far != self.progress.0 {
            self.progress = (far, Instant::now());
        }
        group.has_ended_before(self.progress.1)
    }

    /// Whether any rank here computes, that is, does not wait.
    fn ranks_compute(&self) -> bool {
        let state = self.shared.state.lock();
        state.current.as_ref().is_some_and(|(_, group)| !group.are_all_waiting())
    }

    /// Hands queued messages to MPI. Returns whether any was more than a heartbeat.
    fn post(&mut self) -> annulus_mpi::Result<bool> {
        let queue = std::mem::take(&mut self.shared.state.lock().outgoing);
        let busy = queue.iter().any(|outgoing| !outgoing.envelope.message.is_routine());
        for outgoing in queue {
            self.outbox.post(&self.session, outgoing)?;
        }
        Ok(busy)
    }

    /// Delivers what has arrived from all processes. Returns whether any of it was more than a heartbeat.
    fn receive(&mut self) -> annulus_mpi::Result<bool> {
        let mut busy = false;
        for index in 0..self.inboxes.len() {
            busy |= self.receive_from(index)?;
        }
        // A run may have begun for which something came early.
        self.deliver();
        Ok(busy)
    }

    /// Delivers what has arrived in the inbox at `index`. Returns whether any of it was more than a heartbeat.
    fn receive_from(&mut self, index: usize) -> annulus_mpi::Result<bool> {
        let mut busy = false;
        while let Some(arrived) = self.inboxes[index].poll(&self.session, &self.shared)? {
            busy |= !arrived.is_routine();
            if arrived.says_that_a_rank_left() {
                // Why it left was sent before, with the next tag, and is read first: otherwise a request to stop is taken for a
                // rank that made other calls.
                busy |= self.receive_from(index + 1)?;
                while self.session.progress()? {
                    self.receive_from(index + 1)?;
                    busy = true;
                }
            }
            self.take_in(self.inboxes[index].from, arrived);
            self.deliver();
        }
        Ok(self.inboxes[index].take_has_begun() | busy)
    }

    /// Handles what concerns the process, and queues what is to be delivered to a run.
    fn take_in(&mut self, from: usize, arrived: Arrived) {
        self.silence[from] = Duration::ZERO;
        self.unanswered[from] = 0;
        let mut state = self.shared.state.lock();
        let process = state.order.iter().position(|rank| *rank == from).unwrap_or(from);
        if let Some((_, group)) = &state.current {
            group.process_is_alive(process);
        }
        if let Arrived::Control(Envelope { message: ControlMessage::Exit(code, own_fault), run }) =
            arrived
        {
            state.exits[from] = Some((code, own_fault));
            if let Some((current, group)) = &state.current
                && run < *current
            {
                // It ended before this run began; one that ends after a run has done its part in it.
                state.fail_if_process_failed(process, from, group);
            }
            return;
        }
        if let (
            Arrived::Control(Envelope { message: ControlMessage::Stop, run }),
            Some((current, _)),
        ) = (&arrived, &state.current)
            && run == current
        {
            // That process has told all others, so it is not to be passed on.
            self.stopped = *run;
        }
        // The next heartbeat comes soon: those for a run that has not begun here, which may take long, are not kept.
        if !arrived.is_routine() || arrived.run() <= state.runs {
            state.undelivered.push(arrived);
        }
    }

    /// Delivers what has come for the run that is under way, in the order in which it came. What is for a run that has not begun here
    /// stays queued; what is for one that is over is dropped.
    fn deliver(&mut self) {
        let mut state = self.shared.state.lock();
        if state.undelivered.is_empty() {
            return;
        }
        let (runs, current, transfers) =
            (state.runs, state.current.clone(), state.transfers.clone());
        let (now, later) = state.undelivered.drain(..).partition(|one| one.run() <= runs);
        state.undelivered = later;
        drop(state);
        let now: Vec<Arrived> = now;
        let Some((run, group)) = current else { return };
        for arrived in now.into_iter().filter(|one| one.run() == run) {
            arrived.deliver(&group, transfers.as_deref(), &mut self.passes);
        }
    }

    /// Tells the other processes how far the ranks here are and whether the run is to stop, and the flight record that this process is
    /// alive, whichever is due.
    fn send_heartbeats(&mut self) {
        if self.pulse_at.elapsed() > PULSE {
            self.pulse_at = Instant::now();
            if let Some(flight) = self.shared.state.lock().flight.clone() {
                flight.pulse();
            }
        }
        if self.heartbeat_at.elapsed() < HEARTBEAT {
            return;
        }
        self.heartbeat_at = Instant::now();
        let state = self.shared.state.lock();
        let (current, closing) = (state.current.clone(), state.closing);
        drop(state);
        if closing {
            // It has announced its end: the others receive nothing from it any more.
            return;
        }
        let (run, all) = match current {
            Some((run, group)) => (run, self.heartbeats(run, &group)),
            None => (0, vec![ControlMessage::Alive]),
        };
        let mut state = self.shared.state.lock();
        for to in (0..self.session.size).filter(|to| *to != self.session.rank) {
            let is_heard = self.unanswered[to] < UNANSWERED;
            self.unanswered[to] += usize::from(is_heard);
            let sent = all.iter().filter(|message| is_heard || !message.is_routine());
            state.outgoing.extend(sent.map(|message| {
                let envelope = Envelope { run, message: message.clone() };
                OutgoingMessage { to, envelope, payload: None }
            }));
        }
    }

    /// Messages that say how far the ranks here are, and whether they are to stop.
    fn heartbeats(&mut self, run: u64, group: &Group) -> Vec<ControlMessage> {
        let ranks: Vec<_> =
            group.here().map(|rank| (rank, group.heartbeat(rank, self.heartbeat_at))).collect();
        let mut all: Vec<ControlMessage> = ranks
            .chunks(HEARTBEATS)
            .map(|some| ControlMessage::Heartbeats(some.to_vec()))
            .collect();
        if group.is_to_stop() && self.stopped < run {
            self.stopped = run;
            all.push(ControlMessage::Stop);
        }
        all
    }
}
