//! What several processes do before and between the runs of their ranks: all go on or none does, and only one reports an error.

use std::ops::Range;
use std::time::Duration;

use annulus_comm::{Cause, Error as CommError, Failure, World};
use annulus_text::count;

use crate::{Result, TrainError};

/// How long a rank waits for one that shows no progress, where no experiment says it.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Has every process make a thing for itself; if one cannot, none goes on: the first that cannot returns why, the others an error that
/// another has ended ([`TrainError::is_of_another`]). In a single process it is just `make`.
///
/// # Errors
/// Those of `make`, and a process that is late or gone.
pub fn shared<T, E: From<TrainError>>(
    world: &World,
    make: impl FnOnce() -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    let made = make();
    if world.processes() == 1 {
        return made;
    }
    let said = world.gather(&[u8::from(made.is_ok())]).map_err(unreached)?;
    match said.iter().position(|said| *said != [1]) {
        Some(process) if process != world.process() => Err(of_another().into()),
        _ => made,
    }
}

/// For an error that every process finds: the first returns it, the others one that another has ended.
pub(crate) fn once(world: &World, error: TrainError) -> TrainError {
    if world.process() == 0 { error } else { of_another() }
}

/// This process's share of `cores`, the machine's: the processes on a host share them evenly.
pub fn cores_here(world: &World, cores: usize) -> usize {
    annulus_machine::share(cores, world.beside().len())
}

/// The error of processes that cannot reach each other.
pub(crate) fn unreached(failure: Failure<CommError>) -> TrainError {
    match failure.cause {
        Cause::Error(error) => error.into(),
        Cause::Panic(_) | Cause::Elsewhere => CommError::Ended { rank: failure.rank }.into(),
    }
}

/// The error of a process that ends because of another, which says why.
pub(crate) fn of_another() -> TrainError {
    CommError::Ended { rank: 0 }.into()
}

/// Which of `ranks` ranks are threads of this process.
///
/// # Errors
/// Processes that cannot share the ranks evenly.
pub fn ranks_here(world: &World, ranks: usize) -> Result<Range<usize>> {
    world.here(ranks).ok_or_else(|| {
        let processes = world.processes();
        TrainError::configuration(
            format!("{} cannot share {} evenly", count(processes, "process"), count(ranks, "rank")),
            format!(
                "start a number of processes that divides {ranks}: training has `mesh.data` times `mesh.sequence` times `mesh.tensor` \
                 ranks, `evaluate` leaves `mesh.tensor` out, and `generate` has `mesh.sequence` ranks"
            ),
        )
    })
}

/// Which of `ranks` ranks are on this host: those of this process and of the processes beside it.
///
/// # Errors
/// Those of [`ranks_here`].
pub fn ranks_on_host(world: &World, ranks: usize) -> Result<Range<usize>> {
    let (each, beside) = (ranks_here(world, ranks)?.len(), world.beside());
    Ok(beside.start * each..beside.end * each)
}
