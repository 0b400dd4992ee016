//! The strategies one can name, and the schedules they mean.

use crate::{DealError, Layout, Mask, Schedule};

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
    /// They travel with their keys and values all the way round: as many hops as ranks.
    Travelling,
    /// The ring runs backwards and the own part never leaves: one hop less.
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
        todo!()
    }
    /// The reverse of [`Strategy::name`].
    pub fn from_name(_name: &str) -> Option<Strategy> {
        todo!()
    }
    /// How positions are dealt.
    pub fn layout(self) -> Layout {
        todo!()
    }
    /// The forward schedule of `tokens` positions over `world` ranks with `heads` key/value heads.
    pub fn forward(
        self,
        _mask: &Mask,
        _tokens: usize,
        _world: usize,
        _heads: usize,
    ) -> Result<Schedule, StrategyError> {
        todo!()
    }
    /// The backward schedule.
    pub fn backward(
        self,
        _mask: &Mask,
        _tokens: usize,
        _world: usize,
        _heads: usize,
        _how: Return,
    ) -> Result<Schedule, StrategyError> {
        todo!()
    }
}
