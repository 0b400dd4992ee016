//! Symmetry of schedules: ranks that do the same as others with all ranks moved.
//!
//! Ranks form stations of several lanes, rank `lanes · station + lane`. Moving a schedule by a station renumbers every rank to the next
//! station of a ring; with `rotates_lanes`, ranks may also be moved along the lanes. A rank and the one that it is moved to do the same, each
//! among its own neighbours, wherever the generator says that no border is between them.

use std::ops::Range;

/// The symmetry of a schedule's ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alike {
    /// The number of ranks in a station.
    pub lanes: usize,
    /// Whether ranks may also be rotated within a station; then the symmetry has no borders.
    pub rotates_lanes: bool,
}

/// Ranks that do the same in a hop: one lane of neighbouring stations, or all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlikeRanks {
    /// The stations of the group.
    pub stations: Range<usize>,
    /// The lane of each station.
    pub lane: usize,
    /// The symmetry that the group belongs to.
    pub alike: Alike,
}

/// A movement of ranks: by this many stations and lanes ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shift {
    pub(crate) stations: usize,
    pub(crate) lanes: usize,
}

impl Alike {
    /// No symmetry: no rank is like another.
    pub(crate) fn nobody(world: usize) -> Alike {
        Alike { lanes: world, rotates_lanes: false }
    }
    /// Whether there can be borders between stations.
    pub(crate) fn parts(self, world: usize) -> bool {
        !self.rotates_lanes && self.lanes < world
    }
    /// The groups of ranks in a hop with these borders.
    pub(crate) fn groups(self, world: usize, borders: &[usize]) -> Vec<AlikeRanks> {
        let lanes = if self.rotates_lanes { 1 } else { self.lanes };
        let starts = || [0].into_iter().chain(borders.iter().copied());
        let ends = || borders.iter().copied().chain([world / self.lanes]);
        let group = |lane| {
            let stations = starts().zip(ends());
            let filled = stations.filter(|(start, end)| start < end);
            filled.map(move |(start, end)| AlikeRanks { stations: start..end, lane, alike: self })
        };
        (0..lanes).flat_map(group).collect()
    }
    /// The movement from rank `from` to rank `to`, which are alike.
    pub(crate) fn shift(self, world: usize, from: usize, to: usize) -> Shift {
        let stations = world / self.lanes;
        Shift {
            stations: (to / self.lanes + stations - from / self.lanes) % stations,
            lanes: (to % self.lanes + self.lanes - from % self.lanes) % self.lanes,
        }
    }
    /// The rank that `rank` is moved to.
    pub(crate) fn moved(self, world: usize, rank: usize, by: Shift) -> usize {
        let (station, lane) = (rank / self.lanes, rank % self.lanes);
        let station = (station + by.stations) % (world / self.lanes);
        station * self.lanes + (lane + by.lanes) % self.lanes
    }
}

impl AlikeRanks {
    /// The rank that represents the group.
    pub fn first(&self) -> usize {
        self.stations.start * self.alike.lanes + self.lane
    }
    /// The first rank of the group, one in the middle, and the last, each once.
    pub fn samples(&self) -> Vec<usize> {
        let Range { start, end } = self.stations;
        let mut stations = vec![start, usize::midpoint(start, end - 1), end - 1];
        stations.dedup();
        stations.into_iter().map(|station| station * self.alike.lanes + self.lane).collect()
    }
    /// The distance between neighbouring ranks of the group.
    pub fn step(&self) -> usize {
        if self.alike.rotates_lanes { 1 } else { self.alike.lanes }
    }
    /// All ranks of the group, ascending.
    pub fn ranks(&self) -> impl ExactSizeIterator<Item = usize> + use<> {
        (self.first()..self.stations.end * self.alike.lanes).step_by(self.step())
    }
}
