//! A schedule as loads: what every rank sends and computes in every hop, in bytes and operations.
//!
//! The one place of the cost model that reads a schedule's moves and tiles.

use annulus_sequence::{
    BlockShape, Coverage, Hop, Mask, Move, Pass, Positions, Schedule, TilePlan, pairs_between,
};

/// What a row of attention weighs and costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Sequences at once.
    pub batch: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Bytes of an element of queries, keys and values on the wire.
    pub wire: usize,
    /// Bytes of an element of gradients on the wire.
    pub gradient_wire: usize,
    /// Rows and columns that attention computes whole or skips whole, see
    /// [`Rates::tile`](super::Rates).
    pub tile: usize,
}

/// What all ranks do in one pass, by rank, then by hop.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// Forward or backward.
    pub pass: Pass,
    /// By rank, then by hop.
    pub ranks: Vec<Vec<Step>>,
}

/// What one rank does in one hop.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// The receiving rank and bytes of every message that is posted.
    pub sends: Vec<(usize, u64)>,
    /// Floating-point operations, computed while messages travel.
    pub operations: f64,
}

impl Load {
    /// What `schedule` makes the ranks do, with blocks of `sizes`.
    ///
    /// A visible pair of a query head is `4 · head_dim` operations forward (two products) and
    /// `10 · head_dim` backward (five). A collective is the moves it consists of.
    pub fn of(schedule: &Schedule, sizes: Sizes) -> Load {
        let step = |hop: &Hop| Step {
            sends: hop
                .sends
                .iter()
                .map(|sent| (sent.to, sizes.bytes(sent, schedule.pass)))
                .collect(),
            operations: hop.tiles.iter().map(|tile| sizes.operations(schedule, tile)).sum(),
        };
        let steps = |hops: &Vec<Hop>| hops.iter().map(step).collect();
        Load { pass: schedule.pass, ranks: schedule.ranks.iter().map(steps).collect() }
    }

    /// Ranks.
    pub fn world(&self) -> usize {
        self.ranks.len()
    }

    /// Hops that every rank makes.
    pub fn hops(&self) -> usize {
        self.ranks.first().map_or(0, Vec::len)
    }

    /// Operations of a rank in all hops.
    pub fn operations(&self, rank: usize) -> f64 {
        self.ranks[rank].iter().map(|step| step.operations).sum()
    }

    /// Bytes that a rank puts on the wire in all hops.
    pub fn bytes(&self, rank: usize) -> u64 {
        let sends = self.ranks[rank].iter().flat_map(|step| &step.sends);
        sends.fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes))
    }
}

impl Sizes {
    fn bytes(self, sent: &Move, pass: Pass) -> u64 {
        let Sizes { batch, head_dim, wire, gradient_wire, .. } = self;
        BlockShape { batch, head_dim, wire, gradient_wire }.bytes(sent.block, pass)
    }

    fn operations(self, schedule: &Schedule, tile: &TilePlan) -> f64 {
        let products = match schedule.pass {
            Pass::Forward => 2,
            Pass::Backward => 5,
        };
        let [queries, keys] = [tile.queries, tile.keys]
            .map(|block| schedule.positions[block.owner].rows(block.rows.range()));
        let pairs = computed(&schedule.mask, &queries, &keys, self.tile);
        pairs * (2 * products * self.head_dim * tile.queries.heads.len() * self.batch) as f64
    }
}

/// The pairs that are computed: the visible ones, and half a tile for every row of a block that the
/// mask cuts through. An estimate; with tiles of 1, exactly the visible ones.
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
