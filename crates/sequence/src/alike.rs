//! Ranks that do alike: what one does is what another does with all ranks moved.
//!
//! Ranks stand in stations of so many lanes, rank `lanes · station + lane`. To move a schedule by a
//! station is to write every rank one station further, round in a ring; where it turns, too, ranks
//! may be moved along the lanes as well. A rank and one that it is moved to do the same, each among
//! its own neighbours, wherever the generator says no border between them.

use std::ops::Range;

/// How the ranks of a schedule are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alike {
    /// Ranks of a station.
    pub lanes: usize,
    /// Whether lanes are alike as well, in every hop of every station: then there are no borders.
    pub turns: bool,
}

/// Ranks that do alike in a hop: a lane of neighbouring stations, or all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Which stations.
    pub stations: Range<usize>,
    /// Which lane of each.
    pub lane: usize,
    /// All ranks are moved by stations of so many.
    pub alike: Alike,
}

/// From where to where ranks are moved: stations and lanes ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shift {
    pub(crate) stations: usize,
    pub(crate) lanes: usize,
}

impl Alike {
    /// No rank is like another.
    pub(crate) fn nobody(world: usize) -> Alike {
        Alike { lanes: world, turns: false }
    }
    /// Whether there can be borders.
    pub(crate) fn parts(self, world: usize) -> bool {
        !self.turns && self.lanes < world
    }
    /// The ranks of a hop with so many borders.
    pub(crate) fn groups(self, world: usize, borders: &[usize]) -> Vec<Group> {
        let lanes = if self.turns { 1 } else { self.lanes };
        let starts = || [0].into_iter().chain(borders.iter().copied());
        let ends = || borders.iter().copied().chain([world / self.lanes]);
        let group = |lane| {
            let stations = starts().zip(ends());
            let filled = stations.filter(|(start, end)| start < end);
            filled.map(move |(start, end)| Group { stations: start..end, lane, alike: self })
        };
        (0..lanes).flat_map(group).collect()
    }
    /// How far `to` is ahead of `from`, of ranks that are alike.
    pub(crate) fn shift(self, world: usize, from: usize, to: usize) -> Shift {
        let stations = world / self.lanes;
        Shift {
            stations: (to / self.lanes + stations - from / self.lanes) % stations,
            lanes: (to % self.lanes + self.lanes - from % self.lanes) % self.lanes,
        }
    }
    /// The rank that another one is moved to.
    pub(crate) fn moved(self, world: usize, rank: usize, by: Shift) -> usize {
        let (station, lane) = (rank / self.lanes, rank % self.lanes);
        let station = (station + by.stations) % (world / self.lanes);
        station * self.lanes + (lane + by.lanes) % self.lanes
    }
}

impl Group {
    /// The rank that stands for all.
    pub fn first(&self) -> usize {
        self.stations.start * self.alike.lanes + self.lane
    }
    /// The first rank, one in the middle, and the last, each once.
    pub fn samples(&self) -> Vec<usize> {
        let Range { start, end } = self.stations;
        let mut stations = vec![start, usize::midpoint(start, end - 1), end - 1];
        stations.dedup();
        stations.into_iter().map(|station| station * self.alike.lanes + self.lane).collect()
    }
    /// From one rank to the next.
    pub fn step(&self) -> usize {
        if self.alike.turns { 1 } else { self.alike.lanes }
    }
    /// All ranks, rising.
    pub fn ranks(&self) -> impl ExactSizeIterator<Item = usize> + use<> {
        (self.first()..self.stations.end * self.alike.lanes).step_by(self.step())
    }
}
