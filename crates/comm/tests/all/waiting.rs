//! Mail between ranks: order, deadlines, stopping.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use annulus_comm::threads::{run, solo};
use annulus_comm::{Cause, Error, Failure, Form, Label, P2pOp, Reduce, Result};
use candle_core::DType;

use crate::support::{
    Comm, PATIENT, SOON, bits, hop, on, options, receive, send, stand_still, tensor, within,
};

const SHORT: Duration = Duration::from_millis(300);
/// Many times as long as a rank that computes takes between two signs of life.
const LONGER: Duration = Duration::from_secs(1);

fn milliseconds(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn number(value: usize) -> candle_core::Tensor {
    tensor(&[value as f64], DType::I64)
}

/// Receives one tensor.
fn take(comm: &Comm, label: Label, from: usize) -> Result<Vec<i64>> {
    let arrived = comm.exchange(label, vec![receive(from)])?.wait()?;
    assert_eq!(arrived.len(), 1);
    Ok(arrived[0].to_vec1()?)
}

/// Shows for `time` that `comm` is alive.
fn compute(comm: &Comm, time: Duration) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < time {
        comm.progress()?;
        // Longer than a wait sleeps between two looks.
        sleep(milliseconds(50));
    }
    Ok(())
}

#[test]
fn a_thousand_rounds_around_a_ring() {
    for world in [1, 2, 5, 8] {
        let last = on(world, |comm| {
            let (rank, next) = (comm.rank(), (comm.rank() + 1) % world);
            let mut travelling = number(rank);
            for round in 0..1000 {
                let moves = vec![send(&travelling, next), receive((rank + world - 1) % world)];
                let mut pending = comm.exchange(hop(round), moves)?;
                pending.poll()?;
                travelling = pending.wait()?.remove(0);
            }
            Ok(travelling.to_vec1::<i64>()?[0])
        });
        for (rank, found) in last.into_iter().enumerate() {
            assert_eq!(found as usize, (rank + 1000 * world - 1000) % world);
        }
    }
}

#[test]
fn tensors_arrive_in_the_order_of_the_receives() {
    on(3, |comm| {
        let rank = comm.rank();
        let mut moves = vec![receive(2), receive(0), receive(2), receive(rank)];
        for to in 0..3 {
            moves.extend((0..3).map(|index| send(&number(10 * rank + index), to)));
        }
        let arrived = comm.exchange(hop(0), moves)?.wait()?;
        let found: Result<Vec<i64>> = arrived.iter().map(|one| Ok(one.to_vec1()?[0])).collect();
        assert_eq!(found?, [20, 0, 21, [1, 10, 22][rank]]);
        Ok(())
    });
}

#[test]
fn the_deadline_names_rank_peer_and_place() {
    let told = AtomicBool::new(false);
    let failure = within(2, SHORT, |comm| {
        if comm.rank() == 1 {
            stand_still(&told);
            return Ok(());
        }
        let taken = take(&comm, hop(5), 1).map(drop);
        told.store(true, Ordering::Relaxed);
        taken
    });
    assert_eq!(
        failure.unwrap_err().to_string(),
        "rank 0: rank 0 waited 0.3 s for rank 1 (step 7, layer 3, forward, hop 5): no progress \
         there within the deadline"
    );
}

#[test]
fn a_rank_that_shows_progress_may_take_long() {
    on_short(2, |comm| {
        if comm.rank() == 1 {
            compute(&comm, 2 * LONGER)?;
            return comm.exchange(hop(0), vec![send(&number(1), 0)])?.wait().map(drop);
        }
        assert_eq!(take(&comm, hop(0), 1)?, [1]);
        Ok(())
    });
}

#[test]
fn a_rank_that_waits_for_one_that_shows_progress_is_not_blamed() {
    on_short(4, |comm| {
        let rank = comm.rank();
        match rank {
            0 => compute(&comm, 2 * LONGER)?,
            _ => drop(take(&comm, hop(0), rank - 1)?),
        }
        let next = (rank < 3).then(|| send(&number(rank), rank + 1));
        comm.exchange(hop(0), next.into_iter().collect())?.wait().map(drop)
    });
}

