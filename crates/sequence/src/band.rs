//! Counting inside a band of the (query, key) plane by arithmetic on runs, never position by
//! position.
//!
//! The keys below a threshold that moves with the query are counted by sums of
//! `floor((slope * i + offset) / modulus)`, which Euclid's algorithm does in logarithmic time
//! (Graham, Knuth, Patashnik: Concrete Mathematics, section 3.5).

use crate::Run;

/// The pairs with `q - behind <= k <= q + ahead`; without a bound, all on that side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Band {
    pub(crate) behind: Option<i64>,
    pub(crate) ahead: Option<i64>,
}

impl Band {
    /// The pairs in both.
    pub(crate) fn and(self, other: Band) -> Band {
        let nearest = |a: Option<i64>, b: Option<i64>| a.into_iter().chain(b).min();
        Band { behind: nearest(self.behind, other.behind), ahead: nearest(self.ahead, other.ahead) }
    }
    /// Whether every pair of `q` by `k` is inside.
    pub(crate) fn holds_all(self, q: Run, k: Run) -> bool {
        self.behind.is_none_or(|behind| distance(k.start, q.last()) <= behind)
            && self.ahead.is_none_or(|ahead| distance(q.start, k.last()) <= ahead)
    }
    /// Whether any pair of `q` by `k` is inside.
    ///
    /// Two blocks touch the band exactly when their first positions lie in the band made wider by
    /// what follows them in the block: so the blocks' starts, two plain progressions, decide.
    pub(crate) fn holds_any(self, q: Run, k: Run) -> bool {
        if self.is_nowhere() {
            return false;
        }
        let wider = |bound: i64, width: usize| bound.saturating_add(width as i64 - 1);
        let starts = Band {
            behind: self.behind.map(|behind| wider(behind, k.width)),
            ahead: self.ahead.map(|ahead| wider(ahead, q.width)),
        };
        starts.pairs(Run { width: 1, ..q }, Run { width: 1, ..k }) > 0
    }
    /// How many pairs of `q` by `k` are inside.
    pub(crate) fn pairs(self, q: Run, k: Run) -> u64 {
        if self.is_nowhere() {
            return 0;
        }
        let all = q.tokens() as u64 * k.tokens() as u64;
        let not_past = self.ahead.map_or(all, |ahead| below(q, k, ahead.saturating_add(1)));
        let too_early = self.behind.map_or(0, |behind| below(q, k, -behind));
        not_past - too_early
    }

    fn is_nowhere(self) -> bool {
        matches!((self.behind, self.ahead), (Some(behind), Some(ahead)) if behind < -ahead)
    }
}

/// `to - from`.
fn distance(from: usize, to: usize) -> i64 {
    to as i64 - from as i64
}

/// The pairs with `k < q + shift`.
fn below(q: Run, k: Run, shift: i64) -> u64 {
    /// About how many rows are counted one by one in the time of one closed form.
    const ROWS_PER_SUM: usize = 16;
    let sums = q.width * k.width;
    if sums.saturating_mul(ROWS_PER_SUM) > q.tokens() && sums > 1 {
        let threshold = |q: usize| usize::try_from((q as i64).saturating_add(shift)).unwrap_or(0);
        return q.iter().map(|q| k.rank_of(threshold(q)) as u64).sum();
    }
    // A run of blocks is as many interleaved progressions as a block is wide.
    let offsets = (0..q.width).flat_map(|x| (0..k.width).map(move |y| distance(y, x)));
    offsets.map(|offset| progressions_below(q, k, shift.saturating_add(offset))).sum()
}

/// The same for the first positions of the blocks alone: for each of the queries, how many keys
/// `k.start + j * k.step` are below it, none at first, then a rising number, and all in the end.
fn progressions_below(q: Run, k: Run, shift: i64) -> u64 {
    let (q_step, k_step) = (q.step as i128, k.step as i128);
    let ahead = i128::from(distance(k.start, q.start)) + i128::from(shift);
    // The first query that is more than `distance` past the first key.
    let first_past = |distance: i128| {
        let steps = (distance - ahead).div_euclid(q_step) + 1;
        steps.clamp(0, q.len as i128)
    };
    let some = first_past(0);
    let all = first_past((k.len as i128 - 1) * k_step);
    let rising = floor_sum(
        (all - some) as u128,
        Line {
            slope: q.step as u128,
            offset: (ahead - 1 + some * q_step).max(0) as u128,
            modulus: k.step as u128,
        },
    );
    (rising as i128 + (all - some) + (q.len as i128 - all) * k.len as i128) as u64
}

/// `floor((slope * i + offset) / modulus)`.
#[derive(Clone, Copy, Debug)]
struct Line {
    slope: u128,
    offset: u128,
    modulus: u128,
}

/// The sum of a line's values for `i` in `0 .. terms`.
fn floor_sum(terms: u128, line: Line) -> u128 {
    if terms == 0 {
        return 0;
    }
    let Line { slope, offset, modulus } = line;
    let whole = slope / modulus * (terms * (terms - 1) / 2) + offset / modulus * terms;
    let (slope, offset) = (slope % modulus, offset % modulus);
    let top = slope * terms + offset;
    if top < modulus {
        return whole;
    }
    // Counted by rows instead of columns, the points under the line lie under a line again.
    let turned = Line { slope: modulus, offset: top % modulus, modulus: slope };
    whole + floor_sum(top / modulus, turned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_floors_are_sums_of_floors() {
        for slope in 0..9 {
            for offset in 0..11 {
                for modulus in 1..8 {
                    let slow = (0..13).map(|i| (slope * i + offset) / modulus).sum::<u128>();
                    assert_eq!(floor_sum(13, Line { slope, offset, modulus }), slow);
                }
            }
        }
    }
}
