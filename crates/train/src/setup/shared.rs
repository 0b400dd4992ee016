//! What several processes do before and between the runs of their ranks: all go on or none does, and of an error one speaks.

use annulus_comm::{Cause, Error as CommError, Failure, World};

use crate::TrainError;

/// What every process makes for itself; where one cannot, none goes on: the first that cannot returns why, the others an end of
/// another's ([`TrainError::is_of_another`]). Of one process alone it is `make`.
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

/// An error that every process finds alike: the first returns it, the others an end of another's.
pub(crate) fn once(world: &World, error: TrainError) -> TrainError {
    if world.process() == 0 { error } else { of_another() }
}

/// Processes that do not hear each other.
pub(crate) fn unreached(failure: Failure<CommError>) -> TrainError {
    match failure.cause {
        Cause::Error(error) => error.into(),
        Cause::Panic(_) | Cause::Elsewhere => CommError::Ended { rank: failure.rank }.into(),
    }
}

/// An end that another process explains.
pub(crate) fn of_another() -> TrainError {
    CommError::Ended { rank: 0 }.into()
}
