//! Functions on gradients that training loops need and Candle lacks.

use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};

use crate::Backend;
use crate::gpu::operators;
use crate::rows::{CHUNK, Elements};

/// Vector-Jacobian product: the gradients of `sum(y * seed)`; `seed` has the shape and dtype of `y`
/// and is not differentiated.
///
/// Take gradients out with `remove(..)`, `detach` them and drop the rest: an undetached gradient
/// keeps the tape it came from.
///
/// # Errors
/// When shapes or types differ, or an operator on the tape has no gradient.
pub fn vjp(y: &Tensor, seed: &Tensor) -> Result<GradStore> {
    if y.shape() != seed.shape() || y.dtype() != seed.dtype() {
        let (found, wanted) = ((seed.shape(), seed.dtype()), (y.shape(), y.dtype()));
        bail!("vjp: found a seed of {found:?}, expected {wanted:?}");
    }
    y.apply_op1(Seed(seed.detach()))?.backward()
}

/// A root of the tape without cost: its value is never read, and its gradient is the seed.
struct Seed(Tensor);

impl CustomOp1 for Seed {
    fn name(&self) -> &'static str {
        "seed"
    }
    fn cpu_fwd(&self, _y: &CpuStorage, _layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![0.0]), Shape::from(())))
    }
    fn bwd(&self, _y: &Tensor, _root: &Tensor, _gradient: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(self.0.clone()))
    }
}

/// The sum of squares of all elements, in f64, in the order given and independent of the number of
/// workers.
///
/// # Errors
/// When a tensor is neither f32 nor bf16.
pub fn global_norm_squared<'a>(
    backend: &Backend,
    tensors: impl IntoIterator<Item = &'a Tensor>,
) -> Result<f64> {
    let pool = match backend {
        Backend::Gpu(processor) => return operators::global_norm_squared(&**processor, tensors),
        Backend::Cpu(pool) => pool,
    };
    let mut total = 0.0;
    for tensor in tensors {
        let values = Elements::of(pool, tensor)?;
        let chunk = |index: usize| &values[index * CHUNK..values.len().min((index + 1) * CHUNK)];
        let sums = pool.map(values.len().div_ceil(CHUNK), |index| sum_of_squares(chunk(index)));
        total += sums.into_iter().sum::<f64>();
    }
    Ok(total)
}

fn sum_of_squares(values: &[f32]) -> f64 {
    let square = |x: &f32| f64::from(*x) * f64::from(*x);
    let (blocks, rest) = values.as_chunks::<16>();
    let mut lanes = [0.0_f64; 16];
    for block in blocks {
        for (sum, x) in lanes.iter_mut().zip(block) {
            *sum += square(x);
        }
    }
    lanes.into_iter().sum::<f64>() + rest.iter().map(square).sum::<f64>()
}

/// The error of parameters without a gradient, which an operator without one cut off the tape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} of {parameters} parameters got no gradient: `{}`",
    .missing.len(),
    .missing.join("`, `")
)]
pub struct NoGradient {
    /// The names of the parameters without a gradient.
    pub missing: Vec<String>,
    /// The number of all parameters.
    pub parameters: usize,
}

/// Checks that every parameter got a gradient: for the first step of training, where a part of the
/// model that Candle silently cut off would keep its first weights and the loss still fall.
///
/// # Errors
/// Names the parameters for which `has_gradient` is false.
pub fn check_gradients<'a>(
    names: impl IntoIterator<Item = &'a str>,
    has_gradient: impl Fn(&str) -> bool,
) -> std::result::Result<(), NoGradient> {
    let mut parameters = 0;
    let counted = names.into_iter().inspect(|_| parameters += 1);
    let missing: Vec<_> = counted.filter(|name| !has_gradient(name)).map(str::to_owned).collect();
    if missing.is_empty() { Ok(()) } else { Err(NoGradient { missing, parameters }) }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::*;
    use crate::testing::{error, random, to_f64};

    #[test]
    fn vjp_is_the_gradient_of_the_sum_with_the_seed() -> Result<()> {
        for dtype in [DType::F32, DType::BF16, DType::F64] {
            let x = Var::from_tensor(&random("x", &[3, 4])?.to_dtype(dtype)?)?;
            let seed = random("seed", &[3, 4])?.to_dtype(dtype)?;
            let mut found = vjp(&x.sqr()?, &seed)?;
            let wanted = (x.sqr()? * &seed)?.sum_all()?.backward()?;
            let wanted = wanted.get(&x).expect("x is on the tape");
            let found = found.remove(&x).expect("x is on the tape").detach();
            assert!(error(&found, wanted)? == 0.0 && found.dtype() == dtype);
        }
        Ok(())
    }

    #[test]
    fn a_seed_of_another_shape_or_type_is_refused() -> Result<()> {
        let y = random("y", &[2, 3])?;
        for seed in [y.t()?, y.to_dtype(DType::BF16)?] {
            let message = vjp(&y, &seed).unwrap_err().to_string();
            assert!(message.contains("expected ([2, 3], F32)"), "{message}");
        }
        Ok(())
    }

    #[test]
    fn the_norm_is_that_of_all_elements_with_any_workers() -> Result<()> {
        let tensors = [random("a", &[301, 257])?, random("b", &[1])?, random("c", &[0, 4])?];
        let all = tensors.iter().map(to_f64).collect::<Result<Vec<_>>>()?.concat();
        let wanted: f64 = all.iter().map(|x| x * x).sum();
        let alone = global_norm_squared(&Backend::serial(), &tensors)?;
        assert!((alone / wanted - 1.0).abs() < 1e-12);
        for workers in 2..=4 {
            let many = global_norm_squared(&Backend::cpu(workers), &tensors)?;
            assert_eq!(alone.to_bits(), many.to_bits());
        }
        let nan = Tensor::new(&[1.0, f32::NAN], &Device::Cpu)?;
        assert!(global_norm_squared(&Backend::serial(), [&nan])?.is_nan());
        Ok(())
    }

    #[test]
    fn parameters_without_gradient_are_named() {
        let names = ["a.weight", "b.weight", "c.weight"];
        assert_eq!(check_gradients(names, |_| true), Ok(()));
        let error = check_gradients(names, |name| name.starts_with('b')).unwrap_err();
        let message = error.to_string();
        assert_eq!(message, "2 of 3 parameters got no gradient: `a.weight`, `c.weight`");
    }
}
