//! How the positions of a sequence are dealt to ranks.

use std::fmt;

use crate::{Positions, Run};

/// How the positions of a sequence are dealt to ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Rank `r` holds the `r`-th contiguous chunk (Ring Attention, arXiv 2310.01889).
    Contiguous,
    /// Rank `r` holds every `world`-th block of `width` positions (Striped Attention, arXiv
    /// 2311.09431).
    Striped {
        /// Neighbouring positions per stripe, 1 in the paper.
        width: usize,
    },
    /// Rank `r` holds chunks `r` and `2 * world - 1 - r` of `2 * world` (Megatron context
    /// parallelism).
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
            // One rank holds both halves of everything: nothing has to be halved.
            Layout::Zigzag if world == 1 => 1,
            Layout::Zigzag => 2 * world,
        }
    }
    /// The positions of every rank, by rank.
    ///
    /// # Errors
    /// When `tokens` is zero or no multiple of [`Layout::multiple`].
    ///
    /// # Panics
    /// Without ranks, or when stripes have no width.
    pub fn deal(self, tokens: usize, world: usize) -> Result<Vec<Positions>, DealError> {
        let multiple = self.multiple(world);
        assert!(multiple > 0, "positions are dealt to at least one rank, at least one at a time");
        if tokens == 0 || !tokens.is_multiple_of(multiple) {
            return Err(DealError { layout: self, tokens, world, multiple });
        }
        Ok((0..world).map(|rank| self.shard(tokens, world, rank)).collect())
    }

    fn shard(self, tokens: usize, world: usize, rank: usize) -> Positions {
        let runs = match self {
            _ if world == 1 => vec![Run::contiguous(0, tokens)],
            Layout::Contiguous => {
                let chunk = tokens / world;
                vec![Run::contiguous(rank * chunk, chunk)]
            }
            Layout::Striped { width } => {
                let step = world * width;
                vec![Run { start: rank * width, step, len: tokens / step, width }]
            }
            Layout::Zigzag => {
                let chunk = tokens / (2 * world);
                let mirrored = 2 * world - 1 - rank;
                vec![Run::contiguous(rank * chunk, chunk), Run::contiguous(mirrored * chunk, chunk)]
            }
        };
        Positions::new(runs)
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layout::Contiguous => write!(f, "contiguous chunks"),
            Layout::Striped { width: 1 } => write!(f, "stripes"),
            Layout::Striped { width } => write!(f, "stripes of {width}"),
            Layout::Zigzag => write!(f, "zigzag chunks"),
        }
    }
}

impl DealError {
    /// The nearest numbers of positions that can be dealt: below, if there is one, and above.
    pub fn nearest(&self) -> (Option<usize>, usize) {
        let below = self.tokens / self.multiple * self.multiple;
        ((below > 0).then_some(below), below + self.multiple)
    }
    /// The way out.
    pub fn hint(&self) -> String {
        match self.nearest() {
            (Some(below), above) => {
                format!("the nearest that can be dealt are {below} and {above}")
            }
            (None, above) => format!("the fewest that can be dealt are {above}"),
        }
    }
}

impl fmt::Display for DealError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DealError { layout, tokens, world, multiple } = self;
        let ranks = if *world == 1 { "rank" } else { "ranks" };
        write!(f, "{tokens} tokens cannot be dealt to {world} {ranks} as {layout}: ")?;
        if *tokens == 0 {
            write!(f, "there are none")
        } else {
            write!(f, "not a multiple of {multiple}")
        }
    }
}

impl std::error::Error for DealError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_ranks_of_every_layout() {
        let dealt = |layout: Layout| -> Vec<Vec<usize>> {
            layout.deal(16, 4).unwrap().iter().map(|shard| shard.iter().collect()).collect()
        };
        assert_eq!(dealt(Layout::Contiguous)[1], [4, 5, 6, 7]);
        assert_eq!(dealt(Layout::Striped { width: 1 })[1], [1, 5, 9, 13]);
        assert_eq!(dealt(Layout::Striped { width: 2 })[1], [2, 3, 10, 11]);
        assert_eq!(dealt(Layout::Zigzag)[1], [2, 3, 12, 13]);
        assert_eq!(dealt(Layout::Zigzag)[3], [6, 7, 8, 9]);
    }

    #[test]
    fn what_does_not_deal_says_what_would() {
        let error = Layout::Zigzag.deal(262_150, 8).unwrap_err();
        let message = "262150 tokens cannot be dealt to 8 ranks as zigzag chunks: \
                       not a multiple of 16";
        assert_eq!(error.to_string(), message);
        assert_eq!(error.hint(), "the nearest that can be dealt are 262144 and 262160");
        let error = Layout::Striped { width: 2 }.deal(5, 4).unwrap_err();
        assert_eq!(error.hint(), "the fewest that can be dealt are 8");
    }
}
