//! The caller's sink, as rank 0 calls it.

use crate::sink::{Notice, Sink, Value};

/// A caller's sink, until it fails.
pub(crate) struct Console<'a> {
    sink: &'a mut (dyn Sink + Send),
    has_failed: bool,
}

impl<'a> Console<'a> {
    pub(crate) fn new(sink: &'a mut (dyn Sink + Send)) -> Console<'a> {
        Console { sink, has_failed: false }
    }

    /// Records the values of a logged step; returns a warning if the sink fails, and never calls it again then: a terminal that has been
    /// closed is no reason to stop.
    pub(crate) fn record(&mut self, step: u64, values: &[(&str, Value<'_>)]) -> Option<String> {
        if self.has_failed {
            return None;
        }
        let error = self.sink.record(step, values).err()?;
        self.has_failed = true;
        Some(format!("the sink failed at step {step}, and was told nothing more: {error}"))
    }

    /// Flushes what was recorded; returns a warning if that fails, and never calls the sink again then.
    pub(crate) fn flush(&mut self) -> Option<String> {
        if self.has_failed {
            return None;
        }
        let error = self.sink.flush().err()?;
        self.has_failed = true;
        Some(format!("the sink failed to flush, and was told nothing more: {error}"))
    }

    pub(crate) fn notice(&mut self, notice: &Notice<'_>) {
        if !self.has_failed {
            self.sink.notice(notice);
        }
    }
}
