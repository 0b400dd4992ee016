//! Signals that ask a program to stop, which libraries of MPI would take from it.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

use libc::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, sigaction};

/// The signals that ask a program to stop: SIGTERM and SIGINT, SIGHUP of a closed terminal, and SIGUSR1, which batch systems send ahead
/// of a time limit.
pub const STOPS: [c_int; 4] = [SIGTERM, SIGINT, SIGHUP, SIGUSR1];

/// Has `call` leave what [`STOPS`] do in this process as it is: MPICH would do nothing on SIGUSR1, and UCX, below either family of MPI,
/// nothing on SIGHUP.
pub(crate) fn keeping_stops<T>(call: impl FnOnce() -> T) -> T {
    let kept = STOPS.map(|signal| (signal, action(signal)));
    let done = call();
    for (signal, action) in kept {
        if let Some(action) = action {
            // SAFETY: the action is what the system said of this signal, and only its handler has to live, as it had to before.
            unsafe { sigaction(signal, &raw const action, ptr::null_mut()) };
        }
    }
    done
}

/// What this process does on a signal; `None`: the system does not say.
fn action(signal: c_int) -> Option<sigaction> {
    let mut now = MaybeUninit::uninit();
    // SAFETY: a null action changes nothing, and `now` is filled if the call returns 0.
    unsafe { (sigaction(signal, ptr::null(), now.as_mut_ptr()) == 0).then(|| now.assume_init()) }
}

/// Whether this process ignores a signal.
pub fn is_ignored(signal: c_int) -> bool {
    action(signal).is_some_and(|now| now.sa_sigaction == libc::SIG_IGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_takes_a_signal_does_not_keep_it() {
        extern "C" fn nothing(_: c_int) {}
        let handler = || action(SIGUSR1).unwrap().sa_sigaction;
        let before = handler();
        let taken = keeping_stops(|| {
            // SAFETY: the handler does nothing, on a signal that nobody sends here.
            unsafe { libc::signal(SIGUSR1, nothing as *const () as libc::sighandler_t) };
            handler()
        });
        assert!(taken != before && handler() == before);
    }
}
