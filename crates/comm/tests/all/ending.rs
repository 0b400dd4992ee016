//! The first cause comes first, whatever follows from it.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use annulus_comm::threads::run;
use annulus_comm::{Cause, Error, Failure, Reduce};
use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Shape, Tensor, Var};
use parking_lot::Mutex;

use crate::support::{Comm, PATIENT, SOON, hop, on, options, receive, stand_still, tensor, within};

/// What a user's program may fail with.
#[derive(Debug)]
enum Wrong {
    Comm(Error),
    Own,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Comm(error) => error.fmt(f),
            Wrong::Own => f.write_str("a bad batch"),
        }
    }
}

impl std::error::Error for Wrong {}

impl From<Error> for Wrong {
    fn from(error: Error) -> Wrong {
        Wrong::Comm(error)
    }
}

type Act = fn() -> std::result::Result<(), Wrong>;

/// Rank `broken` does `act` in its third round.
fn rounds(comm: &Comm, broken: usize, act: Act) -> std::result::Result<(), Wrong> {
    for round in 0..6 {
        if (comm.rank(), round) == (broken, 3) {
            sleep(Duration::from_millis(20));
            act()?;
        }
        comm.all_reduce(hop(round), &tensor(&[1.0; 20], DType::F32), Reduce::Sum)?;
    }
    Ok(())
}

/// Runs that, and checks that all others end soon and say whose fault it was.
fn break_one(world: usize, broken: usize, act: Act) -> Failure<Wrong> {
    let told = Mutex::new(Vec::new());
    let start = Instant::now();
    let failure = run(&options(world, PATIENT), |comm| {
        let ended = rounds(&comm, broken, act);
        if let Err(Wrong::Comm(error)) = &ended {
            told.lock().push(error.to_string());
        }
        ended
    });
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    let told = told.into_inner();
    assert_eq!(told, vec![format!("ended because rank {broken} failed"); world - 1]);
    failure.expect_err("one rank is broken")
}

#[test]
fn a_panic_on_one_rank_ends_all() {
    for (world, broken) in [(2, 1), (3, 0), (8, 5)] {
        let failure = break_one(world, broken, || panic!("{} is not enough", 3));
        assert_eq!(failure.to_string(), format!("rank {broken}: panicked: 3 is not enough"));
        assert_eq!(failure.rank, broken);
    }
    // Nothing is poisoned: the next run works.
    on(4, |comm| comm.barrier(hop(0)));
}

#[test]
fn panics_of_other_kinds_are_told_too() {
    let still = break_one(2, 0, || panic!("still"));
    assert!(matches!(still.cause, Cause::Panic(message) if message == "still"));
    let mute = break_one(2, 0, || std::panic::panic_any(7_u8));
    assert!(matches!(mute.cause, Cause::Panic(message) if message == "without a message"));
}

#[test]
fn an_error_on_one_rank_ends_all() {
    for (world, broken) in [(2, 0), (5, 4), (8, 3)] {
        let failure = break_one(world, broken, || Err(Wrong::Own));
        assert_eq!(failure.to_string(), format!("rank {broken}: a bad batch"));
        assert!(std::error::Error::source(&failure).is_none(), "a chain would say it twice");
        assert!(matches!(failure.cause, Cause::Error(Wrong::Own)));
    }
}

#[test]
fn a_rank_that_computes_is_told_of_the_end() {
    let start = Instant::now();
    let failure = within(2, PATIENT, |comm| {
        if comm.rank() == 1 {
            return Err(Error::Tensor(candle_core::Error::Msg("a bad batch".into())));
        }
        while start.elapsed() < PATIENT {
            comm.progress()?;
            sleep(Duration::from_millis(1));
        }
        Ok(())
    });
    assert_eq!(failure.expect_err("rank 1 fails").to_string(), "rank 1: a bad batch");
    assert!(start.elapsed() < SOON);
}

#[test]
fn a_rank_that_hides_its_error_does_not_hide_the_cause() {
    let failure = within(3, PATIENT, |comm| {
        if comm.rank() == 2 {
            return Err(Error::Tensor(candle_core::Error::Msg("a bad batch".into())));
        }
        let hidden = comm.barrier(hop(0));
        assert!(matches!(hidden, Err(Error::Ended { rank: 2 })));
        Ok(())
    });
    assert_eq!(failure.expect_err("rank 2 fails").rank, 2);
}

/// An operator whose backward waits for a peer, as attention's does.
struct Waiting(Comm);

impl CustomOp1 for Waiting {
    fn name(&self) -> &'static str {
        "waiting"
    }
    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![0.0]), Shape::from(())))
    }
    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> candle_core::Result<Option<Tensor>> {
        Ok(Some(self.0.exchange(hop(2), vec![receive(1)])?.wait()?.remove(0)))
    }
}

#[test]
fn an_error_that_passed_through_candle_is_still_itself() {
    let told = AtomicBool::new(false);
    let failure = within(2, Duration::from_millis(200), |comm| {
        if comm.rank() == 1 {
            stand_still(&told);
            return Ok(());
        }
        let weight = Var::new(1f32, &Device::Cpu)?;
        let error = weight.apply_op1(Waiting(comm))?.backward().expect_err("nobody sends");
        told.store(true, Ordering::Relaxed);
        assert!(matches!(Error::find(&error), Some(Error::Deadline { peer: 1, .. })), "{error}");
        assert!(error.to_string().starts_with("rank 0 waited 0.2 s for rank 1"), "{error}");
        Err(error.into())
    });
    let cause = failure.expect_err("nobody sends").cause;
    assert!(matches!(cause, Cause::Error(Error::Deadline { rank: 0, .. })), "{cause}");
}

#[test]
fn an_error_is_found_under_what_candle_puts_around_it() {
    use candle_core::Error as Candle;
    let candle = || Candle::from(Error::Ended { rank: 3 });
    let boxed = |error| Candle::WrappedContext { wrapped: error, context: "layer 2".into() };
    for around in [
        candle(),
        candle().bt(),
        candle().context("in layer 2").context("in step 7"),
        candle().with_path(Path::new("weights")),
        boxed(Box::new(Error::Ended { rank: 3 })),
        boxed(Box::new(candle().context("twice"))),
        Error::Tensor(candle()).into(),
    ] {
        let text = around.to_string();
        assert!(matches!(Error::find(&around), Some(Error::Ended { rank: 3 })), "{text}");
        assert!(matches!(Error::from(around), Error::Ended { rank: 3 }), "{text}");
    }
    let other = Candle::Io(std::io::Error::other("disk full"));
    assert!(Error::find(&other).is_none());
    assert_eq!(Error::from(other).to_string(), "disk full");
    assert!(Error::find(&Candle::Msg("no".into())).is_none());
}
