//! Dropout of attention's weights (Srivastava et al., JMLR 15, 2014), by the positions of queries and keys in the whole sequence.
//!
//! Whether a weight is left out is a pure function of seed, step, layer, sequence, query head and the two positions: neither
//! ranks nor layout, strategy, tiles or recomputation change it, and there is nothing to keep for backward. With p the weights,
//! m what they are multiplied by (0, or 1 / (1 - probability)):
//!
//! ```text
//! out = (m p) v    dv = (m p)T g    ds = p (m (g vT) - sum(g out))
//! ```

use annulus_sequence::Positions;

use crate::philox::{Drops, philox};

/// The dropout of one layer's attention weights in one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The seed of the experiment.
    pub seed: u64,
    /// The probability that a weight is dropped, from 0 to below 1.
    pub probability: f64,
    /// The number of the optimizer step.
    pub step: u64,
    /// The number of the layer, below 2^16.
    pub layer: usize,
    /// The number of the batch's first row among the sequences of the step, below 2^32.
    pub sequence: usize,
    /// The number of this rank's first query head among all of the model's: tensor-parallel ranks have different ones.
    pub head: usize,
}

/// The dropout of one tile's attention weights.
#[derive(Clone, Copy, Debug)]
pub struct Dropped<'a> {
    /// The dropout of the layer and the step.
    pub dropout: Dropout,
    /// The number of the tile's first query head among all, below 2^16 with those that follow.
    pub head: usize,
    /// The positions of the queries in the whole sequence, below 2^32.
    pub queries: &'a Positions,
    /// The positions of the keys.
    pub keys: &'a Positions,
}

/// The number of keys that one call draws for.
const TOGETHER: u32 = 4;

/// Makes these draws independent of those of a projection's inputs.
const PURPOSE: u32 = 0;

/// What draws of a layer need, computed once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draws {
    pub(crate) drops: Drops,
    pub(crate) layer: u32,
}

/// A row of weights: a sequence, a query head and a query.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) sequence: u32,
    pub(crate) head: u32,
    pub(crate) query: u32,
}

impl Dropout {
    /// The factor of the weight of `key` for `query`, in sequence `sequence` of the step and query head `head`.
    pub fn factor(&self, sequence: usize, head: usize, query: usize, key: usize) -> f32 {
        let [sequence, head, query, key] = [sequence, head, query, key].map(|n| n as u32);
        let draws = self.draws();
        let row = Row { sequence, head, query };
        let words = draws.words(row, [key / TOGETHER]);
        draws.drops.factor(words[(key % TOGETHER) as usize][0])
    }

    pub(crate) fn draws(&self) -> Draws {
        let drops = Drops::new(self.seed, self.step, PURPOSE, self.probability);
        Draws { drops, layer: self.layer as u32 }
    }
}

impl Draws {
    /// The random words of groups of four keys of a row, by `key / 4`.
    #[inline(always)]
    pub(crate) fn words<const N: usize>(&self, row: Row, keys: [u32; N]) -> [[u32; N]; 4] {
        let Row { sequence, head, query } = row;
        philox([keys, [query; N], [sequence; N], [self.layer << 16 | head; N]], self.drops.key)
    }
}

/// The keys of a block, by their draws.
#[derive(Debug, Default)]
pub(crate) struct Drawn {
    /// The groups `key / 4`, without adjacent duplicates.
    pub(crate) groups: Vec<u32>,
    /// By key: the index of its group, and its word.
    pub(crate) words: Vec<(u32, u32)>,
}

impl Drawn {
    pub(crate) fn new(keys: impl Iterator<Item = usize>) -> Drawn {
        let mut drawn = Drawn::default();
        for key in keys {
            let (group, word) = (key as u32 / TOGETHER, key as u32 % TOGETHER);
            if drawn.groups.last() != Some(&group) {
                drawn.groups.push(group);
            }
            drawn.words.push((drawn.groups.len() as u32 - 1, word));
        }
        drawn
    }
}

