//! Ranks that wait for others outside of calls, in memory that they share: whom they wait for is known, and who stands still is named once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use annulus_comm::{Cause, Communicator, Error, Result};
use candle_core::{Device, Tensor};

use crate::support::{SOON, hop, receive, send, stand_still, within};

const DEADLINE: Duration = Duration::from_millis(400);

/// Waits outside of calls until `is_over`.
fn watch(comm: &dyn Communicator, peer: usize, is_over: impl Fn() -> bool) -> Result<()> {
    let mut watching = comm.watch(hop(9), peer);
    while !is_over() {
        sleep(watching.slice());
        watching.look()?;
    }
    Ok(())
}

fn number(of: usize) -> Result<Tensor> {
    Ok(Tensor::new(of as f32, &Device::Cpu)?)
}

#[test]
fn who_waits_for_one_that_waits_leaves_the_failing_to_it() {
    // Rank 2 computes for long; or stands still.
    for computes in [true, false] {
        let came = AtomicBool::new(false);
        let ended = within(3, DEADLINE, |comm| {
            match comm.rank() {
                0 => watch(&*comm, 1, || came.load(Ordering::Relaxed))?,
                1 => {
                    let waited = comm.exchange(hop(0), vec![receive(2)])?.wait();
                    // What they share says so, whichever way it ended.
                    came.store(true, Ordering::Relaxed);
                    waited?;
                }
                _ => {
                    let began = Instant::now();
                    while began.elapsed() < 4 * DEADLINE {
                        sleep(DEADLINE / 20);
                        if computes {
                            comm.progress()?;
                        }
                    }
                    comm.exchange(hop(0), vec![send(&number(2)?, 1)])?.wait()?;
                }
            }
            Ok(())
        });
        match ended {
            Ok(_) => assert!(computes),
            Err(failure) => {
                let said = failure.to_string();
                assert!(!computes && failure.rank == 1 && said.contains("rank 2"), "{said}");
            }
        }
    }
}

#[test]
fn who_does_not_come_is_named() {
    let told = AtomicBool::new(false);
    let failure = within(2, DEADLINE, |comm| {
        if comm.rank() == 0 {
            let watched = watch(&*comm, 1, || false);
            told.store(true, Ordering::Relaxed);
            return watched;
        }
        stand_still(&told);
        Ok(())
    })
    .expect_err("rank 1 stands still");
    assert_eq!(failure.rank, 0);
    assert!(failure.to_string().contains("rank 1"), "{failure}");
}

/// Each waits for the other, one of them outside of calls: that would last for ever.
#[test]
fn circles_end() {
    let began = Instant::now();
    for outside in [0, 1] {
        let failure = within(2, DEADLINE, |comm| {
            let peer = 1 - comm.rank();
            if comm.rank() == outside {
                return watch(&*comm, peer, || false);
            }
            comm.exchange(hop(0), vec![receive(peer)])?.wait().map(drop)
        })
        .expect_err("nobody moves");
        assert!(matches!(failure.cause, Cause::Error(Error::Deadline { .. })), "{failure}");
    }
    assert!(began.elapsed() < SOON);
}

#[test]
fn a_wait_that_is_over_is_forgotten() {
    let told = AtomicBool::new(false);
    let ended = within(2, DEADLINE, |comm| {
        if comm.rank() == 0 {
            let began = Instant::now();
            watch(&*comm, 1, || began.elapsed() > DEADLINE / 4)?;
            stand_still(&told);
            return Ok(());
        }
        let waited = comm.exchange(hop(0), vec![receive(0)])?.wait();
        told.store(true, Ordering::Relaxed);
        assert!(matches!(waited, Err(Error::Deadline { peer: 0, .. })), "{waited:?}");
        Ok(())
    });
    assert!(ended.is_ok(), "{ended:?}");
}
