//! Which keys a query may see.
//!
//! [`Mask::allows`] is what a mask means. The one idea behind everything else: what a mask leaves
//! visible is a union of disjoint pieces, each a rectangle of positions cut by two diagonals and
//! thinned by residues, and pieces are counted, classified and handed to kernels by arithmetic on
//! runs.

mod coverage;
mod documents;
mod piece;
mod sight;
mod within;
mod words;

use std::collections::BTreeSet;
use std::ops::Range;

pub use coverage::pairs_between;
pub use documents::Documents;
pub(crate) use piece::{Class, Piece, Shards};
pub(crate) use sight::Sight;
pub use words::WrongMask;

/// One condition on (query, key).
///
/// A rule that differs between batch rows lists its values by batch row; a single value holds for all. Positions are those of the whole
/// sequence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Keys at or before the query.
    Causal,
    /// Keys at or before the query, and the first ones of its document, or of the sequence without documents, as many as given: a prefix
    /// that sees all of itself (prefix language models, arXiv 1910.10683, section 3.2.1).
    Prefix(usize),
    /// Keys of the query's document.
    Documents(Vec<Documents>),
    /// Keys before this position: what follows is padding.
    KeyPadding(Vec<usize>),
    /// Keys less than this many positions away; with `Causal`, the query and the `n - 1` before it.
    Window(usize),
    /// Keys at multiples of `dilation`, less than `window` of them away; with `Causal`, the query and every `dilation`-th key before it
    /// (Longformer's dilated sliding window, arXiv 2004.05150, section 3.1).
    Dilated {
        /// The number of keys on a side, the query included.
        window: usize,
        /// The distance between keys, at least 1.
        dilation: usize,
    },
    /// Keys at distances below `stride`, and at multiples of it (Sparse Transformers, arXiv 1904.10509, strided attention, both parts).
    Strided {
        /// The stride, at least 1.
        stride: usize,
    },
    /// Keys of the query's block of `block` positions, and the last `columns` keys of every block (Sparse Transformers, arXiv 1904.10509,
    /// fixed attention, both parts).
    Fixed {
        /// The length of a block, at least 1.
        block: usize,
        /// The number of positions at a block's end that every query sees, at most `block`.
        columns: usize,
    },
    /// Keys that any of these regions shows to the query: a custom pattern. Regions do not overlap.
    Regions(Vec<Region>),
    /// The first keys of the query's document, or of the sequence, as many as given, whatever windows and sparse patterns hide (attention
    /// sinks, arXiv 2309.17453).
    Sinks(usize),
    /// Every key from these positions, and every key to queries at them, whatever windows and sparse patterns hide (Longformer's global
    /// attention, arXiv 2004.05150).
    Global(Vec<Range<usize>>),
}

/// A rectangle of (query, key), whole or below its diagonal: an element of a [`Rule::Regions`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// Positions of the queries.
    pub queries: Range<usize>,
    /// Positions of the keys.
    pub keys: Range<usize>,
    /// Whether only keys at or before the query are shown.
    pub causal: bool,
}

/// Which keys a query may see. Without rules: all of them.
///
/// `Causal`, `Prefix`, `Documents` and `KeyPadding` always hold. `Window`, `Dilated`, `Strided`, `Fixed` and `Regions` hold together,
/// unless `Sinks` or `Global` exempts a pair from all of them.
///
/// Where batch rows differ, a question that names no batch row is about all of them: a pair is visible when it is in any, and pairs are
/// counted in each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mask(Vec<Rule>);

/// How much of a block of queries by keys a mask leaves visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Coverage {
    /// Nothing: the block is skipped.
    Empty,
    /// Some of it: the kernel applies the mask.
    Partial,
    /// All of it: the kernel needs no mask.
    Full,
}

/// A distance beyond that of any two positions.
const FAR: usize = 1 << 61;

