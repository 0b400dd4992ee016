//! Flight records: what is written at a call is there when nobody has said goodbye, and the first cause is found.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use annulus_comm::flight::{Death, Record, Seen, Verdict, Who, Wreck, drop_unheld, now};
use annulus_comm::threads::Options;
use annulus_comm::{Communicator, Error, Failure, Label, P2pOp, World};
use twox_hash::XxHash3_64;

use crate::support::stand_still;

const LABEL: Label = Label { step: 7, layer: 3, pass: "backward", hop: 2 };

/// Rank 1 ends where the others wait for it; what each says is kept.
fn left(folder: &std::path::Path) -> Failure<Error> {
    let world = World::alone();
    world.record(folder, 0..3).expect("a scratch folder");
    let options = Options { world: 3, deadline: Duration::from_millis(200), stop: Arc::default() };
    let told = AtomicBool::new(false);
    let program = |comm: Arc<dyn Communicator>| {
        let rank = comm.rank();
        if rank == 1 {
            comm.note(LABEL);
            stand_still(&told);
            return Ok(());
        }
        let received = comm.exchange(LABEL, vec![P2pOp::Receive { from: 1, form: None }])?.wait();
        received.map(drop).inspect_err(|error| {
            if !matches!(error, Error::Ended { .. }) {
                world.failed(rank, &error.to_string(), error.blames());
            }
            told.store(true, Ordering::Relaxed);
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
    let seen = |when| Seen { deaths: vec![Death { number: 0, when }], ..Seen::default() };
    Wreck::keep_seen(folder.path(), &seen(now())).unwrap();
    let lost = Verdict::Lost { process: 0 };
    assert_eq!(Wreck::read(folder.path()).unwrap().verdict(), lost);
    left(folder.path());
    Wreck::keep_seen(folder.path(), &seen(now())).unwrap();
    let verdict = Wreck::read(folder.path()).unwrap().verdict();
    assert!(matches!(verdict, Verdict::Blamed { who: Who::Rank(1), .. }), "{verdict:?}");
}

/// A record of process `process`, which MPI calls `number`.
fn of_process(wreck: &Wreck, process: usize, number: usize) -> Record {
    let mut record = wreck.records[0].clone();
    (record.head.process, record.head.number) = (process, number);
    record
}

#[test]
fn a_death_is_that_of_the_process_which_mpi_calls_so() {
    let folder = tempfile::tempdir().unwrap();
    World::alone().record(folder.path(), 0..1).unwrap();
    let mut wreck = Wreck::read(folder.path()).unwrap();
    // Placed on two hosts in turn.
    let order = [(0, 0), (1, 2), (2, 1), (3, 3)];
    wreck.records =
        order.map(|(process, number)| of_process(&wreck, process, number)).into_iter().collect();
    wreck.seen.deaths = vec![Death { number: 2, when: now() }];
    assert_eq!(wreck.verdict(), Verdict::Lost { process: 1 });
}

/// What a killed process held is gone before its death can be seen: the engine fails in between.
#[test]
fn an_engine_that_fails_behind_a_death_is_not_to_blame() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::alone();
    world.record(folder.path(), 0..1).unwrap();
    let mut wreck = Wreck::read(folder.path()).unwrap();
    let error = Error::Engine { why: "MPI_Test: a peer's memory cannot be read".into() };
    std::thread::sleep(Duration::from_millis(2));
    world.failed(0, &error.to_string(), error.blames());
    let mut told = Record::read(&folder.path().join("process-0")).unwrap();
    let failed = told.ranks[0].failed.clone().expect("a failure").when;
    told.alive = failed;
    let mut other = of_process(&wreck, 1, 1);
    wreck.records = vec![told, other.clone()];
    wreck.seen.deaths = vec![Death { number: 1, when: failed + 3000 }];
    assert_eq!(wreck.verdict(), Verdict::Lost { process: 1 });
    wreck.seen.deaths.clear();
    assert_eq!(wreck.verdict(), Verdict::Lost { process: 1 }, "as the records alone say");
    // One that was alive then did not take the engine with it.
    other.alive = failed + 1;
    wreck.records[1] = other;
    wreck.seen.deaths = vec![Death { number: 1, when: failed + 3000 }];
    let verdict = wreck.verdict();
    assert!(matches!(verdict, Verdict::Failed { who: Who::Rank(0), .. }), "{verdict:?}");
}

/// A record whose lines have the checksums of what they say: a head of four times 512 bytes, other lines of 512, each twice.
fn sealed(mut record: Vec<u8>) -> Vec<u8> {
    let (head, others) = record.split_at_mut(2 * 4 * 512);
    for line in head.chunks_mut(4 * 512).chain(others.chunks_mut(512)) {
        let (said, sum) = line.split_at_mut(line.len() - 18);
        sum[1..17].copy_from_slice(format!("{:016x}", XxHash3_64::oneshot(said)).as_bytes());
    }
    record
}

/// Processes on other hosts keep no record where the supervisor has its folder.
#[test]
fn processes_of_other_hosts_are_read_in_the_run_s_folder() {
    let (early, run) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let world = World::alone();
    world.record(early.path(), 0..0).unwrap();
    let of =
        |wreck: Wreck| wreck.records.iter().map(|record| record.head.process).collect::<Vec<_>>();
    assert_eq!(of(Wreck::of_job(early.path()).unwrap()), [0]);
    world.record(run.path(), 0..1).unwrap();
    let own = std::fs::read(run.path().join("process-0")).unwrap();
    let text = str::from_utf8(&own).unwrap().replace("\"process\":0", "\"process\":1");
    std::fs::write(run.path().join("process-1"), sealed(text.into_bytes())).unwrap();
    assert_eq!(of(Wreck::of_job(early.path()).unwrap()), [0, 1]);
    assert!(Wreck::of_job(&early.path().join("absent")).is_err());
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

/// Runs a rank that keeps its record in `folder`.
fn recorded(folder: &std::path::Path, program: impl Fn(&dyn Communicator) + Send + Sync) {
    let world = World::alone();
    world.record(folder, 0..1).expect("a scratch folder");
    let options = Options { world: 1, deadline: Duration::from_secs(9), stop: Arc::default() };
    let program = |comm: Arc<dyn Communicator>| {
        program(comm.as_ref());
        Ok::<_, Error>(())
    };
    world.run(&options, program).expect("a rank that waits for nobody");
}

#[test]
fn where_a_line_is_half_written_the_one_before_stands() {
    let folder = tempfile::tempdir().unwrap();
    recorded(folder.path(), |comm| {
        comm.note(Label { hop: 1, ..LABEL });
        comm.note(LABEL);
        let mut record = std::fs::read(folder.path().join("process-0")).unwrap();
        let torn = folder.path().join("process-1");
        let found = |record: &[u8]| {
            std::fs::write(&torn, record).unwrap();
            Record::read(&torn).map(|record| record.ranks[0].hop).map_err(|error| error.to_string())
        };
        assert_eq!(found(&record), Ok(2));
        // After the head and two lines, each twice.
        let (earlier, later) = (12 * 512, 13 * 512);
        record[later + 40] ^= 1;
        assert_eq!(found(&record), Ok(1));
        record[earlier + 40] ^= 1;
        assert_eq!(found(&record), Err("line 3 is torn".to_owned()));
    });
}

#[test]
fn what_is_read_while_it_is_written_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let until = Instant::now() + Duration::from_millis(300);
    let read = || {
        while Instant::now() < until {
            let record = Record::read(&folder.path().join("process-0")).unwrap();
            let place = &record.ranks[0];
            assert_eq!((place.step, place.layer), (place.hop as u64, place.hop));
        }
    };
    let write = |comm: &dyn Communicator| {
        let mut hop = 0;
        while Instant::now() < until {
            comm.note(Label { step: hop as u64, layer: hop, hop, ..LABEL });
            hop += 1;
        }
    };
    recorded(folder.path(), |comm| {
        std::thread::scope(|scope| {
            scope.spawn(read);
            scope.spawn(read);
            write(comm);
        });
    });
}

/// Another run in the same folder: whoever is still there writes into memory that must stay.
#[test]
fn a_record_that_another_replaces_is_written_on() {
    let folder = tempfile::tempdir().unwrap();
    recorded(folder.path(), |comm| {
        let other = World::alone();
        other.record(folder.path(), 0..0).unwrap();
        comm.note(LABEL);
        let record = Record::read(&folder.path().join("process-0")).unwrap();
        assert_eq!(record.ranks, []);
    });
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// On NFS a folder cannot be removed while a record in it is open; what nobody holds would be taken for that of a killed process.
#[test]
fn records_that_processes_hold_stay_and_the_others_go() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::alone();
    world.record(folder.path(), 0..2).unwrap();
    for name in ["process-1", "process-12", "new-1-77", "seen.json", "notes"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    drop_unheld(folder.path()).unwrap();
    let mut left: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["notes", "process-0"]);
    drop_unheld(&folder.path().join("nowhere")).unwrap();
}

/// The path of the record that continues one may alone be too long for its head.
#[test]
fn how_a_process_ended_is_kept_where_its_head_is_too_long() {
    let early = tempfile::tempdir().unwrap();
    let deep =
        |levels| (0..levels).fold(early.path().join("run"), |path, _| path.join("d".repeat(250)));
    let world = World::alone();
    world.record(early.path(), 0..0).unwrap();
    world.record(&deep(8), 0..1).unwrap();
    world.asked();
    world.end(75, None);
    let wreck = Wreck::of_job(early.path()).unwrap();
    assert_eq!(wreck.verdict(), Verdict::Asked { process: 0 });
    assert_eq!(wreck.records[0].head.ending.as_ref().map(|ending| ending.code), Some(75));

    let world = World::alone();
    world.record(early.path(), 0..0).unwrap();
    world.record(&deep(4), 0..1).unwrap();
    world.end(2, Some(&"why ".repeat(500)));
    let head = fs::read_to_string(early.path().join("process-0")).unwrap();
    assert!(
        head.contains("\"code\":2,\"why\":\"why why") && head.contains("\"moved\":\"/"),
        "{head}"
    );
    let Verdict::Failed { why, .. } = Wreck::of_job(early.path()).unwrap().verdict() else {
        panic!("the record that is moved to says why");
    };
    assert_eq!(why.len(), 1200);
}
