//! Keys and values go round a ring of ranks while each rank computes with the block at hand.
//!
//! Ring Attention (arXiv 2310.01889) deals contiguous chunks, Striped Attention (arXiv 2311.09431)
//! stripes, Megatron context parallelism zigzag chunks: the schedule is the same. Four ranks; a
//! number is the owner of the block at hand, an arrow its transfer, posted before the tile is
//! computed:
//!
//! ```text
//!          rank 0    rank 1    rank 2    rank 3
//! hop 0    tile 0 ─► tile 1 ─► tile 2 ─► tile 3 ─►    to rank 0
//! hop 1    tile 3 ─► tile 0 ─► tile 1 ─► tile 2 ─►
//! hop 2    tile 2 ─► tile 3 ─► tile 0 ─► tile 1 ─►
//! hop 3    tile 1    tile 2    tile 3    tile 0       nothing moves any more
//! ```
//!
//! Backward, the gradient of a block visits the same ranks one hop behind its keys and values:
//! while a rank computes its own part, the sum so far arrives, and the two are added. The last
//! visitor sends it straight home. `Travelling`, with the owner's part first:
//!
//! ```text
//! gradient of block 0:  rank 0 ─► rank 1 ─► rank 2 ─► rank 3 ─► rank 0      4 moves
//! ```
//!
//! `Reversed`, where the owner's part waits at home, so the first visitor begins the sum:
//!
//! ```text
//! gradient of block 0:            rank 3 ─► rank 2 ─► rank 1 ─► rank 0      3 moves
//! ```
//!
//! `Direct`, where every visitor's part goes home by itself, if it has one:
//!
//! ```text
//! gradient of block 0:  rank 3 ─► rank 0,   rank 2 ─► rank 0,   rank 1 ─► rank 0      3 moves
//! ```
//!
//! `Queries` (BurstAttention, arXiv 2403.09347) is `Reversed` with the roles exchanged: keys,
//! values and their gradients stay, and queries travel with the gradient of their output, their
//! own gradient in the wake.
//!
//! A ring stops at the farthest rank that any rank needs, the same for all: under a sliding window
//! over contiguous chunks that is a hop or two. All but `Travelling` keep the direction in which it
//! is nearer.
//!
//! A rank stands here for a station of a [`Torus`], which is several ranks side by side.

use super::Route;
use super::split::Split;
use super::torus::{Met, Piece, Torus};
use crate::{Block, Hop, Part, Pass};

/// Every station computes with its own blocks only, then with those of the station before it, and
/// so on.
pub(super) fn forward(split: &Split, lanes: usize) -> Vec<Vec<Hop>> {
    let met = Met::new(split, lanes);
    let torus = Torus::new(split, lanes, &met);
    let ring = Ring::new(torus, Guest::Keys, 1);
    let round = Round { ring, pass: Pass::Forward, begins: 0, direct: false };
    let hops = |rank| (0..=ring.reach).map(|hop| round.hop(rank, hop)).collect();
    let all = (0..split.world()).map(|rank| torus.exchanged(rank, Pass::Forward, hops(rank)));
    all.collect()
}

/// The same backward, gradients in the wake of what travels.
pub(super) fn backward(split: &Split, lanes: usize, how: Route) -> Vec<Vec<Hop>> {
    let met = Met::new(split, lanes);
    let torus = Torus::new(split, lanes, &met);
    let (ring, begins) = match how {
        Route::Travelling => (Ring::new(torus, Guest::Keys, 1), 0),
        Route::Reversed | Route::Direct => (Ring::nearer(torus, Guest::Keys), 1),
        Route::Queries => (Ring::nearer(torus, Guest::Queries), 1),
    };
    let round = Round { ring, pass: Pass::Backward, begins, direct: how == Route::Direct };
    let hops = |rank| (0..=round.last()).map(|hop| round.hop(rank, hop)).collect();
    let all = (0..split.world()).map(|rank| torus.exchanged(rank, Pass::Backward, hops(rank)));
    all.collect()
}

/// What travels; the other stays, and is host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guest {
    Keys,
    Queries,
}