impl Region {
    /// Whether the query at position `q` sees the key at position `k`.
    fn shows(&self, q: usize, k: usize) -> bool {
        self.queries.contains(&q) && self.keys.contains(&k) && (!self.causal || k <= q)
    }
    /// Whether the rectangles of the two share a pair.
    fn overlaps(&self, other: &Region) -> bool {
        let meet = |a: &Range<usize>, b: &Range<usize>| a.start.max(b.start) < a.end.min(b.end);
        meet(&self.queries, &other.queries) && meet(&self.keys, &other.keys)
    }
}

impl Rule {
    /// The rule of documents of these lengths, in every batch row.
    pub fn documents(lengths: &[usize]) -> Rule {
        Rule::Documents(vec![Documents::of_lengths(lengths)])
    }

    /// The number of batch rows with values.
    fn rows(&self) -> usize {
        match self {
            Rule::Documents(rows) => rows.len(),
            Rule::KeyPadding(rows) => rows.len(),
            _ => 1,
        }
    }
    /// A rule that shows the same with no distance beyond [`FAR`], so that sums of distances are numbers.
    fn in_reach(self) -> Rule {
        match self {
            Rule::Dilated { window, dilation } => {
                Rule::Dilated { window, dilation: dilation.min(FAR) }
            }
            Rule::Strided { stride } => Rule::Strided { stride: stride.min(FAR) },
            Rule::Fixed { block, columns } => {
                let past = block.saturating_sub(FAR);
                Rule::Fixed { block: block - past, columns: columns.saturating_sub(past) }
            }
            rule => rule,
        }
    }
    /// Whether the rule's numbers are valid.
    fn is_sound(&self) -> bool {
        match self {
            Rule::Dilated { dilation: apart, .. } | Rule::Strided { stride: apart } => *apart > 0,
            Rule::Fixed { block, columns } => *block > 0 && columns <= block,
            Rule::Regions(regions) => {
                let later = |at: usize| regions[at + 1..].iter();
                !regions.iter().enumerate().any(|(at, one)| later(at).any(|two| one.overlaps(two)))
            }
            _ => self.rows() > 0,
        }
    }
}

impl Mask {
    /// The mask that shows every key.
    pub fn full() -> Mask {
        Mask(Vec::new())
    }
    /// The mask of keys at or before the query.
    pub fn causal() -> Mask {
        Mask(vec![Rule::Causal])
    }
    /// This mask with one more rule.
    ///
    /// # Panics
    /// When the rule's numbers are invalid, or its number of batch rows differs from the mask's.
    #[must_use]
    pub fn and(mut self, rule: Rule) -> Mask {
        assert!(rule.is_sound(), "a rule has numbers that mean something: {rule:?}");
        let rows = [self.rows(), rule.rows()];
        let fit = rows[0] == rows[1] || rows.contains(&1);
        assert!(fit, "a rule for {} batch rows in a mask for {}", rows[1], rows[0]);
        self.0.push(rule.in_reach());
        self
    }
    /// The rules of the mask.
    pub fn rules(&self) -> &[Rule] {
        &self.0
    }
    /// The number of batch rows that the mask tells apart; 1: all are alike.
    pub fn rows(&self) -> usize {
        self.0.iter().map(Rule::rows).max().unwrap_or(1)
    }
    /// The mask of one batch row.
    #[must_use]
    pub fn of_row(&self, row: usize) -> Mask {
        let of_row = |rule: &Rule| match rule {
            Rule::Documents(rows) => Rule::Documents(vec![of(rows, row).clone()]),
            Rule::KeyPadding(rows) => Rule::KeyPadding(vec![*of(rows, row)]),
            rule => rule.clone(),
        };
        Mask(self.0.iter().map(of_row).collect())
    }
    /// The mask that shows whatever this one shows with any documents added: for a schedule that serves all of them. Prefixes and sinks are
    /// those of documents, which may begin anywhere.
    #[must_use]
    pub fn of_any_documents(&self) -> Mask {
        let sinks = self.0.iter().any(|rule| matches!(rule, Rule::Sinks(_)));
        let stays = |rule: &&Rule| match rule {
            Rule::Prefix(_) => false,
            Rule::Window(_)
            | Rule::Dilated { .. }
            | Rule::Strided { .. }
            | Rule::Fixed { .. }
            | Rule::Regions(_) => !sinks,
            _ => true,
        };
        Mask(self.0.iter().filter(stays).cloned().collect())
    }
    /// Whether the query at position `q` may see the key at position `k`, in any batch row.
    pub fn allows(&self, q: usize, k: usize) -> bool {
        (0..self.rows()).any(|row| self.allows_in(row, q, k))
    }
    /// Whether the query at position `q` may see the key at position `k` in batch row `row`: the definition of the mask.
    pub fn allows_in(&self, row: usize, q: usize, k: usize) -> bool {
        let offset = k - self.document_of(row, k);
        let always = self.0.iter().all(|rule| match rule {
            Rule::Causal => k <= q,
            Rule::Prefix(prefix) => k <= q || offset < *prefix,
            Rule::Documents(rows) => of(rows, row).around(q) == of(rows, row).around(k),
            Rule::KeyPadding(rows) => k < *of(rows, row),
            _ => true,
        });
        let apart = q.abs_diff(k);
        let near = self.0.iter().all(|rule| match rule {
            Rule::Window(width) => apart < *width,
            Rule::Dilated { window, dilation } => {
                apart < window.saturating_mul(*dilation) && apart.is_multiple_of(*dilation)
            }
            Rule::Strided { stride } => apart < *stride || apart.is_multiple_of(*stride),
            Rule::Fixed { block, columns } => {
                q / block == k / block || k % block >= block - columns
            }
            Rule::Regions(regions) => regions.iter().any(|region| region.shows(q, k)),
            _ => true,
        });
        let excused = self.0.iter().any(|rule| match rule {
            Rule::Sinks(sinks) => offset < *sinks,
            Rule::Global(ranges) => ranges.iter().any(|r| r.contains(&q) || r.contains(&k)),
            _ => false,
        });
        always && (near || excused)
    }

