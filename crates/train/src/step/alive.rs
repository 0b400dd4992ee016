//! A sign of life while a rank does not communicate.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use annulus_comm::Communicator;

/// The interval at which a rank that writes says that it is alive.
const PULSE: Duration = Duration::from_secs(1);

/// Runs `work` while another thread says that this rank is alive. If the system has no more threads, nobody does, and `work` that takes
/// longer than the deadline ends the run.
pub(crate) fn alive<T>(comm: &dyn Communicator, work: impl FnOnce() -> T) -> T {
    let (done, ended) = channel::<()>();
    thread::scope(|scope| {
        let saying = thread::Builder::new().name("alive".to_owned());
        let _ = saying.spawn_scoped(scope, move || {
            while ended.recv_timeout(PULSE) == Err(RecvTimeoutError::Timeout) {
                // A run that is to stop still finishes what it writes.
                let _ = comm.progress();
            }
        });
        let result = work();
        drop(done);
        result
    })
}
