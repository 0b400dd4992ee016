//! A sign of life while a rank does not communicate.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use annulus_comm::Communicator;
use annulus_ops::Backend;

/// The interval at which a rank that writes, or waits for its device, says so.
const PULSE: Duration = Duration::from_secs(1);

/// Runs `work` while another thread says that this rank is alive. If the system has no more threads, nobody does, and `work` that takes
/// longer than the deadline ends the run.
pub(crate) fn alive<T>(comm: &dyn Communicator, work: impl FnOnce() -> T) -> T {
    // A run that is to stop still finishes what it writes.
    beside(|| drop(comm.progress()), work)
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
    let result = beside(|| drop(comm.computes()), work);
    drop(comm.progress());
    result
}

/// Runs `work` while another thread calls `say` after every pulse.
fn beside<T>(say: impl Fn() + Send, work: impl FnOnce() -> T) -> T {
    let (done, ended) = channel::<()>();
    thread::scope(|scope| {
        let saying = thread::Builder::new().name("alive".to_owned());
        let _ = saying.spawn_scoped(scope, move || {
            while ended.recv_timeout(PULSE) == Err(RecvTimeoutError::Timeout) {
                say();
            }
        });
        let result = work();
        drop(done);
        result
    })
}
