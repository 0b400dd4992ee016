//! Helpers for tests of operators: error measures, finite differences, and a processor that counts.

mod counted;

use candle_core::{DType, Device, Result, Tensor, Var};

pub use counted::Counted;

pub use crate::gpu::operators::unchecked_backward as unchecked_embedding_backward;
use crate::{Key, normal, vjp};

/// The relative error `max|a - b| / max|b|`, or `max|a - b|` where `b` is all zero; NaN where either has one.
///
/// # Errors
/// When the shapes differ.
pub fn error(a: &Tensor, b: &Tensor) -> Result<f64> {
    let (difference, b) = difference(a, b)?;
    Ok(ratio(highest(&difference), highest(&b)))
}

/// The relative error `‖a - b‖₂ / ‖b‖₂`, or `‖a - b‖₂` where `b` is all zero.
///
/// # Errors
/// When the shapes differ.
pub fn error_l2(a: &Tensor, b: &Tensor) -> Result<f64> {
    let norm = |values: &[f64]| values.iter().map(|x| x * x).sum::<f64>().sqrt();
    let (difference, b) = difference(a, b)?;
    Ok(ratio(norm(&difference), norm(&b)))
}

/// The gradient of `function` at `point` by central differences of fourth order, for functions in
/// f64: about 10 digits.
pub fn finite_differences(function: impl Fn(&[f64]) -> f64, point: &[f64]) -> Vec<f64> {
    const STEP: f64 = 1e-3;
    let mut moved = point.to_vec();
    let mut at = |index: usize, by: f64| {
        moved[index] = point[index] + by;
        let value = function(&moved);
        moved[index] = point[index];
        value
    };
    let slope = |index| {
        let near = at(index, STEP) - at(index, -STEP);
        let far = at(index, 2.0 * STEP) - at(index, -2.0 * STEP);
        (8.0 * near - far) / (12.0 * STEP)
    };
    (0..point.len()).map(slope).collect()
}

/// The elements of a tensor of any dtype, row-major, in f64.
///
/// # Errors
/// Those of Candle's casts.
pub fn to_f64(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

/// Standard normal numbers, f32, equal for equal names.
///
/// # Errors
/// Those of Candle's constructors.
pub fn random(name: &str, shape: &[usize]) -> Result<Tensor> {
    let values = normal(Key { seed: 0, purpose: "test", name }, 0, shape.iter().product());
    Tensor::from_vec(values, shape, &Device::Cpu)
}

/// The output of an operator, and the gradient of each input for a random gradient of the output.
///
/// # Errors
/// Those of the operator, and an input without gradient.
pub fn output_and_gradients(
    inputs: &[Tensor],
    operator: impl FnOnce(&[Tensor]) -> Result<Tensor>,
) -> Result<Vec<Tensor>> {
    let vars = inputs.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
    let tracked: Vec<_> = vars.iter().map(|var| var.as_tensor().clone()).collect();
    let y = operator(&tracked)?;
    let mut gradients = vjp(&y, &random("seed", y.dims())?.to_dtype(y.dtype())?)?;
    let missing = || candle_core::Error::Msg("an input got no gradient".to_owned());
    let of = |var: &Var| gradients.remove(var).map(|g| g.detach()).ok_or_else(missing);
    let of_inputs = vars.iter().map(of).collect::<Result<Vec<_>>>()?;
    Ok([vec![y.detach()], of_inputs].concat())
}

/// Holds an operator to a slow, obvious form of it in f64: output, and gradients by finite
/// differences.
///
/// # Panics
/// When an error, as [`error`] measures it, exceeds `tolerance`.
///
/// # Errors
/// Those of the operator.
pub fn check(
    inputs: &[Tensor],
    operator: impl FnOnce(&[Tensor]) -> Result<Tensor>,
    reference: impl Fn(&[Vec<f64>]) -> Vec<f64>,
    tolerance: f64,
) -> Result<()> {
    let found = output_and_gradients(inputs, operator)?;
    let values = inputs.iter().map(to_f64).collect::<Result<Vec<_>>>()?;
    let seed = to_f64(&random("seed", found[0].dims())?)?;
    let root = |values: &[Vec<f64>]| -> f64 {
        reference(values).iter().zip(&seed).map(|(y, seed)| y * seed).sum()
    };
    let mut wanted = vec![reference(&values)];
    for index in 0..values.len() {
        let of_one = |moved: &[f64]| {
            let mut values = values.clone();
            values[index] = moved.to_vec();
            root(&values)
        };
        wanted.push(finite_differences(of_one, &values[index]));
    }
    for (index, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let wanted = Tensor::from_vec(wanted, found.shape(), &Device::Cpu)?;
        let off = error(found, &wanted)?;
        assert!(off <= tolerance, "output (0) or gradient {index} is off by {off:e}");
    }
    Ok(())
}

fn difference(a: &Tensor, b: &Tensor) -> Result<(Vec<f64>, Vec<f64>)> {
    let difference = (a.to_dtype(DType::F64)? - b.to_dtype(DType::F64)?)?;
    Ok((to_f64(&difference)?, to_f64(b)?))
}

fn highest(values: &[f64]) -> f64 {
    // `f64::max` would lose NaN.
    let higher = |a: f64, b: &f64| if b.abs() <= a || a.is_nan() { a } else { b.abs() };
    values.iter().fold(0.0, higher)
}

fn ratio(a: f64, b: f64) -> f64 {
    if b == 0.0 { a } else { a / b }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: &[f64]) -> Tensor {
        Tensor::new(values, &Device::Cpu).unwrap()
    }

    #[test]
    fn errors_are_relative_unless_all_is_zero() -> Result<()> {
        let near = |a: f64, b: f64| (a - b).abs() < 1e-15;
        assert!(near(error(&row(&[1.0, 2.5]), &row(&[1.0, 2.0]))?, 0.25));
        assert!(near(error(&row(&[0.5, 0.0]), &row(&[0.0, 0.0]))?, 0.5));
        assert!(near(error_l2(&row(&[3.0, 4.0]), &row(&[0.0, 0.0]))?, 5.0));
        assert!(near(error_l2(&row(&[3.0, 5.0]), &row(&[3.0, 4.0]))?, 0.2));
        assert!(error(&row(&[f64::NAN, 1.0]), &row(&[0.0, 1.0]))?.is_nan());
        assert!(error(&row(&[1.0]), &row(&[1.0, 2.0])).is_err());
        Ok(())
    }

    #[test]
    fn finite_differences_have_ten_digits() {
        let slopes = finite_differences(|x| x[0].sin() * x[1].exp(), &[0.7, 0.3]);
        let wanted = [0.7_f64.cos() * 0.3_f64.exp(), 0.7_f64.sin() * 0.3_f64.exp()];
        assert!(slopes.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-10), "{slopes:?}");
    }
}
