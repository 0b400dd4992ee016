//! Keys and values go round a ring of ranks while each rank computes with the block at hand.
//!
//! Ring Attention (arXiv 2310.01889) shards contiguous chunks, Striped Attention (arXiv 2311.09431)
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
use super::torus::{Piece, Torus};
use crate::{Alike, Block, Generator, Hop, Part, Pass};

/// The ring's forward pass: every station computes with its own blocks, then with those of the station before it, and so on.
pub(super) fn forward(split: &Split, lanes: usize) -> Round {
    let ring = Ring::new(Torus::new(split, lanes), Guest::Keys, 1);
    Round { ring, pass: Pass::Forward, begins: 0, direct: false }
}

/// The ring's backward pass: gradients follow what travels.
pub(super) fn backward(split: &Split, lanes: usize, route: Route) -> Round {
    let torus = Torus::new(split, lanes);
    let (ring, begins) = match route {
        Route::Travelling => (Ring::new(torus, Guest::Keys, 1), 0),
        Route::Reversed | Route::Direct => (Ring::nearer(&torus, Guest::Keys), 1),
        Route::Queries => (Ring::nearer(&torus, Guest::Queries), 1),
    };
    Round { ring, pass: Pass::Backward, begins, direct: route == Route::Direct }
}

/// The part that travels, as a guest; the other stays, as host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guest {
    Keys,
    Queries,
}

/// One direction round the ring.
#[derive(Debug)]
struct Ring {
    torus: Torus,
    guest: Guest,
    /// The step from a station to the next: 1 upwards, `stations - 1` downwards.
    step: usize,
    /// The number of moves of a guest.
    reach: usize,
}

impl Ring {
    fn new(torus: Torus, guest: Guest, step: usize) -> Ring {
        let ring = Ring { torus, guest, step, reach: 0 };
        let stations = ring.torus.stations();
        let meet = |host: usize, hop| {
            let [queries, keys] = ring.sides(host, hop);
            ring.torus.needs(queries, keys)
        };
        // Tries the last station first, since it sees most.
        let needed = |hop: &usize| (0..stations).rev().any(|host| meet(host, *hop));
        let reach = (0..stations).rev().find(needed).unwrap_or(0);
        Ring { reach, ..ring }
    }
    /// The ring downwards, against the forward ring, unless that is the longer way.
    fn nearer(torus: &Torus, guest: Guest) -> Ring {
        let [up, down] =
            [1, torus.stations() - 1].map(|step| Ring::new(torus.clone(), guest, step));
        if up.reach < down.reach { up } else { down }
    }

    fn shifted(&self, station: usize, hops: usize) -> usize {
        (station + self.step * hops) % self.torus.stations()
    }
    /// The station whose guests are at `station` in hop `hop`.
    fn guests(&self, station: usize, hop: usize) -> usize {
        self.shifted(station, self.torus.stations() - hop)
    }
    /// The stations whose queries, and whose keys, meet at `host` in hop `hop`.
    fn sides(&self, host: usize, hop: usize) -> [usize; 2] {
        match self.guest {
            Guest::Keys => [host, self.guests(host, hop)],
            Guest::Queries => [self.guests(host, hop), host],
        }
    }
    /// The rank `hops` stations ahead, in the same lane.
    fn ahead(&self, rank: usize, hops: usize) -> usize {
        self.torus.beside(rank, self.shifted(self.torus.station(rank), hops))
    }
    /// The rank `hops` stations back, in the same lane.
    fn behind(&self, rank: usize, hops: usize) -> usize {
        self.torus.beside(rank, self.guests(self.torus.station(rank), hops))
    }

    /// The blocks of a station's positions that are lent, in the lane of `rank`.
    fn lent(&self, what: Guest, rank: usize, station: usize) -> Vec<Block> {
        let (part, heads) = match what {
            Guest::Keys => (Part::KeyValue, self.torus.key_heads(rank)),
            Guest::Queries => (Part::Query, self.torus.query_heads(rank)),
        };
        let block = |owner| self.torus.split.heads_of(part, owner, heads);
        self.torus.members(station).map(block).collect()
    }
    /// The gradients of a station's positions that travel, in the lane of `rank`.
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

    /// Sends the guests that are here on, and receives the next ones.
    fn travel(&self, todo: &mut Hop, rank: usize, hop: usize) {
        let (next, previous) = (self.ahead(rank, 1), self.behind(rank, 1));
        let lent = |hop| self.lent(self.guest, rank, self.guests(self.torus.station(rank), hop));
        if hop < self.reach {
            todo.send_all(lent(hop), rank, next);
            todo.receive_all(lent(hop + 1), previous, rank);
        }
        // Own blocks are the caller's, and stay.
        lent(hop).into_iter().filter(|lent| lent.owner != rank).for_each(|lent| todo.free(lent));
    }

    /// Adds tiles of one station's queries by another's keys, query by query.
    fn tiles(&self, todo: &mut Hop, rank: usize, [queries, keys]: [usize; 2]) {
        for q in self.torus.members(queries) {
            let met = self.torus.met(q, keys);
            for piece in self.torus.pieces(rank) {
                let queries = self.torus.split.heads_of(Part::Query, q, piece.queries);
                todo.tiles.meet(queries, piece.keys, &met);
            }
        }
    }
}

