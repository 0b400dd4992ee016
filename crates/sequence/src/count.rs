//! What a schedule costs: bytes and visible pairs, from the list alone.

use crate::{Block, ByRows, Hop, KeyRows, Part, Pass, Schedule, Wire, pairs_between};

/// What a row of a head weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockShape {
    /// Sequences in the batch.
    pub batch: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Bytes per element on the wire.
    pub wire: Wire<usize>,
}

/// Payload handed to the communicator, by rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bytes(pub Vec<u64>);

impl Bytes {
    /// The bytes that one run of `schedule` hands over, by rank: every move counts once, at its
    /// sender.
    ///
    /// A row of a head has `head_dim` elements of keys and as many of values, or of their
    /// gradients; of a query, or its gradient; of an output, and an f32 of log-sum-exp. Backward a
    /// query's has twice that, itself and the gradient of its output, and two f32: log-sum-exp and
    /// delta.
    pub fn of(schedule: &Schedule, shape: BlockShape) -> Bytes {
        let of_hop = |hop: &Hop| -> u64 {
            hop.sends.iter().map(|sent| shape.bytes(sent.block, schedule.pass)).sum()
        };
        let of_rank = |hops: &Vec<Hop>| hops.iter().map(of_hop).sum();
        Bytes(schedule.ranks.iter().map(of_rank).collect())
    }
}

impl BlockShape {
    /// Bytes of a block on the wire.
    pub fn bytes(self, block: Block, pass: Pass) -> u64 {
        const F32: usize = 4;
        let BlockShape { batch, head_dim, wire } = self;
        let elements = head_dim * wire.of(block.part);
        let row = match (block.part, pass) {
            (Part::Query, Pass::Forward) | (Part::Key | Part::Value | Part::QueryGradient, _) => {
                elements
            }
            (Part::Query, Pass::Backward) => 2 * elements + 2 * F32,
            (Part::KeyValue | Part::Gradient, _) => 2 * elements,
            (Part::Output, _) => elements + F32,
        };
        [batch, block.volume(), row].map(|n| n as u64).iter().product()
    }
}

/// Visible pairs per hop (outer) and rank (inner) of a schedule, each counted once for every query
/// head, where it is scored.
pub fn pairs_per_hop(schedule: &Schedule) -> Vec<Vec<u64>> {
    let mut known = ByRows::default();
    let mut pairs = vec![vec![0; schedule.world()]; schedule.hops()];
    for (rank, hops) in schedule.ranks.iter().enumerate() {
        for (hop, plan) in hops.iter().enumerate() {
            let meetings = plan.tiles.meetings().iter();
            for meeting in meetings.filter(|meeting| meeting.part != Part::Value) {
                let seen: u64 = known.sum(meeting, |sides| {
                    let rows =
                        |(owner, rows): KeyRows| schedule.positions[owner].rows(rows.range());
                    let [q, k] = sides.map(rows);
                    pairs_between(&schedule.mask, &q, &k)
                });
                pairs[hop][rank] += seen * meeting.queries.heads.len() as u64;
            }
        }
    }
    pairs
}
