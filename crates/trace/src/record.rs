//! Spans of the thread that works: nothing is done, and no clock is read, where nobody records.
//!
//! A rank is a thread, and what posts, computes and waits for it is that thread; its workers only
//! help. So what is recorded lies with the thread, nothing has to be handed down to where the work
//! is, and ranks do not meet.

use std::cell::RefCell;
use std::sync::LazyLock;
use std::time::Instant;

use crate::{Doing, Span};

/// The clock of all threads of this process starts when it is first read.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

thread_local! {
    static SPANS: RefCell<Option<Vec<Span>>> = const { RefCell::new(None) };
}

/// From here on this thread records what it does.
pub fn start() {
    SPANS.set(Some(Vec::new()));
}

/// What this thread has recorded since [`start`], in the order in which it ended; it records no more.
pub fn stop() -> Vec<Span> {
    SPANS.take().unwrap_or_default()
}

/// Whether this thread records.
pub fn is_recording() -> bool {
    SPANS.with_borrow(Option::is_some)
}

/// Something begins, if it is recorded.
pub fn begin() -> Begun {
    Begun(is_recording().then(now))
}

/// Something that has begun. What fails in between is not recorded.
#[derive(Clone, Copy, Debug)]
#[must_use = "a span has an end"]
pub struct Begun(Option<u64>);

impl Begun {
    /// Whether it is recorded.
    pub fn is_recorded(self) -> bool {
        self.0.is_some()
    }

    /// It ends here. What it was is only asked where it is recorded.
    pub fn end(self, doing: impl FnOnce() -> Doing) {
        let Some(begin) = self.0 else { return };
        let end = now();
        let span = Span { begin, end, doing: doing() };
        SPANS.with_borrow_mut(|spans| {
            if let Some(spans) = spans {
                spans.push(span);
            }
        });
    }

    /// Nanoseconds since it began; 0 where it is not recorded.
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

    fn stage() -> Doing {
        Doing::Stage { name: String::from("one") }
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
