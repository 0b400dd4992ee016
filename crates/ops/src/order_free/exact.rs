//! Exact sums of single numbers, so equal in any order.

use annulus_machine::blocks::NORM_BYTES;
use candle_core::{Device, Result, Tensor};

use crate::Backend;
use crate::gpu::operators;
use crate::rows::{CHUNK, Elements};

/// The number of exponents that the square of an f32 may have; one more integer counts what is not finite.
const EXPONENTS: usize = NORM_BYTES as usize / 8 - 1;
/// The number of integers of a sum of squares.
pub(crate) const SQUARES: usize = EXPONENTS + 1;
/// The exponent of the first integer: 2^-300 is less than the square of any f32 but 0.
const FIRST: i32 = -300;
/// Bits of a square that are added, of 53: 2^35 squares that share an exponent fit into an i64.
const KEPT: u32 = 28;

/// The sum of squares of elements, as integers by exponent. Adding several gives the same bits, whichever rank has which elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Squares(Vec<i64>);

impl Default for Squares {
    fn default() -> Squares {
        // The last integer counts what is not finite.
        Squares(vec![0; SQUARES])
    }
}

impl Squares {
    /// Bytes of the sum that ranks send.
    pub const BYTES: u64 = NORM_BYTES;

    fn add(&mut self, x: f32) {
        if !x.is_finite() {
            self.0[EXPONENTS] += 1;
        } else if x != 0.0 {
            let bits = (f64::from(x) * f64::from(x)).to_bits();
            let exponent = (bits >> 52) as i32 - 1023 - FIRST;
            let mantissa = (bits & ((1 << 52) - 1)) | (1 << 52);
            self.0[exponent as usize] += (mantissa >> (53 - KEPT)) as i64;
        }
    }

    fn join(&mut self, other: &Squares) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, other)| *sum += other);
    }

    /// The integers as a tensor that ranks add up: i64, of fixed length.
    ///
    /// # Errors
    /// What Candle says.
    pub fn tensor(&self) -> Result<Tensor> {
        Tensor::new(&self.0[..], &Device::Cpu)
    }

    /// The sum of squares from a tensor that ranks have added up.
    ///
    /// # Errors
    /// What Candle says of another tensor.
    pub fn of(tensor: &Tensor) -> Result<Squares> {
        Ok(Squares(tensor.to_vec1()?))
    }

    /// The sum of squares, smallest exponents first.
    pub fn value(&self) -> f64 {
        if self.0[EXPONENTS] > 0 {
            return f64::NAN;
        }
        let unit = |index: usize| 2.0_f64.powi(index as i32 + FIRST - (KEPT as i32 - 1));
        let exponents = self.0[..EXPONENTS].iter().enumerate();
        exponents.map(|(index, sum)| *sum as f64 * unit(index)).sum()
    }
}

/// The sum of squares of all elements of f32 or bf16 tensors, as [`Squares`].
///
/// # Errors
/// When a tensor is neither f32 nor bf16.
pub fn sum_of_squares<'a>(
    backend: &Backend,
    tensors: impl IntoIterator<Item = &'a Tensor>,
) -> Result<Squares> {
    if let Backend::Gpu(processor) = backend {
        return operators::exact_squares(&**processor, tensors).map(Squares);
    }
    let (pool, mut all) = (backend.pool(), Squares::default());
    for tensor in tensors {
        let values = Elements::of(&pool, tensor)?;
        let chunks: Vec<&[f32]> = values.chunks(CHUNK).collect();
        let sums = pool.map(chunks.len(), |index| {
            let mut sum = Squares::default();
            chunks[index].iter().for_each(|x| sum.add(*x));
            sum
        });
        for sum in &sums {
            all.join(sum);
        }
    }
    Ok(all)
}

/// The grid, whose multiples are exact in f64 up to 2^33.
const GRID: f64 = 1.0 / (1 << 20) as f64;

/// The number rounded to about a millionth: sums of such numbers are exact in f64, in any order, up to eight billion.
pub(crate) fn to_grid(x: f64) -> f64 {
    (x / GRID).round() * GRID
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random;

    #[test]
    fn squares_add_up_in_any_order_and_agree_with_f64() -> Result<()> {
        let all = (random("x", &[70_001])? * 3e-5)?;
        let backend = Backend::cpu(2);
        let whole = sum_of_squares(&backend, [&all])?;
        let [a, b] = [all.narrow(0, 0, 12_345)?, all.narrow(0, 12_345, 70_001 - 12_345)?];
        let mut parts = sum_of_squares(&backend, [&b])?;
        parts.join(&Squares::of(&sum_of_squares(&backend, [&a])?.tensor()?)?);
        assert_eq!(whole, parts);
        let wanted: f64 = all.to_vec1::<f32>()?.iter().map(|x| f64::from(*x).powi(2)).sum();
        assert!((whole.value() / wanted - 1.0).abs() < 1e-8);
        let ends = Tensor::new(&[f32::MAX, f32::from_bits(1), 0.0], &Device::Cpu)?;
        let of_ends = sum_of_squares(&backend, [&ends])?.value();
        assert!((of_ends / f64::from(f32::MAX).powi(2) - 1.0).abs() < 1e-9);
        let nan = Tensor::new(&[1.0, f32::INFINITY], &Device::Cpu)?;
        assert!(sum_of_squares(&backend, [&nan])?.value().is_nan());
        Ok(())
    }

    #[test]
    fn rounded_losses_add_up_in_any_order() {
        let losses: Vec<f64> = (0..999).map(|i| to_grid(f64::from(i).sqrt() * 97.3)).collect();
        let forward: f64 = losses.iter().sum();
        let backward: f64 = losses.iter().rev().sum();
        assert_eq!(forward.to_bits(), backward.to_bits());
    }
}
