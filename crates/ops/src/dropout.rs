//! Dropout of a projection's inputs (Srivastava et al., JMLR 15, 2014), by the positions of rows in the whole sequence.
//!
//! Whether an element is dropped is a pure function of seed, step, module, sequence, position and element: ranks, layout, pieces of rows
//! and recomputation do not change it, and nothing is kept for backward, which applies the same function to the gradient.

use annulus_sequence::Positions;
use candle_core::{D, Device, Result, Tensor, bail};

use crate::gpu::operators;
use crate::philox::{Drops, philox};
use crate::rows::rows_per_chunk;
use crate::{Backend, Pool};

/// The dropout of one module's inputs in one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InputDropout {
    /// The seed of the experiment.
    pub seed: u64,
    /// The probability that an element is dropped, from 0 to below 1.
    pub probability: f64,
    /// The number of the optimizer step.
    pub step: u64,
    /// The number of the module.
    pub module: u32,
    /// The number of the module's first input here: tensor-parallel ranks have parts of them.
    pub first: usize,
}

/// Which tokens the rows of a tensor are: row `r` is token `r / piece * stride + first + r % piece` of a rank's [sequences, tokens].
#[derive(Clone, Copy, Debug)]
pub struct RowPlaces<'a> {
    /// The positions of the tokens of a sequence that the rank has.
    pub positions: &'a Positions,
    /// The number of the rank's first sequence in the step.
    pub sequence: usize,
    /// The rows of a piece, at least 1: tensor-parallel ranks have a piece each.
    pub piece: usize,
    /// The tokens between the first ones of neighbouring pieces.
    pub stride: usize,
    /// The token of the first row.
    pub first: usize,
}

impl RowPlaces<'_> {
    /// The sequence of row `row` and its position there.
    fn at(&self, row: usize) -> [u32; 2] {
        let token = row / self.piece * self.stride + self.first + row % self.piece;
        let tokens = self.positions.tokens();
        let position = self.positions.at(token % tokens).unwrap_or_default();
        [(self.sequence + token / tokens) as u32, position as u32]
    }
}

/// The number of elements that one call draws for.
const TOGETHER: usize = 4;
/// Makes these draws independent of those of attention's weights.
const PURPOSE: u32 = 1;

impl InputDropout {
    /// `x` [.., I] after dropout: some elements 0, the others multiplied by 1 / (1 - probability), in its dtype.
    ///
    /// # Errors
    /// Rows of no tokens, and what Candle, or the GPU, says.
    pub fn apply(&self, backend: &Backend, x: &Tensor, places: &RowPlaces<'_>) -> Result<Tensor> {
        if x.elem_count() == 0 {
            return Ok(x.clone());
        }
        if places.positions.tokens() == 0 || places.piece == 0 {
            bail!("dropout of {:?} rows of no tokens", x.shape());
        }
        match backend {
            Backend::Cpu(pool) => self.draws().apply(pool, x, places),
            Backend::Gpu(processor) => {
                operators::input_dropout(&**processor, x, &self.draws(), places)
            }
        }
    }

    fn draws(&self) -> Draws {
        let drops = Drops::new(self.seed, self.step, PURPOSE, self.probability);
        Draws { drops, module: self.module, column: self.first as u32 }
    }
}

/// What draws of a module need, computed once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draws {
    pub(crate) drops: Drops,
    pub(crate) module: u32,
    /// The first column, among all inputs of the module.
    pub(crate) column: u32,
}

impl Draws {
    /// As [`InputDropout::apply`].
    fn apply(&self, pool: &Pool, x: &Tensor, places: &RowPlaces<'_>) -> Result<Tensor> {
        let width = x.dim(D::Minus1)?;
        let mut factors = vec![0.0_f32; x.elem_count()];
        let rows = rows_per_chunk(width);
        pool.for_chunks(&mut factors, rows * width, |chunk, piece| {
            for (row, factors) in piece.chunks_exact_mut(width).enumerate() {
                self.draw(places.at(chunk * rows + row), factors);
            }
        });
        let factors = Tensor::from_vec(factors, x.shape(), &Device::Cpu)?;
        x * factors.to_dtype(x.dtype())?
    }

    /// Draws the factors of a row of a sequence and position.
    fn draw(&self, [sequence, position]: [u32; 2], factors: &mut [f32]) {
        // The first group may begin before the row.
        let (group, skipped) = (self.column as usize / TOGETHER, self.column as usize % TOGETHER);
        let (head, rest) = factors.split_at_mut((TOGETHER - skipped).min(factors.len()));
        let whole = rest.chunks_mut(TOGETHER).map(|factors| (0, factors));
        for (number, (skipped, factors)) in [(skipped, head)].into_iter().chain(whole).enumerate() {
            let counter = [(group + number) as u32, position, sequence, self.module];
            let words = philox(counter.map(|word| [word]), self.drops.key);
            for (factor, [word]) in factors.iter_mut().zip(&words[skipped..]) {
                *factor = self.drops.factor(*word);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;

    const DROPOUT: InputDropout =
        InputDropout { seed: 3, probability: 0.25, step: 7, module: 2, first: 0 };

    fn factors(dropout: &InputDropout, rows: usize, first: usize, width: usize) -> Vec<f32> {
        let ones = Tensor::ones((rows, width), DType::F32, &Device::Cpu).unwrap();
        let positions = Positions::all(100);
        let places =
            RowPlaces { positions: &positions, sequence: 0, piece: rows, stride: 0, first };
        let y = dropout.apply(&Backend::cpu(2), &ones, &places).unwrap();
        y.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn a_row_depends_on_its_place_alone() {
        let all = factors(&DROPOUT, 40, 0, 9);
        assert_eq!(factors(&DROPOUT, 7, 21, 9), all[21 * 9..28 * 9]);
        let share = all.iter().filter(|factor| **factor == 0.0).count();
        // 360 draws at a quarter: five standard deviations.
        assert!(share.abs_diff(90) < 42, "{share}");
        assert!(all.iter().all(|factor| *factor == 0.0 || (*factor - 4.0 / 3.0).abs() < 1e-6));
    }

    #[test]
    fn a_part_of_a_row_has_what_the_row_has_there() {
        let all = factors(&DROPOUT, 5, 3, 21);
        for (first, width) in [(0, 3), (4, 8), (6, 1), (6, 11), (19, 2)] {
            let part = factors(&InputDropout { first, ..DROPOUT }, 5, 3, width);
            let wanted = all.chunks(21).flat_map(|row| &row[first..first + width]);
            assert!(part.iter().eq(wanted), "{first} {width}");
        }
    }

    #[test]
    fn every_part_of_a_key_tells_draws_apart() {
        let own = factors(&DROPOUT, 8, 0, 8);
        for other in [
            InputDropout { seed: 4, ..DROPOUT },
            InputDropout { step: 8, ..DROPOUT },
            InputDropout { module: 3, ..DROPOUT },
        ] {
            assert_ne!(factors(&other, 8, 0, 8), own, "{other:?}");
        }
    }
}
