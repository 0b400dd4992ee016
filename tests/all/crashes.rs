//! Runs that are killed, stopped, started twice, or cannot write: what is on disk always goes on to
//! the same bits.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use annulus_tests::Ran;
use annulus_tests::runs::{
    Live, Place, Random, assert_same, checkpoints, contents, is_saving, last_logged, last_saved,
    metrics,
};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

/// The number of accidents of each kind.
const ACCIDENTS: u64 = 6;
/// Steps per accident, so many that no run ends before its accidents are over.
const STEPS_PER_ACCIDENT: u64 = 8;
/// How long a run may take to stop when it is asked to, on a busy machine whose disk is slow, too.
const GRACE: Duration = Duration::from_secs(20);
/// The moment of an accident.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// Before the first step.
    Loading,
    /// Somewhere in a step, or in what follows it.
    Anywhere,
    /// While a checkpoint is written.
    Saving,
}

/// The moment of accident `number`.
fn moment(number: u64) -> Moment {
    use Moment::{Anywhere, Loading, Saving};
    [Saving, Anywhere, Loading, Anywhere, Saving][number as usize % 5]
}

/// Causes accidents at random moments.
struct Accidents {
    random: Random,
    /// The time that a step takes here.
    pace: Duration,
}

impl Accidents {
    /// Waits for `moment`, up to three steps from now; false: the run ended before.
    fn wait(&mut self, live: &mut Live, moment: Moment) -> bool {
        let from = last_saved(&live.output);
        let steps = self.random.below(3);
        let somewhat = self.pace.mul_f64(self.random.unit());
        match moment {
            Moment::Loading => {
                sleep(somewhat.mul_f64(0.1));
                true
            }
            Moment::Anywhere => {
                let reached = live.wait_for(|output| last_logged(output) > from + steps);
                sleep(somewhat);
                reached
            }
            Moment::Saving => {
                live.wait_for(|output| is_saving(output) && last_saved(output) >= from + steps)
            }
        }
    }
}

/// Trains in `whole` without an accident, which says how long a step takes.
fn undisturbed(place: &Place, changes: &[&str], steps: u64) -> Accidents {
    let began = Instant::now();
    place.train("whole", changes).ended(0);
    Accidents { random: Random(7), pace: began.elapsed() / steps as u32 }
}

/// A run that is killed `count` times, a quarter of them at least in a save, ends like one that is
/// not. Returns what happened.
fn kill(count: u64, more: &[&str]) -> String {
    let place = Place::new(ANNULUS);
    let steps = STEPS_PER_ACCIDENT * count;
    let change = format!("schedule.steps={steps}");
    let mut accidents = undisturbed(&place, &[change.as_str()], steps);
    let changes = [&[change.as_str()], more].concat();
    let (mut kills, mut in_save) = (0, 0);
    while kills < count || in_save < count / 4 {
        let mut live = place.start("run", &changes);
        assert!(accidents.wait(&mut live, moment(kills)), "the run ended before kill {kills}");
        let output = live.output.clone();
        assert!(live.kill(), "the run ended before kill {kills}");
        kills += 1;
        in_save += u64::from(is_saving(&output));
    }
    place.train("run", &changes).ended(0);
    assert_same(&place.path("run"), &place.path("whole"));
    assert_eq!(checkpoints(&place.path("run")).len(), 3);
    format!("{kills} times killed, {in_save} of them in a save")
}

#[test]
fn a_killed_run_goes_on_to_the_same_bits() {
    println!("{}", kill(ACCIDENTS, &[]));
}

/// What is written beside training is whole or not at all, too; and the same files.
#[test]
fn a_run_that_is_killed_while_it_saves_beside_training_goes_on_to_the_same_bits() {
    println!("{}", kill(ACCIDENTS, &["background_saves=true"]));
}

/// The moments at which stops came.
#[derive(Debug, Default)]
struct Stops {
    loading: u64,
    saving: u64,
    evaluating: u64,
    elsewhere: u64,
    slowest: Duration,
}

impl Stops {
    fn all(&self) -> u64 {
        self.loading + self.saving + self.evaluating + self.elsewhere
    }

    /// Stops a run by a signal, and checks what was promised.
    fn stop(&mut self, live: Live, signal: &str, moment: Moment) {
        let (before, is_saving) = (last_logged(&live.output), is_saving(&live.output));
        let output = live.output.clone();
        let signalled = Instant::now();
        live.signal(&[signal]);
        let ran = live.end();
        self.slowest = self.slowest.max(signalled.elapsed());
        ran.ended(75);
        assert_eq!(last_logged(&output), last_saved(&output), "{}", ran.stderr);
        let lines = metrics(&output);
        let last = lines.last().filter(|line| line["step"].as_u64() > Some(before));
        match moment {
            Moment::Loading => self.loading += 1,
            _ if is_saving => self.saving += 1,
            _ if last.is_some_and(|line| line.get("evaluate/loss").is_none()) => {
                self.evaluating += 1;
            }
            _ => self.elsewhere += 1,
        }
    }
}

