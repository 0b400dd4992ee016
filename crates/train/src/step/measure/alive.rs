//! A sign of life while a rank does not communicate.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use annulus_comm::Communicator;
use annulus_ops::Backend;

/// The longest interval at which a rank that writes, or waits for its device, says so.
const PULSE: Duration = Duration::from_secs(1);
/// How often it says so within the deadline of those that wait for it, at least: once is not enough where threads are late.
const PULSES: u32 = 4;

/// Runs `work` while another thread says that this rank is alive. If the system has no more threads, nobody does, and `work` that takes
/// longer than the deadline ends the run.
pub(crate) fn alive<T>(comm: &dyn Communicator, work: impl FnOnce() -> T) -> T {
    // A run that is to stop still finishes what it writes.
    beside(pulse(comm), || drop(comm.progress()), work)
}

/// Runs a caller's own `work`, which may take as long as it likes, as [`alive`] does; a single rank has nobody to tell.
pub(crate) fn calling<T>(comm: &dyn Communicator, work: impl FnOnce() -> T) -> T {
    if comm.world_size() == 1 {
        return work();
    }
    alive(comm, work)
}

/// Runs `work`, in which this thread waits for what its device computes, while another thread says so. On a CPU the work is what is
/// computed, and says itself that it is alive.
pub(crate) fn computing<T>(
    comm: &dyn Communicator,
    backend: &Backend,
    work: impl FnOnce() -> T,
) -> T {
    if matches!(backend, Backend::Cpu(_)) {
        return work();
    }
    // A run that has ended says so at the next call.
    let result = beside(pulse(comm), || drop(comm.computes()), work);
    drop(comm.progress());
    result
}

/// The interval at which a rank says that it is alive.
fn pulse(comm: &dyn Communicator) -> Duration {
    PULSE.min(comm.deadline() / PULSES)
}

/// Runs `work` while another thread calls `say` after every `pulse`.
fn beside<T>(pulse: Duration, say: impl Fn() + Send, work: impl FnOnce() -> T) -> T {
    let (done, ended) = channel::<()>();
    thread::scope(|scope| {
        let saying = thread::Builder::new().name("alive".to_owned());
        let _ = saying.spawn_scoped(scope, move || {
            while ended.recv_timeout(pulse) == Err(RecvTimeoutError::Timeout) {
                say();
            }
        });
        let result = work();
        drop(done);
        result
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use annulus_comm::threads::{Options, run};
    use annulus_comm::{Error, Label};

    use super::*;

    #[test]
    fn a_rank_that_writes_for_longer_than_a_short_deadline_is_alive() {
        // A quarter passes between two signs of life, and a busy machine may be late with them.
        let deadline = Duration::from_secs(1);
        let options = Options { world: 2, deadline, stop: Arc::default() };
        let ended = run(&options, |comm| {
            if comm.rank() == 0 {
                alive(&*comm, || thread::sleep(2 * deadline));
            }
            comm.barrier(Label::default())?;
            Ok::<_, Error>(())
        });
        ended.unwrap();
    }
}
