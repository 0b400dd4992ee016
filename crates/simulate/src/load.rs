//! A schedule as loads: what every rank sends and computes in every hop, in bytes and operations.
//!
//! The one place of the cost model that reads a schedule's moves and tiles.

use annulus_sequence::{
    BlockShape, ByRows, Coverage, Hop, KeyRows, Mask, Meeting, Move, Part, Pass, Positions,
    Schedule, pairs_between,
};

use crate::Cluster;

/// The load of all ranks in one pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// The pass, forward or backward.
    pub pass: Pass,
    /// Steps by rank, then by hop.
    pub ranks: Vec<Vec<Step>>,
}

/// What one rank does in one hop.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// The messages that the rank posts.
    pub sends: Vec<Message>,
    /// Floating-point operations that are computed while messages travel.
    pub operations: f64,
}

/// A message from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The receiving rank.
    pub to: usize,
    /// Bytes on the wire.
    pub bytes: u64,
    /// The number of hops that the message may take, from the one that posts it: 1 where that hop waits for it.
    pub hops: usize,
}

impl Load {
    /// The load of `schedule`, with blocks of `shape` and tiles of `tile` rows and columns (see [`Rates::tile`](crate::Rates)).
    ///
    /// A visible pair of a query head counts `4 · head_dim` operations forward (two products) and `10 · head_dim` backward (five). Where
    /// scores are kept no part of a tile is skipped: all its pairs count, in one product with the keys and one with the values. A
    /// collective is the moves that it consists of.
    pub fn of(schedule: &Schedule, shape: BlockShape, tile: usize) -> Load {
        Counted::new(shape, tile).load(schedule)
    }

    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.ranks.len()
    }

    /// The number of hops that every rank makes.
    pub fn hops(&self) -> usize {
        self.ranks.first().map_or(0, Vec::len)
    }

    /// Operations of a rank, summed over hops.
    pub fn operations(&self, rank: usize) -> f64 {
        self.ranks[rank].iter().map(|step| step.operations).sum()
    }

    /// Bytes that a rank sends, summed over hops.
    pub fn bytes(&self, rank: usize) -> u64 {
        let sends = self.ranks[rank].iter().flat_map(|step| &step.sends);
        sends.fold(0, |sum: u64, sent| sum.saturating_add(sent.bytes))
    }
}

impl Load {
    /// Bytes that a rank sends within its node, and to other nodes, summed over hops.
    pub(crate) fn sent(&self, rank: usize, cluster: &Cluster) -> [u64; 2] {
        let mut sent = [0; 2];
        for Message { to, bytes, .. } in self.ranks[rank].iter().flat_map(|step| &step.sends) {
            let place = cluster.level(rank, *to).min(1);
            sent[place] = u64::saturating_add(sent[place], *bytes);
        }
        sent
    }

    /// Seconds for which the busiest port is busy, within a node and to other nodes: of a device, or of a node whose devices share a link.
    pub(crate) fn busy(&self, cluster: &Cluster) -> [f64; 2] {
        let world = self.world();
        let places = world.max(cluster.node_of(world - 1) + 1);
        // By place and port, out and in.
        let mut busy = vec![[[0.0_f64; 2]; 2]; places];
        for (from, steps) in self.ranks.iter().enumerate() {
            for Message { to, bytes, .. } in steps.iter().flat_map(|step| &step.sends) {
                let level = cluster.level(from, *to);
                let (port, seconds) =
                    (level.min(1), *bytes as f64 / cluster.link_of(level).bandwidth);
                for (way, end) in [from, *to].into_iter().enumerate() {
                    let is_shared = cluster.shared && port == 1;
                    let place = if is_shared { cluster.node_of(end) } else { end };
                    busy[place][port][way] += seconds;
                }
            }
        }
        [0, 1].map(|port| busy.iter().flat_map(|ports| ports[port]).fold(0.0, f64::max))
    }
}

/// Computes loads of one attention's schedules, counting pairs once for both passes.
pub(crate) struct Counted {
    shape: BlockShape,
    tile: usize,
    /// Pairs of tiles whose scores are not kept.
    known: ByRows<f64>,
}

impl Counted {
    pub(crate) fn new(shape: BlockShape, tile: usize) -> Counted {
        Counted { shape, tile, known: ByRows::default() }
    }

    pub(crate) fn load(&mut self, schedule: &Schedule) -> Load {
        let mut ranks = Vec::with_capacity(schedule.world());
        for rank in 0..schedule.world() {
            let hops = schedule.of_rank(rank);
            ranks.push(hops.iter().map(|hop| self.step(schedule, hop)).collect());
        }
        Load { pass: schedule.pass, ranks }
    }

    fn step(&mut self, schedule: &Schedule, hop: &Hop) -> Step {
        let message = |sent: &Move| Message {
            to: sent.to,
            bytes: self.bytes(sent, schedule.pass),
            hops: sent.hops,
        };
        let sends = hop.sends.iter().map(message).collect();
        Step { sends, operations: self.operations_of(schedule, hop) }
    }

    /// Bytes of a move on the wire.
    pub(crate) fn bytes(&self, moved: &Move, pass: Pass) -> u64 {
        self.shape.bytes(moved.block, pass)
    }

    /// Floating-point operations of one rank's hop.
    pub(crate) fn operations_of(&mut self, schedule: &Schedule, hop: &Hop) -> f64 {
        let operations = |meeting| self.operations(schedule, meeting);
        hop.tiles.meetings().iter().map(operations).sum()
    }

    fn operations(&mut self, schedule: &Schedule, meeting: &Meeting) -> f64 {
        let Counted { shape, tile, ref mut known } = *self;
        let is_kept = meeting.part != Part::KeyValue;
        let rows = |(owner, rows): KeyRows| schedule.positions[owner].rows(rows.range());
        let pairs = if is_kept {
            let keys: usize = meeting.keys().iter().map(|(_, rows)| rows.len()).sum();
            meeting.queries.rows.len() as f64 * keys as f64
        } else {
            known.sum(meeting, |sides| {
                let [q, k] = sides.map(rows);
                computed(&schedule.mask, &q, &k, tile)
            })
        };
        let products = match schedule.pass {
            Pass::Forward if is_kept => 1,
            Pass::Forward => 2,
            Pass::Backward => 5,
        };
        let heads = meeting.queries.heads.len() * shape.batch;
        pairs * (2 * products * shape.head_dim * heads) as f64
    }
}

/// The number of pairs that are computed: the visible ones, and half a tile for every row of a block that the mask cuts through. An
/// estimate, except with tiles of 1: exactly the visible pairs.
fn computed(mask: &Mask, queries: &Positions, keys: &Positions, tile: usize) -> f64 {
    let visible = pairs_between(mask, queries, keys) as f64;
    let cut = |rows: usize, columns: usize| (rows * columns.min(tile - 1)) as f64 / 2.0;
    let mut vain = 0.0;
    for query in queries.runs() {
        for key in keys.runs() {
            if mask.coverage(*query, *key) == Coverage::Partial {
                vain += cut(query.tokens(), key.tokens());
            }
        }
    }
    (visible + vain).min(queries.tokens() as f64 * keys.tokens() as f64)
}
