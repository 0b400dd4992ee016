//! Signals as a request to stop, which whatever takes long looks at: SIGTERM and SIGINT, SIGHUP of a closed
//! terminal, and SIGUSR1, which batch systems send ahead of the end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

use crate::failure::{Failure, INTERNAL, PREEMPTED};

/// Any of them came.
static FLAG: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
/// One of those came whose repetition means: at once.
static INSISTS: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// From now on the first of them sets the flag that is given; a second SIGTERM or SIGINT ends the process at once.
pub(crate) fn watch() -> Result<Arc<AtomicBool>, Failure> {
    let set = || {
        for signal in heeded() {
            if [SIGTERM, SIGINT].contains(&signal) {
                signal_hook::flag::register_conditional_shutdown(signal, 130, INSISTS.clone())?;
                signal_hook::flag::register(signal, INSISTS.clone())?;
            }
            signal_hook::flag::register(signal, FLAG.clone())?;
        }
        Ok(())
    };
    set().map_err(|error: std::io::Error| unwatched(&error))?;
    Ok(FLAG.clone())
}

/// From now on any of them ends the process at once with `code`: what it was started for is done.
pub(crate) fn end_with(code: u8) -> Result<(), Failure> {
    let set = || {
        for signal in heeded() {
            let always = Arc::new(AtomicBool::new(true));
            signal_hook::flag::register_conditional_shutdown(signal, code.into(), always)?;
        }
        Ok(())
    };
    set().map_err(|error: std::io::Error| unwatched(&error))
}

/// The signals that this process was not started to ignore: `nohup` starts programs so that are to outlive their terminal, and shells
/// without job control start those in the background.
fn heeded() -> impl Iterator<Item = libc::c_int> {
    [SIGTERM, SIGINT, SIGHUP, SIGUSR1].into_iter().filter(|&signal| !is_ignored(signal))
}

fn unwatched(error: &std::io::Error) -> Failure {
    Failure::new(INTERNAL, format!("cannot watch signals: {error}"), None)
}

/// From now on SIGUSR1, which launchers pass on to their processes, ends this one at once with the code of what was stopped: a
/// library of MPI may have a use of its own for it.
pub(crate) fn end_at_once() -> Result<(), Failure> {
    let always = Arc::new(AtomicBool::new(true));
    let code = i32::from(PREEMPTED);
    let set = signal_hook::flag::register_conditional_shutdown(SIGUSR1, code, always);
    set.map(drop).map_err(|error| unwatched(&error))
}

/// Whether whoever started this process had it ignore a signal.
fn is_ignored(signal: libc::c_int) -> bool {
    let mut now = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: asks only, and `now` is filled where the answer is 0.
    unsafe {
        let asked = libc::sigaction(signal, std::ptr::null(), now.as_mut_ptr());
        asked == 0 && now.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Whether one of them came. Where nobody watches, they end the process.
pub(crate) fn is_asked_for() -> bool {
    FLAG.load(Ordering::Relaxed)
}
