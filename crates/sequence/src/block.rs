//! What is held, moved and computed with: a block is some heads and some rows of one rank's
//! positions.

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

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// Queries; backward also the gradient of their output, and per row two f32: its log-sum-exp
    /// and its delta, the sum of output times gradient. Lent.
    Query,
    /// Keys and values. Lent.
    KeyValue,
    /// The keys of those alone. Lent.
    Key,
    /// The values alone. Lent.
    Value,
    /// Forward: output and log-sum-exp (f32). Given away, never summed.
    Output,
    /// Backward: the gradient of queries so far, at least f32 where it is. Given away; what meets is added.
    QueryGradient,
    /// Backward: the gradients of keys and of values so far, at least f32 where they are. Given
    /// away; what meets is added.
    Gradient,
}

/// `part` of some heads and rows of the positions of rank `owner`: what a buffer is known by. No
/// two buffers of a rank overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Block {
    /// What it holds.
    pub part: Part,
    /// Whose positions.
    pub owner: usize,
    /// Of all query heads, or of all key/value heads: see [`Part::of_queries`].
    pub heads: Extent,
    /// Local rows of the owner's shard.
    pub rows: Extent,
}

/// How many heads there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heads {
    /// Query heads: a multiple of the key/value heads.
    pub query: usize,
    /// Key/value heads: each is shared by as many neighbouring query heads.
    pub key_value: usize,
}

impl Extent {
    /// `0 .. len`.
    pub fn all(len: usize) -> Extent {
        Extent { start: 0, end: len }
    }
    /// The same as the standard library's.
    pub fn range(self) -> Range<usize> {
        self.start..self.end
    }
    /// How many indices there are.
    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start)
    }
    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
    /// Whether all of `other` is in this one.
    pub fn contains(self, other: Extent) -> bool {
        self.start <= other.start && other.end <= self.end
    }
    /// What is in both; empty where nothing is.
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
    /// Whether its heads are query heads, not key/value heads.
    pub fn of_queries(self) -> bool {
        matches!(self, Part::Query | Part::Output | Part::QueryGradient)
    }
    /// What it is called where there is little room.
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
    /// What it is one half of: keys and values, of either alone; itself where it is whole.
    #[must_use]
    pub fn whole(self) -> Part {
        match self {
            Part::Key | Part::Value => Part::KeyValue,
            whole => whole,
        }
    }
    /// Whether a block of this part has the same of the other in it.
    pub fn contains(self, other: Part) -> bool {
        self == other || self == other.whole()
    }
    /// Whether two of the same block are added where they meet.
    pub fn is_sum(self) -> bool {
        matches!(self, Part::QueryGradient | Part::Gradient)
    }
}

impl Block {
    /// The same heads and rows of another part, whose heads are counted alike.
    #[must_use]
    pub fn of(self, part: Part) -> Block {
        debug_assert_eq!(part.of_queries(), self.part.of_queries());
        Block { part, ..self }
    }
    /// Rows of heads: what it weighs is a multiple.
    pub fn volume(self) -> usize {
        self.heads.len() * self.rows.len()
    }
    /// Whether nothing is in it. Such a block is never held, moved or computed with.
    pub fn is_empty(self) -> bool {
        self.volume() == 0
    }
    /// Whether all of `other` is in this one.
    pub fn contains(self, other: Block) -> bool {
        self.owner == other.owner
            && self.part.contains(other.part)
            && self.heads.contains(other.heads)
            && self.rows.contains(other.rows)
    }
    /// Whether anything is in both.
    pub fn overlaps(self, other: Block) -> bool {
        let apart = self.heads.and(other.heads).is_empty() || self.rows.and(other.rows).is_empty();
        let kin = self.part.contains(other.part) || other.part.contains(self.part);
        self.owner == other.owner && kin && !apart
    }
}

impl Heads {
    /// As many query heads as key/value heads.
    pub fn equal(heads: usize) -> Heads {
        Heads { query: heads, key_value: heads }
    }
    /// How many query heads share a key/value head.
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
