//! Progress and the time left: a bar on a terminal, a line now and then elsewhere.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use annulus_data::Progress;
use annulus_text::size;
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::{Mutex, MutexGuard};

use crate::print;

/// The shortest time between two plain lines.
const PAUSE: Duration = Duration::from_secs(10);

/// Shows the progress of one task after another.
pub(crate) struct Meter {
    unit: Unit,
    state: Mutex<State>,
}

/// The unit of what is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Bytes,
    Number,
}

struct State {
    bar: Option<ProgressBar>,
    /// The name of the current task.
    what: String,
    pace: Pace,
    said: Instant,
}

/// When a task began, and with how much done already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    began: Instant,
    from: u64,
}

impl Pace {
    pub(crate) fn new(from: u64) -> Pace {
        Pace { began: Instant::now(), from }
    }

    /// The time left after `done` of `total`, by the speed since the task began.
    pub(crate) fn left(self, done: u64, total: u64) -> Option<Duration> {
        let by_now = done.checked_sub(self.from).filter(|&some| some > 0)?;
        let each = self.began.elapsed().as_secs_f64() / by_now as f64;
        Duration::try_from_secs_f64(each * total.saturating_sub(done) as f64).ok()
    }
}

/// A time as text: `45 s`, `12 min`, `3.4 h`.
pub(crate) fn spoken(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds < 90.0 => format!("{seconds:.0} s"),
        seconds if seconds < 5400.0 => format!("{:.0} min", seconds / 60.0),
        seconds if seconds < 172_800.0 => format!("{:.1} h", seconds / 3600.0),
        seconds => format!("{:.1} days", seconds / 86_400.0),
    }
}

/// A progress bar, if standard error is a terminal.
pub(super) fn bar(template: &str, length: u64) -> Option<ProgressBar> {
    io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::new(length);
        match ProgressStyle::with_template(template) {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        }
    })
}

impl Meter {
    pub(crate) fn new(unit: Unit) -> Meter {
        let state =
            State { bar: None, what: String::new(), pace: Pace::new(0), said: Instant::now() };
        Meter { unit, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Shows that `done` of `total` of the task `what` are done.
    pub(crate) fn show(&self, what: &str, done: u64, total: u64) {
        let mut state = self.state();
        if state.what != what {
            what.clone_into(&mut state.what);
            state.pace = Pace::new(done);
        }
        let left = state.pace.left(done, total);
        let left = left.map_or_else(String::new, |left| format!(", {} left", spoken(left)));
        let words = |count| if self.unit == Unit::Bytes { size(count) } else { count.to_string() };
        let line = format!("{what}: {} of {}{left}", words(done), words(total));
        let begun = state.bar.is_some();
        if !begun {
            state.bar = bar("{bar:20} {wide_msg}", total);
        }
        if let Some(bar) = &state.bar {
            bar.set_length(total);
            bar.set_position(done);
            bar.set_message(line);
        } else if state.said.elapsed() > PAUSE {
            state.said = Instant::now();
            print::say(&line);
        }
    }

    /// Shows the progress of making a token cache.
    pub(crate) fn tell(&self, now: Progress) {
        match now {
            Progress::Reading { done, total } => self.show("tokenising", done, total),
            waiting @ Progress::Waiting { .. } => self.say(&waiting.to_string()),
        }
    }

    /// Calls `print` while the bar is hidden.
    pub(crate) fn beside<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.state().bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Prints a line above the bar.
    pub(crate) fn say(&self, line: &str) {
        match &self.state().bar {
            Some(bar) => bar.suspend(|| print::say(line)),
            None => print::say(line),
        }
    }

    pub(crate) fn finish(&self) {
        if let Some(bar) = self.state().bar.take() {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_counts_from_where_it_went_on() {
        let began = Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
        let resumed = Pace { began, from: 100 };
        // Ten took so long; ninety are left, for which it asks the clock in between.
        let at_least = 9 * began.elapsed();
        let left = resumed.left(110, 200).unwrap();
        let at_most = 9 * began.elapsed();
        let rounding = Duration::from_millis(1);
        assert!(at_least <= left + rounding && left <= at_most + rounding, "{left:?}");
        assert_eq!(resumed.left(100, 200), None, "nothing is known yet");
        assert_eq!(resumed.left(90, 200), None);
    }

    #[test]
    fn times_are_spoken() {
        let said = [45.0, 600.0, 7200.0, 400_000.0].map(|s| spoken(Duration::from_secs_f64(s)));
        assert_eq!(said, ["45 s", "10 min", "2.0 h", "4.6 days"]);
    }
}
