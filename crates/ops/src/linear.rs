//! Projections `y = x wᵀ (+ bias)` and their gradients.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, DType, Layout, Result, Shape, Tensor, bail};

use crate::gpu::operators;
use crate::matrix::{Matrix, Output, Product, multiply};
use crate::rows::{Elements, elements, narrow, tensor, unwritten};
use crate::sums::{Partials, sum_rows};
use crate::{Backend, Pool};

/// The projection of `x` [.., I] by `weight` [O, I] transposed, plus `bias` `[O]`: [.., O], with gradients for all three.
///
/// The output has the type of `x`. Products are summed in f32, whatever the types, and rounded
/// once.
///
/// # Errors
/// When the shapes do not fit, or a tensor is neither f32 nor bf16.
pub fn linear(
    backend: &Backend,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let pool = match backend {
        Backend::Gpu(processor) => return operators::linear(&**processor, x, weight, bias),
        Backend::Cpu(pool) => pool,
    };
    pool.off_tape("linear", [x, weight].into_iter().chain(bias))?;
    let op = Linear { pool: pool.clone() };
    match bias {
        None => x.apply_op2(weight, op),
        Some(bias) => x.apply_op3(weight, bias, op),
    }
}

/// The projection `x wᵀ` [.., O] in f32, whatever x and the weight are: for results that must not be rounded in between. Off the tape.
///
/// # Errors
/// As [`linear`].
pub fn wide_linear(backend: &Backend, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    match backend {
        Backend::Gpu(processor) => operators::wide_linear(&**processor, x, weight),
        Backend::Cpu(_) => linear(backend, &x.to_dtype(DType::F32)?, weight, None),
    }
}

struct Linear {
    pool: Pool,
}

/// An argument as the forward pass gets it.
type Argument<'a> = (&'a CpuStorage, &'a Layout);

/// The number of rows of x, its width, and the number of rows of the weight.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) tokens: usize,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
}

impl Sizes {
    pub(crate) fn new(x: &Shape, weight: &Shape) -> Result<Sizes> {
        let (outputs, inputs) = weight.dims2()?;
        match x.dims().split_last() {
            Some((&width, leading)) if width == inputs => {
                Ok(Sizes { tokens: leading.iter().product(), inputs, outputs })
            }
            _ => bail!("linear: found x {x:?}, expected [.., {inputs}] for a weight of {weight:?}"),
        }
    }
}

impl Linear {
    fn forward(
        &self,
        x: Argument<'_>,
        weight: Argument<'_>,
        bias: Option<Argument<'_>>,
    ) -> Result<(CpuStorage, Shape)> {
        let Sizes { tokens, inputs, outputs } = Sizes::new(x.1.shape(), weight.1.shape())?;
        let x_values = elements(&self.pool, x.0, x.1)?;
        let weight_values = elements(&self.pool, weight.0, weight.1)?;
        let bias =
            bias.map(|(storage, layout)| elements(&self.pool, storage, layout)).transpose()?;
        if let Some(bias) = bias.as_ref().filter(|bias| bias.len() != outputs) {
            bail!("linear: found a bias of {}, expected {outputs}", bias.len());
        }
        // SAFETY: a product writes every element of its output.
        let mut y = unsafe { unwritten(tokens * outputs) };
        let x_matrix = Matrix::new(&x_values, tokens, inputs);
        let weight_matrix = Matrix::new(&weight_values, outputs, inputs);
        let onto = bias.as_deref().map_or(Output::Overwrite, Output::AddRow);
        let product = Product::new(x_matrix, weight_matrix.transposed(), &mut y);
        multiply(&self.pool, vec![Product { onto, ..product }]);
        let mut dims = x.1.dims().to_vec();
        dims.splice(dims.len() - 1.., [outputs]);
        Ok((narrow(&self.pool, y, x.0.dtype())?, dims.into()))
    }
    /// The gradient of x: dx = dy w.
    fn of_x(&self, x: &Tensor, weight: &Tensor, dy: &Elements<'_>) -> Result<Tensor> {
        let Sizes { tokens, inputs, outputs } = Sizes::new(x.shape(), weight.shape())?;
        let weight_values = Elements::of(&self.pool, weight)?;
        // SAFETY: a product writes every element of its output.
        let mut dx = unsafe { unwritten(tokens * inputs) };
        let dy_matrix = Matrix::new(dy, tokens, outputs);
        let weight_matrix = Matrix::new(&weight_values, outputs, inputs);
        multiply(&self.pool, vec![Product::new(dy_matrix, weight_matrix, &mut dx)]);
        tensor(&self.pool, dx, x.shape(), x.dtype())
    }
    /// The gradient of the weight: dw = dyᵀ x, the sum over all tokens.
    fn of_weight(&self, x: &Tensor, weight: &Tensor, dy: &Elements<'_>) -> Result<Tensor> {
        let Sizes { tokens, inputs, outputs } = Sizes::new(x.shape(), weight.shape())?;
        let x_values = Elements::of(&self.pool, x)?;
        // SAFETY: a product writes every element of its output.
        let mut dw = unsafe { unwritten(outputs * inputs) };
        let dy_matrix = Matrix::new(dy, tokens, outputs);
        let x_matrix = Matrix::new(&x_values, tokens, inputs);
        let product = Product::new(dy_matrix.transposed(), x_matrix, &mut dw);
        multiply(&self.pool, vec![product]);
        tensor(&self.pool, dw, weight.shape(), weight.dtype())
    }
}

