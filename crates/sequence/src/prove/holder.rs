//! One rank being played: what it holds.

use std::collections::BTreeMap;

use super::running::Running;
use super::{Alive, At, Flaw};
use crate::{Block, Extent, Heads, Hop, Meeting, Part, Pass, Schedule, TilePlan};

/// The keys last found on a rank in a hop with their gradient, by owner: nothing held is removed while tiles are computed, and many queries
/// meet the same keys.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The number of the rank's hop, counted over all.
    visit: usize,
    keys: Vec<Option<(usize, Block)>>,
}

impl Found {
    /// Starts another rank or hop, in which nothing is found yet.
    fn next(&mut self) {
        self.visit += 1;
    }

    fn has(&self, keys: Block) -> bool {
        self.keys.get(keys.owner).is_some_and(|found| *found == Some((self.visit, keys)))
    }

    /// Adds keys that were found on the rank.
    fn add(&mut self, keys: Block) {
        if self.keys.len() <= keys.owner {
            self.keys.resize(keys.owner + 1, None);
        }
        self.keys[keys.owner] = Some((self.visit, keys));
    }
}

/// One rank being played.
#[derive(Clone, Debug)]
pub(super) struct Holder<'a> {
    pub(super) schedule: &'a Schedule,
    rank: usize,
    /// The blocks held, with the ranks that made them. No two overlap.
    held: BTreeMap<Block, usize>,
    /// Queries with a running state.
    running: BTreeMap<Block, Running>,
}

impl<'a> Holder<'a> {
    pub(super) fn new(schedule: &'a Schedule, rank: usize) -> Holder<'a> {
        let own = [Part::Query, Part::KeyValue].map(|part| schedule.whole(part, rank));
        let held = own.into_iter().filter(|block| !block.is_empty());
        let held = held.map(|block| (block, rank)).collect();
        Holder { schedule, rank, held, running: BTreeMap::new() }
    }

    /// This holder moved to rank `rank`, with the ranks of its blocks mapped by `moved`.
    pub(super) fn moved(&self, rank: usize, moved: impl Fn(usize) -> usize) -> Holder<'a> {
        let block = |block: Block| Block { owner: moved(block.owner), ..block };
        let held = self.held.iter().map(|(held, maker)| (block(*held), moved(*maker))).collect();
        let running = self.running.iter();
        let running = running.map(|(queries, run)| (block(*queries), run.moved(block))).collect();
        Holder { schedule: self.schedule, rank, held, running }
    }
    /// Whether this rank holds what `other` does, moved to this rank by `moved`.
    pub(super) fn holds(&self, other: &Holder<'_>, moved: impl Fn(usize) -> usize) -> bool {
        let sizes = |one: &Holder<'_>| (one.held.len(), one.running.len());
        sizes(self) == sizes(other) && {
            let other = other.moved(self.rank, moved);
            self.held == other.held && self.running == other.running
        }
    }

    /// Begins sums, computes tiles and finishes queries. `take` takes a tile from what is left to compute; false unless all of it was left.
    pub(super) fn compute(
        &mut self,
        hop: usize,
        plan: &Hop,
        found: &mut Found,
        take: &mut impl FnMut(TilePlan) -> bool,
    ) -> Result<(), Flaw> {
        for &sum in &plan.zeros {
            if sum.part != Part::Gradient || self.schedule.pass == Pass::Forward {
                return Err(Flaw::Misplaced(self.at(hop, sum)));
            }
            self.check_within(hop, sum)?;
            self.land(hop, sum, self.rank)?;
        }
        found.next();
        for meeting in plan.tiles.meetings() {
            self.check_operand(hop, meeting.queries, Part::Query)?;
            meeting.tiles().try_for_each(|tile| self.tile(hop, tile, found, take))?;
            self.run(hop, meeting)?;
        }
        plan.finishes.iter().try_for_each(|queries| self.finish(hop, *queries))
    }

    fn tile(
        &mut self,
        hop: usize,
        tile: TilePlan,
        found: &mut Found,
        take: &mut impl FnMut(TilePlan) -> bool,
    ) -> Result<(), Flaw> {
        let again = found.has(tile.keys);
        if !again {
            self.check_operand(hop, tile.keys, Part::KeyValue)?;
        }
        let at = self.at(hop, tile.keys);
        if !fit(self.schedule.heads, tile.queries.heads, tile.keys.heads) {
            return Err(Flaw::Misplaced(at));
        }
        if tile.keys.part != Part::Value && !take(tile) {
            return Err(Flaw::ComputedTwice(at));
        }
        if self.schedule.pass == Pass::Backward && tile.keys.part != Part::KeyValue {
            return Err(Flaw::Misplaced(at));
        }
        if again {
            return Ok(());
        }
        let sum = tile.keys.of(Part::Gradient);
        if self.schedule.pass == Pass::Backward && !self.held.contains_key(&sum) {
            self.land(hop, sum, self.rank)?;
        }
        found.add(tile.keys);
        Ok(())
    }

    /// Adds a meeting to the running state of its queries.
    fn run(&mut self, hop: usize, meeting: &Meeting) -> Result<(), Flaw> {
        let rank = self.rank;
        let running = self.running.entry(meeting.queries).or_default();
        for tile in meeting.tiles() {
            running.meet(tile, At { rank, hop, block: tile.keys })?;
            // For whole keys and values, the first tile stands for all.
            if tile.keys.part == Part::KeyValue {
                break;
            }
        }
        Ok(())
    }

