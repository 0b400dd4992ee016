//! Runs: positions as blocks of neighbours at equal distances.

use std::ops::Range;

/// `len` blocks of `width` neighbours, `step` apart: `start + step * (i / width) + i % width`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// The first position.
    pub start: usize,
    /// The distance between the starts of neighbouring blocks, at least `width`.
    pub step: usize,
    /// The number of blocks, at least 1.
    pub len: usize,
    /// The number of neighbouring positions in a block, at least 1.
    pub width: usize,
}

impl Run {
    /// The run `start, start + 1, …` of `len` positions.
    pub fn contiguous(start: usize, len: usize) -> Run {
        Run { start, step: 1, len, width: 1 }
    }
    /// The number of positions.
    pub fn tokens(self) -> usize {
        self.len * self.width
    }
    /// The position of local index `index`.
    pub fn at(self, index: usize) -> usize {
        if self.width == 1 {
            return self.start + self.step * index;
        }
        self.start + self.step * (index / self.width) + index % self.width
    }
    /// The largest position.
    pub fn last(self) -> usize {
        self.at(self.tokens() - 1)
    }
    /// The number of positions below `position`.
    pub fn rank_of(self, position: usize) -> usize {
        let offset = position.saturating_sub(self.start);
        if self.step == 1 {
            return offset.min(self.len);
        }
        let block = offset / self.step;
        if block < self.len {
            block * self.width + (offset % self.step).min(self.width)
        } else {
            self.tokens()
        }
    }
    /// The positions, in order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let blocks = (0..self.len).map(move |block| self.start + self.step * block);
        blocks.flat_map(move |start| start..start + self.width)
    }

    /// The run in its canonical form, which comparing runs relies on.
    pub(crate) fn canonical(self) -> Run {
        if self.len == 1 || self.width == self.step {
            Run::contiguous(self.start, self.tokens())
        } else {
            self
        }
    }
    /// The positions of local indices `rows`, in order: the rest of a block, whole blocks, the beginning of a block.
    pub(crate) fn rows(self, rows: Range<usize>) -> impl Iterator<Item = Run> {
        let Range { start, end } = rows;
        let whole = start.div_ceil(self.width)..end / self.width;
        let pieces = if whole.is_empty() {
            // The rows lie within one block, or across one edge.
            let edge = (whole.start * self.width).clamp(start, end);
            [self.neighbours(start, edge), None, self.neighbours(edge, end)]
        } else {
            let [first, past] = [whole.start, whole.end].map(|block| block * self.width);
            let blocks = Run { start: self.at(first), len: whole.len(), ..self };
            [self.neighbours(start, first), Some(blocks), self.neighbours(past, end)]
        };
        pieces.into_iter().flatten()
    }

    /// The positions of local indices `start .. end` within one block.
    fn neighbours(self, start: usize, end: usize) -> Option<Run> {
        (start < end).then(|| Run::contiguous(self.at(start), end - start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_run_are_its_positions() {
        for (step, len, width) in [(1, 9, 1), (3, 5, 1), (4, 4, 3), (2, 3, 2), (7, 1, 4)] {
            let run = Run { start: 5, step, len, width };
            let all: Vec<usize> = run.iter().collect();
            assert_eq!(all, (0..run.tokens()).map(|index| run.at(index)).collect::<Vec<_>>());
            for start in 0..=all.len() {
                for end in start..=all.len() {
                    let part: Vec<usize> = run.rows(start..end).flat_map(Run::iter).collect();
                    assert_eq!(part, all[start..end], "{run:?} {start}..{end}");
                }
            }
        }
    }
}
