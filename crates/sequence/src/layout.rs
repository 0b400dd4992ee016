//! Layouts: how positions are sharded over ranks, any number of them, in proportion to the ranks' weights.

mod balanced;
mod striped;

use std::fmt;

use annulus_text::count;
use striped::striped;

use crate::{Mask, Positions, Run};

/// The most positions of a sequence, so that sums of distances and weights are numbers.
const MOST_TOKENS: usize = 1 << 48;

/// How the positions of a sequence are sharded over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Rank `r` holds the `r`-th contiguous chunk (Ring Attention, arXiv 2310.01889).
    Contiguous,
    /// Rank `r` holds every `world`-th block of `width` positions (Striped Attention, arXiv 2311.09431); where ranks have different
    /// weights, its blocks are as many times wider.
    Striped {
        /// Neighbouring positions per stripe, 1 in the paper.
        width: usize,
    },
    /// Rank `r` holds chunks `r` and `2 * world - 1 - r` of `2 * world` (Megatron context
    /// parallelism).
    Zigzag,
    /// Blocks of `width` positions are assigned such that all ranks have about equally many visible pairs, for documents and sparse masks.
    Balanced {
        /// Neighbouring positions per block, at least 1.
        width: usize,
    },
}

/// A sequence that cannot be sharded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardError {
    /// There are no positions.
    NoTokens {
        /// The layout.
        layout: Layout,
        /// The number of ranks.
        world: usize,
    },
    /// All weights are 0.
    NoWeights {
        /// The number of ranks.
        world: usize,
    },
    /// There are no ranks.
    NoRanks,
    /// Stripes or balanced blocks have no positions.
    NoWidth {
        /// The layout.
        layout: Layout,
    },
    /// There are more positions than can be counted.
    TooLong {
        /// The number of positions.
        tokens: usize,
    },
    /// The sequence is not of whole strict blocks.
    Blocks {
        /// The number of positions.
        tokens: usize,
        /// The positions of a strict block.
        block: usize,
    },
}

impl Layout {
    /// The positions of every rank, with equal weights and a causal mask.
    ///
    /// # Errors
    /// When there are no positions, more than 2^48 of them, or no ranks, or stripes have no width.
    pub fn shard(self, tokens: usize, world: usize) -> Result<Vec<Positions>, ShardError> {
        self.shard_weighted(&Mask::causal(), tokens, &vec![1; world])
    }
    /// The positions of every rank, in proportion to `weights`: shards differ in length, and one may be empty. Only [`Layout::Balanced`]
    /// depends on the mask.
    ///
    /// # Errors
    /// As [`Layout::shard`], and when all weights are 0.
    pub fn shard_weighted(
        self,
        mask: &Mask,
        tokens: usize,
        weights: &[usize],
    ) -> Result<Vec<Positions>, ShardError> {
        let world = weights.len();
        let width = match self {
            Layout::Striped { width } | Layout::Balanced { width } => width,
            Layout::Contiguous | Layout::Zigzag => 1,
        };
        if world == 0 {
            return Err(ShardError::NoRanks);
        }
        if width == 0 {
            return Err(ShardError::NoWidth { layout: self });
        }
        if tokens == 0 {
            return Err(ShardError::NoTokens { layout: self, world });
        }
        if tokens > MOST_TOKENS {
            return Err(ShardError::TooLong { tokens });
        }
        if weights.iter().all(|weight| *weight == 0) {
            return Err(ShardError::NoWeights { world });
        }
        Ok(match self {
            _ if world == 1 => vec![Positions::all(tokens)],
            Layout::Contiguous => contiguous(tokens, weights),
            // A stripe is at most all there is.
            Layout::Striped { width } => striped(tokens, weights, width.min(tokens)),
            Layout::Zigzag => zigzag(tokens, weights),
            Layout::Balanced { width } => balanced::shard(mask, tokens, weights, width),
        })
    }
}

