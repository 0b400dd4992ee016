//! Which keys a query may see.
//!
//! Every rule gives each query one interval of positions whose ends never fall from a query to the
//! next; a mask is the intersection. The one idea: everything else, spans for kernels and coverage
//! for schedules, is read off these intervals, so a new rule is a variant, its interval and its
//! band.

use std::ops::Range;

use crate::band::Band;
use crate::{Positions, Run, Span, Spans};

/// One condition on (query, key); a [`Mask`] is a list of them that must all hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Keys at or before the query.
    Causal,
    /// Keys less than this many positions away; with `Causal`, the query and the `n - 1` before it.
    Window(usize),
}

/// Which keys a query may see: those that every rule allows. No rule: all of them.
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

impl Rule {
    /// Whether the query at position `q` may see the key at position `k`: what the rule means.
    fn allows(&self, q: usize, k: usize) -> bool {
        match *self {
            Rule::Causal => k <= q,
            Rule::Window(width) => q.abs_diff(k) < width,
        }
    }
    /// The keys that the query at `q` may see, in positions.
    fn interval(&self, q: usize) -> Range<usize> {
        match *self {
            Rule::Causal => 0..q + 1,
            Rule::Window(width) => (q + 1).saturating_sub(width)..q.saturating_add(width),
        }
    }
    /// The same as distances.
    fn band(&self) -> Band {
        match *self {
            Rule::Causal => Band { behind: None, ahead: Some(0) },
            Rule::Window(width) => {
                let reach = i64::try_from(width).unwrap_or(i64::MAX) - 1;
                Band { behind: Some(reach), ahead: Some(reach) }
            }
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
    #[must_use]
    pub fn and(mut self, rule: Rule) -> Mask {
        self.0.push(rule);
        self
    }
    /// The rules.
    pub fn rules(&self) -> &[Rule] {
        &self.0
    }
    /// Whether the query at position `q` may see the key at position `k`: what the mask means.
    pub fn allows(&self, q: usize, k: usize) -> bool {
        self.0.iter().all(|rule| rule.allows(q, k))
    }
    /// The global positions that the query at `q` may see, as spans of positions. A mask that is
    /// open at the end ends at `u32::MAX`: it does not know how long the sequence is.
    pub fn visible(&self, q: usize) -> Spans {
        let interval = self.interval(q);
        Span::alone(interval.start, interval.end)
    }
    /// What a block of queries `q` by keys `k` leaves visible, from the runs alone.
    pub fn coverage(&self, q: Run, k: Run) -> Coverage {
        let band = self.band();
        if band.holds_all(q, k) {
            Coverage::Full
        } else if band.holds_any(q, k) {
            Coverage::Partial
        } else {
            Coverage::Empty
        }
    }
    /// The same for whole shards. Of no queries, or no keys, nothing is visible.
    pub fn coverage_of(&self, q: &Positions, k: &Positions) -> Coverage {
        let mut blocks = q.runs().iter().flat_map(|q| k.runs().iter().map(|k| (*q, *k)));
        let Some((first_q, first_k)) = blocks.next() else { return Coverage::Empty };
        let first = self.coverage(first_q, first_k);
        let alike = first != Coverage::Partial && blocks.all(|(q, k)| self.coverage(q, k) == first);
        if alike { first } else { Coverage::Partial }
    }

    /// The keys that the query at `q` may see; neither end falls when `q` rises.
    pub(crate) fn interval(&self, q: usize) -> Range<usize> {
        let intervals = self.0.iter().map(|rule| rule.interval(q));
        let both = intervals.fold(0..usize::MAX, |a, b| a.start.max(b.start)..a.end.min(b.end));
        both.start..both.end.max(both.start)
    }
    /// The mask as distances from a query.
    pub(crate) fn band(&self) -> Band {
        self.0.iter().map(Rule::band).fold(Band::default(), Band::and)
    }
}
