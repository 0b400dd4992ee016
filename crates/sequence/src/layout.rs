//! How the positions of a sequence are dealt to ranks.

use crate::Positions;

/// How the positions of a sequence are dealt to ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Rank `r` holds the `r`-th contiguous chunk (Ring Attention, arXiv 2310.01889).
    Contiguous,
    /// Rank `r` holds every `world`-th block of `width` positions (Striped Attention, arXiv 2311.09431).
    Striped {
        /// Neighbouring positions per stripe, 1 in the paper.
        width: usize,
    },
    /// Rank `r` holds chunks `r` and `2 * world - 1 - r` of `2 * world` (Megatron context parallelism).
    Zigzag,
}

/// A sequence that cannot be dealt out evenly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DealError {
    /// How it was to be dealt.
    pub layout: Layout,
    /// How many positions there are.
    pub tokens: usize,
    /// To how many ranks.
    pub world: usize,
    /// What `tokens` would have to be a multiple of.
    pub multiple: usize,
}

impl Layout {
    /// What the number of positions must be a multiple of, over `world` ranks.
    pub fn multiple(self, world: usize) -> usize {
        match self {
            Layout::Contiguous => world,
            Layout::Striped { width } => world * width,
            Layout::Zigzag => 2 * world,
        }
    }
    /// The positions of every rank, by rank.
    pub fn deal(self, _tokens: usize, _world: usize) -> Result<Vec<Positions>, DealError> {
        todo!()
    }
}