/// One way round.
#[derive(Clone, Copy, Debug)]
struct Ring<'a> {
    torus: Torus<'a>,
    guest: Guest,
    /// From a station to the next: 1 upwards, `stations - 1` downwards.
    step: usize,
    /// How many times guests move.
    reach: usize,
}

impl<'a> Ring<'a> {
    fn new(torus: Torus<'a>, guest: Guest, step: usize) -> Ring<'a> {
        let ring = Ring { torus, guest, step, reach: 0 };
        let meet = |host: usize, guests: usize| match guest {
            Guest::Keys => torus.needs(host, guests),
            Guest::Queries => torus.needs(guests, host),
        };
        let stations = torus.stations();
        let needed = |hop: &usize| (0..stations).any(|host| meet(host, ring.guests(host, *hop)));
        Ring { reach: (0..stations).rev().find(needed).unwrap_or(0), ..ring }
    }
    /// Downwards, against the forward ring, unless that is the longer way.
    fn nearer(torus: Torus<'a>, guest: Guest) -> Ring<'a> {
        let [up, down] = [1, torus.stations() - 1].map(|step| Ring::new(torus, guest, step));
        if up.reach < down.reach { up } else { down }
    }

    fn shifted(&self, station: usize, hops: usize) -> usize {
        (station + self.step * hops) % self.torus.stations()
    }
    /// Whose guests are at a station at `hop`.
    fn guests(&self, station: usize, hop: usize) -> usize {
        self.shifted(station, self.torus.stations() - hop)
    }
    /// `hops` stations further, in the same lane.
    fn ahead(&self, rank: usize, hops: usize) -> usize {
        self.torus.beside(rank, self.shifted(self.torus.station(rank), hops))
    }
    /// `hops` stations back, in the same lane.
    fn behind(&self, rank: usize, hops: usize) -> usize {
        self.torus.beside(rank, self.guests(self.torus.station(rank), hops))
    }

    /// What is lent of the positions of a station, in the lane of `rank`.
    fn lent(&self, what: Guest, rank: usize, station: usize) -> Vec<Block> {
        let (part, heads) = match what {
            Guest::Keys => (Part::KeyValue, self.torus.key_heads(rank)),
            Guest::Queries => (Part::Query, self.torus.query_heads(rank)),
        };
        let block = |owner| self.torus.split.heads_of(part, owner, heads);
        self.torus.members(station).map(block).collect()
    }
    /// The gradients of the same.
    fn sums(&self, what: Guest, rank: usize, station: usize) -> Vec<Block> {
        let part = |piece: Piece| match what {
            Guest::Keys => (Part::Gradient, piece.keys),
            Guest::Queries => (Part::QueryGradient, piece.queries),
        };
        let of_owner = |owner| {
            let block = move |(part, heads)| self.torus.split.heads_of(part, owner, heads);
            self.torus.pieces(rank).map(part).map(block)
        };
        self.torus.members(station).flat_map(of_owner).collect()
    }

    /// The guests at hand go on while those before them come.
    fn travel(&self, plan: &mut Hop, rank: usize, hop: usize) {
        let (next, previous) = (self.ahead(rank, 1), self.behind(rank, 1));
        let lent = |hop| self.lent(self.guest, rank, self.guests(self.torus.station(rank), hop));
        if hop < self.reach {
            plan.send_all(lent(hop), rank, next);
            plan.receive_all(lent(hop + 1), previous, rank);
        }
        // The own blocks are the caller's.
        lent(hop).into_iter().filter(|lent| lent.owner != rank).for_each(|lent| plan.free(lent));
    }

    /// Queries of one station against keys of another, query by query.
    fn tiles(&self, plan: &mut Hop, rank: usize, [queries, keys]: [usize; 2]) {
        let Torus { split, .. } = self.torus;
        for q in self.torus.members(queries) {
            for piece in self.torus.pieces(rank) {
                let queries = split.heads_of(Part::Query, q, piece.queries);
                plan.tiles.meet(queries, piece.keys, self.torus.met(q, keys));
            }
        }
    }
}

/// A ring, and what is left of every visit.
#[derive(Clone, Copy, Debug)]
struct Round<'a> {
    ring: Ring<'a>,
    pass: Pass,
    /// Backward: the hop after which the travelling sum of a guest exists, 0 at home, 1 on its
    /// first visitor.
    begins: usize,
    /// Backward: whether nothing is summed on the way.
    direct: bool,
}

impl Round<'_> {
    /// The last hop: where nothing travels, the only one; else the one that brings gradients home.
    fn last(&self) -> usize {
        if self.ring.reach == 0 { 0 } else { self.ring.reach + 1 }
    }