/// A run that is stopped `count` times saves what it finished, in time, and ends like one that is
/// not.
fn stop(count: u64) -> Stops {
    let place = Place::new(ANNULUS);
    let steps = STEPS_PER_ACCIDENT * count;
    let change = format!("schedule.steps={steps}");
    // Evaluation takes most of the time.
    let changes = [&change, "data.evaluate=160", "every.evaluate=1", "every.checkpoint=4"];
    let mut accidents = undisturbed(&place, &changes, steps);
    let mut stops = Stops::default();
    while stops.all() < count || stops.saving == 0 || stops.evaluating == 0 {
        let (number, mut live) = (stops.all(), place.start("run", &changes));
        let reached = accidents.wait(&mut live, moment(number));
        assert!(reached, "the run ended before stop {number}: {stops:?}");
        stops.stop(live, ["TERM", "INT"][number as usize % 2], moment(number));
    }
    assert!(stops.slowest < GRACE, "{stops:?}");
    place.train("run", &changes).ended(0);
    assert_same(&place.path("run"), &place.path("whole"));
    stops
}

#[test]
fn a_stopped_run_saves_what_it_finished_and_goes_on_to_the_same_bits() {
    println!("{:?}", stop(ACCIDENTS));
}

#[test]
fn a_second_signal_ends_at_once() {
    let place = Place::new(ANNULUS);
    let steps = STEPS_PER_ACCIDENT * ACCIDENTS;
    let change = format!("schedule.steps={steps}");
    let changes = [change.as_str()];
    let mut accidents = undisturbed(&place, &changes, steps);
    let mut ended_at_once = 0;
    for accident in 0..ACCIDENTS {
        let mut live = place.start("run", &changes);
        assert!(accidents.wait(&mut live, Moment::Saving), "the run ended before");
        live.signal(&["TERM"]);
        // Between the two, more than half a second passes, but not for the save. It may be done before; or the first is not yet
        // noticed, on a busy machine for longer.
        sleep(Duration::from_millis(1 << accident));
        live.signal(&["STOP"]);
        sleep(Duration::from_millis(600));
        live.signal(&["INT", "CONT"]);
        let ran = live.end();
        assert!(matches!(ran.code, Some(75 | 130)), "{:?} {}", ran.code, ran.stderr);
        ended_at_once += u64::from(ran.code == Some(130));
    }
    assert!(ended_at_once > 0);
    place.train("run", &changes).ended(0);
    assert_same(&place.path("run"), &place.path("whole"));
}

/// `timeout` sends SIGTERM to a process, and to its group.
#[test]
fn two_signals_at_once_are_one_request() {
    let place = Place::new(ANNULUS);
    let mut live = place.start("run", &["schedule.steps=100000"]);
    assert!(live.wait_for(|output| last_logged(output) > 2), "it ended by itself");
    live.signal(&["TERM", "TERM", "INT"]);
    live.end().ended(75);
}

/// A pause of the whole process, as `docker pause` and a closed laptop bring one about.
#[test]
fn a_run_that_is_paused_for_longer_than_the_deadline_goes_on_to_the_same_bits() {
    const DEADLINE: Duration = Duration::from_millis(500);
    let place = Place::new(ANNULUS);
    let changes = ["mesh.deadline=500ms", "schedule.steps=200", "every.checkpoint=100"];
    place.train("whole", &changes).ended(0);
    let mut live = place.start("run", &changes);
    for pause in 1..=3 {
        assert!(live.wait_for(|output| last_logged(output) > 20 * pause), "it ended by itself");
        live.signal(&["STOP"]);
        sleep(2 * DEADLINE);
        live.signal(&["CONT"]);
    }
    live.end().ended(0);
    assert_same(&place.path("run"), &place.path("whole"));
}

#[test]
fn a_run_that_was_killed_before_it_named_its_last_checkpoint_names_it() {
    let place = Place::new(ANNULUS);
    let changes = ["schedule.steps=4", "every.checkpoint=2"];
    place.train("run", &changes).ended(0);
    place.write("run/LATEST", "step-2\n");
    place.train("run", &changes).ended(0);
    assert_eq!(std::fs::read_to_string(place.path("run/LATEST")).unwrap(), "step-4\n");
}

#[test]
fn a_second_start_is_refused_until_the_first_one_ends() {
    let place = Place::new(ANNULUS);
    let mut live = place.start("run", &["schedule.steps=100000"]);
    assert!(live.wait_for(|output| last_saved(output) > 1));
    let refused = place.train("run", &["schedule.steps=100000"]);
    refused.ended(4);
    assert!(refused.stderr.contains(&format!("process {}", live.id())), "{}", refused.stderr);
    let (logged, output) = (last_logged(&live.output), live.output.clone());
    assert!(live.wait_for(|output| last_logged(output) > logged), "the first one goes on");
    assert!(live.kill());
    let stop = format!("schedule.stop={}", last_saved(&output) + 2);
    let next = place.train("run", &["schedule.steps=100000", &stop]);
    next.ended(0);
    assert!(next.stderr.contains("from step"), "{}", next.stderr);
}

