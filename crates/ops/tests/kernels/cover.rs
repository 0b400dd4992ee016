//! Covering arrays: choices of several factors in which every combination of values of any few factors occurs (Cohen et al. 1997, "The
//! AETG system").

/// One choice per row: an index below `counts[factor]` for every factor. Any `strength` factors have all their values together in some
/// row; with as many as there are factors that is the full product. Greedy: each row starts from a combination that no row has yet, and
/// takes for the other factors, in order, what covers most. None where a factor has no value.
pub(crate) fn covering(counts: &[usize], strength: usize) -> Vec<Vec<usize>> {
    if counts.contains(&0) {
        return Vec::new();
    }
    let mut all: Vec<Together> = subsets(counts.len(), strength.min(counts.len()))
        .into_iter()
        .map(|factors| Together::new(counts, factors))
        .collect();
    let mut rows = Vec::new();
    for first in 0..all.len() {
        while let Some(values) = all[first].next_open() {
            let mut row = vec![None; counts.len()];
            for (&factor, value) in all[first].factors.iter().zip(values) {
                row[factor] = Some(value);
            }
            for factor in 0..counts.len() {
                if row[factor].is_none() {
                    row[factor] = Some(best(&all, &row, (factor, counts[factor])));
                }
            }
            for together in &mut all {
                together.cover(&row);
            }
            rows.push(row.into_iter().flatten().collect());
        }
    }
    rows
}

/// The value of `factor` that covers most beside what `row` has.
fn best(all: &[Together], row: &[Option<usize>], (factor, count): (usize, usize)) -> usize {
    let mut row = row.to_vec();
    let mut gain = |value| {
        row[factor] = Some(value);
        let own = all.iter().filter(|together| together.factors.contains(&factor));
        own.filter(|together| together.index(&row).is_some_and(|at| together.open[at])).count()
    };
    (0..count).rev().max_by_key(|&value| gain(value)).unwrap_or(0)
}

/// Factors whose values are to occur together.
struct Together {
    factors: Vec<usize>,
    counts: Vec<usize>,
    /// By the number that their values are, whether no row has them.
    open: Vec<bool>,
    /// None before this one is open.
    next: usize,
}

impl Together {
    fn new(counts: &[usize], factors: Vec<usize>) -> Together {
        let counts: Vec<usize> = factors.iter().map(|&factor| counts[factor]).collect();
        let open = vec![true; counts.iter().product()];
        Together { factors, counts, open, next: 0 }
    }

    /// The number that the values in `row` are, where it has them all.
    fn index(&self, row: &[Option<usize>]) -> Option<usize> {
        let places = self.factors.iter().zip(&self.counts);
        places.rev().try_fold(0, |index, (&factor, count)| Some(index * count + row[factor]?))
    }

    fn cover(&mut self, row: &[Option<usize>]) {
        if let Some(index) = self.index(row) {
            self.open[index] = false;
        }
    }

    /// Values that no row has.
    fn next_open(&mut self) -> Option<Vec<usize>> {
        self.next += self.open[self.next..].iter().position(|open| *open)?;
        let mut left = self.next;
        let value = |count: &usize| {
            let value = left % count;
            left /= count;
            value
        };
        Some(self.counts.iter().map(value).collect())
    }
}

/// All `size` of the numbers below `count`, in order.
fn subsets(count: usize, size: usize) -> Vec<Vec<usize>> {
    (0..size).fold(vec![Vec::new()], |sets, _| {
        let grown = |set: Vec<usize>| {
            let from = set.last().map_or(0, |last| last + 1);
            (from..count).map(move |next| [&set[..], &[next]].concat())
        };
        sets.into_iter().flat_map(grown).collect()
    })
}

#[test]
fn every_combination_occurs() {
    let counts = [7, 5, 3, 2, 4];
    for (strength, most) in [(2, 60), (3, 240), (5, 840)] {
        let rows = covering(&counts, strength);
        for factors in subsets(5, strength) {
            let found: std::collections::BTreeSet<Vec<usize>> = rows
                .iter()
                .map(|row| factors.iter().map(|factor| row[*factor]).collect())
                .collect();
            let wanted: usize = factors.iter().map(|factor| counts[*factor]).product();
            assert_eq!(found.len(), wanted, "{factors:?}");
        }
        assert!(rows.len() <= most, "{} choices of strength {strength}", rows.len());
    }
}