impl Dropped<'_> {
    /// The factor of a weight, by batch row and query head of the tile, query row and key column.
    pub(crate) fn factor(&self, batch: usize, head: usize, row: usize, column: usize) -> f32 {
        let [query, key] = [(self.queries, row), (self.keys, column)]
            .map(|(positions, index)| positions.at(index).unwrap_or_default());
        let Dropped { dropout, head: first, .. } = *self;
        dropout.factor(dropout.sequence + batch, first + head, query, key)
    }
    /// The row to draw for, of a batch row, a query head and a query of the tile.
    pub(crate) fn row(&self, batch: usize, head: usize, query: usize) -> Row {
        let Dropped { dropout, head: first, .. } = *self;
        let (sequence, head) = (dropout.sequence + batch, first + head);
        Row { sequence: sequence as u32, head: head as u32, query: query as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DROPOUT: Dropout =
        Dropout { seed: 3, probability: 0.3, step: 5, layer: 2, sequence: 0, head: 0 };

    /// For some rows, 1 for every weight that is dropped.
    fn gone(dropout: Dropout, sequence: usize, head: usize) -> Vec<Vec<f64>> {
        let left_out = |query, key| f64::from(dropout.factor(sequence, head, query, key) == 0.0);
        (0..200).map(|query| (0..200).map(|key| left_out(query, key)).collect()).collect()
    }

    fn mean(values: impl Iterator<Item = f64>) -> f64 {
        let values: Vec<f64> = values.collect();
        values.iter().sum::<f64>() / values.len() as f64
    }

    /// Checks within five standard errors of a rate over 40,000.
    fn near(found: f64, wanted: f64) {
        let error = (wanted * (1.0 - wanted) / 40_000.0).sqrt();
        assert!((found - wanted).abs() <= 5.0 * error, "{found}, expected {wanted}");
    }

    #[test]
    fn as_many_are_left_out_as_are_to_be() {
        for probability in [0.0, 0.1, 0.3, 0.9] {
            let dropout = Dropout { probability, ..DROPOUT };
            near(mean(gone(dropout, 0, 0).into_iter().flatten()), probability);
            let kept = (1.0 / (1.0 - probability)) as f32;
            let factors = (0..64).map(|key| dropout.factor(0, 0, 9, key));
            assert!(factors.into_iter().all(|factor| factor == 0.0 || factor == kept));
        }
    }

    #[test]
    fn neighbours_of_all_kinds_are_independent() {
        let here = gone(DROPOUT, 0, 0);
        let both = |a: &[Vec<f64>], b: &[Vec<f64>]| {
            let pairs = std::iter::zip(a.iter().flatten(), b.iter().flatten());
            near(mean(pairs.map(|(a, b)| a * b)), 0.09);
        };
        let others = [
            gone(Dropout { seed: 4, ..DROPOUT }, 0, 0),
            gone(Dropout { seed: 3 | 1 << 32, ..DROPOUT }, 0, 0),
            gone(Dropout { step: 6, ..DROPOUT }, 0, 0),
            gone(Dropout { step: 5 | 1 << 32, ..DROPOUT }, 0, 0),
            gone(Dropout { layer: 3, ..DROPOUT }, 0, 0),
            gone(DROPOUT, 1, 0),
            gone(DROPOUT, 0, 1),
        ];
        for other in &others {
            both(&here, other);
        }
        let transposed: Vec<Vec<f64>> =
            (0..200).map(|key| here.iter().map(|row| row[key]).collect()).collect();
        let off = |a: &[Vec<f64>], b: &[Vec<f64>]| {
            let pairs = a.iter().flatten().zip(b.iter().flatten()).enumerate();
            let pairs = pairs.filter(|(index, _)| index / 200 != index % 200);
            near(mean(pairs.map(|(_, (a, b))| a * b)), 0.09);
        };
        off(&here, &transposed);
        for distance in [1, 2, 3, 4] {
            let rows = here.iter().flat_map(|row| row.windows(distance + 1));
            near(mean(rows.map(|window| window[0] * window[distance])), 0.09);
            let rows = here
                .windows(distance + 1)
                .flat_map(|rows| std::iter::zip(&rows[0], &rows[distance]).map(|(a, b)| a * b));
            near(mean(rows), 0.09);
        }
    }

    #[test]
    fn keys_share_draws_wherever_they_are() {
        for step in [1, 2, 3, 5, 8] {
            let keys: Vec<usize> = (1..).step_by(step).take(40).collect();
            let drawn = Drawn::new(keys.iter().copied());
            let draws = DROPOUT.draws();
            let row = Row { sequence: 7, head: 1, query: 30 };
            for (key, (group, word)) in keys.iter().zip(&drawn.words) {
                let words = draws.words(row, [drawn.groups[*group as usize]; 3]);
                let found = draws.drops.factor(words[*word as usize][2]);
                assert_eq!(found, DROPOUT.factor(7, 1, 30, *key));
            }
            assert!(drawn.groups.len() <= 40.min(40 * step / 4 + 2));
        }
    }
}
