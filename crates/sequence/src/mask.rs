//! Which keys a query may see.

use crate::{Positions, Run, Spans};

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
        self.0.iter().all(|rule| match *rule {
            Rule::Causal => k <= q,
            Rule::Window(width) => q.abs_diff(k) < width,
        })
    }
    /// The global positions that the query at `q` may see, as spans of positions.
    pub fn visible(&self, _q: usize) -> Spans {
        todo!()
    }
    /// What a block of queries `q` by keys `k` leaves visible, from the runs alone.
    pub fn coverage(&self, _q: Run, _k: Run) -> Coverage {
        todo!()
    }
    /// The same for whole shards.
    pub fn coverage_of(&self, _q: &Positions, _k: &Positions) -> Coverage {
        todo!()
    }
}
