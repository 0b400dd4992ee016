//! Ranks as stations of a ring, each of several ranks that share its positions by heads.
//!
//! DeepSpeed-Ulysses (arXiv 2309.14509) exchanges heads for positions among all ranks: one station.
//! A ring is stations of one rank. USP (arXiv 2405.07719) and LoongTrain (arXiv 2406.18485) are
//! what lies between. Four ranks as two stations of two, rank `2 s + l` is lane `l` of station `s`:
//!
//! ```text
//!             positions before   the exchange   heads of    and round the ring go
//! rank 0      0                  0 1            lane 0      lane 0's heads of 2 3
//! rank 1      1                  0 1            lane 1      lane 1's heads of 2 3
//! rank 2      2                  2 3            lane 0      lane 0's heads of 0 1
//! rank 3      3                  2 3            lane 1      lane 1's heads of 0 1
//! ```
//!
//! A lane's queries may use a KV head that another lane's use as well: then both get it, and
//! its gradient is what both send home.

use std::ops::Range;
use std::sync::Arc;

use super::split::Split;
use crate::{Alike, Block, Collective, Extent, Hop, KeyRows, Part, Pass};

/// Ranks as stations and lanes.
#[derive(Clone, Debug)]
pub(super) struct Torus {
    pub(super) split: Split,
    /// The number of ranks per station.
    pub(super) lanes: usize,
    /// The rows of all keys of a station.
    keys: Vec<Arc<[KeyRows]>>,
}

/// Query heads of a lane that share KV heads evenly: whole groups, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) queries: Extent,
    pub(super) keys: Extent,
}

impl Torus {
    /// Stations of `lanes` ranks, which divides both ranks and query heads.
    pub(super) fn new(split: &Split, lanes: usize) -> Torus {
        let rows = |owner| (owner, split.whole(Part::KeyValue, owner).rows);
        let owners: Vec<usize> = (0..split.world()).collect();
        let of_station = |members: &[usize]| members.iter().map(|owner| rows(*owner)).collect();
        let keys = owners.chunks(lanes).map(of_station).collect();
        Torus { split: split.clone(), lanes, keys }
    }
    pub(super) fn stations(&self) -> usize {
        self.split.world() / self.lanes
    }
    pub(super) fn station(&self, rank: usize) -> usize {
        rank / self.lanes
    }
    pub(super) fn lane(&self, rank: usize) -> usize {
        rank % self.lanes
    }
    /// The rank in the lane of `rank` at another station.
    pub(super) fn beside(&self, rank: usize, station: usize) -> usize {
        station * self.lanes + self.lane(rank)
    }
    /// The ranks whose positions a station shares.
    pub(super) fn members(&self, station: usize) -> Range<usize> {
        station * self.lanes..(station + 1) * self.lanes
    }
    /// The rows of a station's keys that queries of a rank need, shared by all its lanes.
    pub(super) fn met(&self, queries: usize, station: usize) -> Arc<[KeyRows]> {
        let all = &self.keys[station];
        let needed = |(owner, _): &KeyRows| self.split.needs(queries, *owner);
        if all.iter().all(needed) {
            return all.clone();
        }
        all.iter().copied().filter(needed).collect()
    }
    /// The symmetry of stations in hops that do not depend on lanes.
    pub(super) fn alike(&self) -> Option<Alike> {
        self.split.is_even().then_some(Alike { lanes: self.lanes, rotates_lanes: false })
    }
    /// The stations whose needs differ from those of the station before; `ahead` has how far ahead of a station its queries and its keys
    /// are.
    pub(super) fn borders(&self, ahead: &[[usize; 2]]) -> Vec<usize> {
        let stations = self.stations();
        let mut borders = Vec::new();
        for ahead in ahead.iter().filter(|_| !self.split.needs_all()) {
            let at = |station: usize| ahead.map(|ahead| (ahead + station) % stations);
            let differs = |station: &usize| self.differ(at(station - 1), at(*station));
            if self.split.shifts() {
                // In the ring, the same distance also occurs in the other order.
                let turns = ahead.map(|ahead| stations - ahead).into_iter();
                borders.extend(turns.filter(|turn| *turn < stations).filter(differs));
            } else {
                borders.extend((1..stations).filter(differs));
            }
        }
        borders.sort_unstable();
        borders.dedup();
        borders
    }
    /// Whether the ranks of two stations need each other differently than those of two others.
    fn differ(&self, one: [usize; 2], other: [usize; 2]) -> bool {
        let needs = |[queries, keys]: [usize; 2], [q, k]: [usize; 2]| {
            self.split.needs(queries * self.lanes + q, keys * self.lanes + k)
        };
        let differ = |lanes| needs(one, lanes) != needs(other, lanes);
        (0..self.lanes).any(|q| (0..self.lanes).any(|k| differ([q, k])))
    }
    /// Whether any query of a station sees any key of another station.
    pub(super) fn needs(&self, station: usize, keys: usize) -> bool {
        self.members(keys).any(|k| self.sees(station, k))
    }
    /// Whether any query of a station sees any key of a rank.
    pub(super) fn sees(&self, station: usize, rank: usize) -> bool {
        self.members(station).any(|q| self.split.needs(q, rank))
    }
    pub(super) fn query_heads(&self, rank: usize) -> Extent {
        let heads = self.split.heads.query / self.lanes;
        let lane = self.lane(rank);
        Extent { start: lane * heads, end: (lane + 1) * heads }
    }
    pub(super) fn key_heads(&self, rank: usize) -> Extent {
        let (queries, group) = (self.query_heads(rank), self.split.heads.group());
        Extent { start: queries.start / group, end: queries.end.div_ceil(group) }
    }
    /// The heads of a lane, cut where they begin or cease to fill whole groups.
    pub(super) fn pieces(&self, rank: usize) -> impl Iterator<Item = Piece> + use<> {
        let (heads, group) = (self.query_heads(rank), self.split.heads.group());
        let whole = heads.start.next_multiple_of(group);
        let last = (heads.end / group * group).max(whole);
        let cuts = [heads.start, whole.min(heads.end), last.min(heads.end), heads.end];
        let pieces = cuts.into_iter().zip(cuts.into_iter().skip(1));
        pieces.filter(|(start, end)| start < end).map(move |(start, end)| Piece {
            queries: Extent { start, end },
            keys: Extent { start: start / group, end: end.div_ceil(group) },
        })
    }

