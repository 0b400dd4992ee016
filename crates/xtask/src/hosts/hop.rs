//! The cost of a message's header and checksums.

use anyhow::Result;
use serde_json::Value;

use super::table::Samples;
use crate::tool;

/// Times in seconds of a message between two processes, in both directions at once.
pub(crate) struct Hop {
    /// MPI alone: the message, and the message after a header.
    raw: [Samples; 2],
    /// Our engine: without checksums, and with them.
    ours: [Samples; 2],
}

impl Hop {
    /// Reads what `annulus-bench engine` prints for `--measure raw` and `--measure hop`.
    pub(crate) fn of(raw: &Value, ours: &Value) -> Result<Hop> {
        Ok(Hop {
            raw: [Samples::of(raw, "payload")?, Samples::of(raw, "header")?],
            ours: [Samples::of(ours, "plain")?, Samples::of(ours, "checked")?],
        })
    }

    /// Appends other samples.
    pub(crate) fn join(&mut self, other: Hop) {
        let own = self.raw.iter_mut().chain(&mut self.ours);
        own.zip(other.raw.into_iter().chain(other.ours)).for_each(|(all, more)| all.join(more));
    }

    pub(crate) fn print(&self, what: &str) {
        tool::print(&format!("\n{what}"));
        tool::print("| how | microseconds: median (range) |");
        tool::print("| --- | --- |");
        let names = [
            "MPI alone, into the same memory",
            "MPI alone, with a header",
            "our engine",
            "our engine, with checksums",
        ];
        for (name, samples) in names.iter().zip(self.raw.iter().chain(&self.ours)) {
            tool::print(&format!("| {name} | {} |", samples.shown(1e-6)));
        }
    }

    /// The cost of a header, relative to the hop.
    pub(crate) fn header(&self) -> f64 {
        let [payload, header] = self.raw.each_ref().map(Samples::median);
        (header - payload) / self.ours[0].median()
    }

    /// The cost of checksums, relative to the hop without them.
    pub(crate) fn checksums(&self) -> f64 {
        let [plain, checked] = self.ours.each_ref().map(Samples::median);
        (checked - plain) / plain
    }
}
