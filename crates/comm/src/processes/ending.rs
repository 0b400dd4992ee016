//! How a process of a job ends: what it tells the others, and which of several that fail reports why.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;

use super::envelope::{ControlMessage, Envelope};
use super::mpi_process::{MpiProcess, MpiState, OutgoingMessage, is_fault};
use super::nccl_thread;

/// Processes that fail within so long of each other fail at once: longer than a message takes on a busy machine, and less than a failed
/// process waits for a silent one before it aborts the job.
const AT_ONCE: Duration = Duration::from_millis(500);

impl MpiProcess {
    /// Announces the end of this process to the others, unless it has: its exit code, and whether it ends by its own fault.
    fn announce_exit(&self, state: &mut MpiState, code: i32, own_fault: bool) {
        if std::mem::replace(&mut state.closing, true) {
            return;
        }
        let (run, own) = (state.runs, state.order[self.facts.process]);
        state.exits[own] = Some((code, own_fault));
        let exit = |to| {
            let envelope = Envelope { run, message: ControlMessage::Exit(code, own_fault) };
            OutgoingMessage { to, envelope, payload: None }
        };
        let others = (0..state.exits.len()).filter(|other| *other != own);
        state.outgoing.extend(others.map(exit));
        self.shared.wake.notify_one();
    }

    /// Whether this process, which fails with `code` by its own fault, is the one to report it: the first of all, and of those that
    /// fail at once the one with the lowest rank of MPI. The other processes are told of the failure.
    pub(crate) fn is_first_to_fail(&self, code: i32) -> bool {
        // What has already come may not be read yet: the pass after the present one reads it.
        let polls = self.shared.state.lock().polls;
        let mut state = self.wait_at_once(|state| state.polls > polls + 1);
        if state.exits.iter().copied().any(is_fault) {
            return false;
        }
        self.announce_exit(&mut state, code, true);
        let own = state.order[self.facts.process];
        drop(state);
        let is_known = |state: &MpiState| {
            let lower = &state.exits[..own];
            lower.iter().copied().any(is_fault) || lower.iter().all(Option::is_some)
        };
        let state = self.wait_at_once(is_known);
        !state.exits[..own].iter().copied().any(is_fault)
    }

    /// Waits until this holds, but for no longer than it takes to fail at once.
    fn wait_at_once(&self, holds: impl Fn(&MpiState) -> bool) -> MutexGuard<'_, MpiState> {
        let begun = Instant::now();
        loop {
            let state = self.shared.state.lock();
            if holds(&state) || begun.elapsed() > AT_ONCE {
                return state;
            }
            drop(state);
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Announces the end of this process and waits until the others have announced theirs. Returns the exit code of the job.
    pub(crate) fn close(&self, code: i32, own_fault: bool) -> i32 {
        self.announce_exit(&mut self.shared.state.lock(), code, own_fault);
        if let Some(thread) = self.thread.lock().take() {
            // A panic there ends it, too.
            let _ = thread.join();
        }
        // All processes have announced their end: no communicator of NCCL is used any more. One that does not end is left to the end
        // of this process.
        self.is_last.store(true, Ordering::Relaxed);
        let (nccl_threads, begun) =
            (std::mem::take(&mut self.shared.state.lock().nccl_threads), Instant::now());
        while nccl_threads.iter().any(|thread| !thread.is_finished())
            && begun.elapsed() < 2 * nccl_thread::LONGEST_END
        {
            thread::sleep(Duration::from_millis(1));
        }
        self.shared.state.lock().fault().unwrap_or(code)
    }
}
