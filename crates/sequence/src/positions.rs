//! The positions of a shard: a strictly increasing list of runs, never a table of positions.

use std::hash::{Hash, Hasher};
use std::ops::Range;

use crate::{Rows, Run};

/// The positions of a shard: a strictly increasing list of runs.
///
/// Runs without gaps are stored as [`Run::contiguous`] and joined where they touch. The same positions can still be stored as other runs,
/// and then compare as unequal: positions that are compared must have been made in the same way.
#[derive(Clone, Debug, Default)]
pub struct Positions {
    runs: Vec<Run>,
    /// The number of positions before each run.
    before: Vec<usize>,
    tokens: usize,
}

impl Positions {
    /// Positions of these runs, which must be non-empty and strictly increasing. No runs are an empty shard.
    ///
    /// # Panics
    /// When they are not increasing: that is a bug of the layout.
    pub fn new(runs: Vec<Run>) -> Positions {
        let mut joined: Vec<Run> = Vec::with_capacity(runs.len());
        for run in runs {
            assert!(run.len > 0 && run.width > 0, "a run holds at least one position: {run:?}");
            assert!(run.step >= run.width, "the blocks of a run do not overlap: {run:?}");
            let run = run.canonical();
            match joined.last_mut() {
                Some(before) if before.last() >= run.start => {
                    panic!("runs are strictly increasing: {before:?}, then {run:?}")
                }
                Some(before)
                    if before.step == 1 && run.step == 1 && before.last() + 1 == run.start =>
                {
                    before.len += run.len;
                }
                _ => joined.push(run),
            }
        }
        let mut tokens = 0;
        let count = |run: &Run| {
            tokens += run.tokens();
            tokens - run.tokens()
        };
        let before = joined.iter().map(count).collect();
        Positions { runs: joined, before, tokens }
    }
    /// The positions `0 .. tokens`, in order.
    pub fn all(tokens: usize) -> Positions {
        Positions::new((tokens > 0).then(|| Run::contiguous(0, tokens)).into_iter().collect())
    }
    /// The positions in a list; `None` when it is not strictly increasing.
    pub fn from_list(positions: &[usize]) -> Option<Positions> {
        if !positions.is_sorted_by(|a, b| a < b) {
            return None;
        }
        let mut runs: Vec<Run> = Vec::new();
        for &position in positions {
            match runs.last_mut() {
                Some(run) if run.len == 1 => {
                    *run = Run { step: position - run.start, len: 2, ..*run };
                }
                Some(run) if run.last() + run.step == position => run.len += 1,
                _ => runs.push(Run::contiguous(position, 1)),
            }
        }
        Some(Positions::new(runs))
    }
    /// Whether every run is an interval, without gaps.
    pub(crate) fn are_intervals(&self) -> bool {
        self.runs.iter().all(|run| run.step == 1)
    }
    /// The runs, in local order.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }
    /// The number of positions.
    pub fn tokens(&self) -> usize {
        self.tokens
    }
    /// The positions, in local order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.runs.iter().flat_map(|run| run.iter())
    }
    /// The position of local index `index`; `None` beyond the last.
    pub fn at(&self, index: usize) -> Option<usize> {
        let run = self.before.partition_point(|before| *before <= index).checked_sub(1)?;
        (index < self.tokens).then(|| self.runs[run].at(index - self.before[run]))
    }
    /// The number of positions below `position`: its local index, or where it would be inserted.
    pub fn rank_of(&self, position: usize) -> usize {
        // Later runs begin at or past it, earlier ones end before the last such run.
        match self.runs.partition_point(|run| run.start < position).checked_sub(1) {
            Some(run) => self.before[run] + self.runs[run].rank_of(position),
            None => 0,
        }
    }
    /// The range from the first position to one past the last.
    pub fn extent(&self) -> Range<usize> {
        let start = self.runs.first().map_or(0, |run| run.start);
        start..self.runs.last().map_or(start, |run| run.last() + 1)
    }
    /// The positions of the local indices `rows`, as far as there are any.
    #[must_use]
    pub fn rows(&self, rows: Range<usize>) -> Positions {
        let end = rows.end.min(self.tokens);
        let start = rows.start.min(end);
        if start == 0 && end == self.tokens {
            return self.clone();
        }
        let first = self.before.partition_point(|before| *before <= start).saturating_sub(1);
        let runs = std::iter::zip(&self.runs, &self.before).skip(first);
        let inside = runs.take_while(|(_, before)| **before < end).flat_map(|(run, before)| {
            let [start, end] = [start, end].map(|row| row.saturating_sub(*before));
            run.rows(start..end.min(run.tokens()))
        });
        Positions::new(inside.collect())
    }
    /// The positions that lie in `range`.
    #[must_use]
    pub fn within(&self, range: Range<usize>) -> Positions {
        self.rows(self.rows_within(range))
    }
    /// The local indices of the positions that lie in `range`.
    pub(crate) fn rows_within(&self, range: Range<usize>) -> Range<usize> {
        let start = self.rank_of(range.start);
        start..self.rank_of(range.end).max(start)
    }

    /// The rows whose positions have residue `residue` modulo `modulus`, as progressions of rows: a single one where runs allow it, and all
    /// rows for modulus 1.
    pub(crate) fn of_residue(&self, modulus: usize, residue: usize) -> Vec<(Rows, Positions)> {
        if modulus == 1 {
            let all = Rows::all(self.tokens);
            return Vec::from_iter((self.tokens > 0).then(|| (all, self.clone())));
        }
        let mut found: Vec<(Rows, Vec<Run>)> = Vec::new();
        for (run, before) in std::iter::zip(&self.runs, &self.before) {
            // Residues of block starts are spaced by a divisor, so that most places never fit.
            let apart = common_divisor(run.step, modulus);
            let first = (residue + modulus - run.start % modulus) % apart;
            for place in (first..run.width).step_by(apart) {
                let Some((rows, part)) = progression(*run, place, modulus, residue) else {
                    continue;
                };
                let rows = Rows { offset: before + rows.offset, ..rows };
                let joined = found.last().and_then(|(last, _)| last.join(rows));
                match (joined, found.last_mut()) {
                    (Some(joined), Some((last, parts))) => {
                        *last = joined;
                        parts.push(part);
                    }
                    _ => found.push((rows, vec![part])),
                }
            }
        }
        found.into_iter().map(|(rows, runs)| (rows, Positions::new(runs))).collect()
    }
}

