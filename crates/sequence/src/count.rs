//! The cost of a schedule, bytes and visible pairs, counted from its hops alone.

use crate::{
    AlikeRanks, Block, ByRows, KeyRows, Meeting, Part, Pass, Schedule, Wire, pairs_between,
};

/// What determines the size of a block's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockShape {
    /// The number of sequences in the batch.
    pub batch: usize,
    /// The number of elements per head.
    pub head_dim: usize,
    /// Bytes per element on the wire, by part.
    pub wire: Wire<usize>,
    /// Whether sums are order-free: a row of a gradient is then [`order_free_row`] integers.
    pub order_free: bool,
}

/// The number of 4-byte integers in a row of `sums` order-free sums: three bins each, and the index of the highest.
pub const fn order_free_row(sums: usize) -> usize {
    3 * sums + 1
}

/// Bytes of payload that each rank sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bytes(pub Vec<u64>);

impl Bytes {
    /// The bytes that each rank sends in one run of `schedule`: every move counts once, at its sender.
    ///
    /// A row of a head has `head_dim` elements of keys and as many of values, or of their gradients; of a query, or its gradient; of an
    /// output, and an f32 of log-sum-exp. Backward, a query's row has twice that, itself and the gradient of its output, and two f32:
    /// log-sum-exp and delta.
    pub fn of(schedule: &Schedule, shape: BlockShape) -> Bytes {
        // The difference of a rank's bytes to those of the rank before it in its group.
        let mut more = vec![0_u64; schedule.world()];
        let mut step = 1;
        for index in 0..schedule.hops() {
            for group in schedule.groups(index) {
                let hop = schedule.hop(group.first(), index);
                let sent = hop.sends.iter().map(|sent| shape.bytes(sent.block, schedule.pass));
                let sent: u64 = sent.sum();
                step = group.step();
                let past = group.first() + step * group.ranks().len();
                more[group.first()] = more[group.first()].wrapping_add(sent);
                if let Some(after) = more.get_mut(past) {
                    *after = after.wrapping_sub(sent);
                }
            }
        }
        for rank in step..more.len() {
            more[rank] = more[rank].wrapping_add(more[rank - step]);
        }
        Bytes(more)
    }
}

impl BlockShape {
    /// Bytes of a block on the wire.
    pub fn bytes(self, block: Block, pass: Pass) -> u64 {
        const F32: usize = 4;
        let BlockShape { batch, head_dim, wire, order_free } = self;
        let elements = if order_free && block.part.is_sum() {
            order_free_row(head_dim) * F32
        } else {
            head_dim * wire.of(block.part)
        };
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

/// The numbers of moves and of tiles, over all ranks.
pub fn moves_and_tiles(schedule: &Schedule) -> [usize; 2] {
    let (mut moves, mut tiles) = (0, 0);
    for index in 0..schedule.hops() {
        for group in schedule.groups(index) {
            let (hop, ranks) = (schedule.hop(group.first(), index), group.ranks().len());
            moves += ranks * hop.sends.len();
            tiles += ranks * hop.tiles.len();
        }
    }
    [moves, tiles]
}

/// Visible pairs by hop, then by rank, each counted once per query head, where it is scored. For few ranks.
pub fn pairs_per_hop(schedule: &Schedule) -> Vec<Vec<u64>> {
    let mut pairs = Pairs::new(schedule);
    let of_hop = |index| (0..schedule.world()).map(|rank| pairs.of(rank, index)).collect();
    (0..schedule.hops()).map(of_hop).collect()
}

/// The most ranks of which all pairs are counted in every hop.
const COUNTED: usize = 256;

/// Visible pairs of the busiest rank of every hop, summed over hops. With more than 256 ranks only the first, the middle and the last of
/// each group of alike ranks are counted.
pub fn busiest_pairs(schedule: &Schedule) -> u64 {
    let mut pairs = Pairs::new(schedule);
    let mut busiest = |index: usize| {
        let ranks: Vec<usize> = if schedule.world() <= COUNTED {
            (0..schedule.world()).collect()
        } else {
            schedule.groups(index).iter().flat_map(AlikeRanks::samples).collect()
        };
        ranks.into_iter().map(|rank| pairs.of(rank, index)).max().unwrap_or_default()
    };
    (0..schedule.hops()).map(&mut busiest).fold(0, u64::saturating_add)
}

/// Counts visible pairs of hops; what ranks have in common is computed once.
#[derive(Debug)]
pub struct Pairs<'a> {
    schedule: &'a Schedule,
    known: ByRows<u64>,
}

impl<'a> Pairs<'a> {
    /// A counter that has counted nothing yet.
    pub fn new(schedule: &'a Schedule) -> Pairs<'a> {
        Pairs { schedule, known: ByRows::default() }
    }
    /// The pairs that a rank scores in hop `index`, counted once per query head.
    pub fn of(&mut self, rank: usize, index: usize) -> u64 {
        let Pairs { schedule: Schedule { mask, positions, .. }, known } = self;
        let hop = self.schedule.hop(rank, index);
        let scored = hop.tiles.meetings().iter().filter(|meeting| meeting.part != Part::Value);
        let of_meeting = |meeting: &Meeting| {
            let seen = known.sum(meeting, |sides| {
                let rows = |(owner, rows): KeyRows| positions[owner].rows(rows.range());
                let [q, k] = sides.map(rows);
                pairs_between(mask, &q, &k)
            });
            seen.saturating_mul(meeting.queries.heads.len() as u64)
        };
        scored.map(of_meeting).fold(0, u64::saturating_add)
    }
}
