//! How much of a block is visible: counted from runs, never pair by pair.

use super::{Coverage, Mask, Rule, Shards, Sight};
use crate::band::Band;
use crate::{Positions, Run};

/// The number of visible (query, key) pairs between two shards: exact, from runs. Where batch rows differ, the sum over them.
pub fn pairs_between(mask: &Mask, q: &Positions, k: &Positions) -> u64 {
    (0..mask.rows()).map(|row| pairs_in(mask, row, q, k)).sum()
}

fn pairs_in(mask: &Mask, row: usize, q: &Positions, k: &Positions) -> u64 {
    let shards = Shards { q, k };
    Sight::new(mask, row).pieces(shards).map(|piece| piece.pairs(shards)).sum()
}

impl Mask {
    /// What a block of queries `q` by keys `k` leaves visible.
    pub fn coverage(&self, q: Run, k: Run) -> Coverage {
        let [q, k] = [q, k].map(|run| Positions::new(vec![run]));
        self.coverage_of(&q, &k)
    }
    /// What a shard of queries `q` by keys `k` leaves visible: nothing where either is empty.
    pub fn coverage_of(&self, q: &Positions, k: &Positions) -> Coverage {
        let mut rows = (0..self.rows()).map(|row| self.coverage_in(row, q, k));
        let first = rows.next().unwrap_or(Coverage::Full);
        let alike = first != Coverage::Partial && rows.all(|row| row == first);
        if alike { first } else { Coverage::Partial }
    }

    /// The band that the mask consists of, if it is one.
    pub(crate) fn band(&self) -> Option<Band> {
        let all = self.rules().iter().all(|rule| matches!(rule, Rule::Causal | Rule::Window(_)));
        let causal = self.rules().contains(&Rule::Causal);
        let band = if causal { Band::CAUSAL } else { Band::default() };
        all.then(|| band.and(Sight::new(self, 0).window()))
    }
    /// Whether any query sees any key, in any batch row; `band` is [`Mask::band`].
    pub(crate) fn sees(&self, band: Option<Band>, q: &Positions, k: &Positions) -> bool {
        let at_once = band.and_then(|band| band.meets(q, k));
        at_once.unwrap_or_else(|| self.coverage_of(q, k) != Coverage::Empty)
    }

    fn coverage_in(&self, row: usize, q: &Positions, k: &Positions) -> Coverage {
        let all = q.tokens() as u64 * k.tokens() as u64;
        let (seen, hidden) = if all > 0 { self.glance(row, q, k) } else { (false, true) };
        let shards = Shards { q, k };
        let is_seen = || Sight::new(self, row).pieces(shards).any(|piece| piece.is_seen(shards));
        if hidden {
            return if seen || is_seen() { Coverage::Partial } else { Coverage::Empty };
        }
        if pairs_in(self, row, q, k) == all { Coverage::Full } else { Coverage::Partial }
    }
    /// Whether any of a few pairs is visible, and whether any is not: the first and last query with the first key, the last, and those next
    /// to it. Most blocks need no more.
    fn glance(&self, row: usize, q: &Positions, k: &Positions) -> (bool, bool) {
        let (mut seen, mut hidden) = (false, false);
        for query in [0, q.tokens() - 1].into_iter().filter_map(|index| q.at(index)) {
            let next = k.rank_of(query);
            let keys = [0, next.saturating_sub(1), next, k.tokens() - 1];
            for key in keys.into_iter().filter_map(|index| k.at(index)) {
                let allowed = self.allows_in(row, query, key);
                (seen, hidden) = (seen || allowed, hidden || !allowed);
            }
        }
        (seen, hidden)
    }
}
