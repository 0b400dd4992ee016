//! Positions as arithmetic: a shard is a strictly increasing list of runs, never a table of positions.

/// `len` blocks of `width` neighbouring positions, `step` apart: `start + step * (i / width) + i % width`.
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
}

/// The positions of a shard: a strictly increasing list of runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Positions {
    runs: Vec<Run>,
}

impl Positions {
    /// Checks that the runs are non-empty and strictly increasing.
    ///
    /// # Panics
    /// When they are not: a shard that is not increasing is a bug of the layout.
    pub fn new(runs: Vec<Run>) -> Positions {
        Positions { runs }
    }
    /// The positions `0 .. tokens`, in order.
    pub fn all(tokens: usize) -> Positions {
        Positions::new(vec![Run::contiguous(0, tokens)])
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
        self.runs.iter().flat_map(|run| (0..run.tokens()).map(|index| run.at(index)))
    }
    /// How many of the positions are below `position`: the local index where it is, or would be inserted.
    pub fn rank_of(&self, position: usize) -> usize {
        self.iter().take_while(|&p| p < position).count()
    }
}
