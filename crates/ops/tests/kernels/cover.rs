//! Choices of several factors in which every pair of values of any two factors occurs.

/// One choice per row: an index below `counts[factor]` for every factor. Greedy: each row starts from a pair that no row has yet, and
/// takes for the other factors what covers most.
pub(crate) fn pairs(counts: &[usize]) -> Vec<Vec<usize>> {
    let mut open: Vec<[(usize, usize); 2]> = Vec::new();
    for first in 0..counts.len() {
        for second in first + 1..counts.len() {
            for a in 0..counts[first] {
                open.extend((0..counts[second]).map(|b| [(first, a), (second, b)]));
            }
        }
    }
    let mut rows = Vec::new();
    while let Some(&start) = open.first() {
        let mut row: Vec<Option<usize>> = vec![None; counts.len()];
        for (factor, value) in start {
            row[factor] = Some(value);
        }
        for factor in 0..counts.len() {
            if row[factor].is_none() {
                let gain = |value: &usize| {
                    let has = |(f, v): (usize, usize)| row[f] == Some(v);
                    let with = |pair: &&[(usize, usize); 2]| {
                        pair.contains(&(factor, *value)) && pair.iter().any(|one| has(*one))
                    };
                    (open.iter().filter(with).count(), counts[factor] - value)
                };
                row[factor] = (0..counts[factor]).max_by_key(gain);
            }
        }
        let row: Vec<usize> = row.into_iter().map(Option::unwrap).collect();
        open.retain(|pair| pair.iter().any(|(factor, value)| row[*factor] != *value));
        rows.push(row);
    }
    rows
}

/// Every choice.
pub(crate) fn all(counts: &[usize]) -> Vec<Vec<usize>> {
    counts.iter().fold(vec![Vec::new()], |rows, &count| {
        let grown = |row: &Vec<usize>, value| [row.clone(), vec![value]].concat();
        rows.iter().flat_map(|row| (0..count).map(move |value| grown(row, value))).collect()
    })
}

#[test]
fn every_pair_occurs() {
    let counts = [7, 5, 3, 2, 4];
    let rows = pairs(&counts);
    for (first, second) in (0..5).flat_map(|a| (a + 1..5).map(move |b| (a, b))) {
        for (a, b) in (0..counts[first]).flat_map(|a| (0..counts[second]).map(move |b| (a, b))) {
            assert!(rows.iter().any(|row| row[first] == a && row[second] == b));
        }
    }
    assert!(rows.len() < 60, "{} of {} choices", rows.len(), all(&counts).len());
}