    /// A schedule between the exchange of heads for positions and the one back: hop `index` of `hops` and these two, unless it is the
    /// ring's.
    pub(super) fn exchanged(
        &self,
        rank: usize,
        index: usize,
        pass: Pass,
        hops: usize,
        ring: impl FnOnce(usize) -> Hop,
    ) -> Hop {
        match self.within(index, hops) {
            Some(hop) => ring(hop),
            None if index == 0 => self.spread(rank),
            None => self.gather(rank, pass),
        }
    }
    /// The index of the ring's hop, of `hops`; `None` for an exchange.
    pub(super) fn within(&self, index: usize, hops: usize) -> Option<usize> {
        index.checked_sub(usize::from(self.lanes > 1)).filter(|hop| *hop < hops)
    }
    /// The number of hops of a ring and of the exchanges around it.
    pub(super) fn and_exchanges(&self, hops: usize) -> usize {
        hops + if self.lanes > 1 { 2 } else { 0 }
    }

    /// Sends the other ranks of a station their heads of the own positions.
    fn spread(&self, rank: usize) -> Hop {
        let parts = |owner: usize, lane: usize| -> [Block; 2] {
            let queries = self.split.heads_of(Part::Query, owner, self.query_heads(lane));
            [queries, self.split.heads_of(Part::KeyValue, owner, self.key_heads(lane))]
        };
        let mut hop = Hop { collective: Some(Collective::AllToAll), ..Hop::default() };
        for peer in self.peers(rank) {
            hop.send_all(parts(rank, peer), rank, peer);
            hop.receive_all(parts(peer, rank), peer, rank);
        }
        hop
    }

    /// Returns results to the ranks that own their positions.
    fn gather(&self, rank: usize, pass: Pass) -> Hop {
        let mut hop = Hop { collective: Some(Collective::AllToAll), ..Hop::default() };
        for peer in self.peers(rank) {
            hop.send_all(self.results(peer, rank, pass), rank, peer);
            hop.receive_all(self.results(rank, peer, pass), peer, rank);
        }
        hop
    }

    /// The results that rank `lane` computes for the positions of `owner`.
    fn results(&self, owner: usize, lane: usize, pass: Pass) -> impl Iterator<Item = Block> {
        self.pieces(lane).flat_map(move |Piece { queries, keys }| {
            let block = |part, heads| self.split.heads_of(part, owner, heads);
            match pass {
                Pass::Forward => vec![block(Part::Output, queries)],
                Pass::Backward => {
                    vec![block(Part::QueryGradient, queries), block(Part::Gradient, keys)]
                }
            }
        })
    }

    fn peers(&self, rank: usize) -> impl Iterator<Item = usize> + use<> {
        self.members(self.station(rank)).filter(move |peer| *peer != rank)
    }
}
