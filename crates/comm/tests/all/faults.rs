//! Every kind of fault, at the first and the last hop of every pass: all end in time, and the first
//! cause is the one that is told.

use std::time::{Duration, Instant};

use annulus_comm::{
    Cause, Checked, Communicator, Error, Fault, Faulty, Label, Reduce, Result, When,
};
use candle_core::{DType, Tensor};

use crate::support::{Comm, Outcome, SOON, bits, on, receive, send, tensor, within};

const WORLD: usize = 4;
/// Who is broken, and whom it sends to.
const BROKEN: usize = 1;
const NEXT: usize = 2;
const DEADLINE: Duration = Duration::from_millis(400);
/// Where a fault can happen: pass and hop.
const PLACES: [(&str, usize); 5] =
    [("forward", 0), ("forward", 2), ("backward", 0), ("backward", 2), ("gradient sum", 0)];

/// A ring forward, a ring backward, a sum over all; what comes out, which is the same everywhere.
fn train(comm: &dyn Communicator) -> Result<Vec<u8>> {
    let (rank, world) = (comm.rank(), comm.world_size());
    let mut travelling = tensor(&[rank as f64 + 1.0; 10], DType::F32);
    for pass in ["forward", "backward"] {
        for hop in 0..world - 1 {
            let label = Label { step: 1, layer: 2, pass, hop };
            let moves =
                vec![send(&travelling, (rank + 1) % world), receive((rank + world - 1) % world)];
            let mut pending = comm.exchange(label, moves)?;
            comm.progress()?;
            pending.poll()?;
            travelling = (pending.wait()?.remove(0) * 2.0)?;
        }
    }
    let label = Label { step: 1, layer: 0, pass: "gradient sum", hop: 0 };
    Ok(bits(&comm.all_reduce(label, &travelling, Reduce::Sum)?))
}

fn with(fault: Fault, pass: &'static str, hop: usize) -> Outcome<Vec<u8>> {
    let when = When { rank: BROKEN, pass, hop: Some(hop), layer: None };
    let start = Instant::now();
    let outcome =
        within(WORLD, DEADLINE, |comm| train(&*Checked::new(Faulty::new(comm, when, fault))));
    let taken = start.elapsed();
    assert!(taken < DEADLINE + SOON, "{fault:?} at {pass} {hop}: {taken:?}");
    outcome
}

/// The error of the rank that failed first, which must be one that waited for the broken rank.
fn told(fault: Fault, pass: &'static str, hop: usize) -> Error {
    let failure = with(fault, pass, hop).expect_err("there is a fault");
    let text = failure.to_string();
    assert_ne!(failure.rank, BROKEN, "{text}");
    assert!(failure.rank == NEXT || pass == "gradient sum", "{text}");
    match failure.cause {
        Cause::Error(error) => error,
        Cause::Panic(_) | Cause::Elsewhere => panic!("{text}"),
    }
}

#[test]
fn a_rank_that_dies_is_the_cause() {
    for (pass, hop) in PLACES {
        let failure = with(Fault::Die, pass, hop).expect_err("a rank dies");
        let layer = if pass == "gradient sum" { 0 } else { 2 };
        let place = format!("step 1, layer {layer}, {pass}, hop {hop}");
        assert_eq!(failure.to_string(), format!("rank 1: panicked: died on purpose at {place}"));
    }
}

#[test]
fn a_short_delay_changes_nothing() {
    let undisturbed = on(WORLD, |comm| train(&*comm));
    for (pass, hop) in PLACES {
        let late = with(Fault::Delay(DEADLINE / 4), pass, hop).expect("it comes in time");
        assert_eq!(late, undisturbed);
    }
}

#[test]
fn a_long_delay_meets_the_deadline() {
    for (pass, hop) in PLACES {
        // A rank that waits counts no time in which it has no core.
        let error = told(Fault::Delay(4 * DEADLINE), pass, hop);
        let Error::Deadline { peer, label, waited, .. } = error else { panic!("{error}") };
        assert_eq!((peer, label.pass, label.hop), (BROKEN, pass, hop));
        assert!((DEADLINE..DEADLINE + SOON).contains(&waited));
    }
}

#[test]
fn what_is_not_sent_is_missed() {
    for (pass, hop) in PLACES {
        let error = told(Fault::Drop, pass, hop);
        let (Error::Order { peer, .. } | Error::Left { peer, .. } | Error::Deadline { peer, .. }) =
            error
        else {
            panic!("{error}")
        };
        assert_eq!(peer, BROKEN);
    }
}

#[test]
fn a_flipped_bit_is_noticed() {
    for (pass, hop) in PLACES {
        let error = told(Fault::Corrupt, pass, hop);
        let Error::Corrupt { peer, label, .. } = error else { panic!("{error}") };
        assert_eq!((peer, label.pass, label.hop), (BROKEN, pass, hop));
    }
    let failure = with(Fault::Corrupt, "forward", 0).expect_err("a bit is flipped");
    assert_eq!(
        failure.to_string(),
        "rank 2: rank 2 received damaged data from rank 1 (step 1, layer 2, forward, hop 0): \
         wrong checksum"
    );
}

#[test]
fn without_checksums_exactly_one_bit_differs() {
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::I64, DType::U32, DType::U8] {
        let when = When { rank: 0, pass: "forward", ..When::default() };
        let own = tensor(&[1.0, 2.0, 3.0, 4.0], dtype);
        let flips = on(2, |comm| {
            let comm = Faulty::new(comm, when, Fault::Corrupt);
            let label = Label { pass: "forward", hop: 5, ..Label::default() };
            let mut flips = 0;
            // Twice: a fault happens once.
            for _ in 0..2 {
                let found = bits(&comm.all_gather(label, &own)?[0]);
                let differing = found.iter().zip(bits(&own)).map(|(a, b)| (a ^ b).count_ones());
                flips += differing.sum::<u32>();
            }
            Ok(flips)
        });
        assert_eq!(flips, [0, 1], "{dtype:?}");
    }
}

#[test]
fn groups_share_the_fault() {
    let when = When { rank: 3, pass: "backward", hop: Some(0), layer: None };
    let grouped = |fault| {
        within(WORLD, DEADLINE, move |comm| {
            let comm: Comm = Checked::new(Faulty::new(comm, when, fault));
            let (color, key) = (comm.rank() % 2, comm.rank());
            train(&*comm.split(Label::default(), color, key)?)
        })
    };
    let failure = grouped(Fault::Die).expect_err("rank 3 dies");
    assert_eq!(failure.rank, 3);
    let failure = grouped(Fault::Corrupt).expect_err("rank 3 sends a flipped bit");
    let named = matches!(failure.cause, Cause::Error(Error::Corrupt { rank: 1, peer: 3, .. }));
    assert!(named && failure.rank == 1, "{failure}");
}

#[test]
fn checksums_change_no_result() {
    let plain = on(WORLD, |comm| train(&*comm));
    assert_eq!(on(WORLD, |comm| train(&*Checked::new(comm))), plain);
    on(3, |comm| {
        let comm = Checked::new(comm);
        let own = Tensor::zeros((2, 0, 3), DType::F32, &candle_core::Device::Cpu)?;
        for gathered in comm.all_gather(Label::default(), &own)? {
            assert_eq!(gathered.dims(), [2, 0, 3]);
        }
        Ok(())
    });
}
