//! What can be wrong with a schedule.

use std::fmt;

use crate::Block;

/// Where a flaw is: a rank, a hop (the number of hops stands for the end) and a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Whose list of hops.
    pub rank: usize,
    /// Which of them, from 0; their number when it shows at the end only.
    pub hop: usize,
    /// What it is about.
    pub block: Block,
}

/// What is wrong with a schedule; every variant that is about a block names rank, hop and block.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flaw {
    /// The shards are not the positions `0 .. tokens`, each on one rank.
    NotDealt {
        /// How many positions all ranks hold together.
        tokens: usize,
        /// How many ranks have hops.
        world: usize,
    },
    /// A rank makes more or fewer hops than rank 0.
    UnevenHops {
        /// Which rank.
        rank: usize,
        /// How many it makes.
        found: usize,
        /// How many rank 0 makes.
        wanted: usize,
    },
    /// A move names a peer that is the rank itself, or no rank, or it is another rank's move.
    WrongPeer(At),
    /// Rows, heads or an owner that there are not, none at all, or an arrival after the end.
    OutOfRange(At),
    /// Sent, but the receiver does not receive it in this hop.
    SendUnmatched {
        /// At the sender.
        at: At,
        /// The receiver.
        to: usize,
    },
    /// Awaited, but the sender does not send it in this hop.
    ReceiveUnmatched {
        /// At the receiver.
        at: At,
        /// The sender.
        from: usize,
    },
    /// Two ranks agree on what moves between them in a hop, but not on its order.
    OutOfOrder {
        /// At the sender.
        at: At,
        /// The receiver.
        to: usize,
    },
    /// A collective that not all ranks join.
    NotCollective(At),
    /// Sent, computed with or freed, but not there.
    Absent(At),
    /// Needed whole, but only a part of it is there.
    Incomplete(At),
    /// It comes to be where there is one already, and is no sum that the other contains.
    Occupied(At),
    /// Not what a tile or a sum is made of: of the wrong part, or keys of other heads than the
    /// queries use.
    Misplaced(At),
    /// Some of the tile with these keys is computed a second time.
    ComputedTwice(At),
    /// Keys are scored after values were weighed: the softmax was not of whole rows.
    ScoredLate(At),
    /// Values whose keys the same rank has not scored, or whose scores are used up.
    NotScored(At),
    /// Keys are scored, and their values are never weighed.
    NotWeighed(At),
    /// Queries of the rank see some of these keys, and no rank computes it for every head.
    NotComputed(At),
    /// A result, or a part of one, is freed instead of sent home.
    Lost(At),
    /// The caller's own buffer is freed.
    FreedResident(At),
    /// A result is not at home in the end, or only some of its heads and rows.
    NotHome(At),
    /// Still there in the end, under way or unfinished, and nobody's result.
    Leaked(At),
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}, hop {}: {}", self.rank, self.hop, self.block)
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Flaw::NotDealt { tokens, world } => {
                write!(f, "{tokens} positions are not sharded over {world} ranks once each")
            }
            Flaw::UnevenHops { rank, found, wanted } => {
                write!(f, "rank {rank} makes {found} hops, rank 0 makes {wanted}")
            }
            Flaw::WrongPeer(at) => write!(f, "{at} move between the wrong ranks"),
            Flaw::OutOfRange(at) => write!(f, "{at} are of heads, rows or hops that there are not"),
            Flaw::SendUnmatched { at, to } => {
                write!(f, "{at} are sent to rank {to}, which does not receive them")
            }
            Flaw::ReceiveUnmatched { at, from } => {
                write!(f, "{at} are awaited from rank {from}, which does not send them")
            }
            Flaw::OutOfOrder { at, to } => {
                write!(f, "{at} are sent to rank {to} in another order than received")
            }
            Flaw::NotCollective(at) => write!(f, "{at} do not move as the collective says"),
            Flaw::Absent(at) => write!(f, "{at} are used but not there"),
            Flaw::Incomplete(at) => write!(f, "{at} are used whole but are there only in part"),
            Flaw::Occupied(at) => write!(f, "{at} come to be where they are already"),
            Flaw::Misplaced(at) => write!(f, "{at} are not for this tile or sum"),
            Flaw::ComputedTwice(at) => write!(f, "{at} are computed with a second time"),
            Flaw::ScoredLate(at) => write!(f, "{at} are scored after values were weighed"),
            Flaw::NotScored(at) => write!(f, "{at} are weighed without their scores"),
            Flaw::NotWeighed(at) => write!(f, "{at} are scored and their values never weighed"),
            Flaw::NotComputed(at) => write!(f, "{at} are needed and never computed with"),
            Flaw::Lost(at) => write!(f, "{at} are freed before they are home"),
            Flaw::FreedResident(at) => write!(f, "{at} are the caller's and freed"),
            Flaw::NotHome(at) => write!(f, "{at} are not all at home in the end"),
            Flaw::Leaked(at) => write!(f, "{at} are left in the end"),
        }
    }
}

impl std::error::Error for Flaw {}
