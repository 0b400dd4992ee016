//! What moves when, and what is computed meanwhile: the hops of every rank, generated on demand.

use std::fmt;
use std::sync::Arc;

use crate::{Alike, Block, Extent, Group, Heads, Layout, Mask, Part, Positions, Tiles};

/// Which way a schedule goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// Queries, keys and values to outputs.
    Forward,
    /// Output gradients to the gradients of queries, keys and values.
    Backward,
}

/// One block on its way from one rank to another. It appears in the sender's hop and in the
/// receiver's: posted by both at the start of that hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Move {
    /// What moves: contained in what the sender holds where it is lent, exactly that where it is
    /// given away. A sum that arrives where a block is that contains it is added to that.
    pub block: Block,
    /// Who sends.
    pub from: usize,
    /// Who receives.
    pub to: usize,
    /// How many hops it may take: awaited at the end of the hop it is posted in where it is 1.
    pub hops: usize,
}

/// A set of moves that has a name of its own. Every rank takes part, alone or in groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Everybody's blocks to everybody.
    AllGather,
    /// One rank's blocks to everybody.
    Broadcast,
    /// Everybody's sums to the blocks' owners.
    ReduceScatter,
    /// Everybody's blocks to everybody, other heads to each.
    AllToAll,
}

/// Queries of one rank against keys of another: one tile of the global attention matrix.
///
/// It adds to the running state of `queries`, which its first tile begins. Backward it adds to the
/// [`Part::Gradient`] of `keys` too, which comes to be where it is not there yet. Never planned
/// where nothing is visible.
///
/// Forward the two products of a tile can be apart: one of [`Part::Key`] makes scores and keeps them,
/// a later one of [`Part::Value`], the same heads and rows on the same rank, has them weigh the
/// values and drops them. As a softmax is of whole rows, all keys of a block of queries come before
/// the first of its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TilePlan {
    /// A [`Part::Query`], contained in one that is held.
    pub queries: Block,
    /// A [`Part::KeyValue`], [`Part::Key`] or [`Part::Value`], contained in what is held: of the heads
    /// that the queries use.
    pub keys: Block,
}

/// What one rank does in one hop, in this order: post, compute, finish, wait, free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hop {
    /// Posted together, before anything is computed.
    pub sends: Vec<Move>,
    /// Posted with the sends.
    pub receives: Vec<Move>,
    /// What the moves of all ranks are together, where they have a name.
    pub collective: Option<Collective>,
    /// Sums that begin here as zeros, because no tile of the hop makes them: a sum that is sent or
    /// is reduced to its owner is always there, and absence never stands for zero.
    pub zeros: Vec<Block>,
    /// Computed, in order, while the moves are under way.
    pub tiles: Tiles,
    /// Queries that have seen all they see here. Forward their running state becomes their
    /// [`Part::Output`], backward their [`Part::QueryGradient`]; of no tile it is that of no keys.
    pub finishes: Vec<Block>,
    /// Dropped at the end.
    pub frees: Vec<Block>,
}

/// What all ranks do in one pass of one attention, generated on demand: it holds no hops.
///
/// It begins with [`Part::Query`] and [`Part::KeyValue`] of the own positions on every rank, which
/// are the caller's and outlive it. It ends with the same and with the own [`Part::Output`], or,
/// backward, [`Part::QueryGradient`] and [`Part::Gradient`]: in one block or in several.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The strategy's name, as in a file.
    pub strategy: &'static str,
    /// Forward or backward.
    pub pass: Pass,
    /// How positions are sharded.
    pub layout: Layout,
    /// Which keys a query sees.
    pub mask: Mask,
    /// Query heads and key/value heads.
    pub heads: Heads,
    /// What every rank holds, by rank.
    pub positions: Arc<[Positions]>,
    /// What every rank does.
    pub generator: Arc<dyn Generator>,
}

/// The hops of all ranks as a function. Hops that are listed, by rank, are one: `Vec<Vec<Hop>>`.
pub trait Generator: fmt::Debug + Send + Sync {
    /// The number of ranks.
    fn world(&self) -> usize;
    /// The number of hops of a rank, the same for all ranks.
    fn hops(&self, rank: usize) -> usize;
    /// Hop `index` of a rank.
    fn hop(&self, rank: usize, index: usize) -> Hop;
    /// How ranks are alike; `None`: no rank is like another.
    fn alike(&self) -> Option<Alike> {
        None
    }
    /// The stations, rising, whose ranks do not do in hop `index` as those of the station before.
    fn borders(&self, _index: usize) -> Vec<usize> {
        Vec::new()
    }
}