impl Layout {
    /// The positions of every rank, in proportion to `weights`, where each holds whole blocks of `block` neighbours, which the sequence is
    /// a multiple of: strict blocks have the same bits on any rank. Stripes and balanced blocks are widened to hold whole blocks.
    ///
    /// # Errors
    /// As [`Layout::shard_weighted`], and when the sequence is not of whole blocks.
    pub fn shard_blocks(
        self,
        mask: &Mask,
        tokens: usize,
        block: usize,
        weights: &[usize],
    ) -> Result<Vec<Positions>, ShardError> {
        if block == 0 || !tokens.is_multiple_of(block) {
            return Err(ShardError::Blocks { tokens, block });
        }
        let layout = match self {
            Layout::Balanced { width } => {
                // A block is at most all there is.
                let width = width.min(tokens.max(1)).next_multiple_of(block);
                let layout = Layout::Balanced { width };
                return layout.shard_weighted(mask, tokens, weights);
            }
            Layout::Striped { width } => Layout::Striped { width: width.div_ceil(block) },
            Layout::Contiguous | Layout::Zigzag => self,
        };
        let in_blocks = layout.shard_weighted(mask, tokens / block, weights)?;
        let widened = |run: &Run| Run {
            start: run.start * block,
            step: run.step * block,
            len: run.len,
            width: run.width * block,
        };
        let widened = |shard: &Positions| joined(shard.runs().iter().map(widened));
        Ok(in_blocks.iter().map(widened).collect())
    }
}

/// `things` divided in proportion to weights, as closely as whole numbers allow.
fn shares(things: usize, weights: &[usize]) -> Vec<usize> {
    let all: u128 = weights.iter().map(|weight| *weight as u128).sum();
    let (mut weighed, mut before) = (0, 0);
    let share = |weight: &usize| {
        weighed += *weight as u128;
        let up_to = (things as u128 * weighed / all) as usize;
        up_to - std::mem::replace(&mut before, up_to)
    };
    weights.iter().map(share).collect()
}

fn contiguous(tokens: usize, weights: &[usize]) -> Vec<Positions> {
    let mut start = 0;
    let next = |share| {
        start += share;
        joined(chunk(start - share, share))
    };
    shares(tokens, weights).into_iter().map(next).collect()
}

/// Half of each rank's share from the front, the other half from the back.
fn zigzag(tokens: usize, weights: &[usize]) -> Vec<Positions> {
    let (mut front, mut back) = (0, tokens);
    let halves = |share: usize| {
        let first = share.div_ceil(2);
        front += first;
        back -= share - first;
        let [one, other] = [chunk(front - first, first), chunk(back, share - first)];
        joined(one.into_iter().chain(other))
    };
    shares(tokens, weights).into_iter().map(halves).collect()
}

/// A contiguous run, unless it is empty.
fn chunk(start: usize, len: usize) -> Option<Run> {
    (len > 0).then(|| Run::contiguous(start, len))
}

fn joined(runs: impl IntoIterator<Item = Run>) -> Positions {
    Positions::new(runs.into_iter().collect())
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layout::Contiguous => write!(f, "contiguous chunks"),
            Layout::Striped { width: 1 } => write!(f, "stripes"),
            Layout::Striped { width } => write!(f, "stripes of {width}"),
            Layout::Zigzag => write!(f, "zigzag chunks"),
            Layout::Balanced { width } => write!(f, "balanced blocks of {width}"),
        }
    }
}

impl ShardError {
    /// What the user can change.
    pub fn hint(&self) -> String {
        match self {
            ShardError::NoTokens { .. } => "a sequence has at least one position".to_owned(),
            ShardError::NoWeights { .. } => "give one rank at least a weight above 0".to_owned(),
            ShardError::NoRanks => "a sequence is sharded over at least one rank".to_owned(),
            ShardError::NoWidth { .. } => "use a width of at least 1".to_owned(),
            ShardError::TooLong { .. } => "use fewer tokens".to_owned(),
            ShardError::Blocks { .. } => {
                "use a block of at least 1, and a length that is a multiple of it".to_owned()
            }
        }
    }
}

impl fmt::Display for ShardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShardError::NoTokens { layout, world } => {
                let ranks = count(*world, "rank");
                write!(f, "0 tokens cannot be sharded over {ranks} as {layout}")
            }
            ShardError::NoWeights { world } => {
                write!(f, "no position can be sharded over {world} ranks that all weigh 0")
            }
            ShardError::NoRanks => write!(f, "positions cannot be sharded over 0 ranks"),
            ShardError::NoWidth { layout } => {
                write!(f, "positions cannot be sharded as {layout}")
            }
            ShardError::TooLong { tokens } => {
                write!(f, "{tokens} tokens cannot be sharded, at most {MOST_TOKENS}")
            }
            ShardError::Blocks { tokens, block } => {
                write!(f, "{tokens} tokens cannot be divided into blocks of {block}")
            }
        }
    }
}

