//! Blocks, the unit of what is held, sent and computed with: some heads and some rows of one rank's positions.

use std::fmt;
use std::ops::Range;

/// A half-open interval `start .. end` of heads or rows that can be copied and ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Extent {
    /// The first index.
    pub start: usize,
    /// One past the last.
    pub end: usize,
}

/// The tensors that a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// Queries; backward also the gradient of their output, and per row two f32: log-sum-exp and delta, the sum of output times gradient.
    /// Lent.
    Query,
    /// Keys and values. Lent.
    KeyValue,
    /// Keys alone. Lent.
    Key,
    /// Values alone. Lent.
    Value,
    /// Forward: output and log-sum-exp (f32). Given away, never summed.
    Output,
    /// Backward: a partial gradient of queries, at least f32 where it is held. Given away; two that meet are added.
    QueryGradient,
    /// Backward: partial gradients of keys and of values, at least f32 where they are held. Given away; two that meet are added.
    Gradient,
}

/// A block: `part` of some heads and rows of the positions of rank `owner`. It identifies a buffer; no two buffers of a rank overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Block {
    /// The tensors that the block holds.
    pub part: Part,
    /// The rank whose positions these are.
    pub owner: usize,
    /// The heads, among all query heads or all KV heads: see [`Part::of_queries`].
    pub heads: Extent,
    /// Local rows of the owner's shard.
    pub rows: Extent,
}

/// The numbers of query and KV heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heads {
    /// The number of query heads: a multiple of the KV heads.
    pub query: usize,
    /// The number of KV heads: each is shared by as many neighbouring query heads.
    pub key_value: usize,
}

impl Extent {
    /// The extent `0 .. len`.
    pub fn all(len: usize) -> Extent {
        Extent { start: 0, end: len }
    }
    /// The extent as a range of the standard library.
    pub fn range(self) -> Range<usize> {
        self.start..self.end
    }
    /// The number of indices.
    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start)
    }
    /// Whether there are no indices.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
    /// Whether all of `other` is in this extent.
    pub fn contains(self, other: Extent) -> bool {
        self.start <= other.start && other.end <= self.end
    }
    /// The intersection with `other`, which may be empty.
    #[must_use]
    pub fn and(self, other: Extent) -> Extent {
        Extent { start: self.start.max(other.start), end: self.end.min(other.end) }
    }
}

impl From<Range<usize>> for Extent {
    fn from(Range { start, end }: Range<usize>) -> Extent {
        Extent { start, end }
    }
}

impl Part {
    /// Whether the part's heads are query heads, not KV heads.
    pub fn of_queries(self) -> bool {
        matches!(self, Part::Query | Part::Output | Part::QueryGradient)
    }
    /// The short name of the part.
    pub fn letter(self) -> &'static str {
        match self {
            Part::Query => "q",
            Part::KeyValue | Part::Key => "k",
            Part::Value => "v",
            Part::Output => "o",
            Part::QueryGradient => "gq",
            Part::Gradient => "gk",
        }
    }
    /// Whether the sender of a block keeps it. What is not lent is given away.
    pub fn is_lent(self) -> bool {
        matches!(self, Part::Query | Part::KeyValue | Part::Key | Part::Value)
    }
    /// The part that this one is one half of: keys and values, for either alone; itself where it is whole.
    #[must_use]
    pub fn whole(self) -> Part {
        match self {
            Part::Key | Part::Value => Part::KeyValue,
            whole => whole,
        }
    }
    /// Whether a block of this part contains the same block of `other`.
    pub fn contains(self, other: Part) -> bool {
        self == other || self == other.whole()
    }
    /// Whether two equal blocks are added where they meet.
    pub fn is_sum(self) -> bool {
        matches!(self, Part::QueryGradient | Part::Gradient)
    }
}

impl Block {
    /// The block with these heads and rows of `part`, which must count heads alike.
    #[must_use]
    pub fn of(self, part: Part) -> Block {
        debug_assert_eq!(part.of_queries(), self.part.of_queries());
        Block { part, ..self }
    }
    /// The number of heads times rows, of which its size is a multiple.
    pub fn volume(self) -> usize {
        self.heads.len().saturating_mul(self.rows.len())
    }
    /// Whether the block has no heads or rows. Such a block is never held, sent or computed with.
    pub fn is_empty(self) -> bool {
        self.volume() == 0
    }
    /// Whether all of `other` is in this block.
    pub fn contains(self, other: Block) -> bool {
        self.owner == other.owner
            && self.part.contains(other.part)
            && self.heads.contains(other.heads)
            && self.rows.contains(other.rows)
    }
    /// Whether the two blocks have anything in common.
    pub fn overlaps(self, other: Block) -> bool {
        let apart = self.heads.and(other.heads).is_empty() || self.rows.and(other.rows).is_empty();
        let kin = self.part.contains(other.part) || other.part.contains(self.part);
        self.owner == other.owner && kin && !apart
    }
}

impl Heads {
    /// The numbers of heads where each query head has its own KV head.
    pub fn equal(heads: usize) -> Heads {
        Heads { query: heads, key_value: heads }
    }
    /// Whether every KV head is shared by as many query heads: at least one.
    pub(crate) fn are_shared_evenly(self) -> bool {
        self.key_value > 0 && self.query > 0 && self.query.is_multiple_of(self.key_value)
    }
    /// The number of query heads that share a KV head.
    pub fn group(self) -> usize {
        self.query / self.key_value
    }
    /// All heads of a part.
    pub fn of(self, part: Part) -> Extent {
        Extent::all(if part.of_queries() { self.query } else { self.key_value })
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = match self.part {
            Part::Query => "queries",
            Part::KeyValue => "keys and values",
            Part::Key => "keys",
            Part::Value => "values",
            Part::Output => "outputs",
            Part::QueryGradient => "gradients of queries",
            Part::Gradient => "gradients of keys and values",
        };
        let Block { owner, heads, rows, .. } = self;
        write!(f, "{part} of rank {owner} (heads {heads}, rows {rows})")
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}
