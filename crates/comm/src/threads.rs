//! Ranks as threads of one process: the embedded default, every test, any laptop.
//!
//! A tensor changes hands by its reference count: nothing is copied, unless its ranks compute on different devices ([`DeviceCopy`]).

mod deadline;
mod group;
mod heartbeat;
mod local_ranks;
mod mail;
mod member;
mod watch;

pub(crate) use deadline::DeadlineTimer;
pub(crate) use group::{Group, SMALL};
pub(crate) use heartbeat::Heartbeat;
pub use local_ranks::{Copied, DeviceCopy};
pub(crate) use local_ranks::{LocalRanks, Transport};
pub(crate) use mail::{After, Message, Ticket};

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use self::member::Member;
use crate::{Cause, Communicator, Failure};

/// Candle walks and drops its graph recursively: std's 2 MiB end at some 10 000 nodes.
const STACK_BYTES: usize = 64 << 20;

/// How a group of thread ranks is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many ranks.
    pub world: usize,
    /// How long a rank waits for a peer that shows no progress. Time in which the whole process was
    /// paused does not count.
    pub deadline: Duration,
    /// Set from outside to stop the run: every wait then fails with [`crate::Error::Stopped`].
    pub stop: Arc<AtomicBool>,
}

/// Runs `program` on every rank, each a plain thread with 64 MiB of stack, and returns what they
/// return, by rank.
///
/// The first rank that fails or panics ends all: the others' waits fail with
/// [`crate::Error::Ended`]. Returns when the last program has: one that neither calls its
/// communicator nor ends cannot be ended from outside.
///
/// Programs may fail with any error, such as boxed ones or `anyhow::Error`, and `?` turns the [`Failure`] into either:
///
/// ```
/// use std::error::Error;
/// use std::time::Duration;
///
/// use annulus_comm::{Label, all_gather_values, threads};
///
/// type Failing<T> = Result<T, Box<dyn Error + Send + Sync>>;
///
/// fn ranks_by_rank() -> Failing<Vec<i64>> {
///     let deadline = Duration::from_secs(60);
///     let options = threads::Options { world: 3, deadline, stop: Default::default() };
///     let all = threads::run(&options, |comm| -> Failing<_> {
///         Ok(all_gather_values(&*comm, Label::default(), &[comm.rank() as i64])?.concat())
///     })?;
///     Ok(all[0].clone())
/// }
///
/// assert_eq!(ranks_by_rank()?, [0, 1, 2]);
/// # Ok::<(), Box<dyn Error + Send + Sync>>(())
/// ```
///
/// # Errors
/// The first failure or panic, with its rank.
pub fn run<T, E, F>(options: &Options, program: F) -> Result<Vec<T>, Failure<E>>
where
    T: Send,
    E: Send,
    F: Fn(Arc<dyn Communicator>) -> Result<T, E> + Send + Sync,
{
    run_in(&Group::new(options, LocalRanks::all(options.world)), program)
}

/// Runs `program` on the ranks of `group` that are threads of this process, as [`run`] does.
pub(crate) fn run_in<T, E, F>(group: &Arc<Group>, program: F) -> Result<Vec<T>, Failure<E>>
where
    T: Send,
    E: Send,
    F: Fn(Arc<dyn Communicator>) -> Result<T, E> + Send + Sync,
{
    let here = group.here();
    let outcomes = thread::scope(|scope| {
        let start = |rank| {
            let program = &program;
            let thread =
                thread::Builder::new().name(format!("rank {rank}")).stack_size(STACK_BYTES);
            thread.spawn_scoped(scope, move || run_rank(group, rank, program)).inspect_err(|_| {
                group.fail(rank);
            })
        };
        let threads: Vec<_> = here.clone().map(start).collect();
        let end = |thread: std::io::Result<thread::ScopedJoinHandle<'_, _>>| match thread {
            Ok(thread) => {
                thread.join().unwrap_or_else(|panic| Err(Cause::Panic(panic_message(&*panic))))
            }
            Err(error) => Err(Cause::Panic(format!("its thread could not start: {error}"))),
        };
        threads.into_iter().map(end).collect::<Vec<_>>()
    });
    first_cause(here.zip(outcomes), group.first())
}

/// The one rank of a world of one, on the caller's own thread.
pub fn solo() -> Arc<dyn Communicator> {
    // No other rank could end a wait, so the deadline is zero.
    let options = Options { world: 1, deadline: Duration::ZERO, stop: Arc::default() };
    Member::of_world(&Group::new(&options, LocalRanks::all(1)), 0)
}

/// Runs `program` as one rank, and tells the group how it ended.
fn run_rank<T, E>(
    group: &Arc<Group>,
    rank: usize,
    program: &impl Fn(Arc<dyn Communicator>) -> Result<T, E>,
) -> Result<T, Cause<E>> {
    let comm = Member::of_world(group, rank);
    let outcome = match catch_unwind(AssertUnwindSafe(|| program(comm))) {
        Ok(returned) => returned.map_err(Cause::Error),
        Err(panic) => Err(Cause::Panic(panic_message(&*panic))),
    };
    match outcome {
        Ok(_) => group.leave(rank),
        Err(_) => group.fail(rank),
    }
    outcome
}

/// What all ranks here returned, or why the `first` to fail did. Ranks are told of an end only once the first
/// to fail is known, so that one is never a rank that failed because of another.
fn first_cause<T, E>(
    outcomes: impl Iterator<Item = (usize, Result<T, Cause<E>>)>,
    first: Option<usize>,
) -> Result<Vec<T>, Failure<E>> {
    let (mut values, mut failed) = (Vec::new(), None);
    for (rank, outcome) in outcomes {
        match outcome {
            Ok(value) => values.push(value),
            Err(cause) if first == Some(rank) => return Err(Failure { rank, cause }),
            Err(_) => failed = first,
        }
    }
    match failed {
        // The first to fail is a rank of another process.
        Some(rank) => Err(Failure { rank, cause: Cause::Elsewhere }),
        None => Ok(values),
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".to_owned())
}
