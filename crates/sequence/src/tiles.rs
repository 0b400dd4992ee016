//! The tiles of a hop, without a copy for every rank that computes the same.
//!
//! Where ranks exchange heads for positions, every rank computes all queries with all keys, and all ranks of a station the same with other
//! heads: for 256 ranks, eight million tiles in a pass. So queries are listed with the rows of keys that they meet, and such a list is
//! shared.

use std::collections::{BTreeMap, HashMap};
use std::iter::Sum;
use std::sync::Arc;

use crate::schedule::add;
use crate::{Block, Extent, Part, TilePlan};

/// Tiles in the order in which they are computed.
#[derive(Clone, Debug, Default)]
pub struct Tiles(Vec<Meeting>);

/// A block of queries and all that it meets in sequence: tiles of the same heads.
#[derive(Clone, Debug)]
pub struct Meeting {
    /// The queries, a [`Part::Query`].
    pub queries: Block,
    /// The part of the keys: both, or keys or values alone.
    pub part: Part,
    /// The heads of the keys.
    pub heads: Extent,
    keys: Keys,
}

/// The owner of keys, and its rows.
pub type KeyRows = (usize, Extent);

#[derive(Clone, Debug)]
enum Keys {
    One(KeyRows),
    Shared(Arc<[KeyRows]>),
}

impl Tiles {
    /// The tiles, in order.
    pub fn iter(&self) -> impl Iterator<Item = TilePlan> {
        self.0.iter().flat_map(Meeting::tiles)
    }
    /// The tiles, grouped by queries.
    pub fn meetings(&self) -> &[Meeting] {
        &self.0
    }
    /// The number of tiles.
    pub fn len(&self) -> usize {
        self.0.iter().map(|meeting| meeting.keys().len()).sum()
    }
    /// Whether there are no tiles.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Adds a tile at the end.
    pub fn push(&mut self, TilePlan { queries, keys }: TilePlan) {
        let Block { part, heads, owner, rows } = keys;
        let met = Meeting { queries, part, heads, keys: Keys::One((owner, rows)) };
        add(&mut self.0, Some(met));
    }
    /// Adds tiles of some heads of queries with the same heads of all `keys`, none of them empty.
    pub(crate) fn meet(&mut self, queries: Block, heads: Extent, keys: &Arc<[KeyRows]>) {
        if !queries.is_empty() && !keys.is_empty() {
            let keys = Keys::Shared(keys.clone());
            add(&mut self.0, Some(Meeting { queries, part: Part::KeyValue, heads, keys }));
        }
    }
}

impl Meeting {
    /// The owners and rows of the keys that are met, in order.
    pub fn keys(&self) -> &[KeyRows] {
        match &self.keys {
            Keys::One(one) => std::slice::from_ref(one),
            Keys::Shared(all) => all,
        }
    }
    /// The tiles, in order.
    pub fn tiles(&self) -> impl Iterator<Item = TilePlan> {
        let Meeting { queries, part, heads, .. } = *self;
        self.keys().iter().map(move |&(owner, rows)| TilePlan {
            queries,
            keys: Block { part, owner, heads, rows },
        })
    }
}

impl FromIterator<TilePlan> for Tiles {
    fn from_iter<I: IntoIterator<Item = TilePlan>>(all: I) -> Tiles {
        let mut tiles = Tiles::default();
        all.into_iter().for_each(|tile| tiles.push(tile));
        tiles
    }
}

impl PartialEq for Tiles {
    fn eq(&self, other: &Tiles) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Tiles {}

/// Results that depend on the rows of tiles alone, computed once for those that occur again with other heads.
#[derive(Clone, Debug)]
pub struct ByRows<T> {
    tiles: BTreeMap<[KeyRows; 2], T>,
    /// By the queries' rows and the first of their list: lists of keys, each with the result for all of it.
    lists: HashMap<[KeyRows; 2], Vec<(Arc<[KeyRows]>, T)>>,
}

impl<T> Default for ByRows<T> {
    fn default() -> Self {
        Self { tiles: BTreeMap::new(), lists: HashMap::new() }
    }
}

impl<T: Copy + Sum> ByRows<T> {
    /// The sum over the tiles of a meeting, where `of` gives the result for the rows of a tile's queries and keys.
    pub fn sum(&mut self, meeting: &Meeting, mut of: impl FnMut([KeyRows; 2]) -> T) -> T {
        let queries = (meeting.queries.owner, meeting.queries.rows);
        let (Keys::Shared(keys), Some(first)) = (&meeting.keys, meeting.keys().first()) else {
            return meeting.keys().iter().map(|keys| self.one([queries, *keys], &mut of)).sum();
        };
        let known = self.lists.get(&[queries, *first]);
        if let Some((_, sum)) = known.and_then(|lists| lists.iter().find(|(list, _)| list == keys))
        {
            return *sum;
        }
        let sum = keys.iter().map(|keys| self.one([queries, *keys], &mut of)).sum();
        self.lists.entry([queries, *first]).or_default().push((keys.clone(), sum));
        sum
    }

    fn one(&mut self, sides: [KeyRows; 2], of: &mut impl FnMut([KeyRows; 2]) -> T) -> T {
        *self.tiles.entry(sides).or_insert_with(|| of(sides))
    }
}
