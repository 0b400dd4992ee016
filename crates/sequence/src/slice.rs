//! Some of the rows of a shard, as positions.

use crate::{Extent, Positions, Run};

impl Positions {
    /// The positions of local rows `rows`.
    pub fn rows(&self, rows: std::ops::Range<usize>) -> Positions {
        rows_of(self, rows.into())
    }
}

fn rows_of(positions: &Positions, rows: Extent) -> Positions {
    let mut kept = Vec::new();
    let mut before = 0;
    for run in positions.runs() {
        let here = Extent { start: before, end: before + run.tokens() };
        let both = here.and(rows);
        if !both.is_empty() {
            slice(*run, both.start - before, both.end - before, &mut kept);
        }
        before = here.end;
    }
    Positions::new(kept)
}

/// Whole blocks stay a run; of the first and the last a part may be left.
fn slice(run: Run, start: usize, end: usize, kept: &mut Vec<Run>) {
    let (first, last) = (start.div_ceil(run.width), end / run.width);
    let mut part = |from: usize, to: usize| {
        if from < to {
            kept.push(Run::contiguous(run.at(from), to - from));
        }
    };
    if first > last {
        return part(start, end);
    }
    part(start, first * run.width);
    if first < last {
        kept.push(Run { start: run.at(first * run.width), len: last - first, ..run });
    }
    if end > last * run.width {
        kept.push(Run::contiguous(run.at(last * run.width), end - last * run.width));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_those_of_the_list() {
        let blocks = Run { start: 3, step: 7, len: 4, width: 3 };
        let positions = Positions::new(vec![Run::contiguous(0, 2), blocks]);
        let all: Vec<usize> = positions.iter().collect();
        for start in 0..=all.len() {
            for end in start..=all.len() {
                let rows = rows_of(&positions, Extent { start, end });
                assert_eq!(rows.iter().collect::<Vec<_>>(), all[start..end]);
            }
        }
    }
}
