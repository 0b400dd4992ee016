//! Everything before the first step: checkpoint, data, weights. Done once per process, on a thread
//! of its own, so that a request to stop need not wait for a long text or large weights.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use annulus_experiment::Plan;

use crate::assemble::initial_weights;
use crate::checkpoint::{Found, load, newest};
use crate::sink::{Notice, Sink};
use crate::start::Start;
use crate::{Data, Result, Setup, TrainError, identity, open_data};

/// How often a request to stop is looked for.
const GLANCE: Duration = Duration::from_millis(20);

/// What an attempt starts with.
pub(crate) struct Prepared {
    pub(crate) data: Data,
    pub(crate) start: Start,
    /// The checkpoint it goes on from.
    pub(crate) found: Option<Found>,
}

/// Runs `work` on its own thread. `None`: `stop` was set first, and the thread is left to itself;
/// what it writes (a token cache) it writes atomically.
pub(crate) fn interruptible<T: Send + 'static>(
    stop: &AtomicBool,
    console: &mut dyn Sink,
    work: impl FnOnce(&mut dyn FnMut(u64, u64)) -> Result<T> + Send + 'static,
) -> Result<Option<T>> {
    let (progress, progressed) = channel();
    let thread = thread::spawn(move || {
        // Nobody listens once the run has stopped.
        work(&mut |done, total| {
            let _ = progress.send((done, total));
        })
    });
    loop {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        match progressed.recv_timeout(GLANCE) {
            Ok((done, total)) => console.notice(&Notice::Reading { done, total }),
            Err(RecvTimeoutError::Timeout) => {}
            // The sender is gone: the work is done, or died.
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    match thread.join() {
        Ok(result) => result.map(Some),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// The checkpoint to go on from, checked against `plan`; and warnings about those that are damaged.
pub(crate) fn find(plan: &Plan, output: &Path) -> Result<(Option<Found>, Vec<String>)> {
    let (found, warnings) = newest(output)?;
    if let Some(found) = &found {
        let differing = identity::differences(plan, &found.state.experiment)?;
        if !differing.is_empty() {
            return Err(refused(found, &differing));
        }
    }
    Ok((found, warnings))
}

fn refused(found: &Found, differing: &[String]) -> TrainError {
    TrainError::Checkpoint {
        message: format!(
            "`{}` is of another experiment: {}",
            found.folder.display(),
            differing.join("; ")
        ),
        hint: Some(
            "only `mesh`, `attention.strategy`, `memory`, `every`, `output` and `schedule.stop` may differ on \
             resume: set them back, or set another `output`"
                .into(),
        ),
    }
}

/// Opens data and weights.
pub(crate) fn prepare(
    plan: &Plan,
    setup: &Setup,
    found: Option<Found>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Prepared> {
    let data = open_data(plan, progress)?;
    check_batches(plan, &data)?;
    let start = match &found {
        Some(found) => {
            let (saved, now) = (&found.state.data, data.train.fingerprint());
            if *saved != now {
                let differing = format!("the data's fingerprint was `{saved}` and is `{now}`");
                return Err(refused(found, &[differing]));
            }
            load(found, &setup.config)?
        }
        None => Start::fresh(initial_weights(plan, &setup.config)?),
    };
    Ok(Prepared { data, start, found })
}

/// Ready-made batches end; a schedule that goes on longer is a mistake that should not wait until
/// then.
fn check_batches(plan: &Plan, data: &Data) -> Result<()> {
    let steps = identity::last_step(plan);
    let ready_made = plan.experiment.data.format == annulus_experiment::Format::Batches;
    match data.train.batches().filter(|_| ready_made) {
        Some(batches) if batches < steps => Err(TrainError::Configuration {
            message: format!("{steps} steps, but the data has {batches} batches"),
            hint: Some(format!("set `schedule.stop` to {batches} or less")),
        }),
        _ => Ok(()),
    }
}