/// The blocks of `run` whose neighbour number `place` has residue `residue`: rows and positions.
fn progression(run: Run, place: usize, modulus: usize, residue: usize) -> Option<(Rows, Run)> {
    let wanted = (residue + modulus - (run.start + place) % modulus) % modulus;
    let (first, period) = solve(run.step % modulus, wanted, modulus)?;
    let len = run.len.checked_sub(first)?.div_ceil(period);
    if len == 0 {
        return None;
    }
    // What is past the end is only the distance to a second one that there is not.
    let [stride, step] = [run.width, run.step].map(|one| one.saturating_mul(period));
    let rows = Rows { offset: first * run.width + place, stride, count: len };
    let start = run.start + run.step * first + place;
    Some((rows, Run { start, step, len, width: 1 }))
}

/// The greatest common divisor of two numbers.
pub fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// The least `i` with `factor * i = wanted` modulo `modulus`, and the distance between such `i`.
pub(crate) fn solve(factor: usize, wanted: usize, modulus: usize) -> Option<(usize, usize)> {
    // Bezout: inverse * factor = divisor, modulo modulus.
    let (mut old, mut new) = ((modulus, 0_i128), (factor, 1_i128));
    while new.0 > 0 {
        let quotient = old.0 / new.0;
        let next = (old.0 - quotient * new.0, old.1 - quotient as i128 * new.1);
        (old, new) = (new, next);
    }
    let (divisor, inverse) = old;
    let period = modulus / divisor;
    let times = (wanted / divisor) as u128;
    let first = inverse.rem_euclid(period as i128).unsigned_abs() * times % period as u128;
    wanted.is_multiple_of(divisor).then_some((first as usize, period))
}

impl PartialEq for Positions {
    fn eq(&self, other: &Positions) -> bool {
        self.runs == other.runs
    }
}

impl Eq for Positions {}

impl Hash for Positions {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.runs.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_have_one_way_of_writing() {
        let halves = vec![Run::contiguous(0, 3), Run { start: 3, step: 2, len: 2, width: 2 }];
        assert_eq!(Positions::new(halves), Positions::all(7));
        assert_eq!(Positions::all(0).tokens(), 0);
    }

    #[test]
    #[should_panic(expected = "strictly increasing")]
    fn runs_that_interleave_are_a_bug() {
        let even = Run { start: 0, step: 2, len: 4, width: 1 };
        Positions::new(vec![even, Run { start: 1, ..even }]);
    }

    #[test]
    #[should_panic(expected = "do not overlap")]
    fn blocks_that_overlap_are_a_bug() {
        Positions::new(vec![Run { start: 0, step: 2, len: 4, width: 3 }]);
    }

    #[test]
    fn lists_are_read_back() {
        for list in [&[][..], &[5], &[0, 3, 6, 7, 8, 20], &[0, 1, 4, 5, 8, 9], &[2, 9]] {
            let positions = Positions::from_list(list).unwrap();
            assert_eq!(positions.iter().collect::<Vec<_>>(), list);
        }
        assert_eq!(Positions::from_list(&[1, 1]), None);
    }

    #[test]
    fn congruences_are_solved() {
        for modulus in 1..13 {
            for (factor, wanted) in (0..modulus).flat_map(|f| (0..modulus).map(move |w| (f, w))) {
                let all: Vec<usize> =
                    (0..3 * modulus).filter(|i| factor * i % modulus == wanted).collect();
                let found = solve(factor, wanted, modulus);
                assert_eq!(found.map(|(first, _)| first), all.first().copied());
                if let Some((first, period)) = found {
                    assert_eq!(all, (first..3 * modulus).step_by(period).collect::<Vec<_>>());
                }
            }
        }
    }
}