    fn hop(&self, rank: usize, hop: usize) -> Hop {
        let mut plan = Hop::default();
        if hop <= self.ring.reach {
            self.ring.travel(&mut plan, rank, hop);
            self.visit(&mut plan, rank, hop);
        }
        if self.pass == Pass::Backward {
            self.sums(&mut plan, rank, hop);
        }
        plan
    }

    /// Guests and hosts meet.
    fn visit(&self, plan: &mut Hop, rank: usize, hop: usize) {
        let Ring { guest, torus, reach, .. } = self.ring;
        let host = torus.station(rank);
        let guests = self.ring.guests(host, hop);
        let (sides, other) = match guest {
            Guest::Keys => ([host, guests], Guest::Queries),
            Guest::Queries => ([guests, host], Guest::Keys),
        };
        self.ring.tiles(plan, rank, sides);
        if self.pass == Pass::Backward {
            self.begin(plan, rank, hop, sides);
        }
        if guest == Guest::Queries {
            self.finish_guests(plan, rank, hop, sides);
        }
        if hop == reach {
            if guest == Guest::Keys {
                for sum in self.ring.sums(Guest::Queries, rank, host) {
                    plan.finish(sum.of(Part::Query));
                }
            }
            let hosts = self.ring.lent(other, rank, host).into_iter();
            hosts.filter(|lent| lent.owner != rank).for_each(|lent| plan.free(lent));
        }
    }

    /// Gradients of keys that are to exist and that no tile makes are zeros.
    fn begin(&self, plan: &mut Hop, rank: usize, hop: usize, [queries, keys]: [usize; 2]) {
        let Ring { guest, torus, .. } = self.ring;
        let begins = if guest == Guest::Keys && !self.direct { self.begins } else { 0 };
        if hop <= begins {
            let sums = self.ring.sums(Guest::Keys, rank, keys).into_iter();
            let unseen = sums.filter(|sum| !torus.sees(queries, sum.owner));
            unseen.for_each(|sum| plan.zeros(sum));
        }
    }

    /// Queries that travel have a gradient of every visit; of the first one also where they see
    /// nothing.
    fn finish_guests(&self, plan: &mut Hop, rank: usize, hop: usize, [queries, keys]: [usize; 2]) {
        let torus = self.ring.torus;
        let sees = |q: usize| torus.members(keys).any(|k| torus.split.needs(q, k));
        let sums = self.ring.sums(Guest::Queries, rank, queries).into_iter();
        let finished = sums.filter(|sum| hop <= self.begins || sees(sum.owner));
        finished.for_each(|sum| plan.finish(sum.of(Part::Query)));
    }

    /// The sums that travel in a hop: on to the next visitor, and in the end home.
    fn sums(&self, plan: &mut Hop, rank: usize, hop: usize) {
        let Ring { torus, guest, reach, .. } = self.ring;
        if hop <= self.begins || reach == 0 {
            return;
        }
        let here = torus.station(rank);
        let sums = |hop| self.ring.sums(guest, rank, self.ring.guests(here, hop));
        if self.direct || hop > reach {
            let (visitor, owner) =
                (self.ring.ahead(rank, hop - 1), self.ring.behind(rank, hop - 1));
            let made = |host: usize| move |sum: &Block| !self.direct || torus.sees(host, sum.owner);
            plan.send_all(sums(hop - 1).into_iter().filter(made(here)), rank, owner);
            let parts = sums(0).into_iter().filter(made(torus.station(visitor)));
            plan.receive_all(parts, visitor, rank);
        } else {
            plan.send_all(sums(hop - 1), rank, self.ring.ahead(rank, 1));
            plan.receive_all(sums(hop), self.ring.behind(rank, 1), rank);
        }
    }
}
