//! A trace and its spans.

use std::fmt;

use annulus_sequence::{self as sequence, TilePlan};
use serde::{Deserialize, Serialize};

/// The spans of all ranks in one optimizer step, measured or planned.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The title: the experiment and its strategy.
    pub title: String,
    /// The number of the step, from 1; `None` for a plan.
    pub step: Option<u64>,
    /// The cluster of the plan; `None` where the trace was measured.
    pub planned: Option<String>,
    /// The process and host of each rank; empty where all ranks are threads of one process.
    pub locations: Vec<RankLocation>,
    /// The spans of each rank.
    pub ranks: Vec<Vec<Span>>,
}

/// The process and host of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankLocation {
    /// The number of the process; in a plan, of the node.
    pub process: usize,
    /// The host of the process.
    pub host: String,
}

/// What a rank does from one moment to another, in nanoseconds on a clock that all ranks share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// When the span begins.
    pub begin: u64,
    /// When the span ends.
    pub end: u64,
    /// What the rank does.
    pub activity: Activity,
}

/// A track of a rank, on which spans are nested or apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Track {
    /// Stages of the model and of the step.
    Model,
    /// Attention's computing: tiles, results, sums.
    Compute,
    /// Attention's communication: posts and waits.
    Communication,
}

/// The direction of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pass {
    /// From queries, keys and values to outputs.
    Forward,
    /// From output gradients to the gradients of queries, keys and values.
    Backward,
}

/// The place of an attention's hop in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// The number of the layer, from 0.
    pub layer: usize,
    /// The pass, forward or backward.
    pub pass: Pass,
    /// The number of the hop, from 0; of a move, the hop that posts it.
    pub hop: usize,
}

/// A block of a schedule: some heads and rows of one rank's tensors.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TracedBlock {
    /// The part's letter, `q`, `k`, …: [`annulus_sequence::Part::letter`].
    pub part: String,
    /// The number of the owner among the ranks that share a sequence.
    pub owner: usize,
    /// The first head, and one past the last.
    pub heads: [usize; 2],
    /// The owner's first row, and one past the last.
    pub rows: [usize; 2],
}

/// A tile: a block of queries by a block of keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Tile {
    /// The queries.
    pub queries: TracedBlock,
    /// The keys.
    pub keys: TracedBlock,
}

/// A block that is sent from one rank to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// The block.
    pub block: TracedBlock,
    /// The sending rank.
    pub from: usize,
    /// The receiving rank, numbered among all ranks as the sender is.
    pub to: usize,
    /// Bytes of payload.
    pub bytes: u64,
    /// Bytes of payload as the schedule counts them.
    pub planned_bytes: u64,
}

/// What a rank does in a span.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "doing", rename_all = "lowercase")]
pub enum Activity {
    /// Runs a stage of the model, or of the step.
    Stage {
        /// The name of the stage.
        name: String,
    },
    /// Computes the tiles of a hop.
    Compute {
        /// The place of the hop.
        #[serde(flatten)]
        place: Place,
        /// The tiles, in order.
        tiles: Vec<Tile>,
        /// Visible (query, key) pairs that are computed, over all query heads and sequences.
        pairs: u64,
    },
    /// Turns running states into results.
    Finish {
        /// The place of the hop.
        #[serde(flatten)]
        place: Place,
        /// The queries of the results.
        queries: Vec<TracedBlock>,
    },
    /// Adds a received sum to the one that is here.
    Fold {
        /// The place of the hop.
        #[serde(flatten)]
        place: Place,
        /// The sum.
        block: TracedBlock,
    },
    /// Posts all sends and receives of a hop that are awaited together.
    Post {
        /// The place of the hop.
        #[serde(flatten)]
        place: Place,
        /// Bytes that are sent.
        bytes: u64,
        /// The number of blocks to be received.
        receives: usize,
    },
    /// Makes a block ready to be sent, within a post.
    Send {
        /// The place of the hop.
        #[serde(flatten)]
        place: Place,
        /// The block.
        #[serde(flatten)]
        moved: Moved,
    },
    /// Waits for a block.
    Wait {
        /// The place of the hop that posted it.
        #[serde(flatten)]
        place: Place,
        /// The block.
        #[serde(flatten)]
        moved: Moved,
        /// Nanoseconds from the block's post on this rank to the end of the wait.
        flight: u64,
    },
    /// Waits until everything posted has been sent.
    Drain {
        /// The place of the hop.
        #[serde(flatten)]
        place: Place,
    },
    /// Sums or gathers over ranks, doing nothing else.
    Sum {
        /// The name of what is summed or gathered.
        name: String,
        /// Bytes that are sent.
        bytes: u64,
        /// The first and the last rank that take part; `None`: all ranks.
        #[serde(default)]
        among: Option<[usize; 2]>,
    },
}