/// The gradient of the bias: the sum of dy's rows.
pub(crate) fn of_bias(pool: &Pool, dy: &[f32], outputs: usize) -> Partials {
    sum_rows(pool, dy.len() / outputs.max(1), outputs, |rows, sums| {
        for row in dy[rows.start * outputs..rows.end * outputs].chunks_exact(outputs) {
            sums.iter_mut().zip(row).for_each(|(sum, dy)| *sum += dy);
        }
    })
}

impl CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward((x, x_layout), (weight, weight_layout), None)
    }
    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let dy = Elements::of(&self.pool, dy)?;
        let dx = x.track_op().then(|| self.of_x(x, weight, &dy)).transpose()?;
        let dw = weight.track_op().then(|| self.of_weight(x, weight, &dy)).transpose()?;
        Ok((dx, dw))
    }
}

impl CustomOp3 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward((x, x_layout), (weight, weight_layout), Some((bias, bias_layout)))
    }
    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (dx, dw) = CustomOp2::bwd(self, x, weight, y, dy)?;
        let dy = Elements::of(&self.pool, dy)?;
        let sums = bias.track_op().then(|| of_bias(&self.pool, &dy, bias.elem_count()));
        let db = sums.map(|sums| sums.tensor(&self.pool, bias.shape(), bias.dtype()));
        let db = db.transpose()?;
        Ok((dx, dw, db))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check, random};

    /// The reference: y[t, o] = bias[o] + sum_i x[t, i] w[o, i].
    fn reference(inputs: usize, v: &[Vec<f64>]) -> Vec<f64> {
        let (x, weight) = (v[0].chunks(inputs), &v[1]);
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let bias = |o: usize| v.get(2).map_or(0.0, |bias| bias[o]);
        x.flat_map(|x| weight.chunks(inputs).enumerate().map(move |(o, w)| dot(x, w) + bias(o)))
            .collect()
    }

    #[test]
    fn agrees_with_plain_loops_and_finite_differences() -> Result<()> {
        let pool = Backend::cpu(2);
        for (tokens, inputs, outputs) in [(6, 5, 7), (1, 1, 1), (1, 9, 3)] {
            let x = random("x", &[tokens / 2 + tokens % 2, 1 + (tokens + 1) % 2, inputs])?;
            let weight = random("weight", &[outputs, inputs])?;
            let bias = random("bias", &[outputs])?;
            let two = [x.clone(), weight.clone()];
            let plain = |v: &[Tensor]| linear(&pool, &v[0], &v[1], None);
            check(&two, plain, |v| reference(inputs, v), 1e-6)?;
            let biased = |v: &[Tensor]| linear(&pool, &v[0], &v[1], Some(&v[2]));
            check(&[x, weight, bias], biased, |v| reference(inputs, v), 1e-6)?;
        }
        Ok(())
    }

    #[test]
    fn shapes_that_do_not_fit_are_named() -> Result<()> {
        let (x, weight) = (random("x", &[2, 3])?, random("weight", &[4, 5])?);
        let message = linear(&Backend::serial(), &x, &weight, None).unwrap_err().to_string();
        assert!(message.contains("found x [2, 3], expected [.., 5]"), "{message}");
        let bias = random("bias", &[3])?;
        let message = linear(&Backend::serial(), &weight, &weight, Some(&bias)).unwrap_err();
        assert!(message.to_string().contains("found a bias of 3, expected 4"), "{message}");
        Ok(())
    }
}
