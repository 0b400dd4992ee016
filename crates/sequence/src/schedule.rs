//! Schedules: what every rank sends and computes in each hop, generated on demand.

use std::fmt;
use std::sync::Arc;

use crate::{Alike, AlikeRanks, Block, Extent, Heads, Layout, Mask, Part, Positions, Tiles};

/// The direction of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// From queries, keys and values to outputs.
    Forward,
    /// From output gradients to the gradients of queries, keys and values.
    Backward,
}

/// A block sent from one rank to another. It is in the sender's hop and in the receiver's: both post it at the start of that hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Move {
    /// The block: within one that the sender holds where it is lent, exactly one where it is given away. A sum that arrives where a block
    /// contains it is added to that.
    pub block: Block,
    /// The sending rank.
    pub from: usize,
    /// The receiving rank.
    pub to: usize,
    /// The number of hops that the move may take: 1 means that it is awaited at the end of the hop that posts it.
    pub hops: usize,
}

/// A set of moves with a name of its own. Every rank takes part, alone or in groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Every rank's blocks to every rank.
    AllGather,
    /// One rank's blocks to every rank.
    Broadcast,
    /// Every rank's sums to the blocks' owners.
    ReduceScatter,
    /// Every rank's blocks to every rank, different heads to each.
    AllToAll,
}

/// A tile: queries of one rank by keys of another, a part of the global attention matrix.
///
/// It adds to the running state of `queries`, which its first tile begins. Backward it also adds to the [`Part::Gradient`] of `keys`, which
/// starts from zeros. It may be planned where nothing is visible, and then adds nothing; strategies leave out shards that see nothing of
/// each other.
///
/// Forward, the two products of a tile can be separate: a tile of [`Part::Key`] computes scores and keeps them, a later one of
/// [`Part::Value`], with the same heads and rows on the same rank, weights the values with them and drops them. Since a softmax is over
/// whole rows, all keys of a block of queries come before the first of its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TilePlan {
    /// A [`Part::Query`] block, within one that is held.
    pub queries: Block,
    /// A [`Part::KeyValue`], [`Part::Key`] or [`Part::Value`] block, within one that is held, of the heads that the queries use.
    pub keys: Block,
}

/// One rank's hop, executed in this order: post, compute, finish, wait, free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hop {
    /// Moves that are posted together, before anything is computed.
    pub sends: Vec<Move>,
    /// Moves to receive, posted with the sends.
    pub receives: Vec<Move>,
    /// The collective that the moves of all ranks form, if it has a name.
    pub collective: Option<Collective>,
    /// Sums that begin here as zeros, because no tile of the hop makes them: a sum that is sent or reduced to its owner always exists, and
    /// absence never means zero.
    pub zeros: Vec<Block>,
    /// Tiles that are computed, in order, while the moves are in flight.
    pub tiles: Tiles,
    /// Queries that have seen all that they see here. Their running state becomes their [`Part::Output`], backward their
    /// [`Part::QueryGradient`]; without a tile it is the state of no keys.
    pub finishes: Vec<Block>,
    /// Blocks that are freed at the end.
    pub frees: Vec<Block>,
}

/// The hops of all ranks in one pass of one attention, generated on demand.
///
/// Every rank starts with [`Part::Query`] and [`Part::KeyValue`] of its own positions, which are the caller's and outlive the pass. It ends
/// with these and its own [`Part::Output`], or, backward, [`Part::QueryGradient`] and [`Part::Gradient`], each in one block or several.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The strategy's name, as in a file.
    pub strategy: &'static str,
    /// The pass, forward or backward.
    pub pass: Pass,
    /// How positions are sharded.
    pub layout: Layout,
    /// The mask: which keys a query sees.
    pub mask: Mask,
    /// The numbers of query heads and KV heads.
    pub heads: Heads,
    /// The positions of every rank.
    pub positions: Arc<[Positions]>,
    /// The generator of the hops.
    pub generator: Arc<dyn Generator>,
}

/// The hops of all ranks as a function. A list of hops by rank is one: `Vec<Vec<Hop>>`.
pub trait Generator: fmt::Debug + Send + Sync {
    /// The number of ranks.
    fn world(&self) -> usize;
    /// The number of hops of a rank, the same for all ranks.
    fn hops(&self, rank: usize) -> usize;
    /// Hop `index` of a rank.
    fn hop(&self, rank: usize, index: usize) -> Hop;
    /// The symmetry of the ranks; `None`: no rank is like another.
    fn alike(&self) -> Option<Alike> {
        None
    }
    /// The stations, ascending, whose ranks do something else in hop `index` than those of the station before.
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

impl Pass {
    /// The word for the pass: `forward` or `backward`.
    pub fn name(self) -> &'static str {
        match self {
            Pass::Forward => "forward",
            Pass::Backward => "backward",
        }
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
    /// The symmetry of the ranks: none where the generator does not give one.
    pub fn alike(&self) -> Alike {
        self.generator.alike().unwrap_or_else(|| Alike::nobody(self.world()))
    }
    /// Groups of ranks that do the same in hop `index`: the first one stands for its group.
    pub fn groups(&self, index: usize) -> Vec<AlikeRanks> {
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

/// Methods by which generators write hops. Empty blocks, of ranks without positions, are left out.
impl Hop {
    /// Sends a block, which is awaited in this hop.
    pub fn send(&mut self, block: Block, from: usize, to: usize) {
        self.send_all([block], from, to);
    }
    /// Receives a block, which is awaited in this hop.
    pub fn receive(&mut self, block: Block, from: usize, to: usize) {
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
    /// Computes queries, a [`Part::Query`], with keys: both must be held. Of an empty side nothing is computed: where gradients of its keys
    /// are sent all the same, they begin by [`Hop::zeros`].
    pub fn tile(&mut self, queries: Block, keys: Block) {
        if !queries.is_empty() && !keys.is_empty() {
            self.tiles.push(TilePlan { queries, keys });
        }
    }
    /// Ends what is computed of queries, a [`Part::Query`], that have seen all that they see here.
    pub fn finish(&mut self, queries: Block) {
        add(&mut self.finishes, Some(queries).filter(|block| !block.is_empty()));
    }
    /// Begins a sum, or adds nothing to one that there is.
    pub fn zeros(&mut self, sum: Block) {
        add(&mut self.zeros, Some(sum).filter(|block| !block.is_empty()));
    }
    /// Frees a block at the end of the hop.
    pub fn free(&mut self, block: Block) {
        add(&mut self.frees, Some(block).filter(|block| !block.is_empty()));
    }
}

pub(crate) fn push(moves: &mut Vec<Move>, moved: Move) {
    add(moves, Some(moved).filter(|moved| !moved.block.is_empty()));
}

/// Adds to a list of a hop. Reserves no extra room: most lists have one element, and there are so many hops that it would be most of a
/// schedule.
pub(crate) fn add<T>(list: &mut Vec<T>, item: Option<T>) {
    if let Some(item) = item {
        if list.is_empty() {
            list.reserve_exact(1);
        }
        list.push(item);
    }
}
