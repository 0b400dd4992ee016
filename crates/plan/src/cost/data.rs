//! Tokens of a step on a rank: of its own rows and positions, and what it reads them from.

use annulus_experiment::Format;

use super::{Share, product};

/// A token's id, u32.
const ID: u64 = 4;
/// The same and its target, i64.
const TOKEN: u64 = ID + 8;
/// Where in a sequence, usize.
const PLACE: u64 = 8;
/// Ids of a text that are read at a time, at most (`data/src/reader.rs`).
const READ: u64 = 1 << 13;
/// Bytes of ready-made batches that are read and held to a hash at a time (`data/src/batches.rs`).
const HASHED: u64 = 1 << 16;

impl Share<'_> {
    /// All micro-batches of a step are read before the first is computed.
    pub(super) fn data(&self) -> u64 {
        let data = &self.plan.experiment.data;
        let read = |format| match format {
            Format::Recall => 0,
            // All places of a sequence in random order.
            Format::Needles => product(&[data.tokens as u64, PLACE]),
            Format::Batches => HASHED,
            _ => ID * READ.min(data.tokens as u64 + 1),
        };
        let reading = data.formats().map(read).max().unwrap_or_default();
        product(&[self.rows, TOKEN, self.plan.micro_batches as u64]).saturating_add(reading)
    }
}