impl Generator for Vec<Vec<Hop>> {
    fn world(&self) -> usize {
        self.len()
    }
    fn hops(&self, rank: usize) -> usize {
        self[rank].len()
    }
    fn hop(&self, rank: usize, index: usize) -> Hop {
        self[rank][index].clone()
    }
}

impl Schedule {
    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.generator.world()
    }
    /// The number of hops that every rank makes.
    pub fn hops(&self) -> usize {
        if self.world() == 0 { 0 } else { self.generator.hops(0) }
    }
    /// Hop `index` of a rank.
    pub fn hop(&self, rank: usize, index: usize) -> Hop {
        self.generator.hop(rank, index)
    }
    /// All hops of a rank.
    pub fn of_rank(&self, rank: usize) -> Vec<Hop> {
        (0..self.generator.hops(rank)).map(|index| self.hop(rank, index)).collect()
    }
    /// All hops by rank: for few ranks.
    pub fn listed(&self) -> Vec<Vec<Hop>> {
        (0..self.world()).map(|rank| self.of_rank(rank)).collect()
    }
    /// How ranks are alike: none is like another where the generator does not say so.
    pub fn alike(&self) -> Alike {
        self.generator.alike().unwrap_or_else(|| Alike::nobody(self.world()))
    }
    /// The ranks by what they do in hop `index`: of those of a group the first one stands for all.
    pub fn groups(&self, index: usize) -> Vec<Group> {
        let (alike, world) = (self.alike(), self.world());
        let borders = if alike.parts(world) { self.generator.borders(index) } else { Vec::new() };
        alike.groups(world, &borders)
    }
    /// All heads and rows of a part.
    pub fn whole(&self, part: Part, owner: usize) -> Block {
        let rows = Extent::all(self.positions[owner].tokens());
        Block { part, owner, heads: self.heads.of(part), rows }
    }
}

/// How generators write hops. Blocks with nothing in them, of ranks without positions, are left
/// out.
impl Hop {
    pub(crate) fn send(&mut self, block: Block, from: usize, to: usize) {
        self.send_all([block], from, to);
    }
    pub(crate) fn receive(&mut self, block: Block, from: usize, to: usize) {
        self.receive_all([block], from, to);
    }
    pub(crate) fn send_all<I>(&mut self, blocks: I, from: usize, to: usize)
    where
        I: IntoIterator<Item = Block>,
    {
        for block in blocks {
            push(&mut self.sends, Move { block, from, to, hops: 1 });
        }
    }
    pub(crate) fn receive_all<I>(&mut self, blocks: I, from: usize, to: usize)
    where
        I: IntoIterator<Item = Block>,
    {
        for block in blocks {
            push(&mut self.receives, Move { block, from, to, hops: 1 });
        }
    }
    pub(crate) fn tile(&mut self, queries: Block, keys: Block) {
        if !queries.is_empty() && !keys.is_empty() {
            self.tiles.push(TilePlan { queries, keys });
        }
    }
    pub(crate) fn finish(&mut self, queries: Block) {
        add(&mut self.finishes, Some(queries).filter(|block| !block.is_empty()));
    }
    pub(crate) fn zeros(&mut self, sum: Block) {
        add(&mut self.zeros, Some(sum).filter(|block| !block.is_empty()));
    }
    pub(crate) fn free(&mut self, block: Block) {
        add(&mut self.frees, Some(block).filter(|block| !block.is_empty()));
    }
}

pub(crate) fn push(moves: &mut Vec<Move>, moved: Move) {
    add(moves, Some(moved).filter(|moved| !moved.block.is_empty()));
}

/// Adds to a list of a hop. Most of them end with one: there are so many hops that room for more would be
/// most of a schedule.
pub(crate) fn add<T>(list: &mut Vec<T>, item: Option<T>) {
    if let Some(item) = item {
        if list.is_empty() {
            list.reserve_exact(1);
        }
        list.push(item);
    }
}
