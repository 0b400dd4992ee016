//! The strategies one can name, and the schedules they mean.

mod all_gather;
mod local;
mod ring;
mod split;

use std::fmt;

use crate::{DealError, Hop, Layout, Mask, Pass, Schedule};
use split::Split;

/// A way to split attention over ranks, by the word one writes in the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// One rank: the reference.
    Local,
    /// Ring Attention: contiguous chunks, keys and values go round.
    Ring,
    /// Striped Attention: the same ring over stripes.
    Striped,
    /// Megatron context parallelism: the same ring over zigzag chunks.
    Megatron,
    /// Contiguous chunks, keys and values gathered: the naive baseline.
    AllGather,
}

/// How the gradients of keys and values come home in a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Return {
    /// They travel with their keys and values all the way round: as many moves as ranks.
    Travelling,
    /// The own part never leaves, and the ring runs against the forward one: a move less.
    #[default]
    Reversed,
}

/// Why a strategy cannot run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StrategyError {
    /// `local` on more than one rank.
    TooManyRanks {
        /// How many there are.
        world: usize,
    },
    /// The positions do not deal out.
    Deal(DealError),
}

impl Strategy {
    /// All of them, in the order of the documentation.
    pub const ALL: [Strategy; 5] = [
        Strategy::Local,
        Strategy::Ring,
        Strategy::Striped,
        Strategy::Megatron,
        Strategy::AllGather,
    ];
    /// The word one writes: `local`, `ring`, `striped`, `megatron`, `all-gather`.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::Local => "local",
            Strategy::Ring => "ring",
            Strategy::Striped => "striped",
            Strategy::Megatron => "megatron",
            Strategy::AllGather => "all-gather",
        }
    }
    /// The reverse of [`Strategy::name`].
    pub fn from_name(name: &str) -> Option<Strategy> {
        Strategy::ALL.into_iter().find(|strategy| strategy.name() == name)
    }
    /// How positions are dealt.
    pub fn layout(self) -> Layout {
        match self {
            Strategy::Local | Strategy::Ring | Strategy::AllGather => Layout::Contiguous,
            Strategy::Striped => Layout::Striped { width: 1 },
            Strategy::Megatron => Layout::Zigzag,
        }
    }
    /// The forward schedule of `tokens` positions over `world` ranks with `heads` key/value heads.
    ///
    /// # Errors
    /// When the strategy does not run on so many ranks, or the positions cannot be dealt to them.
    ///
    /// # Panics
    /// Without ranks.
    pub fn forward(
        self,
        mask: &Mask,
        tokens: usize,
        world: usize,
        heads: usize,
    ) -> Result<Schedule, StrategyError> {
        let split = self.split(mask, tokens, world, heads)?;
        let ranks = match self {
            Strategy::Local => local::forward(),
            Strategy::Ring | Strategy::Striped | Strategy::Megatron => ring::forward(&split),
            Strategy::AllGather => all_gather::forward(&split),
        };
        Ok(self.schedule(Pass::Forward, mask, split, ranks))
    }
    /// The backward schedule; `how` matters to rings alone.
    ///
    /// # Errors
    /// As [`Strategy::forward`].
    ///
    /// # Panics
    /// As [`Strategy::forward`].
    pub fn backward(
        self,
        mask: &Mask,
        tokens: usize,
        world: usize,
        heads: usize,
        how: Return,
    ) -> Result<Schedule, StrategyError> {
        let split = self.split(mask, tokens, world, heads)?;
        let ranks = match self {
            Strategy::Local => local::backward(),
            Strategy::Ring | Strategy::Striped | Strategy::Megatron => ring::backward(&split, how),
            Strategy::AllGather => all_gather::backward(&split),
        };
        Ok(self.schedule(Pass::Backward, mask, split, ranks))
    }

    fn split(
        self,
        mask: &Mask,
        tokens: usize,
        world: usize,
        heads: usize,
    ) -> Result<Split, StrategyError> {
        if self == Strategy::Local && world > 1 {
            return Err(StrategyError::TooManyRanks { world });
        }
        let positions = self.layout().deal(tokens, world).map_err(StrategyError::Deal)?;
        Ok(Split::new(mask, positions, heads))
    }

    fn schedule(self, pass: Pass, mask: &Mask, split: Split, ranks: Vec<Vec<Hop>>) -> Schedule {
        Schedule {
            strategy: self.name(),
            pass,
            layout: self.layout(),
            mask: mask.clone(),
            heads: split.heads,
            positions: split.positions,
            ranks,
        }
    }
}

impl StrategyError {
    /// The way out, where there is one.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            StrategyError::TooManyRanks { .. } => {
                let others =
                    Strategy::ALL.into_iter().filter(|strategy| *strategy != Strategy::Local);
                let names: Vec<String> =
                    others.map(|other| format!("`{}`", other.name())).collect();
                format!("use one rank, or one of {}", names.join(", "))
            }
            StrategyError::Deal(error) => error.hint(),
        })
    }
}

impl fmt::Display for StrategyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StrategyError::TooManyRanks { world } => {
                write!(f, "`local` runs on 1 rank and cannot share a sequence among {world}")
            }
            StrategyError::Deal(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StrategyError {}
