//! Dropout of a projection's inputs (Srivastava et al., JMLR 15, 2014), by the positions of rows in the whole sequence.
//!
//! Whether an element is dropped is a pure function of seed, step, module, sequence, position and element: ranks, layout, pieces of rows
//! and recomputation do not change it, and nothing is kept for backward, which applies the same function to the gradient.

use candle_core::{Result, Tensor};

use crate::Pool;
use crate::philox::philox;
use crate::rows::rows_per_chunk;

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

/// The place of a row: the number of its sequence in the step, and its position there.
pub type RowPlace = [u32; 2];

/// The number of elements that one call draws for.
const TOGETHER: usize = 4;
/// Makes these draws independent of those of attention's weights, which have 0 here.
const PURPOSE: u32 = 1;

impl InputDropout {
    /// `x` [.., I] after dropout: some elements 0, the others multiplied by 1 / (1 - probability), in its dtype. `place` gives the place of
    /// a row of `x`.
    ///
    /// # Errors
    /// When `x` has no rows, or cannot be multiplied.
    pub fn apply(
        &self,
        pool: &Pool,
        x: &Tensor,
        place: impl Fn(usize) -> RowPlace + Send + Sync,
    ) -> Result<Tensor> {
        let width = x.dim(candle_core::D::Minus1)?.max(1);
        let mut factors = vec![0.0_f32; x.elem_count()];
        let rows = rows_per_chunk(width);
        pool.for_chunks(&mut factors, rows * width, |chunk, piece| {
            for (row, factors) in piece.chunks_exact_mut(width).enumerate() {
                self.draw(place(chunk * rows + row), factors);
            }
        });
        let factors = Tensor::from_vec(factors, x.shape(), &candle_core::Device::Cpu)?;
        x * factors.to_dtype(x.dtype())?.to_device(x.device())?
    }

    /// Draws the factors of a row.
    fn draw(&self, [sequence, position]: RowPlace, factors: &mut [f32]) {
        let threshold = (self.probability * 4_294_967_296.0) as u32;
        let kept = (1.0 / (1.0 - self.probability)) as f32;
        let key = self.key();
        // The first group may begin before the row.
        let (group, skipped) = (self.first / TOGETHER, self.first % TOGETHER);
        let (head, rest) = factors.split_at_mut((TOGETHER - skipped).min(factors.len()));
        let whole = rest.chunks_mut(TOGETHER).map(|factors| (0, factors));
        for (number, (skipped, factors)) in [(skipped, head)].into_iter().chain(whole).enumerate() {
            let counter = [(group + number) as u32, position, sequence, self.module];
            let words = philox(counter.map(|word| [word]), key);
            for (factor, [word]) in factors.iter_mut().zip(&words[skipped..]) {
                *factor = if *word < threshold { 0.0 } else { kept };
            }
        }
    }

    fn key(&self) -> [u32; 2] {
        let step = [self.step as u32, (self.step >> 32) as u32, PURPOSE, 0];
        let seed = [self.seed as u32, (self.seed >> 32) as u32];
        let [[first], [second], ..] = philox(step.map(|word| [word]), seed);
        [first, second]
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    const DROPOUT: InputDropout =
        InputDropout { seed: 3, probability: 0.25, step: 7, module: 2, first: 0 };

    fn factors(dropout: &InputDropout, rows: usize, first: u32, width: usize) -> Vec<f32> {
        let ones = Tensor::ones((rows, width), DType::F32, &Device::Cpu).unwrap();
        let place = |row: usize| [0, first + row as u32];
        let y = dropout.apply(&Pool::new(2), &ones, place).unwrap();
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