    fn finish(&mut self, hop: usize, queries: Block) -> Result<(), Flaw> {
        match self.running.remove(&queries) {
            Some(running) => running.finish(|block| self.at(hop, block))?,
            None => self.check_operand(hop, queries, Part::Query)?,
        }
        let result = match self.schedule.pass {
            Pass::Forward => queries.of(Part::Output),
            Pass::Backward => queries.of(Part::QueryGradient),
        };
        self.land(hop, result, self.rank)
    }

    /// Holds a block: a sum is added to one that contains it, and takes up an equal one, so that what travels stays where it was made; at
    /// its owner it is taken up.
    pub(super) fn land(&mut self, hop: usize, block: Block, maker: usize) -> Result<(), Flaw> {
        let near = self.kin(block).find(|held| held.overlaps(block));
        match near {
            Some(held) if block.part.is_sum() && held == block => {
                if block.owner != self.rank {
                    self.held.insert(block, maker);
                }
            }
            Some(held) if block.part.is_sum() && held.contains(block) => {}
            Some(_) => return Err(Flaw::Occupied(self.at(hop, block))),
            None => {
                self.held.insert(block, maker);
            }
        }
        Ok(())
    }

    pub(super) fn free(&mut self, hop: usize, frees: &[Block]) -> Result<(), Flaw> {
        for &block in frees {
            self.take(hop, block)?;
            if !block.part.is_lent() {
                return Err(Flaw::Lost(self.at(hop, block)));
            }
            if block.owner == self.rank {
                return Err(Flaw::FreedResident(self.at(hop, block)));
            }
        }
        Ok(())
    }

    /// Checks that a block is held, alone or as a part of another.
    pub(super) fn check_kept(&self, hop: usize, block: Block) -> Result<(), Flaw> {
        if self.kin(block).any(|held| held.contains(block)) {
            return Ok(());
        }
        Err(self.missing(hop, block))
    }

    /// The amount held that is not the caller's.
    pub(super) fn alive(&self) -> Alive {
        let mut alive = Alive::default();
        let foreign = |block: &Block| !block.part.is_lent() || block.owner != self.rank;
        let held = self.held.keys().copied().filter(foreign);
        held.for_each(|block| alive.add(block));
        alive.scores = self.running.values().map(Running::scores).sum();
        alive
    }

    /// The blocks held, with the ranks that made them.
    pub(super) fn made(&self) -> impl Iterator<Item = (Block, usize)> {
        self.held.iter().map(|(block, maker)| (*block, *maker))
    }

    /// Checks that the own result is held, whole.
    pub(super) fn check_home(&self, part: Part) -> Result<(), Flaw> {
        let whole = self.schedule.whole(part, self.rank);
        // Blocks do not overlap: if the volumes match, all of it is here.
        let here: usize = self.kin(whole).map(Block::volume).sum();
        if here == whole.volume() {
            return Ok(());
        }
        Err(Flaw::NotHome(self.at(self.schedule.hops(), whole)))
    }

    /// Checks that nothing is left but the caller's blocks and the pass's results.
    pub(super) fn check_left(&self, results: &[Part]) -> Result<(), Flaw> {
        let expected = |block: &&Block| {
            let part = block.part;
            block.owner == self.rank && (part.is_lent() || results.contains(&part))
        };
        let left = self.held.keys().find(|block| !expected(block));
        match left.or(self.running.keys().next()) {
            Some(block) => Err(Flaw::Leaked(self.at(self.schedule.hops(), *block))),
            None => Ok(()),
        }
    }

    fn at(&self, hop: usize, block: Block) -> At {
        At { rank: self.rank, hop, block }
    }
    pub(super) fn take(&mut self, hop: usize, block: Block) -> Result<usize, Flaw> {
        self.held.remove(&block).ok_or_else(|| self.missing(hop, block))
    }
    /// The held blocks of the same owner whose part is the same, contains it, or is contained in it.
    fn kin(&self, block: Block) -> impl Iterator<Item = Block> {
        const KEYS: [Part; 3] = [Part::KeyValue, Part::Key, Part::Value];
        let (none, past) = (Extent::all(0), Extent { start: usize::MAX, end: usize::MAX });
        let kin = move |part: &Part| part.contains(block.part) || block.part.contains(*part);
        let others = KEYS.into_iter().filter(kin).filter(move |part| *part != block.part);
        let of_part = move |part: Part| {
            let least = Block { part, heads: none, rows: none, ..block };
            let most = Block { heads: past, rows: past, ..least };
            self.held.range(least..most).map(|(held, _)| *held)
        };
        [block.part].into_iter().chain(others).flat_map(of_part)
    }
    fn missing(&self, hop: usize, block: Block) -> Flaw {
        let at = self.at(hop, block);
        let part = self.kin(block).any(|held| held.overlaps(block));
        if part { Flaw::Incomplete(at) } else { Flaw::Absent(at) }
    }
    fn check_operand(&self, hop: usize, block: Block, part: Part) -> Result<(), Flaw> {
        if block.part.whole() != part || block.is_empty() {
            return Err(Flaw::Misplaced(self.at(hop, block)));
        }
        self.check_kept(hop, block)
    }
    fn check_within(&self, hop: usize, block: Block) -> Result<(), Flaw> {
        let exists = block.owner < self.schedule.world() && !block.is_empty();
        if exists && self.schedule.whole(block.part, block.owner).contains(block) {
            return Ok(());
        }
        Err(Flaw::OutOfRange(self.at(hop, block)))
    }
}

/// Whether these are the KV heads of the query heads, in whole groups or a part of one, so that a kernel finds them by counting.
fn fit(heads: Heads, queries: Extent, keys: Extent) -> bool {
    let group = heads.group();
    let shared = Extent { start: keys.start * group, end: keys.end * group };
    queries == shared || (keys.len() == 1 && shared.contains(queries))
}