impl Trace {
    /// Whether this trace and another have the same title and number of ranks, and so are of the same plan.
    pub fn is_of_same_plan(&self, other: &Trace) -> bool {
        (&self.title, self.ranks.len()) == (&other.title, other.ranks.len())
    }

    /// Whether two ranks are on different hosts.
    pub fn are_apart(&self, one: usize, other: usize) -> bool {
        let host = |rank: usize| self.locations.get(rank).map(|location| &location.host);
        host(one) != host(other)
    }
}

impl Span {
    /// The duration of the span.
    pub fn length(&self) -> u64 {
        self.end.saturating_sub(self.begin)
    }
}

impl Activity {
    /// The track that the span is drawn on.
    pub fn track(&self) -> Track {
        match self {
            Activity::Stage { .. } => Track::Model,
            Activity::Compute { .. } | Activity::Finish { .. } | Activity::Fold { .. } => {
                Track::Compute
            }
            Activity::Post { .. }
            | Activity::Send { .. }
            | Activity::Wait { .. }
            | Activity::Drain { .. }
            | Activity::Sum { .. } => Track::Communication,
        }
    }

    /// The place of the hop that the span belongs to, if any.
    pub fn place(&self) -> Option<Place> {
        match self {
            Activity::Stage { .. } | Activity::Sum { .. } => None,
            Activity::Compute { place, .. }
            | Activity::Finish { place, .. }
            | Activity::Fold { place, .. }
            | Activity::Post { place, .. }
            | Activity::Send { place, .. }
            | Activity::Wait { place, .. }
            | Activity::Drain { place } => Some(*place),
        }
    }

    /// Bytes that the span hands to the communicator: a post's are those of its sends.
    pub fn bytes(&self) -> u64 {
        match self {
            Activity::Send { moved, .. } => moved.bytes,
            Activity::Sum { bytes, .. } => *bytes,
            _ => 0,
        }
    }
}

impl Track {
    /// All tracks, in the order in which they are drawn.
    pub const ALL: [Track; 3] = [Track::Model, Track::Compute, Track::Communication];

    /// The name of the track.
    pub fn name(self) -> &'static str {
        match self {
            Track::Model => "model",
            Track::Compute => "attention",
            Track::Communication => "communication",
        }
    }
}

impl Pass {
    /// Both passes, forward first.
    pub const ALL: [Pass; 2] = [Pass::Forward, Pass::Backward];

    /// The name of the pass.
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

impl From<sequence::Block> for TracedBlock {
    fn from(sequence::Block { part, owner, heads, rows }: sequence::Block) -> TracedBlock {
        let [heads, rows] = [heads, rows].map(|extent| [extent.start, extent.end]);
        TracedBlock { part: part.letter().to_owned(), owner, heads, rows }
    }
}

impl From<TilePlan> for Tile {
    fn from(TilePlan { queries, keys }: TilePlan) -> Tile {
        Tile { queries: queries.into(), keys: keys.into() }
    }
}

/// Formatted as in the drawing of a schedule: `k2`.
impl fmt::Display for TracedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.part, self.owner)
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.queries, self.keys)
    }
}
