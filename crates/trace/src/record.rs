//! Records the spans of a thread; without a recording nothing is done, and no clock is read.
//!
//! A rank is a thread that posts, computes and waits; its workers only help. So the recording is thread-local: nothing has to be passed
//! down to where work is done, and ranks do not contend.

use std::cell::RefCell;
use std::sync::LazyLock;
use std::time::Instant;

use crate::{Activity, Span};

/// The start of the clock of all threads of this process: when it is first read.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

thread_local! {
    static SPANS: RefCell<Option<Vec<Span>>> = const { RefCell::new(None) };
}

/// Starts recording on this thread.
pub fn start() {
    SPANS.set(Some(Vec::new()));
}

/// Stops recording, and returns the spans since [`start`] in the order in which they ended.
pub fn stop() -> Vec<Span> {
    SPANS.take().unwrap_or_default()
}

/// Whether this thread records.
fn is_recording() -> bool {
    SPANS.with_borrow(Option::is_some)
}

/// Begins a span, if this thread records.
pub fn begin() -> Begun {
    Begun(is_recording().then(now))
}

/// A span that has begun. If the work fails, it is not recorded.
#[derive(Clone, Copy, Debug)]
#[must_use = "a span has an end"]
pub struct Begun(Option<u64>);

impl Begun {
    /// Whether the span will be recorded.
    pub fn is_recorded(self) -> bool {
        self.0.is_some()
    }

    /// Ends the span; `doing` is called only if it is recorded.
    pub fn end(self, activity: impl FnOnce() -> Activity) {
        let Some(begin) = self.0 else { return };
        let end = now();
        let span = Span { begin, end, activity: activity() };
        SPANS.with_borrow_mut(|spans| {
            if let Some(spans) = spans {
                spans.push(span);
            }
        });
    }

    /// Nanoseconds since the span began; 0 where it is not recorded.
    pub fn age(self) -> u64 {
        self.0.map_or(0, |begin| now() - begin)
    }
}

/// Nanoseconds on the clock of all threads of this process.
pub fn now() -> u64 {
    START.elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage() -> Activity {
        Activity::Stage { name: String::from("one") }
    }

    #[test]
    fn nothing_is_asked_where_nobody_records() {
        let begun = begin();
        assert!(!begun.is_recorded());
        begun.end(|| panic!("nobody wants to know"));
        assert_eq!((begun.age(), stop()), (0, Vec::new()));
    }

    #[test]
    fn threads_record_for_themselves_on_one_clock() {
        start();
        let outer = begin();
        let of_another = std::thread::spawn(|| {
            assert!(!is_recording());
            start();
            begin().end(stage);
            stop()
        });
        let of_another = of_another.join().expect("it ends");
        outer.end(stage);
        let here = stop();
        assert!(!is_recording());
        assert!(here[0].begin <= of_another[0].begin && of_another[0].end <= here[0].end);
    }
}
