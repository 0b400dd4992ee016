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
/// A rule that differs from one batch row to the next lists its values by batch row, or one value
/// for all of them. Positions are those of the whole sequence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Keys at or before the query.
    Causal,
    /// Keys at or before the query, and the first so many of its document, or of the sequence where
    /// there are no documents: a prefix that sees all of itself (prefix language models, arXiv
    /// 1910.10683, section 3.2.1).
    Prefix(usize),
    /// Keys of the query's document.
    Documents(Vec<Documents>),
    /// Keys before this position: what follows is padding.
    KeyPadding(Vec<usize>),
    /// Keys less than this many positions away; with `Causal`, the query and the `n - 1` before it.
    Window(usize),
    /// Keys a multiple of `dilation` away, less than `window` times as far; with `Causal`, the query and every `dilation`-th of
    /// those before it (Longformer's dilated sliding window, arXiv 2004.05150, section 3.1).
    Dilated {
        /// How many keys on a side, the query itself included.
        window: usize,
        /// How far they are apart, at least 1.
        dilation: usize,
    },
    /// Keys less than `stride` positions away, and those a multiple of it away (Sparse
    /// Transformers, arXiv 1904.10509, strided attention, both of its parts).
    Strided {
        /// The distance, at least 1.
        stride: usize,
    },
    /// Keys of the query's block of `block` positions, and the last `columns` of every block (the
    /// same paper's fixed attention, both parts).
    Fixed {
        /// The length of a block, at least 1.
        block: usize,
        /// How many positions at its end everybody sees, at most `block`.
        columns: usize,
    },
    /// Keys that any of these regions shows to the query: a pattern of one's own. Regions do not
    /// overlap.
    Regions(Vec<Region>),
    /// Whatever the window and the sparse patterns hide: the first so many keys of the query's
    /// document, or of the sequence (attention sinks, arXiv 2309.17453).
    Sinks(usize),
    /// Whatever the window and the sparse patterns hide: every key from these positions, and every
    /// key to a query at them (Longformer's global attention, arXiv 2004.05150).
    Global(Vec<Range<usize>>),
}

/// A rectangle of (query, key), whole or below its diagonal: the part of a [`Rule::Regions`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// Positions of the queries.
    pub queries: Range<usize>,
    /// Positions of the keys.
    pub keys: Range<usize>,
    /// Only keys at or before the query.
    pub causal: bool,
}

/// Which keys a query may see. No rule: all of them.
///
/// Of three kinds of rules, `Causal`, `Prefix`, `Documents` and `KeyPadding` hold always; `Window`,
/// `Dilated`, `Strided`, `Fixed` and `Regions` hold together, or any of `Sinks` and `Global` excuses
/// from all of them.
///
/// Where batch rows differ, a question that names no batch row is about all of them: a pair is
/// visible when it is in any, and pairs are counted in each.
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
    /// Documents of these lengths, in every batch row.
    pub fn documents(lengths: &[usize]) -> Rule {
        Rule::Documents(vec![Documents::of_lengths(lengths)])
    }

    /// For how many batch rows there are values.
    fn rows(&self) -> usize {
        match self {
            Rule::Documents(rows) => rows.len(),
            Rule::KeyPadding(rows) => rows.len(),
            _ => 1,
        }
    }
    /// Whether the numbers mean anything.
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
    /// Every key.
    pub fn full() -> Mask {
        Mask(Vec::new())
    }
    /// Keys at or before the query.
    pub fn causal() -> Mask {
        Mask(vec![Rule::Causal])
    }
    /// This mask and one more rule.
    ///
    /// # Panics
    /// When the rule's numbers mean nothing, or it has another number of batch rows than the mask.
    #[must_use]
    pub fn and(mut self, rule: Rule) -> Mask {
        assert!(rule.is_sound(), "a rule has numbers that mean something: {rule:?}");
        let rows = [self.rows(), rule.rows()];
        let fit = rows[0] == rows[1] || rows.contains(&1);
        assert!(fit, "a rule for {} batch rows in a mask for {}", rows[1], rows[0]);
        self.0.push(rule);
        self
    }
    /// The rules.
    pub fn rules(&self) -> &[Rule] {
        &self.0
    }
    /// How many batch rows the mask tells apart; 1: all are alike.
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
    /// What this mask shows at most once documents are added to it, whatever they are: a schedule
    /// for all of them. Prefixes and sinks are those of documents, which may begin anywhere.
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
    /// Whether the query at position `q` may see the key at position `k` in batch row `row`: what
    /// the mask means.
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

    /// Whether some queries see keys that are apart from each other by one distance: such a row is several softmaxes in one, each
    /// with a log-sum-exp of its own.
    pub fn is_thinned(&self) -> bool {
        self.moduli().len() > 1
    }

    /// Whether every query sees at most two intervals of keys, wherever it is: so that any tile is one view.
    pub fn is_of_two_spans(&self) -> bool {
        // A window is one, and sinks the other.
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

    /// The moduli of which queries and keys may leave the same residue: 1 first, for all pairs.
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
    /// Where the document of the key at `k` begins.
    fn document_of(&self, row: usize, k: usize) -> usize {
        let start = |rule: &Rule| match rule {
            Rule::Documents(rows) => of(rows, row).around(k).start,
            _ => 0,
        };
        self.0.iter().map(start).max().unwrap_or(0)
    }
}

/// The value for batch row `row`, where one may stand for all.
fn of<T>(rows: &[T], row: usize) -> &T {
    &rows[row.min(rows.len() - 1)]
}