/// Who moves the folder of a run that trains makes place for another, which the first one must leave alone.
#[test]
fn a_run_whose_folder_was_moved_touches_no_other_in_its_place() {
    let place = Place::new(ANNULUS);
    for saves in ["background_saves=false", "background_saves=true"] {
        let changes = ["schedule.steps=100000", "every.checkpoint=5", saves];
        let mut live = place.start("run", &changes);
        // Between two saves, of which the first is done; a signal may come later than it is sent.
        let computes = |output: &Path| {
            let (saved, logged) = (last_saved(output), last_logged(output));
            saved > 0 && logged == saved + 2
        };
        loop {
            assert!(live.wait_for(computes));
            live.signal(&["STOP"]);
            sleep(Duration::from_millis(100));
            if computes(&place.path("run")) {
                break;
            }
            live.signal(&["CONT"]);
        }
        let [run, moved] = ["run", "moved"].map(|name| place.path(name));
        fs::rename(&run, &moved).expect("a folder");
        place.train("run", &["schedule.steps=3", "keep=5"]).ended(0);
        let before = contents(&run);
        live.signal(&["CONT"]);
        let ran = live.end();
        assert_one_error(
            ran.ended(4),
            "`run` is no longer this run's folder: it was moved or replaced",
        );
        assert!(contents(&run) == before, "{saves}");
        // It goes on where it is now.
        let stop = format!("schedule.stop={}", last_saved(&moved) + 2);
        let next = place.train("moved", &[&changes[..], &[&stop]].concat());
        assert!(next.ended(0).stderr.contains("from step"), "{}", next.stderr);
        fs::remove_dir_all(run).and_then(|()| fs::remove_dir_all(moved)).expect("folders");
    }
}

/// The only thing said of an error, and the way out where there is one.
#[track_caller]
fn assert_one_error(ran: &Ran, wanted: &str) {
    let errors: Vec<_> = ran.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{}", ran.stderr);
    assert!(errors[0].contains(wanted), "{}", ran.stderr);
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
}

#[test]
fn a_checkpoint_that_cannot_be_written_leaves_the_one_before() {
    let place = Place::new(ANNULUS);
    place.train("whole", &[]).ended(0);
    // Evaluated in both.
    place.train("run", &["schedule.stop=4"]).ended(0);
    let (run, before) = (place.path("run"), contents(&place.path("run/step-4")));
    // Too few for the weights, then for the moments.
    let (weights, moments) = ((100, "model.safetensors"), (400, "optimizer.safetensors"));
    for ((blocks, file), beside) in [(weights, "false"), (moments, "false"), (moments, "true")] {
        let background = format!("background_saves={beside}");
        let ran = limited(&place, blocks, &[&background]);
        assert_one_error(ran.ended(4), &format!("cannot write `run/step-5/{file}`"));
        assert_eq!(contents(&run.join("step-4")), before);
        assert_eq!(checkpoints(&run), [2, 3, 4]);
    }
    // What need not be kept any more is deleted first.
    limited(&place, 400, &["keep=1"]).ended(4);
    assert_eq!(checkpoints(&run), [4]);
    place.train("run", &[]).ended(0);
    assert_same(&run, &place.path("whole"));
}

/// Trains in `run` where a file may have no more than so many blocks of 512 bytes.
fn limited(place: &Place, blocks: u32, changes: &[&str]) -> Ran {
    // Without the trap, the signal that comes with the error would end the process.
    let script = format!(r#"trap "" XFSZ; ulimit -f {blocks}; exec "$0" "$@""#);
    let train = place.command("run", changes);
    let mut limited = Command::new("sh");
    limited.args(["-c", &script]).arg(train.get_program()).args(train.get_args());
    limited.current_dir(place.path(""));
    Ran::of(&limited.output().expect("a shell"))
}

#[test]
fn errors_of_files_that_are_replaced_name_no_unfinished_ones() {
    let place = Place::new(ANNULUS);
    let ran = limited(&place, 8, &[]);
    assert_one_error(ran.ended(3), ".tokens`: ");
    assert!(!ran.stderr.contains(".annulus-"), "{}", ran.stderr);
}

#[test]
fn an_output_that_cannot_be_written_is_one_error() {
    let place = Place::new(ANNULUS);
    assert_one_error(place.train("text.txt/run", &[]).ended(4), "text.txt/run");
    place.train("run", &["schedule.stop=2"]).ended(0);
    let (run, before) = (place.path("run"), contents(&place.path("run")));
    let writable = fs::metadata(&run).expect("it is there").permissions();
    let mut read_only = writable.clone();
    read_only.set_readonly(true);
    fs::set_permissions(&run, read_only).expect("ours");
    if fs::write(run.join("probe"), "").is_ok() {
        println!("SKIPPED: this user may write to folders that are read-only");
        return;
    }
    let ran = place.train("run", &[]);
    ran.ended(4);
    fs::set_permissions(&run, writable).expect("ours");
    assert_one_error(&ran, "run");
    assert_eq!(contents(&run), before);
}