impl std::error::Error for ShardError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(shards: &[Positions]) -> Vec<Vec<usize>> {
        shards.iter().map(|shard| shard.iter().collect()).collect()
    }

    #[test]
    fn four_ranks_of_every_layout() {
        let sharded = |layout: Layout| lists(&layout.shard(16, 4).unwrap());
        assert_eq!(sharded(Layout::Contiguous)[1], [4, 5, 6, 7]);
        assert_eq!(sharded(Layout::Striped { width: 1 })[1], [1, 5, 9, 13]);
        assert_eq!(sharded(Layout::Striped { width: 2 })[1], [2, 3, 10, 11]);
        assert_eq!(sharded(Layout::Zigzag)[1], [2, 3, 12, 13]);
        assert_eq!(sharded(Layout::Zigzag)[3], [6, 7, 8, 9]);
        assert_eq!(sharded(Layout::Balanced { width: 2 })[3], [6, 7, 8, 9]);
    }

    #[test]
    fn lengths_that_do_not_divide_are_sharded_unevenly() {
        let sharded = |layout: Layout| lists(&layout.shard(7, 3).unwrap());
        assert_eq!(sharded(Layout::Contiguous), [vec![0, 1], vec![2, 3], vec![4, 5, 6]]);
        let stripes = sharded(Layout::Striped { width: 2 });
        assert_eq!(stripes, [vec![0, 1, 6], vec![2, 3], vec![4, 5]]);
        assert_eq!(sharded(Layout::Zigzag), [vec![0, 6], vec![1, 5], vec![2, 3, 4]]);
        let few = Layout::Zigzag.shard(2, 4).unwrap();
        assert_eq!(lists(&few), [vec![], vec![0], vec![], vec![1]]);
    }

    #[test]
    fn heavier_ranks_hold_more() {
        let sharded = |layout: Layout| {
            lists(&layout.shard_weighted(&Mask::causal(), 12, &[4, 0, 2]).unwrap())
        };
        assert_eq!(
            sharded(Layout::Contiguous),
            [vec![0, 1, 2, 3, 4, 5, 6, 7], vec![], vec![8, 9, 10, 11]]
        );
        let stripes = sharded(Layout::Striped { width: 1 });
        assert_eq!(stripes, [vec![0, 1, 3, 4, 6, 7, 9, 10], vec![], vec![2, 5, 8, 11]]);
        assert_eq!(
            sharded(Layout::Zigzag),
            [vec![0, 1, 2, 3, 8, 9, 10, 11], vec![], vec![4, 5, 6, 7]]
        );
        assert_eq!(sharded(Layout::Balanced { width: 1 })[0].len(), 8);
    }

    #[test]
    fn shards_of_blocks_hold_whole_blocks() {
        let all = [
            Layout::Contiguous,
            Layout::Striped { width: 1 },
            Layout::Striped { width: 5 },
            Layout::Zigzag,
            Layout::Balanced { width: 1 },
        ];
        for layout in all {
            for world in 1..=5 {
                let shards = layout.shard_blocks(&Mask::causal(), 68, 4, &vec![1; world]).unwrap();
                let mut seen: Vec<usize> = shards.iter().flat_map(Positions::iter).collect();
                for shard in &shards {
                    let positions: Vec<usize> = shard.iter().collect();
                    for block in positions.chunks(4) {
                        let first = block[0];
                        assert_eq!(block, [first, first + 1, first + 2, first + 3], "{layout}");
                        assert_eq!(first % 4, 0, "{layout}");
                    }
                }
                seen.sort_unstable();
                assert_eq!(seen, (0..68).collect::<Vec<_>>(), "{layout}");
            }
        }
    }

    #[test]
    fn what_cannot_be_sharded_says_why() {
        let error = Layout::Zigzag.shard(0, 8).unwrap_err();
        assert_eq!(error.to_string(), "0 tokens cannot be sharded over 8 ranks as zigzag chunks");
        assert_eq!(error.hint(), "a sequence has at least one position");
        let error = Layout::Contiguous.shard_weighted(&Mask::full(), 5, &[0, 0]).unwrap_err();
        assert_eq!(error.to_string(), "no position can be sharded over 2 ranks that all weigh 0");
        assert_eq!(Layout::Zigzag.shard(8, 0), Err(ShardError::NoRanks));
        let error = Layout::Striped { width: 0 }.shard(8, 2).unwrap_err();
        assert_eq!(error.to_string(), "positions cannot be sharded as stripes of 0");
        for block in [0, 3] {
            let sharded = Layout::Contiguous.shard_blocks(&Mask::full(), 8, block, &[1, 1]);
            assert_eq!(sharded, Err(ShardError::Blocks { tokens: 8, block }));
        }
    }
}
