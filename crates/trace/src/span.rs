//! A trace, and what it is made of.

use std::fmt;

use annulus_sequence::{self as sequence, Block, TilePlan};
use serde::{Deserialize, Serialize};

/// What all ranks did, or would do, in one optimizer step.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// What of: the experiment and its strategy.
    pub title: String,
    /// The step, from 1; `None` where it is planned.
    pub step: Option<u64>,
    /// What it is planned on; `None` where it was measured.
    pub planned: Option<String>,
    /// By rank, where it runs; empty where all are threads of one process.
    pub seats: Vec<Seat>,
    /// By rank.
    pub ranks: Vec<Vec<Span>>,
}

/// Where a rank runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// Its process; of what is planned, the node.
    pub process: usize,
    /// The host of that.
    pub host: String,
}

/// What a rank does for a while. Times are nanoseconds on a clock that all ranks share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// When it begins.
    pub begin: u64,
    /// When it ends.
    pub end: u64,
    /// What it is.
    pub doing: Doing,
}

/// Spans of one track lie one in another or apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Track {
    /// Stages of the model and of a step.
    Model,
    /// Attention: tiles, results, sums.
    Compute,
    /// Posts and waits.
    Communication,
}

/// Which way an attention goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pass {
    /// Queries, keys and values to outputs.
    Forward,
    /// Output gradients to the gradients of queries, keys and values.
    Backward,
}

/// Where in the program an attention is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// The layer, from 0.
    pub layer: usize,
    /// Forward or backward.
    pub pass: Pass,
    /// The hop, from 0; of what moves, the one that posts it.
    pub hop: usize,
}

/// Some heads and rows of what belongs to one rank: a block of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Piece {
    /// `q`, `k`, …: [`annulus_sequence::Part::letter`].
    pub part: String,
    /// Whose, of the ranks that share a sequence.
    pub owner: usize,
    /// From, to (not included).
    pub heads: [usize; 2],
    /// From, to (not included), of the owner's.
    pub rows: [usize; 2],
}

/// Queries against keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Tile {
    /// Of these queries.
    pub queries: Piece,
    /// With these keys.
    pub keys: Piece,
}

/// A block on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// What moves.
    pub block: Piece,
    /// Its sender.
    pub from: usize,
    /// Its receiver, numbered like the sender among all ranks.
    pub to: usize,
    /// Payload.
    pub bytes: u64,
    /// The same, as the schedule counts it.
    pub planned_bytes: u64,
}

/// What a span is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "doing", rename_all = "lowercase")]
pub enum Doing {
    /// A stage of the model, or of the step.
    Stage {
        /// Its name.
        name: String,
    },
    /// The tiles of a hop.
    Compute {
        /// Where.
        #[serde(flatten)]
        place: Place,
        /// Which, in order.
        tiles: Vec<Tile>,
        /// Visible (query, key) pairs that are scored: of every query head and every sequence.
        pairs: u64,
    },
    /// Running states become results.
    Finish {
        /// Where.
        #[serde(flatten)]
        place: Place,
        /// Of these queries.
        queries: Vec<Piece>,
    },
    /// A sum that has come is added to what is here.
    Fold {
        /// Where.
        #[serde(flatten)]
        place: Place,
        /// The sum.
        block: Piece,
    },
    /// All sends and receives of a hop that are awaited together are handed over.
    Post {
        /// Where.
        #[serde(flatten)]
        place: Place,
        /// Of what is sent.
        bytes: u64,
        /// Blocks that are to come.
        receives: usize,
    },
    /// Within a post: a block is made ready for its way.
    Send {
        /// Where.
        #[serde(flatten)]
        place: Place,
        /// What.
        #[serde(flatten)]
        moved: Moved,
    },
    /// Nothing to do until a block is here.
    Wait {
        /// Where it was posted.
        #[serde(flatten)]
        place: Place,
        /// What.
        #[serde(flatten)]
        moved: Moved,
        /// Nanoseconds from its post on this rank to the end of the wait.
        flight: u64,
    },
    /// Nothing to do until what was sent has left.
    Drain {
        /// Where.
        #[serde(flatten)]
        place: Place,
    },
    /// A sum or a gather over ranks, in which a rank does nothing else.
    Sum {
        /// Of what.
        name: String,
        /// Handed over.
        bytes: u64,
        /// The first and the last of the ranks; not said: of all.
        #[serde(default)]
        among: Option<[usize; 2]>,
    },
}

impl Trace {
    /// Whether two ranks are on different hosts.
    pub fn are_apart(&self, one: usize, other: usize) -> bool {
        let host = |rank: usize| self.seats.get(rank).map(|seat| &seat.host);
        host(one) != host(other)
    }
}

impl Span {
    /// How long it takes.
    pub fn length(&self) -> u64 {
        self.end.saturating_sub(self.begin)
    }
}

impl Doing {
    /// On which track it is drawn.
    pub fn track(&self) -> Track {
        match self {
            Doing::Stage { .. } => Track::Model,
            Doing::Compute { .. } | Doing::Finish { .. } | Doing::Fold { .. } => Track::Compute,
            Doing::Post { .. }
            | Doing::Send { .. }
            | Doing::Wait { .. }
            | Doing::Drain { .. }
            | Doing::Sum { .. } => Track::Communication,
        }
    }

    /// Which hop of which attention it belongs to, if it does.
    pub fn place(&self) -> Option<Place> {
        match self {
            Doing::Stage { .. } | Doing::Sum { .. } => None,
            Doing::Compute { place, .. }
            | Doing::Finish { place, .. }
            | Doing::Fold { place, .. }
            | Doing::Post { place, .. }
            | Doing::Send { place, .. }
            | Doing::Wait { place, .. }
            | Doing::Drain { place } => Some(*place),
        }
    }

    /// Bytes that it hands to the communicator: those of a post are those of its sends.
    pub fn bytes(&self) -> u64 {
        match self {
            Doing::Send { moved, .. } => moved.bytes,
            Doing::Sum { bytes, .. } => *bytes,
            _ => 0,
        }
    }
}

impl Track {
    /// All of them, in the order in which they are drawn.
    pub const ALL: [Track; 3] = [Track::Model, Track::Compute, Track::Communication];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Track::Model => "model",
            Track::Compute => "attention",
            Track::Communication => "communication",
        }
    }
}

impl Pass {
    /// Both, in order.
    pub const ALL: [Pass; 2] = [Pass::Forward, Pass::Backward];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Pass::Forward => "forward",
            Pass::Backward => "backward",
        }
    }
}

impl From<sequence::Pass> for Pass {
    fn from(pass: sequence::Pass) -> Pass {
        match pass {
            sequence::Pass::Forward => Pass::Forward,
            sequence::Pass::Backward => Pass::Backward,
        }
    }
}

impl From<Block> for Piece {
    fn from(Block { part, owner, heads, rows }: Block) -> Piece {
        let [heads, rows] = [heads, rows].map(|extent| [extent.start, extent.end]);
        Piece { part: part.letter().to_owned(), owner, heads, rows }
    }
}

impl From<TilePlan> for Tile {
    fn from(TilePlan { queries, keys }: TilePlan) -> Tile {
        Tile { queries: queries.into(), keys: keys.into() }
    }
}

/// As in the drawing of a schedule: `k2`.
impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.part, self.owner)
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.queries, self.keys)
    }
}