#[test]
fn the_rank_next_to_the_one_that_stands_still_reports_it() {
    for _ in 0..3 {
        let told = AtomicBool::new(false);
        let failure = within(4, SHORT, |comm| {
            let rank = comm.rank();
            // The last to wait is the one that waits for the culprit.
            sleep(milliseconds(30 * (4 - rank as u64)));
            if rank == 0 {
                stand_still(&told);
                return Ok(());
            }
            let taken = take(&comm, hop(0), rank - 1).map(drop);
            told.store(true, Ordering::Relaxed);
            taken
        });
        let cause = failure.unwrap_err().cause;
        assert!(matches!(cause, Cause::Error(Error::Deadline { rank: 1, peer: 0, .. })), "{cause}");
    }
}

#[test]
fn in_a_circle_of_waits_the_oldest_fails() {
    for oldest in 0..5 {
        let (start, waiting) = (Instant::now(), AtomicUsize::new(0));
        let failure = within(6, SHORT, |comm| {
            let rank = comm.rank();
            // Rank 5 waits for a circle that it is not in.
            let turn = if rank == 5 { 5 } else { (rank + 5 - oldest) % 5 };
            while waiting.load(Ordering::Relaxed) < turn {
                sleep(milliseconds(1));
            }
            // The one before waits by now.
            sleep(milliseconds(20));
            let pending = comm.exchange(hop(rank), vec![receive((rank + 1) % 5)])?;
            waiting.fetch_add(1, Ordering::Relaxed);
            pending.wait().map(drop)
        });
        let failure = failure.unwrap_err();
        let wanted = (oldest + 1) % 5;
        let found =
            matches!(failure.cause, Cause::Error(Error::Deadline { peer, .. }) if peer == wanted);
        assert!(found && failure.rank == oldest, "{failure}");
        assert!(start.elapsed() < SHORT + SOON);
    }
}

#[test]
fn waiting_for_a_rank_that_has_finished_ends_at_once() {
    let start = Instant::now();
    let failure = within(2, PATIENT, |comm| {
        if comm.rank() == 0 {
            return comm.exchange(hop(0), vec![send(&number(4), 1)])?.wait().map(drop);
        }
        sleep(milliseconds(100));
        assert_eq!(take(&comm, hop(0), 0)?, [4], "what it sent before is there");
        take(&comm, hop(1), 0).map(drop)
    });
    assert_eq!(
        failure.unwrap_err().to_string(),
        "rank 1: rank 1 waits for rank 0 (step 7, layer 3, forward, hop 1), which has finished: \
         ranks made different calls"
    );
    assert!(start.elapsed() < SOON);
}

#[test]
fn different_calls_name_both_places() {
    let failure = within(2, PATIENT, |comm| {
        let pass = ["forward", "backward"][comm.rank()];
        let label = Label { pass, ..hop(comm.rank()) };
        if comm.rank() == 1 {
            comm.exchange(label, vec![send(&number(0), 0)])?.wait()?;
            return comm.barrier(hop(9));
        }
        take(&comm, label, 1).map(drop)
    });
    assert_eq!(
        failure.unwrap_err().to_string(),
        "rank 0: rank 0 is at step 7, layer 3, forward, hop 0 but rank 1 sent for step 7, layer \
         3, backward, hop 1: ranks made different calls"
    );
}

#[test]
fn a_transfer_that_is_dropped_does_not_reach_the_next() {
    on(2, |comm| {
        let peer = 1 - comm.rank();
        for late in [true, false] {
            for round in 0..4 {
                // The same label throughout: it could not tell them apart.
                let moves = vec![receive(peer), send(&number(round), peer)];
                let pending = comm.exchange(hop(0), moves)?;
                if late {
                    comm.barrier(hop(1))?;
                }
                if round % 2 == 0 {
                    drop(pending);
                } else {
                    assert_eq!(pending.wait()?[0].to_vec1::<i64>()?, [round as i64]);
                }
            }
        }
        Ok(())
    });
}

#[test]
fn transfers_may_be_waited_for_in_any_order() {
    on(2, |comm| {
        let peer = 1 - comm.rank();
        let exchange =
            |value| comm.exchange(hop(value), vec![receive(peer), send(&number(value), peer)]);
        let (first, second) = (exchange(1)?, exchange(2)?);
        assert_eq!(second.wait()?[0].to_vec1::<i64>()?, [2]);
        assert_eq!(first.wait()?[0].to_vec1::<i64>()?, [1]);
        Ok(())
    });
}

