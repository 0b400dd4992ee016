//! The progress of queries through their keys: what was scored, and what is still to be weighted.

use std::collections::BTreeMap;

use super::{At, Flaw};
use crate::{Block, Part, TilePlan};

/// The running state of a block of queries.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Running {
    /// Whether a tile had keys and values together.
    whole: bool,
    /// Whether values were weighted.
    weighed: bool,
    /// Keys whose scores are kept, with the number of scores.
    scored: BTreeMap<Block, usize>,
}

impl Running {
    /// Adds a tile with keys, values, or both.
    pub(super) fn meet(&mut self, tile: TilePlan, at: At) -> Result<(), Flaw> {
        let TilePlan { queries, keys } = tile;
        match keys.part {
            // A state is either running, or has scores.
            Part::Key | Part::Value if self.whole => return Err(Flaw::Misplaced(at)),
            Part::Key if self.weighed => return Err(Flaw::ScoredLate(at)),
            Part::Key => {
                self.scored.insert(keys, queries.volume() * keys.rows.len());
            }
            Part::Value => {
                self.weighed = true;
                let scores = self.scored.remove(&keys.of(Part::Key));
                scores.ok_or(Flaw::NotScored(at))?;
            }
            _ if self.weighed || !self.scored.is_empty() => return Err(Flaw::Misplaced(at)),
            _ => self.whole = true,
        }
        Ok(())
    }

    /// This running state with its blocks mapped by `moved`.
    pub(super) fn moved(&self, moved: impl Fn(Block) -> Block) -> Running {
        let scored = self.scored.iter().map(|(keys, scores)| (moved(*keys), *scores)).collect();
        Running { scored, ..*self }
    }

    /// The number of scores that are kept.
    pub(super) fn scores(&self) -> usize {
        self.scored.values().sum()
    }

    /// Checks that nothing is left to be weighted.
    pub(super) fn finish(self, at: impl Fn(Block) -> At) -> Result<(), Flaw> {
        let left = self.scored.keys().next();
        left.map_or(Ok(()), |keys| Err(Flaw::NotWeighed(at(*keys))))
    }
}
