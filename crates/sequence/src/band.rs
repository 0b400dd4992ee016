//! Counts pairs inside a band of the (query, key) plane by arithmetic on runs, never position by position.
//!
//! The keys below a threshold that moves with the query are counted by sums of `floor((slope * i + offset) / modulus)`, which Euclid's
//! algorithm computes in logarithmic time (Graham, Knuth, Patashnik: Concrete Mathematics, section 3.5).

use std::ops::Range;

use crate::{Positions, Run};

/// The pairs with `q - behind <= k <= q + ahead`; `None` leaves a side unbounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Band {
    pub(crate) behind: Option<i64>,
    pub(crate) ahead: Option<i64>,
}

impl Band {
    /// The band of keys at or before the query.
    pub(crate) const CAUSAL: Band = Band { behind: None, ahead: Some(0) };

    /// Whether any pair of `q` by `k` is in the band; `None` where the ends of runs do not tell.
    pub(crate) fn meets(self, q: &Positions, k: &Positions) -> Option<bool> {
        let (queries, keys) = (q.extent(), k.extent());
        if queries.is_empty() || keys.is_empty() || !self.touches(&queries, &keys) {
            return Some(false);
        }
        // With a single bound, the ends are the pair farthest inside.
        if self.behind.is_none() || self.ahead.is_none() {
            return Some(true);
        }
        let range = |run: &Run| run.start..run.last() + 1;
        (q.are_intervals() && k.are_intervals()).then(|| {
            let mut pairs = q.runs().iter().flat_map(|q| k.runs().iter().map(move |k| (q, k)));
            pairs.any(|(q, k)| self.touches(&range(q), &range(k)))
        })
    }
    /// The band of pairs that are in both.
    pub(crate) fn and(self, other: Band) -> Band {
        let nearest = |a: Option<i64>, b: Option<i64>| a.into_iter().chain(b).min();
        Band { behind: nearest(self.behind, other.behind), ahead: nearest(self.ahead, other.ahead) }
    }
    /// The number of pairs of `q` by `k` in the band.
    pub(crate) fn pairs(self, q: &Positions, k: &Positions) -> u64 {
        if self.is_nowhere() {
            return 0;
        }
        let all = q.tokens() as u64 * k.tokens() as u64;
        let below = |shift: i64| q.runs().iter().map(|q| below(*q, k, shift)).sum::<u64>();
        let not_past = self.ahead.map_or(all, |ahead| below(ahead.saturating_add(1)));
        let too_early = self.behind.map_or(0, |behind| below(-behind));
        not_past - too_early
    }
    /// The number of pairs of `q` by `k` in the band with equal residues modulo `modulus`. Both runs are contiguous.
    pub(crate) fn pairs_alike(self, q: Run, k: Run, modulus: usize) -> u64 {
        if self.is_nowhere() {
            return 0;
        }
        let beyond = distance(q.start, k.last() + 1).max(0);
        let not_past = self.ahead.map_or(beyond, |ahead| ahead.saturating_add(1).min(beyond));
        let too_early = self.behind.map_or(0, |behind| alike_below(q, k, -behind, modulus));
        alike_below(q, k, not_past, modulus) - too_early
    }
    /// The keys among `keys` that the query at `q` sees.
    pub(crate) fn seen_from(self, q: usize, keys: &Range<usize>) -> Range<usize> {
        self.around(q, keys)
    }
    /// The queries among `queries` that see the key at `k`.
    pub(crate) fn seeing(self, k: usize, queries: &Range<usize>) -> Range<usize> {
        Band { behind: self.ahead, ahead: self.behind }.around(k, queries)
    }
    /// Whether any pair of the intervals `queries` and `keys`, neither empty, may be in the band.
    pub(crate) fn touches(self, queries: &Range<usize>, keys: &Range<usize>) -> bool {
        !self.is_nowhere()
            && self.behind.is_none_or(|behind| distance(keys.end - 1, queries.start) <= behind)
            && self.ahead.is_none_or(|ahead| distance(queries.end - 1, keys.start) <= ahead)
    }

    fn around(self, position: usize, others: &Range<usize>) -> Range<usize> {
        let at = |shift: i64| shifted(position, shift).clamp(others.start, others.end);
        let start = self.behind.map_or(others.start, |behind| at(-behind));
        let end = self.ahead.map_or(others.end, |ahead| at(ahead.saturating_add(1)));
        start..end.max(start)
    }
    fn is_nowhere(self) -> bool {
        matches!((self.behind, self.ahead), (Some(behind), Some(ahead)) if behind < -ahead)
    }
}

/// The difference `to - from`.
fn distance(from: usize, to: usize) -> i64 {
    to as i64 - from as i64
}

