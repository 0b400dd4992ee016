//! What every generator starts from: which rank holds what, and which needs whose keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::band::Band;
use crate::{Block, Coverage, Extent, Heads, Hop, Layout, Mask, Part, Pass, Positions};

/// A sequence sharded over ranks under a mask, for which schedules are made. Copies share positions.
#[derive(Clone, Debug)]
pub struct Split {
    /// The mask: which keys a query sees.
    pub mask: Mask,
    /// The layout: how positions were sharded.
    pub layout: Layout,
    /// The positions of every rank. Shards may differ in length, or be empty.
    pub positions: Arc<[Positions]>,
    /// The numbers of query heads and KV heads.
    pub heads: Heads,
    needs: Needs,
    /// Whether all ranks hold as many positions.
    even: bool,
    /// Whether needs depend only on the distance between two ranks.
    shifts: bool,
    /// Rows of a rank are sent in multiples of this, from a multiple of it on.
    grain: usize,
}

/// Which rank needs whose keys, as far as it is known without looking at the pair.
#[derive(Clone, Debug)]
enum Needs {
    /// Every rank needs all keys.
    All,
    /// Ranks need keys that begin before their queries end: the first position of every rank, and one past its last.
    Before(Arc<[(usize, usize)]>),
    /// What the mask says, as a band if it is one.
    Some(Option<Band>, Known),
}

/// Answers by pair of ranks, none of which is worked out twice: generators ask again in every hop. Copies share them.
#[derive(Clone, Debug)]
struct Known(Arc<[AtomicU8]>);

/// The most ranks whose answers are kept: 4 MiB.
const KNOWN: usize = 2048;

impl Split {
    /// The shards of `layout`: `positions` by rank, each position of the sequence once.
    ///
    /// # Panics
    /// Without ranks, or when query heads are no multiple of KV heads.
    pub fn new(mask: &Mask, layout: Layout, positions: Vec<Positions>, heads: Heads) -> Split {
        let Heads { query, key_value } = heads;
        assert!(!positions.is_empty(), "a sequence is sharded over at least one rank");
        assert!(heads.are_shared_evenly(), "{query} query heads share {key_value} KV heads");
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
    /// The split where rows travel in whole blocks of `block`, of which every rank holds a multiple.
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
            Needs::Some(band, known) => known.or(rank * self.world() + owner, || {
                let [q, k] = [rank, owner].map(|rank| &self.positions[rank]);
                self.mask.sees(*band, q, k)
            }),
        }
    }
    /// Whether it is known that every rank needs every rank's keys.
    pub(super) fn needs_all(&self) -> bool {
        matches!(self.needs, Needs::All)
    }
    /// Whether all ranks hold as many positions.
    pub(super) fn is_even(&self) -> bool {
        self.even
    }
    /// Whether needs depend only on the distance between two ranks.
    pub(super) fn shifts(&self) -> bool {
        self.shifts
    }
    /// The block of all heads and rows of a part.
    pub(super) fn whole(&self, part: Part, owner: usize) -> Block {
        self.heads_of(part, owner, self.heads.of(part))
    }
    /// The block of some heads and all rows of a part.
    pub(super) fn heads_of(&self, part: Part, owner: usize, heads: Extent) -> Block {
        Block { part, owner, heads, rows: Extent::all(self.positions[owner].tokens()) }
    }
    /// Adds a tile where any of the queries sees any of the keys; backward, where none does, zeros for the gradient that is awaited.
    pub(super) fn meet(&self, hop: &mut Hop, pass: Pass, queries: Block, keys: Block) {
        if self.needs(queries.owner, keys.owner) {
            hop.tile(queries, keys);
        } else if pass == Pass::Backward {
            hop.zeros(keys.of(Part::Gradient));
        }
    }
    /// The fewest neighbouring rows of `owner`, in whole blocks, that contain all keys that `rank` sees.
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
            band => Needs::Some(band, Known::of(positions.len())),
        }
    }
}

impl Known {
    const NOT_YET: u8 = 2;

    /// No answers yet about `world` ranks.
    fn of(world: usize) -> Known {
        let pairs = if world <= KNOWN { world * world } else { 0 };
        Known((0..pairs).map(|_| AtomicU8::new(Known::NOT_YET)).collect())
    }
    /// The answer of pair `index`, which `answer` works out.
    fn or(&self, index: usize, answer: impl FnOnce() -> bool) -> bool {
        let Some(known) = self.0.get(index) else { return answer() };
        // Two threads that ask at once come to the same.
        match known.load(Ordering::Relaxed) {
            Known::NOT_YET => {
                let answer = answer();
                known.store(u8::from(answer), Ordering::Relaxed);
                answer
            }
            known => known == u8::from(true),
        }
    }
}

/// The last number in `0 ..= most` for which `holds` is true, which it is from 0 up to some number.
fn last_where(most: usize, holds: impl Fn(usize) -> bool) -> usize {
    // Usually it is one of the ends.
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
