//! One rank at play: what it holds and what it has computed.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::{At, Flaw};
use crate::{Buffer, Collective, Hop, Part, Pass, Schedule, TilePlan};

/// What is in a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Content {
    heads: Range<usize>,
    rows: Range<usize>,
    /// Gradients: whose contributions are in it.
    contributors: BTreeSet<usize>,
    /// Gradients: who made the buffer.
    maker: usize,
}

/// A buffer on its way in.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    buffer: Buffer,
    content: Content,
}

impl Arrival {
    /// Who made the buffer, if gradients are in it.
    pub(super) fn maker(&self) -> Option<usize> {
        is_gradient(self.buffer).then_some(self.content.maker)
    }
}

/// One rank at play.
#[derive(Debug)]
pub(super) struct Holder<'a> {
    schedule: &'a Schedule,
    pub(super) rank: usize,
    held: BTreeMap<Buffer, Content>,
    /// By owner of the keys.
    pub(super) computed: Vec<bool>,
    pub(super) most_key_values: usize,
    pub(super) most_gradients: usize,
    /// Gradients on their way out, alive until the wait.
    leaving: usize,
}

impl<'a> Holder<'a> {
    pub(super) fn new(schedule: &'a Schedule, rank: usize) -> Holder<'a> {
        let mut holder = Holder {
            schedule,
            rank,
            held: BTreeMap::new(),
            computed: vec![false; schedule.world()],
            most_key_values: 0,
            most_gradients: 0,
            leaving: 0,
        };
        for part in [Part::Query, Part::KeyValue] {
            holder.held.insert(Buffer { part, owner: rank }, holder.whole(rank));
        }
        holder
    }

    /// Posts the sends of a hop: to whom, and what will arrive there.
    pub(super) fn post(&mut self, hop: usize) -> Result<Vec<(usize, Arrival)>, Flaw> {
        let plan = self.plan(hop);
        self.leaving = 0;
        let mut posted = Vec::with_capacity(plan.sends.len());
        for sent in &plan.sends {
            let at = self.at(hop, sent.buffer);
            let content = self.held.get(&sent.buffer).ok_or(Flaw::Absent(at))?;
            let moved = Content {
                heads: sent.heads.clone(),
                rows: sent.rows.clone(),
                contributors: content.contributors.clone(),
                maker: content.maker,
            };
            if is_gradient(sent.buffer) {
                // Given away: what did not move would be lost.
                if moved != *content {
                    return Err(Flaw::Incomplete(at));
                }
                self.held.remove(&sent.buffer);
                self.leaving += 1;
            } else if !contains(&content.heads, &moved.heads)
                || !contains(&content.rows, &moved.rows)
            {
                return Err(Flaw::Incomplete(at));
            }
            posted.push((sent.to, Arrival { buffer: sent.buffer, content: moved }));
        }
        Ok(posted)
    }

    /// Computes the tiles of a hop while `arrivals` are under way.
    pub(super) fn compute(&mut self, hop: usize, arrivals: &[Arrival]) -> Result<(), Flaw> {
        let plan = self.plan(hop);
        for tile in &plan.tiles {
            self.compute_tile(hop, tile)?;
        }
        let arriving = |gradients: bool| match plan.collective {
            // Where the sum of a reduce-scatter is made is the engine's; one buffer takes it.
            Some(Collective::ReduceScatter) => usize::from(gradients),
            _ => arrivals.iter().filter(|a| is_gradient(a.buffer) == gradients).count(),
        };
        let gradients = self.held.keys().filter(|buffer| is_gradient(**buffer)).count();
        let foreign = |buffer: &&Buffer| buffer.part == Part::KeyValue && buffer.owner != self.rank;
        let key_values = self.held.keys().filter(foreign).count();
        self.most_key_values = self.most_key_values.max(key_values + arriving(false));
        self.most_gradients = self.most_gradients.max(gradients + self.leaving + arriving(true));
        Ok(())
    }

    fn compute_tile(&mut self, hop: usize, tile: &TilePlan) -> Result<(), Flaw> {
        let keys = Buffer::key_value(tile.keys);
        let at = self.at(hop, keys);
        if tile.queries != self.rank {
            let buffer = Buffer { part: Part::Query, owner: tile.queries };
            return Err(Flaw::Misplaced(self.at(hop, buffer)));
        }
        let content = self.held.get(&keys).ok_or(Flaw::Absent(at))?;
        if *content != self.whole(tile.keys) {
            return Err(Flaw::Incomplete(at));
        }
        if std::mem::replace(&mut self.computed[tile.keys], true) {
            return Err(Flaw::ComputedTwice(at));
        }
        let into = Buffer::contribution(tile.keys);
        match (self.schedule.pass, tile.into) {
            (Pass::Forward, None) => Ok(()),
            (Pass::Backward, Some(written)) if written == into => {
                let contributors = BTreeSet::from([self.rank]);
                let maker = self.rank;
                self.put(hop, into, Content { contributors, maker, ..self.whole(tile.keys) })
            }
            (_, written) => Err(Flaw::Misplaced(self.at(hop, written.unwrap_or(into)))),
        }
    }

    /// The wait: what was under way is here.
    pub(super) fn arrive(&mut self, hop: usize, arrivals: Vec<Arrival>) -> Result<(), Flaw> {
        arrivals.into_iter().try_for_each(|arrival| self.put(hop, arrival.buffer, arrival.content))
    }

    /// The wait of a reduce-scatter: what has come and the own contribution are one gradient.
    pub(super) fn sum(&mut self, hop: usize, arrivals: Vec<Arrival>) -> Result<(), Flaw> {
        let contribution = Buffer::contribution(self.rank);
        let own = self.take(hop, contribution)?;
        self.put(hop, Buffer::gradient(self.rank), own)?;
        for arrival in arrivals {
            self.add(self.rank, arrival.content);
        }
        Ok(())
    }

    pub(super) fn fold(&mut self, hop: usize) -> Result<(), Flaw> {
        for fold in &self.plan(hop).folds {
            let owner = fold.into.owner;
            if fold.into != Buffer::gradient(owner) || fold.from != Buffer::contribution(owner) {
                return Err(Flaw::Misplaced(self.at(hop, fold.into)));
            }
            let from = self.take(hop, fold.from)?;
            self.add(owner, from);
        }
        Ok(())
    }

    pub(super) fn free(&mut self, hop: usize) -> Result<(), Flaw> {
        for &buffer in &self.plan(hop).frees {
            let at = self.at(hop, buffer);
            self.take(hop, buffer)?;
            if is_gradient(buffer) {
                return Err(Flaw::Lost(at));
            }
            if buffer.owner == self.rank {
                return Err(Flaw::FreedResident(at));
            }
        }
        Ok(())
    }

    /// Who made the gradient buffers that are here, one by one.
    pub(super) fn makers(&self) -> impl Iterator<Item = usize> {
        self.held.iter().filter(|(buffer, _)| is_gradient(**buffer)).map(|(_, held)| held.maker)
    }

    /// Whether the gradient of the own keys is here with the contribution of `from` in it.
    pub(super) fn has_home(&self, from: usize) -> bool {
        let gradient = self.held.get(&Buffer::gradient(self.rank));
        gradient.is_some_and(|gradient| gradient.contributors.contains(&from))
    }

    /// Nothing is left but what the caller brought and what the pass is for.
    pub(super) fn check_left(&self) -> Result<(), Flaw> {
        let expected =
            |buffer: &Buffer| buffer.owner == self.rank && buffer.part != Part::Contribution;
        match self.held.keys().find(|buffer| !expected(buffer)) {
            Some(buffer) => Err(Flaw::Leaked(self.at(self.schedule.hops(), *buffer))),
            None => Ok(()),
        }
    }

    fn plan(&self, hop: usize) -> &'a Hop {
        &self.schedule.ranks[self.rank][hop]
    }
    fn at(&self, hop: usize, buffer: Buffer) -> At {
        At { rank: self.rank, hop, buffer }
    }
    fn whole(&self, owner: usize) -> Content {
        let rows = 0..self.schedule.positions[owner].tokens();
        let contributors = BTreeSet::new();
        Content { heads: 0..self.schedule.heads, rows, contributors, maker: owner }
    }
    fn put(&mut self, hop: usize, buffer: Buffer, content: Content) -> Result<(), Flaw> {
        match self.held.insert(buffer, content) {
            Some(_) => Err(Flaw::Occupied(self.at(hop, buffer))),
            None => Ok(()),
        }
    }
    fn take(&mut self, hop: usize, buffer: Buffer) -> Result<Content, Flaw> {
        let at = self.at(hop, buffer);
        self.held.remove(&buffer).ok_or(Flaw::Absent(at))
    }
    /// No contribution can be added twice: it is computed once, and adding takes it away.
    fn add(&mut self, owner: usize, from: Content) {
        match self.held.entry(Buffer::gradient(owner)) {
            Entry::Vacant(absent) => {
                absent.insert(from);
            }
            Entry::Occupied(mut sum) => sum.get_mut().contributors.extend(from.contributors),
        }
    }
}

fn is_gradient(buffer: Buffer) -> bool {
    matches!(buffer.part, Part::Gradient | Part::Contribution)
}

fn contains(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}