#[test]
fn a_stop_ends_every_wait_and_every_computation() {
    let options = options(4, PATIENT);
    let stop = options.stop.clone();
    let stopper = thread::spawn(move || {
        sleep(milliseconds(150));
        stop.store(true, Ordering::Relaxed);
        Instant::now()
    });
    let (sender, ends) = std::sync::mpsc::channel();
    let failure = run(&options, |comm| {
        let ended = match comm.rank() {
            0 => compute(&comm, PATIENT),
            1 => take(&comm, hop(0), 0).map(drop),
            2 => comm.barrier(hop(0)),
            _ => comm.all_reduce(hop(0), &number(1), Reduce::Sum).map(drop),
        };
        sender.send((Instant::now(), ended.as_ref().is_err_and(is_stop))).unwrap();
        ended
    });
    let stopped = stopper.join().unwrap();
    assert!(matches!(failure.unwrap_err().cause, Cause::Error(Error::Stopped)));
    let ends: Vec<_> = ends.try_iter().collect();
    assert_eq!(ends.len(), 4);
    for (end, because) in ends {
        assert!(because && end - stopped < SOON, "{:?}", end - stopped);
    }
}

fn is_stop(error: &Error) -> bool {
    matches!(error, Error::Stopped)
}

#[test]
fn one_rank_needs_no_threads() -> Result<()> {
    let comm = solo();
    assert_eq!((comm.rank(), comm.world_size(), comm.global_rank(0)), (0, 1, 0));
    let own = tensor(&[1.5, -2.0], DType::F32);
    assert_eq!(bits(&comm.all_reduce(hop(0), &own, Reduce::Sum)?), bits(&own));
    let moves = vec![receive(0), send(&own, 0)];
    assert_eq!(bits(&comm.exchange(hop(1), moves)?.wait()?[0]), bits(&own));
    assert_eq!(comm.split(hop(2), 5, 0)?.world_size(), 1);
    // Nobody can send what it waits for.
    assert!(matches!(take(&comm, hop(3), 0), Err(Error::Deadline { rank: 0, peer: 0, .. })));
    comm.progress()
}

/// Runs with a deadline that is not to be met though more time passes.
fn on_short(world: usize, program: impl Fn(Comm) -> Result<()> + Send + Sync) {
    within(world, LONGER, program).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn a_tensor_of_another_form_than_awaited_is_refused() {
    let wanted = Form { dtype: DType::F32, shape: (2, 3).into() };
    for (dtype, count) in [(DType::F32, 5), (DType::F64, 6), (DType::F32, 6)] {
        let sent = tensor(&vec![1.0; count], dtype);
        let ended = run(&options(2, PATIENT), |comm| {
            let (peer, form) = (1 - comm.rank(), Some(wanted.clone()));
            let sent = if comm.rank() == 1 { sent.clone() } else { sent.to_dtype(DType::F32)? };
            let sent = if sent.elem_count() == 6 { sent.reshape((2, 3))? } else { sent };
            let moves = vec![send(&sent, peer), P2pOp::Receive { from: peer, form }];
            Ok::<_, Error>(comm.exchange(hop(0), moves)?.wait()?.len())
        });
        if (dtype, count) == (DType::F32, 6) {
            assert_eq!(ended.unwrap(), [1, 1]);
            continue;
        }
        let Err(Failure { cause: Cause::Error(Error::Form { found, wanted: said, .. }), .. }) =
            ended
        else {
            panic!("{ended:?}")
        };
        assert_eq!((found.dtype, *said), (dtype, wanted.clone()));
    }
}

#[test]
fn ranks_that_sum_tensors_of_other_forms_are_told() {
    for world in [2, 5] {
        let failure = within(world, PATIENT, |comm| {
            let own = tensor(&vec![1.0; 7 + comm.rank() % 2], DType::F32);
            comm.all_reduce(hop(0), &own, Reduce::Sum).map(drop)
        });
        let failure = failure.unwrap_err();
        let Cause::Error(Error::Form { found, wanted, .. }) = failure.cause else {
            panic!("{failure}")
        };
        assert_ne!(found, wanted);
    }
}