/// A ring, and what remains of every visit.
#[derive(Debug)]
pub(super) struct Round {
    ring: Ring,
    pass: Pass,
    /// Backward: the hop after which the travelling sum of a guest exists, 0 at its owner, 1 at its first visitor.
    begins: usize,
    /// Backward: whether nothing is summed on the way.
    direct: bool,
}

impl Generator for Round {
    fn world(&self) -> usize {
        self.ring.torus.split.world()
    }
    fn hops(&self, _rank: usize) -> usize {
        self.ring.torus.and_exchanges(self.of_ring())
    }
    fn hop(&self, rank: usize, index: usize) -> Hop {
        self.ring
            .torus
            .exchanged(rank, index, self.pass, self.of_ring(), |hop| self.of_round(rank, hop))
    }
    fn alike(&self) -> Option<Alike> {
        self.ring.torus.alike()
    }
    fn borders(&self, index: usize) -> Vec<usize> {
        let Ring { torus, reach, .. } = &self.ring;
        let Some(hop) = torus.within(index, self.of_ring()) else { return Vec::new() };
        let mut looked_at = Vec::new();
        if hop <= *reach {
            looked_at.push(self.ring.sides(0, hop));
        }
        if self.direct && hop > self.begins {
            looked_at.push([0, self.ring.guests(0, hop - 1)]);
            looked_at.push([self.ring.shifted(0, hop - 1), 0]);
        }
        torus.borders(&looked_at)
    }
}

impl Round {
    /// The number of hops of the ring: one where nothing travels; backward one more returns gradients to their owners.
    fn of_ring(&self) -> usize {
        match (self.ring.reach, self.pass) {
            (0, _) => 1,
            (reach, Pass::Forward) => reach + 1,
            (reach, Pass::Backward) => reach + 2,
        }
    }

    fn of_round(&self, rank: usize, hop: usize) -> Hop {
        let mut todo = Hop::default();
        if hop <= self.ring.reach {
            self.ring.travel(&mut todo, rank, hop);
            self.visit(&mut todo, rank, hop);
        }
        if self.pass == Pass::Backward {
            self.sums(&mut todo, rank, hop);
        }
        todo
    }

    /// Adds the tiles of guests and hosts that meet in a hop.
    fn visit(&self, todo: &mut Hop, rank: usize, hop: usize) {
        let Ring { guest, ref torus, reach, .. } = self.ring;
        let host = torus.station(rank);
        let sides = self.ring.sides(host, hop);
        let other = match guest {
            Guest::Keys => Guest::Queries,
            Guest::Queries => Guest::Keys,
        };
        self.ring.tiles(todo, rank, sides);
        if self.pass == Pass::Backward {
            self.begin(todo, rank, hop, sides);
        }
        if guest == Guest::Queries {
            self.finish_guests(todo, rank, hop, sides);
        }
        if hop == reach {
            if guest == Guest::Keys {
                for sum in self.ring.sums(Guest::Queries, rank, host) {
                    todo.finish(sum.of(Part::Query));
                }
            }
            let hosts = self.ring.lent(other, rank, host).into_iter();
            hosts.filter(|lent| lent.owner != rank).for_each(|lent| todo.free(lent));
        }
    }

    /// Begins gradients of keys that must exist but that no tile makes, as zeros.
    fn begin(&self, todo: &mut Hop, rank: usize, hop: usize, [queries, keys]: [usize; 2]) {
        let Ring { guest, ref torus, .. } = self.ring;
        let begins = if guest == Guest::Keys && !self.direct { self.begins } else { 0 };
        if hop <= begins {
            let sums = self.ring.sums(Guest::Keys, rank, keys).into_iter();
            let unseen = sums.filter(|sum| !torus.sees(queries, sum.owner));
            unseen.for_each(|sum| todo.zeros(sum));
        }
    }

    /// Finishes travelling queries, which have a gradient of every visit; at the first visit even where they see nothing.
    fn finish_guests(&self, todo: &mut Hop, rank: usize, hop: usize, [queries, keys]: [usize; 2]) {
        let torus = &self.ring.torus;
        let sees = |q: usize| torus.members(keys).any(|k| torus.split.needs(q, k));
        let sums = self.ring.sums(Guest::Queries, rank, queries).into_iter();
        let finished = sums.filter(|sum| hop <= self.begins || sees(sum.owner));
        finished.for_each(|sum| todo.finish(sum.of(Part::Query)));
    }

    /// Sends the travelling sums of a hop to the next visitor, and finally to their owners.
    fn sums(&self, todo: &mut Hop, rank: usize, hop: usize) {
        let Ring { ref torus, guest, reach, .. } = self.ring;
        if hop <= self.begins || reach == 0 {
            return;
        }
        let here = torus.station(rank);
        let sums = |hop| self.ring.sums(guest, rank, self.ring.guests(here, hop));
        if self.direct || hop > reach {
            let (visitor, owner) =
                (self.ring.ahead(rank, hop - 1), self.ring.behind(rank, hop - 1));
            let made = |host: usize| move |sum: &Block| !self.direct || torus.sees(host, sum.owner);
            todo.send_all(sums(hop - 1).into_iter().filter(made(here)), rank, owner);
            let parts = sums(0).into_iter().filter(made(torus.station(visitor)));
            todo.receive_all(parts, visitor, rank);
        } else {
            todo.send_all(sums(hop - 1), rank, self.ring.ahead(rank, 1));
            todo.receive_all(sums(hop), self.ring.behind(rank, 1), rank);
        }
    }
}
