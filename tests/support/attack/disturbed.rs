//! Runs that are killed, stopped, paused, or short of room, over and over: they end like one that nothing happened to.

use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Case, repeated};
use crate::runs::{Live, Place, Random, assert_same, last_logged};

/// How often each happens.
const TIMES: u64 = 20;
/// Kilobytes of the disks that are full.
const DISKS: [u64; 10] = [64, 160, 320, 480, 640, 800, 1200, 1600, 2400, 3200];
/// Seconds that a rank waits for another one.
const DEADLINE: u64 = 2;

pub(super) const CASES: &[Case] = &[
    repeated("D kill -9 at any moment", TIMES, |program, time| ended(program, time, &["KILL"])),
    repeated("D kill -9 three times in a row", TIMES, |program, time| {
        ended(program, 100 + time, &["KILL", "KILL", "KILL"]);
    }),
    repeated("D SIGTERM at any moment", TIMES, |program, time| {
        ended(program, 200 + time, &["TERM"]);
    }),
    repeated("D SIGINT at any moment", TIMES, |program, time| ended(program, 300 + time, &["INT"])),
    repeated("D SIGHUP at any moment", TIMES, |program, time| ended(program, 400 + time, &["HUP"])),
    repeated("D1 a pause of twice the deadline", TIMES, paused),
    repeated("D a full disk, at ten sizes", TIMES * DISKS.len() as u64, |program, time| {
        full(program, DISKS[time as usize % DISKS.len()]);
    }),
];

/// Steps of a run.
const CHANGES: [&str; 2] = ["schedule.steps=30", "every.checkpoint=5"];

/// A place with a run in `whole` that nothing happened to, and how long it took.
fn undisturbed(program: &'static str) -> (Place, Duration) {
    let place = Place::new(program);
    let began = Instant::now();
    place.train("whole", &CHANGES).ended(0);
    (place, began.elapsed())
}

/// Ends a run by these signals, one after the other, each at a random moment, and goes on each time.
fn ended(program: &'static str, seed: u64, signals: &[&str]) {
    let (place, took) = undisturbed(program);
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9).wrapping_add(seed));
    place.watch();
    for signal in signals {
        let live = start(&place);
        sleep(took.mul_f64(random.unit()));
        live.signal(&[signal]);
        let ran = live.end();
        let right: &[Option<i32>] =
            if *signal == "KILL" { &[None, Some(0)] } else { &[Some(75), Some(0), None] };
        assert!(right.contains(&ran.code), "{signal}: {:?} {}", ran.code, ran.stderr);
    }
    finish(&place, "run");
}

fn start(place: &Place) -> Live {
    place.start("run", &CHANGES)
}

/// Goes on to the end, which is that of a run that nothing happened to.
fn finish(place: &Place, run: &str) {
    place.train(run, &CHANGES).ended(0);
    assert_same(&place.path(run), &place.path("whole"));
    place.assert_watched();
}

/// Stops a run for twice its deadline, and lets it go on.
fn paused(program: &'static str, time: u64) {
    let (place, took) = undisturbed(program);
    place.watch();
    let deadline = format!("mesh.deadline={DEADLINE}");
    let changes = [CHANGES[0], CHANGES[1], &deadline];
    let live = place.start("run", &changes);
    sleep(took.mul_f64(Random(time * 7919 + 1).unit()));
    live.signal(&["STOP"]);
    sleep(Duration::from_secs(2 * DEADLINE));
    live.signal(&["CONT"]);
    let ran = live.end();
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_same(&place.path("run"), &place.path("whole"));
    place.assert_watched();
}

/// Trains on a disk of so many kilobytes, then on one with room.
#[expect(clippy::print_stdout, reason = "a case that cannot be tried says so")]
fn full(program: &'static str, kilobytes: u64) {
    let (place, _) = undisturbed(program);
    place.watch();
    let disk = place.path("disk");
    std::fs::create_dir(&disk).expect("a scratch folder");
    let Some(mounted) = Mounted::new(&disk, kilobytes) else {
        println!("SKIPPED: this user may not mount a disk of {kilobytes} KB");
        return;
    };
    let ran = place.train("disk/run", &CHANGES);
    assert!(matches!(ran.code, Some(0 | 4)), "{:?} {}", ran.code, ran.stderr);
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
    let logged = last_logged(&disk.join("run"));
    mounted.grow();
    finish(&place, "disk/run");
    assert!(logged <= 30);
}

/// A disk in memory, until it is dropped.
struct Mounted<'a>(&'a Path);

impl Mounted<'_> {
    fn new(at: &Path, kilobytes: u64) -> Option<Mounted<'_>> {
        let size = format!("size={kilobytes}k");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at);
        mount.output().is_ok_and(|ran| ran.status.success()).then_some(Mounted(at))
    }

    /// Makes room.
    fn grow(&self) {
        let mut mount = Command::new("mount");
        mount.args(["-o", "remount,size=64m"]).arg(self.0);
        assert!(mount.output().is_ok_and(|ran| ran.status.success()), "the disk cannot grow");
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // Busy for as long as somebody is in it.
        let _ = Command::new("umount").arg("-l").arg(self.0).output();
    }
}
