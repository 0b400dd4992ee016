//! Whether a mask shows all that another shows: what was planned for the one then serves the other.

use super::{Mask, Rule, pairs_between};
use crate::Positions;

impl Mask {
    /// Whether this mask shows every pair of a sequence of `tokens` positions that `other` shows in the same batch row. False where neither
    /// rules nor counts tell.
    ///
    /// ```
    /// # use annulus_sequence::{Mask, Rule};
    /// let packed = Mask::causal().and(Rule::documents(&[5, 3]));
    /// assert!(Mask::causal().shows_all_of(&packed, 8));
    /// assert!(!Mask::causal().shows_all_of(&Mask::full(), 8));
    /// ```
    pub fn shows_all_of(&self, other: &Mask, tokens: usize) -> bool {
        self.is_narrowed_to(other, tokens) || self.counts_all_of(other, tokens)
    }

    /// Whether `other` is this mask with rules that only hide more among `tokens` positions.
    fn is_narrowed_to(&self, other: &Mask, tokens: usize) -> bool {
        let hides_more = |rule: &Rule| match rule {
            // Prefixes and sinks are then those of documents.
            Rule::Documents(_) => self.of_any_documents() == *self,
            // Positions that the sequence will reach later.
            Rule::Global(ranges) if ranges.iter().all(|range| range.start >= tokens) => true,
            Rule::Sinks(_) | Rule::Global(_) => !self.0.iter().any(Rule::may_be_exempted),
            _ => true,
        };
        let mut more = other.0.iter().filter(|rule| !self.0.contains(rule));
        self.0.iter().all(|rule| other.0.contains(rule)) && more.all(hides_more)
    }

    /// Whether this mask hides none of the pairs that `other` shows, of rules that together show what each of them does.
    fn counts_all_of(&self, other: &Mask, tokens: usize) -> bool {
        if self.rows() > 1 || !self.0.iter().chain(&other.0).all(Rule::is_always_alike) {
            return false;
        }
        let both = self.0.iter().cloned().fold(other.clone(), Mask::and);
        let all = Positions::all(tokens);
        pairs_between(&both, &all, &all) == pairs_between(other, &all, &all)
    }
}

impl Rule {
    /// Whether `Sinks` or `Global` exempt pairs from the rule.
    fn may_be_exempted(&self) -> bool {
        matches!(
            self,
            Rule::Window(_)
                | Rule::Dilated { .. }
                | Rule::Strided { .. }
                | Rule::Fixed { .. }
                | Rule::Regions(_)
        )
    }

    /// Whether the rule shows the same pairs in any mask, which are counted fast.
    fn is_always_alike(&self) -> bool {
        matches!(
            self,
            Rule::Causal
                | Rule::Documents(_)
                | Rule::KeyPadding(_)
                | Rule::Window(_)
                | Rule::Regions(_)
        )
    }
}
