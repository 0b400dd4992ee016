//! What moves when, and what is computed meanwhile: one explicit list per rank.

use std::fmt;
use std::ops::Range;

use crate::{Layout, Mask, Positions};

/// Which way a schedule goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// Queries, keys and values to outputs.
    Forward,
    /// Output gradients to the gradients of queries, keys and values.
    Backward,
}

/// What a buffer holds: two tensors [batch, heads, rows, head_dim], of keys and of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// Queries (and in backward: output gradient, log-sum-exp, delta), resident on their rank.
    /// Here the heads are those of the queries, and there is one tensor forward.
    Query,
    /// Keys and values. A rank's own are resident: they belong to the caller and are never freed.
    KeyValue,
    /// Gradients of keys and values, summed so far: what travels home. f32.
    Gradient,
    /// Gradients of keys and values from this rank's queries alone, before they are folded into a
    /// [`Part::Gradient`]. f32.
    Contribution,
}

/// A buffer by what it holds: `part` of the positions of rank `owner`. On one rank it exists at
/// most once at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Buffer {
    /// What it holds.
    pub part: Part,
    /// Whose positions.
    pub owner: usize,
}

/// One buffer on its way from one rank to another. It appears in the sender's hop and in the
/// receiver's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// What moves.
    pub buffer: Buffer,
    /// The key/value heads that move (of all of them: `0 .. heads`).
    pub heads: Range<usize>,
    /// The rows of the buffer that move.
    pub rows: Range<usize>,
    /// Who sends.
    pub from: usize,
    /// Who receives.
    pub to: usize,
}

/// A set of moves that an engine may do as one call of its own. Every rank takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Everybody's keys and values to everybody.
    AllGather,
    /// Everybody's contributions to all blocks, summed in rank order at the blocks' owners.
    ///
    /// Takes a [`Part::Contribution`] of every owner, the own one too; leaves [`Part::Gradient`] of
    /// the own block. A contribution that no pair is visible in is there too, as zeros: see
    /// [`TilePlan`].
    ReduceScatter,
}

/// Queries of one rank against keys of another: one tile of the global attention matrix.
///
/// Forward it folds into the running state of `queries`. Backward it adds to the query gradient and
/// writes `into`, a fresh [`Part::Contribution`] of the keys' owner.
///
/// A tile in which nothing is visible computes nothing, and its contribution is zeros. Such tiles
/// are planned, at most once each and backward only, where the zeros are needed: to bring a
/// [`Part::Gradient`] into being that others will add to, or to take part in a reduce-scatter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TilePlan {
    /// The rank whose queries these are.
    pub queries: usize,
    /// The rank whose keys and values these are.
    pub keys: usize,
    /// Backward: where the gradients of keys and values go.
    pub into: Option<Buffer>,
}

/// `into += from`; `from` is freed. When `into` is not there yet, `from` becomes it.
///
/// Both are always there, or about to be: a contribution that is folded was written by a tile, if
/// only as zeros, so a gradient always comes home, as zeros when nobody sees its keys. Absence
/// never stands for zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fold {
    /// What is added to: a [`Part::Gradient`].
    pub into: Buffer,
    /// What is added, and gone: the [`Part::Contribution`] of the same owner.
    pub from: Buffer,
}

/// What one rank does in one hop, in this order: post sends and receives, compute tiles, wait,
/// fold, free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hop {
    /// Posted together, before any tile. A [`Part::KeyValue`] is lent, gradients are given away.
    pub sends: Vec<Move>,
    /// Arrived after the wait.
    pub receives: Vec<Move>,
    /// What the moves of all ranks are together, where they have a name.
    pub collective: Option<Collective>,
    /// Computed, in order, while the moves are under way.
    pub tiles: Vec<TilePlan>,
    /// Done after the wait, in order.
    pub folds: Vec<Fold>,
    /// Dropped at the end.
    pub frees: Vec<Buffer>,
}

/// What all ranks do in one pass of one attention.
///
/// It begins with [`Part::Query`] and [`Part::KeyValue`] of the own positions on every rank. It
/// ends with the same and, backward, with [`Part::Gradient`] of the own positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The strategy's name, as one writes it.
    pub strategy: &'static str,
    /// Forward or backward.
    pub pass: Pass,
    /// How positions are dealt.
    pub layout: Layout,
    /// Which keys a query sees.
    pub mask: Mask,
    /// Key/value heads.
    pub heads: usize,
    /// What every rank holds, by rank.
    pub positions: Vec<Positions>,
    /// What every rank does, by rank; all have the same number of hops.
    pub ranks: Vec<Vec<Hop>>,
}

impl Schedule {
    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.ranks.len()
    }
    /// How many hops every rank makes.
    pub fn hops(&self) -> usize {
        self.ranks.first().map_or(0, Vec::len)
    }
}

impl Buffer {
    /// Keys and values of rank `owner`.
    pub fn key_value(owner: usize) -> Buffer {
        Buffer { part: Part::KeyValue, owner }
    }
    /// Summed gradients of the keys and values of rank `owner`.
    pub fn gradient(owner: usize) -> Buffer {
        Buffer { part: Part::Gradient, owner }
    }
    /// A rank's contribution to the gradients of the keys and values of rank `owner`.
    pub fn contribution(owner: usize) -> Buffer {
        Buffer { part: Part::Contribution, owner }
    }
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = match self.part {
            Part::Query => "queries",
            Part::KeyValue => "keys and values",
            Part::Gradient => "gradients",
            Part::Contribution => "contributions to the gradients",
        };
        write!(f, "{part} of rank {}", self.owner)
    }
}
