//! Memory for a step's tokens on a rank: of its own rows and positions, and the block that they are read from.

use annulus_experiment::Format;
use annulus_machine::blocks::{HASHED, READ_IDS};

use super::{Share, product, sum};

/// Bytes of a token's id, u32.
const ID: u64 = 4;
/// Bytes of a token's id and its target, i64.
const TOKEN: u64 = ID + 8;
/// Bytes of a position in a sequence, usize.
const PLACE: u64 = 8;

impl Share<'_> {
    /// Bytes of token data: all micro-batches of a step are read before the first is computed.
    pub(super) fn data(&self) -> u64 {
        let data = &self.plan.experiment.data;
        let read = |format| match format {
            Format::Recall => 0,
            // All positions of a sequence, in random order.
            Format::Needles => product(&[data.tokens as u64, PLACE]),
            Format::Batches => HASHED as u64,
            _ => ID * READ_IDS.min(data.tokens as u64 + 1),
        };
        let reading = data.formats().map(read).max().unwrap_or_default();
        sum([product(&[self.rows, TOKEN, self.plan.micro_batches as u64]), reading])
    }
}