    /// Whether some queries see keys spaced at one distance: such a row is several softmaxes in one, each with its own log-sum-exp.
    pub fn is_thinned(&self) -> bool {
        self.moduli().len() > 1
    }

    /// The most running states that a query has: one, and one for every distance at which the keys that it sees are spaced.
    pub fn states(&self) -> usize {
        self.moduli().len()
    }

    /// How many views of some keys share the keys of a shard whose neighbours are `step` positions apart, by the least distance beyond 1
    /// at which keys that some queries see are spaced; `None`: a view has all keys.
    pub fn thinned_views(&self, step: usize) -> Option<usize> {
        let spacing = self.moduli().into_iter().nth(1)?;
        Some(sight::common_multiple(spacing, step) / step).filter(|views| *views > 1)
    }

    /// Whether every query sees at most two intervals of keys, wherever it is, so that any tile is one view.
    pub fn is_of_two_spans(&self) -> bool {
        // A window is one interval, and sinks the other.
        let is_one = |rule: &Rule| {
            matches!(
                rule,
                Rule::Causal
                    | Rule::Prefix(_)
                    | Rule::Documents(_)
                    | Rule::KeyPadding(_)
                    | Rule::Window(_)
                    | Rule::Sinks(_)
            )
        };
        self.0.iter().all(is_one)
    }

    /// The moduli for which queries and keys may have equal residues: 1 first, for all pairs.
    pub(crate) fn moduli(&self) -> BTreeSet<usize> {
        let mut moduli = BTreeSet::from([1]);
        for rule in &self.0 {
            if let Rule::Strided { stride: apart } | Rule::Dilated { dilation: apart, .. } = rule {
                let more: Vec<usize> =
                    moduli.iter().map(|modulus| sight::common_multiple(*modulus, *apart)).collect();
                moduli.extend(more);
            }
        }
        moduli
    }
    /// The start of the document that the key at `k` is in.
    fn document_of(&self, row: usize, k: usize) -> usize {
        let start = |rule: &Rule| match rule {
            Rule::Documents(rows) => of(rows, row).around(k).start,
            _ => 0,
        };
        self.0.iter().map(start).max().unwrap_or(0)
    }
}

/// The value for batch row `row`, where a single one holds for all.
fn of<T>(rows: &[T], row: usize) -> &T {
    &rows[row.min(rows.len() - 1)]
}
