//! What a schedule costs: bytes and visible pairs, from the list alone.

use crate::{Buffer, Collective, Hop, Part, Schedule, pairs_between};

/// What a row of a buffer weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockShape {
    /// Sequences in the batch.
    pub batch: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Bytes per element of keys and values on the wire.
    pub wire: usize,
    /// Bytes per element of gradients on the wire.
    pub gradient_wire: usize,
}

/// Payload handed to the communicator, by rank. A collective counts its input once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bytes(pub Vec<u64>);

impl Bytes {
    /// The bytes that one run of `schedule` hands over, by rank.
    ///
    /// A move of keys and values, or of their gradients, is `2 * batch * heads * rows * head_dim`
    /// elements. The input of an all-gather is the rank's own block, that of a reduce-scatter its
    /// contributions to all blocks, the own one too.
    pub fn of(schedule: &Schedule, shape: BlockShape) -> Bytes {
        let of_rank = |(rank, hops): (usize, &Vec<Hop>)| {
            hops.iter().map(|hop| bytes_of_hop(schedule, rank, hop, shape)).sum()
        };
        Bytes(schedule.ranks.iter().enumerate().map(of_rank).collect())
    }
}

fn bytes_of_hop(schedule: &Schedule, rank: usize, hop: &Hop, shape: BlockShape) -> u64 {
    let block = |buffer: Buffer| {
        let rows = schedule.positions[buffer.owner].tokens();
        shape.bytes(buffer.part, schedule.heads, rows)
    };
    match hop.collective {
        None => {
            let sends = hop.sends.iter();
            sends.map(|sent| shape.bytes(sent.buffer.part, sent.heads.len(), sent.rows.len())).sum()
        }
        Some(Collective::AllGather) => block(Buffer::key_value(rank)),
        Some(Collective::ReduceScatter) => {
            (0..schedule.world()).map(|owner| block(Buffer::contribution(owner))).sum()
        }
    }
}

impl BlockShape {
    /// The bytes of `rows` rows of `heads` heads of a buffer on the wire.
    fn bytes(self, part: Part, heads: usize, rows: usize) -> u64 {
        let (tensors, element) = match part {
            Part::Query => (1, self.wire),
            Part::KeyValue => (2, self.wire),
            Part::Gradient | Part::Contribution => (2, self.gradient_wire),
        };
        [tensors, self.batch, heads, rows, self.head_dim, element]
            .map(|n| n as u64)
            .iter()
            .product()
    }
}

/// Visible pairs per hop (outer) and rank (inner) of a schedule.
pub fn pairs_per_hop(schedule: &Schedule) -> Vec<Vec<u64>> {
    let of_hop = |hop: &Hop| {
        let pairs = |tile: &crate::TilePlan| {
            let [q, k] = [tile.queries, tile.keys].map(|rank| &schedule.positions[rank]);
            pairs_between(&schedule.mask, q, k)
        };
        hop.tiles.iter().map(pairs).sum()
    };
    let of_ranks = |hop: usize| schedule.ranks.iter().map(|hops| of_hop(&hops[hop])).collect();
    (0..schedule.hops()).map(of_ranks).collect()
}
