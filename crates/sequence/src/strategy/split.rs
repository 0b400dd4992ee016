//! What every generator starts from: who holds what, and who needs whose keys.

use crate::{Block, Coverage, Extent, Heads, Hop, Layout, Mask, Part, Pass, Positions};

/// A sequence dealt to ranks under a mask: what schedules are made for.
#[derive(Clone, Debug)]
pub struct Split {
    /// Which keys a query sees.
    pub mask: Mask,
    /// How positions were dealt.
    pub layout: Layout,
    /// What every rank holds, by rank. Ranks may hold more or less than others, and nothing.
    pub positions: Vec<Positions>,
    /// How many heads there are.
    pub heads: Heads,
    /// By rank of the queries, then by owner of the keys.
    needs: Vec<Vec<bool>>,
}

impl Split {
    /// What `layout` dealt: `positions` by rank, each position of the sequence once.
    ///
    /// # Panics
    /// Without ranks, or when query heads are no multiple of key/value heads.
    pub fn new(mask: &Mask, layout: Layout, positions: Vec<Positions>, heads: Heads) -> Split {
        let Heads { query, key_value } = heads;
        assert!(!positions.is_empty(), "a sequence is dealt to at least one rank");
        assert!(
            key_value > 0 && query > 0 && query.is_multiple_of(key_value),
            "{query} query heads share {key_value} key/value heads"
        );
        let needs = |q: &Positions| {
            positions.iter().map(|k| mask.coverage_of(q, k) != Coverage::Empty).collect()
        };
        let needs = positions.iter().map(needs).collect();
        Split { mask: mask.clone(), layout, positions, heads, needs }
    }
    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.positions.len()
    }
    /// Whether any query of `rank` sees any key of `owner`.
    pub fn needs(&self, rank: usize, owner: usize) -> bool {
        self.needs[rank][owner]
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
    pub(super) fn meet(&self, plan: &mut Hop, pass: Pass, queries: Block, keys: Block) {
        if self.needs(queries.owner, keys.owner) {
            plan.tile(queries, keys);
        } else if pass == Pass::Backward {
            plan.zeros(keys.of(Part::Gradient));
        }
    }
    /// The fewest neighbouring rows of `owner` that hold all keys that queries of `rank` see.
    pub(super) fn seen(&self, rank: usize, owner: usize) -> Extent {
        let (q, k) = (&self.positions[rank], &self.positions[owner]);
        let rows = k.tokens();
        if !self.needs(rank, owner) {
            return Extent::all(0);
        }
        let empty = |start, end| self.mask.coverage_of(q, &k.rows(start..end)) == Coverage::Empty;
        let start = last_where(rows, |start| empty(0, start));
        let end = rows - last_where(rows, |left| empty(rows - left, rows));
        Extent { start, end }
    }
    /// All ranks but this one, in order.
    pub(super) fn others(&self, rank: usize) -> impl Iterator<Item = usize> + use<> {
        (0..self.world()).filter(move |other| *other != rank)
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