/// The position `shift` after `position`, at least 0.
fn shifted(position: usize, shift: i64) -> usize {
    usize::try_from((position as i64).saturating_add(shift)).unwrap_or(0)
}

/// The number of pairs with `k < q + shift`: all keys of runs that end below, none of runs that begin above all thresholds, and some of
/// those between.
fn below(q: Run, k: &Positions, shift: i64) -> u64 {
    let [least, most] = [q.start, q.last()].map(|q| shifted(q, shift));
    let runs = k.runs();
    let first = runs.partition_point(|run| run.last() < least);
    let past = runs.partition_point(|run| run.start < most);
    let whole = runs.get(first).map_or(k.tokens(), |run| k.rank_of(run.start));
    let between = runs.get(first..past).unwrap_or_default();
    let some: u64 = between.iter().map(|k| below_of_run(q, *k, shift)).sum();
    whole as u64 * q.tokens() as u64 + some
}

fn below_of_run(q: Run, k: Run, shift: i64) -> u64 {
    /// The number of rows that are counted one by one in about the time of one closed form.
    const ROWS_PER_SUM: usize = 16;
    let sums = q.width * k.width;
    if sums > 1 && q.step == k.step {
        return blocks_below(q, k, shift);
    }
    if sums.saturating_mul(ROWS_PER_SUM) > q.tokens() {
        return q.iter().map(|q| k.rank_of(shifted(q, shift)) as u64).sum();
    }
    // A run of blocks is as many interleaved progressions as a block is wide.
    let offsets = (0..q.width).flat_map(|x| (0..k.width).map(move |y| distance(y, x)));
    offsets.map(|offset| progressions_below(q, k, shift.saturating_add(offset))).sum()
}

/// The number of pairs below the diagonal, for blocks of equal steps: pairs of blocks at equal distances are alike, and all but a few are
/// visible as a whole or not at all.
fn blocks_below(q: Run, k: Run, shift: i64) -> u64 {
    let [step, q_width, k_width] = [q.step, q.width, k.width].map(|n| n as i64);
    // The distance of the first positions of both first blocks.
    let apart = distance(q.start, k.start) - shift;
    let whole = (-apart - k_width).div_euclid(step);
    let some = (q_width - 2 - apart).div_euclid(step);
    let numbered = |len: usize| Run::contiguous(0, len);
    let blocks = |ahead: i64| progressions_below(numbered(q.len), numbered(k.len), ahead + 1);
    let inside = |ahead: i64| {
        let shift = -(apart + ahead * step);
        progressions_below(numbered(q.width), numbered(k.width), shift)
    };
    let partial = (whole + 1..=some).map(|by| (blocks(by) - blocks(by - 1)) * inside(by));
    blocks(whole) * (q.width * k.width) as u64 + partial.sum::<u64>()
}

/// The number of pairs below the diagonal, for the blocks' first positions alone: for each query, how many keys `k.start + j * k.step` are
/// below it, none at first, then a rising number, and all in the end.
fn progressions_below(q: Run, k: Run, shift: i64) -> u64 {
    let (q_step, k_step) = (q.step as i128, k.step as i128);
    let ahead = i128::from(distance(k.start, q.start)) + i128::from(shift);
    // The first query more than `distance` after the first key.
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

/// The number of pairs of contiguous runs with `k < q + shift` and equal residues.
fn alike_below(q: Run, k: Run, shift: i64, modulus: usize) -> u64 {
    let range = |run: Run| (run.start as i128, run.start as i128 + run.len as i128);
    let ((first, past), (k_first, k_past)) = (range(q), range(k));
    let (shift, modulus) = (i128::from(shift), modulus as i128);
    // Queries that see the first key, up to those that see the last.
    let some = (k_first - shift + 1).clamp(first, past);
    let all = (k_past - shift).clamp(first, past);
    // A query has floor((end - 1 - q) / modulus) keys with its residue up to an end, counted from a fixed beginning.
    let up_to = |end: i128, queries: (i128, i128)| {
        let (len, least) = (queries.1 - queries.0, end - queries.1);
        let turns = least.div_euclid(modulus);
        let offset = least.rem_euclid(modulus) as u128;
        let line = Line { slope: 1, offset, modulus: modulus as u128 };
        floor_sum(len as u128, line) as i128 + turns * len
    };
    let seen = (all - some) * (shift - 1).div_euclid(modulus) + up_to(k_past, (all, past));
    (seen - up_to(k_first, (some, past))) as u64
}

/// The line `floor((slope * i + offset) / modulus)`.
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
    // Counted by rows instead of columns, the points under the line are again under a line.
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
