//! Positions as arithmetic: a shard is a strictly increasing list of runs, never a table of
//! positions.

/// `len` blocks of `width` neighbours, `step` apart: `start + step * (i / width) + i % width`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// The first position.
    pub start: usize,
    /// The distance between the starts of neighbouring blocks, at least `width`.
    pub step: usize,
    /// How many blocks there are, at least 1.
    pub len: usize,
    /// How many neighbouring positions a block has, at least 1.
    pub width: usize,
}

impl Run {
    /// The run `start, start + 1, …` of `len` positions.
    pub fn contiguous(start: usize, len: usize) -> Run {
        Run { start, step: 1, len, width: 1 }
    }
    /// How many positions there are.
    pub fn tokens(self) -> usize {
        self.len * self.width
    }
    /// The position of local index `index`.
    pub fn at(self, index: usize) -> usize {
        self.start + self.step * (index / self.width) + index % self.width
    }
    /// The largest position.
    pub fn last(self) -> usize {
        self.at(self.tokens() - 1)
    }
    /// How many of the positions are below `position`.
    pub fn rank_of(self, position: usize) -> usize {
        let offset = position.saturating_sub(self.start);
        let block = offset / self.step;
        if block < self.len {
            block * self.width + (offset % self.step).min(self.width)
        } else {
            self.tokens()
        }
    }
    /// The positions, in order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..self.tokens()).map(move |index| self.at(index))
    }

    /// The same positions written the one way that comparing runs relies on.
    fn canonical(self) -> Run {
        if self.len == 1 || self.width == self.step {
            Run::contiguous(self.start, self.tokens())
        } else {
            self
        }
    }
}

/// The positions of a shard: a strictly increasing list of runs.
///
/// Runs without gaps are written as [`Run::contiguous`] and neighbours among them are joined, so
/// that shards of equal positions dealt by a layout are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Positions {
    runs: Vec<Run>,
}

impl Positions {
    /// Checks that the runs are non-empty and strictly increasing. No runs at all is an empty
    /// shard.
    ///
    /// # Panics
    /// When they are not: a shard that is not increasing is a bug of the layout.
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
        Positions { runs: joined }
    }
    /// The positions `0 .. tokens`, in order.
    pub fn all(tokens: usize) -> Positions {
        Positions::new((tokens > 0).then(|| Run::contiguous(0, tokens)).into_iter().collect())
    }
    /// The runs of a list of positions; none when the list is not strictly increasing.
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
    /// The runs, in local order.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }
    /// How many positions there are.
    pub fn tokens(&self) -> usize {
        self.runs.iter().map(|run| run.tokens()).sum()
    }
    /// The positions, in local order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.runs.iter().flat_map(|run| run.iter())
    }
    /// How many of the positions are below `position`: the local index where it is, or would be
    /// inserted.
    pub fn rank_of(&self, position: usize) -> usize {
        self.runs.iter().map(|run| run.rank_of(position)).sum()
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
}
