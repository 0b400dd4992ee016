//! Signals that ask the program to stop. They set a flag, which long work checks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use annulus_comm::World;
use annulus_comm::signals::{STOPS, is_ignored};
use annulus_train::Exit;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};

use crate::failure::Failure;
use crate::processes;

/// Set by any of the signals.
static REQUESTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
/// The exit code of a process that a second signal ended at once.
const INTERRUPTED: i32 = 130;
/// Two signals within this are one request: `timeout` sends a process SIGTERM twice, and launchers pass on the SIGINT that a terminal has
/// sent to all.
const ONE_REQUEST: Duration = Duration::from_millis(500);

/// From now on a signal sets the returned flag, and another SIGTERM or SIGINT half a second after the first, or later, ends the process at
/// once.
pub(crate) fn watch() -> Result<Arc<AtomicBool>, Failure> {
    let began = Instant::now();
    // Microseconds since `began` of the first SIGTERM or SIGINT.
    let first = Arc::new(AtomicU64::new(u64::MAX));
    let set = || {
        for signal in heeded() {
            if [SIGTERM, SIGINT].contains(&signal) {
                let first = first.clone();
                let end_second = move || {
                    let now = began.elapsed().as_micros() as u64;
                    let before = first.fetch_min(now, Ordering::Relaxed);
                    if now.saturating_sub(before) >= ONE_REQUEST.as_micros() as u64 {
                        signal_hook::low_level::exit(INTERRUPTED);
                    }
                };
                // SAFETY: it reads a clock and an atomic number, and ends the process, which a handler may do.
                unsafe { signal_hook::low_level::register(signal, end_second)? };
            }
            signal_hook::flag::register(signal, REQUESTED.clone())?;
        }
        Ok(())
    };
    set().map_err(|error: std::io::Error| unwatched(&error))?;
    Ok(REQUESTED.clone())
}

/// [`watch`] in the processes of a job, which it joins. While they wait for each other a signal ends this one at once, as there is nothing
/// to save.
pub(crate) fn watch_and_join() -> Result<(Arc<AtomicBool>, World), Failure> {
    let stop = watch()?;
    let at_once = end_with(Exit::Preempted.code())?;
    let world = processes::join_noting(&|| at_once.store(false, Ordering::Relaxed))?;
    Ok((stop, world))
}

/// From now on a signal ends the process at once with `code`, for as long as the returned flag is set.
pub(crate) fn end_with(code: u8) -> Result<Arc<AtomicBool>, Failure> {
    let at_once = Arc::new(AtomicBool::new(true));
    let set = || {
        for signal in heeded() {
            let code = code.into();
            signal_hook::flag::register_conditional_shutdown(signal, code, at_once.clone())?;
        }
        Ok(())
    };
    set().map_err(|error: std::io::Error| unwatched(&error))?;
    Ok(at_once)
}

/// The signals that this process was not started to ignore. `nohup` has a program ignore SIGHUP, so that it outlives its terminal; a
/// shell without job control has background jobs ignore SIGINT.
fn heeded() -> impl Iterator<Item = libc::c_int> {
    STOPS.into_iter().filter(|&signal| !is_ignored(signal))
}

/// The error that signals cannot be watched.
pub(crate) fn unwatched(error: &std::io::Error) -> Failure {
    Failure::internal(format!("cannot watch signals: {error}"))
}

/// From now on SIGUSR1, which launchers forward to their processes, ends this one at once with the exit code of a stopped run. MPI
/// libraries might handle it otherwise.
pub(crate) fn end_at_once() -> Result<(), Failure> {
    let always = Arc::new(AtomicBool::new(true));
    let code = i32::from(Exit::Preempted.code());
    let set = signal_hook::flag::register_conditional_shutdown(SIGUSR1, code, always);
    set.map(drop).map_err(|error| unwatched(&error))
}

/// Whether a signal came. Before `watch` was called, signals end the process.
pub(crate) fn is_requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}
