//! A run generates and proves each schedule once. A test binary of its own, because proofs are counted per process.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "all/common.rs"]
mod common;

use annulus_sequence::{Schedules, Strategy};
use common::Place;

#[test]
fn a_run_generates_and_proves_each_schedule_once() {
    let place = Place::new();
    let changes = [
        ("mesh.sequence", "4"),
        ("attention.strategy", "ring"),
        ("attention.sliding.layers", "[1]"),
        ("attention.sliding.window", "7"),
        ("attention.sliding.strategy", "halo"),
        ("schedule.stop", "3"),
    ];
    assert_eq!(Schedules::counted(), [0, 0]);
    place.run(&changes).unwrap();
    // Of both layer groups: forward once, and every backward route once, to see what it sends.
    let ways = [Strategy::Ring, Strategy::Halo].map(|strategy| strategy.routes().len() as u64);
    assert_eq!(Schedules::counted(), [2 + ways.iter().sum::<u64>(), 4]);
    place.run(&[&changes[..5], &[("schedule.stop", "5")]].concat()).unwrap();
    assert_eq!(Schedules::counted()[1], 8, "a second run makes its own, and no more");
}
