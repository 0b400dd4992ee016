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
//! A lane's queries may use a key/value head that another lane's use as well: then both get it, and
//! its gradient is what both send home.

use std::ops::Range;
use std::sync::Arc;

use super::split::Split;
use crate::{Block, Collective, Extent, Hop, KeyRows, Part, Pass};

/// Ranks as stations and lanes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Torus<'a> {
    pub(super) split: &'a Split,
    /// Ranks of a station.
    pub(super) lanes: usize,
    met: &'a Met,
}

/// The rows of keys that queries need, by their owner, then by the station of the keys: the same for all
/// lanes, which share them.
#[derive(Debug)]
pub(super) struct Met(Vec<Vec<Arc<[KeyRows]>>>);

impl Met {
    pub(super) fn new(split: &Split, lanes: usize) -> Met {
        let owners: Vec<usize> = (0..split.world()).collect();
        let rows = |k: usize| (k, split.whole(Part::KeyValue, k).rows);
        let needed = |q: usize, members: &[usize]| {
            let needed = members.iter().filter(|k| split.needs(q, **k));
            needed.map(|k| rows(*k)).filter(|(_, rows)| !rows.is_empty()).collect()
        };
        let of_queries = |q| owners.chunks(lanes).map(|members| needed(q, members)).collect();
        Met((0..split.world()).map(of_queries).collect())
    }
}

/// Query heads of a lane that use key/value heads alike: whole groups, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) queries: Extent,
    pub(super) keys: Extent,
}

impl<'a> Torus<'a> {
    /// Stations of `lanes` ranks, of which both ranks and query heads are multiples.
    pub(super) fn new(split: &'a Split, lanes: usize, met: &'a Met) -> Torus<'a> {
        Torus { split, lanes, met }
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
    /// The keys of a station that queries of a rank need.
    pub(super) fn met(&self, queries: usize, station: usize) -> &'a Arc<[KeyRows]> {
        &self.met.0[queries][station]
    }
    /// Whether any query of a station sees any key of another.
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
    /// The heads of a lane, cut where they begin or stop to fill whole groups.
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

    /// A schedule between the exchange of positions for heads and the one back.
    pub(super) fn exchanged(&self, rank: usize, pass: Pass, ring: Vec<Hop>) -> Vec<Hop> {
        if self.lanes == 1 {
            return ring;
        }
        [self.deal(rank)].into_iter().chain(ring).chain([self.gather(rank, pass)]).collect()
    }

    /// The others of a station get their heads of the own positions.
    fn deal(&self, rank: usize) -> Hop {
        let parts = |owner: usize, lane: usize| -> [Block; 2] {
            let queries = self.split.heads_of(Part::Query, owner, self.query_heads(lane));
            [queries, self.split.heads_of(Part::KeyValue, owner, self.key_heads(lane))]
        };
        let mut plan = Hop { collective: Some(Collective::AllToAll), ..Hop::default() };
        for peer in self.peers(rank) {
            plan.send_all(parts(rank, peer), rank, peer);
            plan.receive_all(parts(peer, rank), peer, rank);
        }
        plan
    }

    /// Results go home to their positions.
    fn gather(&self, rank: usize, pass: Pass) -> Hop {
        let mut plan = Hop { collective: Some(Collective::AllToAll), ..Hop::default() };
        for peer in self.peers(rank) {
            plan.send_all(self.results(peer, rank, pass), rank, peer);
            plan.receive_all(self.results(rank, peer, pass), peer, rank);
        }
        plan
    }

    /// What rank `lane` makes of the positions of `owner`.
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
