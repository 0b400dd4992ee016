//! Flight records: what is written at a call is there when nobody has said goodbye, and the first cause is found.

use std::sync::Arc;
use std::time::Duration;

use annulus_comm::flight::{Death, Seen, Verdict, Who, Wreck, now};
use annulus_comm::threads::Options;
use annulus_comm::{Communicator, Error, Failure, Label, Move, World};

const LABEL: Label = Label { step: 7, layer: 3, pass: "backward", hop: 2 };

/// Rank 1 ends where the others wait for it; what each says is kept.
fn left(folder: &std::path::Path) -> Failure<Error> {
    let world = World::alone();
    world.record(folder, 0..3).expect("a scratch folder");
    let options = Options { world: 3, deadline: Duration::from_millis(200), stop: Arc::default() };
    let program = |comm: Arc<dyn Communicator>| {
        let rank = comm.rank();
        if rank == 1 {
            comm.note(LABEL);
            std::thread::sleep(Duration::from_millis(600));
            return Ok(());
        }
        let received = comm.exchange(LABEL, vec![Move::Receive { from: 1, form: None }])?.wait();
        received.map(drop).inspect_err(|error| {
            if !matches!(error, Error::Ended { .. }) {
                world.failed(rank, &error.to_string(), error.blames());
            }
        })
    };
    world.run(&options, program).expect_err("a rank waits for ever")
}

#[test]
fn a_rank_that_stands_still_is_blamed_where_it_stands() {
    let folder = tempfile::tempdir().unwrap();
    left(folder.path());
    let wreck = Wreck::read(folder.path()).unwrap();
    let Verdict::Blamed { who, why, .. } = wreck.verdict() else { panic!("{wreck:?}") };
    assert_eq!(who, Who::Rank(1));
    assert!(why.contains("for rank 1 (step 7, layer 3, backward, hop 2)"), "{why}");
    let ranks = &wreck.records[0].ranks;
    assert_eq!(ranks[1].to_string(), "step 7, layer 3, backward, hop 2");
    assert_eq!(ranks[1].waits, None);
    assert!([0, 2].iter().any(|rank| ranks[*rank].waits.is_some_and(|waits| waits.peer == 1)));
}

#[test]
fn whoever_ended_without_a_word_before_the_first_failure_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    World::alone().record(folder.path(), 0..2).unwrap();
    let seen = |when| Seen { deaths: vec![Death { process: 0, when }], ..Seen::default() };
    Wreck::keep_seen(folder.path(), &seen(now())).unwrap();
    let lost = Verdict::Lost { process: 0 };
    assert_eq!(Wreck::read(folder.path()).unwrap().verdict(), lost);
    left(folder.path());
    Wreck::keep_seen(folder.path(), &seen(now())).unwrap();
    let verdict = Wreck::read(folder.path()).unwrap().verdict();
    assert!(matches!(verdict, Verdict::Blamed { who: Who::Rank(1), .. }), "{verdict:?}");
}

#[test]
fn a_record_that_ends_in_its_middle_is_told_of() {
    let folder = tempfile::tempdir().unwrap();
    World::alone().record(folder.path(), 0..2).unwrap();
    std::fs::write(folder.path().join("process-1"), "{\"process\":1").unwrap();
    let wreck = Wreck::read(folder.path()).unwrap();
    assert_eq!((wreck.records.len(), wreck.unread.len()), (1, 1));
    assert!(Wreck::read(&folder.path().join("absent")).is_err());
}
