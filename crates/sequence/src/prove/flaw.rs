//! Flaws of schedules.

use std::fmt;

use crate::{Block, Pass};

/// The place of a flaw: a rank, a hop and a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// The rank with the flawed hop.
    pub rank: usize,
    /// The index of the hop; the number of hops for a flaw at the end.
    pub hop: usize,
    /// The block concerned.
    pub block: Block,
}

/// A flaw of a schedule; every variant about a block names rank, hop and block.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flaw {
    /// A schedule is given as that of the other pass.
    WrongPass {
        /// The pass that it is of.
        found: Pass,
        /// The pass that it is given as.
        wanted: Pass,
    },
    /// Forward and backward differ in what is attended to: their mask, heads or positions.
    PassesDiffer {
        /// What differs.
        what: &'static str,
    },
    /// The shards are not the positions `0 .. tokens`, each on one rank.
    NotDealt {
        /// The number of positions that all ranks hold together.
        tokens: usize,
        /// The number of ranks with hops.
        world: usize,
    },
    /// A rank makes more or fewer hops than rank 0.
    UnevenHops {
        /// The rank.
        rank: usize,
        /// The number of hops that it makes.
        found: usize,
        /// The number of hops that rank 0 makes.
        wanted: usize,
    },
    /// The peer of a move is the rank itself, or no rank, or the move is another rank's.
    WrongPeer(At),
    /// A block has heads, rows or an owner that do not exist, or none, or a move arrives after the end.
    OutOfRange(At),
    /// A block is sent, but the receiver does not receive it in this hop.
    SendUnmatched {
        /// The place at the sender.
        at: At,
        /// The receiving rank.
        to: usize,
    },
    /// A block is awaited, but the sender does not send it in this hop.
    ReceiveUnmatched {
        /// The place at the receiver.
        at: At,
        /// The sending rank.
        from: usize,
    },
    /// Two ranks agree on what is sent between them in a hop, but not on its order.
    OutOfOrder {
        /// The place at the sender.
        at: At,
        /// The receiving rank.
        to: usize,
    },
    /// Not all ranks join a collective.
    NotCollective(At),
    /// A block is sent, computed with or freed, but not held.
    Absent(At),
    /// A block is needed whole, but only a part of it is held.
    Incomplete(At),
    /// A block arrives or is made where it is held already, and it is no sum that can be added.
    Occupied(At),
    /// A block is of the wrong part for a tile or a sum, or keys are of heads that the queries do not use.
    Misplaced(At),
    /// Part of a tile with these keys is computed a second time.
    ComputedTwice(At),
    /// Keys are scored after values were weighted: the softmax was not over whole rows.
    ScoredLate(At),
    /// Values are weighted whose keys this rank has not scored, or whose scores are used up.
    NotScored(At),
    /// Keys are scored, but their values are never weighted.
    NotWeighed(At),
    /// Queries of the rank see some of these keys, but for some head no rank computes it.
    NotComputed(At),
    /// A result, or a part of one, is freed instead of sent to its owner.
    Lost(At),
    /// The caller's own buffer is freed.
    FreedResident(At),
    /// A result, or some of its heads and rows, is not at its owner in the end.
    NotHome(At),
    /// A block is left in the end, in flight or unfinished, and is nobody's result.
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
            Flaw::WrongPass { found, wanted } => {
                write!(f, "it is of the {} pass, not the {} pass", found.name(), wanted.name())
            }
            Flaw::PassesDiffer { what } => write!(f, "the passes have different {what}"),
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
