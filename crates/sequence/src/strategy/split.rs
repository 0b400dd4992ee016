//! What every generator starts from: who holds what, and who needs whose keys.

use std::sync::Arc;

use crate::band::Band;
use crate::{Block, Coverage, Extent, Heads, Hop, Layout, Mask, Part, Pass, Positions};

/// A sequence sharded over ranks under a mask: what schedules are made for. Copies share positions.
#[derive(Clone, Debug)]
pub struct Split {
    /// Which keys a query sees.
    pub mask: Mask,
    /// How positions were sharded.
    pub layout: Layout,
    /// What every rank holds, by rank. Ranks may hold more or less than others, and nothing.
    pub positions: Arc<[Positions]>,
    /// Query heads and key/value heads.
    pub heads: Heads,
    needs: Needs,
    /// Whether all ranks hold as much.
    even: bool,
    /// Whether who needs whose keys is a matter of how far apart two ranks are.
    shifts: bool,
    /// Some rows of a rank are a multiple of this, from a multiple of it on.
    grain: usize,
}

/// Who needs whose keys, as far as it is known without a look at the pair.
#[derive(Clone, Debug)]
enum Needs {
    /// Everybody everybody's.
    All,
    /// Keys that begin before the queries end: the first position of every rank, and one past its
    /// last.
    Before(Arc<[(usize, usize)]>),
    /// What the mask says, which is a band or not.
    Some(Option<Band>),
}

impl Split {
    /// The shards of `layout`: `positions` by rank, each position of the sequence once.
    ///
    /// # Panics
    /// Without ranks, or when query heads are no multiple of key/value heads.
    pub fn new(mask: &Mask, layout: Layout, positions: Vec<Positions>, heads: Heads) -> Split {
        let Heads { query, key_value } = heads;
        assert!(!positions.is_empty(), "a sequence is sharded over at least one rank");
        assert!(
            key_value > 0 && query > 0 && query.is_multiple_of(key_value),
            "{query} query heads share {key_value} key/value heads"
        );
        let needs = Needs::of(mask, &positions);
        let chunk = positions[0].tokens();
        let is_chunk = |(rank, one): (usize, &Positions)| {
            one.extent() == (rank * chunk..(rank + 1) * chunk) && one.tokens() == chunk
        };
        let even = positions.iter().all(|one| one.tokens() == chunk);
        let shifts = mask.band().is_some() && positions.iter().enumerate().all(is_chunk);
        let (mask, positions) = (mask.clone(), positions.into());
        Split { mask, layout, positions, heads, needs, even, shifts, grain: 1 }
    }
    /// The same where rows travel in whole blocks of so many, which every rank holds a multiple of.
    #[must_use]
    pub fn in_blocks(self, block: usize) -> Split {
        Split { grain: block, ..self }
    }
    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.positions.len()
    }
    /// Whether any query of `rank` sees any key of `owner`.
    pub fn needs(&self, rank: usize, owner: usize) -> bool {
        match &self.needs {
            Needs::All => true,
            Needs::Before(bounds) => bounds[owner].0 < bounds[rank].1,
            Needs::Some(band) => {
                let [q, k] = [rank, owner].map(|rank| &self.positions[rank]);
                self.mask.sees(*band, q, k)
            }
        }
    }
    /// Whether every rank needs every rank's keys: as far as it is known at once.
    pub(super) fn needs_all(&self) -> bool {
        matches!(self.needs, Needs::All)
    }
    /// Whether all ranks hold as much.
    pub(super) fn is_even(&self) -> bool {
        self.even
    }
    /// Whether ranks as far apart as others, in the same order, need as they do.
    pub(super) fn shifts(&self) -> bool {
        self.shifts
    }
    /// All heads and rows of a part.
    pub(super) fn whole(&self, part: Part, owner: usize) -> Block {
        self.heads_of(part, owner, self.heads.of(part))
    }
    /// Some heads of all rows.
    pub(super) fn heads_of(&self, part: Part, owner: usize, heads: Extent) -> Block {
        Block { part, owner, heads, rows: Extent::all(self.positions[owner].tokens()) }
    }
    /// A tile, where any query of the one owner sees any key of the other; backward, where none
    /// does, the gradient that is waited for is zeros.
    pub(super) fn meet(&self, hop: &mut Hop, pass: Pass, queries: Block, keys: Block) {
        if self.needs(queries.owner, keys.owner) {
            hop.tile(queries, keys);
        } else if pass == Pass::Backward {
            hop.zeros(keys.of(Part::Gradient));
        }
    }
    /// The fewest neighbouring rows of `owner`, in whole blocks, that hold all keys that queries of `rank` see.
    pub(super) fn seen(&self, rank: usize, owner: usize) -> Extent {
        let (q, k) = (&self.positions[rank], &self.positions[owner]);
        let rows = k.tokens();
        if !self.needs(rank, owner) {
            return Extent::all(0);
        }
        let empty = |start, end| self.mask.coverage_of(q, &k.rows(start..end)) == Coverage::Empty;
        let start = last_where(rows, |start| empty(0, start));
        let end = rows - last_where(rows, |left| empty(rows - left, rows));
        let grain = self.grain;
        Extent { start: start / grain * grain, end: end.next_multiple_of(grain).min(rows) }
    }
    /// All ranks but this one, in order.
    pub(super) fn others(&self, rank: usize) -> impl Iterator<Item = usize> + use<> {
        (0..self.world()).filter(move |other| *other != rank)
    }
}

impl Needs {
    fn of(mask: &Mask, positions: &[Positions]) -> Needs {
        let band = mask.band();
        let of_rank = |one: &Positions| match one.extent() {
            extent if extent.is_empty() => (usize::MAX, 0),
            extent => (extent.start, extent.end),
        };
        let any = positions.iter().all(|one| one.tokens() > 0);
        match band {
            Some(band) if band == Band::default() && any => Needs::All,
            Some(band) if band == Band::CAUSAL => {
                let bounds: Arc<[_]> = positions.iter().map(of_rank).collect();
                let latest = bounds.iter().map(|(first, _)| *first).max();
                let earliest = bounds.iter().map(|(_, past)| *past).min();
                if latest < earliest { Needs::All } else { Needs::Before(bounds) }
            }
            band => Needs::Some(band),
        }
    }
}

/// The last of `0 ..= most` where `holds`, which holds at 0 and up to some number.
fn last_where(most: usize, holds: impl Fn(usize) -> bool) -> usize {
    // As a rule it is one of the ends.
    if !holds(1) {
        return 0;
    }
    let (mut low, mut high) = (0, most + 1);
    while high - low > 1 {
        let middle = usize::midpoint(low, high);
        if holds(middle) { low = middle } else { high = middle }
    }
    low
}
