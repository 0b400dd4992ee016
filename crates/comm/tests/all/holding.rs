//! Commits: what ranks have begun to commit, all complete although the run is to stop, or none does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use annulus_comm::threads::{Options, run};
use annulus_comm::{Communicator, Error, Label, P2pOp, Result};
use candle_core::{Device, Tensor};

const LABEL: Label = Label { step: 3, layer: 0, pass: "the last sum", hop: 0 };

/// Two ranks whose run is asked to stop by `stop`.
fn two<T: Send>(
    stop: &Arc<AtomicBool>,
    program: impl Fn(&dyn Communicator) -> Result<T> + Send + Sync,
) -> Vec<T> {
    let options = Options { world: 2, deadline: Duration::from_secs(20), stop: stop.clone() };
    run(&options, |comm| program(comm.as_ref())).expect("no rank fails")
}

/// Sends to the other rank and receives from it; what came.
fn swap(comm: &dyn Communicator) -> Result<f32> {
    let (own, peer) = (comm.rank(), 1 - comm.rank());
    let tensor = Tensor::new(own as f32, &Device::Cpu)?;
    let send = P2pOp::Send { tensor, to: peer };
    let receive = P2pOp::Receive { from: peer, form: None };
    let came = comm.exchange(LABEL, vec![send, receive])?.wait()?;
    Ok(came[0].to_scalar()?)
}

fn wait_for(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        sleep(Duration::from_millis(1));
    }
    // The other rank waits meanwhile, and looks.
    sleep(Duration::from_millis(100));
}

#[test]
fn ranks_that_all_commit_go_on_though_the_run_is_to_stop() {
    let stop = Arc::new(AtomicBool::new(false));
    let ended = two(&stop, |comm| {
        comm.begin_commit();
        if comm.rank() == 1 {
            stop.store(true, Ordering::Relaxed);
            wait_for(&stop);
        }
        let came = swap(comm)?;
        comm.progress()?;
        comm.end_commit();
        Ok((came, comm.progress().is_err_and(|error| matches!(error, Error::Stopped))))
    });
    assert_eq!(ended, [(1.0, true), (0.0, true)]);
}

#[test]
fn a_committing_rank_stops_if_it_waits_for_one_that_stopped() {
    let stop = Arc::new(AtomicBool::new(false));
    let ended = two(&stop, |comm| {
        if comm.rank() == 0 {
            comm.begin_commit();
        } else {
            stop.store(true, Ordering::Relaxed);
            wait_for(&stop);
        }
        // An end that was asked for is no failure.
        Ok(matches!(swap(comm), Err(Error::Stopped)))
    });
    assert_eq!(ended, [true, true]);
}
