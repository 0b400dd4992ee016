//! Projections and their gradients: products by cuBLAS, biases by kernels.

use candle_core::{DType, Result, Shape, Tensor, bail};

use super::super::Processor;
use super::elementwise::{add_row, cast, copied};
use super::product::{Was, multiply};
use super::{off_tape, order_free, plain, sums, unwritten, with_last};
use crate::linear::Sizes;
use crate::projections::{Affine, AffineGradients, array};

/// See [`crate::linear()`].
pub(crate) fn linear(
    processor: &dyn Processor,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    off_tape("linear", [x, weight].into_iter().chain(bias))?;
    let rows = Rows::new("linear", processor, x, weight)?;
    rows.projected(processor, bias, x.shape())
}

/// See [`crate::wide_linear`].
pub(crate) fn wide_linear(
    processor: &dyn Processor,
    x: &Tensor,
    weight: &Tensor,
) -> Result<Tensor> {
    off_tape("linear", [x, weight])?;
    let rows = Rows::new("linear", processor, x, weight)?;
    let Sizes { tokens, outputs, .. } = rows.sizes;
    // SAFETY: a product writes every element of its output.
    let y = unsafe { unwritten(processor, (tokens, outputs), DType::F32) }?;
    multiply(processor, &y, &rows.x, &rows.weight.t()?, Was::Nothing)?;
    y.reshape(with_last(x.shape(), outputs))
}

/// See [`crate::projections()`].
pub(crate) fn projections<const N: usize>(
    processor: &dyn Processor,
    x: &Tensor,
    projections: [Affine<'_>; N],
) -> Result<[Tensor; N]> {
    let x = plain(processor, x, x.dtype())?;
    array(projections.iter().map(|Affine { weight, bias }| {
        let rows = Rows::new("projection", processor, &x, weight)?;
        rows.projected(processor, *bias, x.shape())
    }))
}

/// See [`crate::projected_onto`].
pub(crate) fn projected_onto(
    processor: &dyn Processor,
    onto: &Tensor,
    x: &Tensor,
    Affine { weight, bias }: Affine<'_>,
) -> Result<Tensor> {
    let rows = Rows::new("projection", processor, x, weight)?;
    let Sizes { tokens, outputs, .. } = rows.sizes;
    if onto.elem_count() != tokens * outputs {
        let wanted = tokens * outputs;
        bail!("projection: found {:?} to add to, wanted {wanted} elements", onto.shape());
    }
    let onto = plain(processor, onto, x.dtype())?;
    let y = match bias {
        Some(bias) => add_row(processor, &onto, &rows.bias(processor, bias)?)?,
        None => copied(processor, &onto)?,
    };
    multiply(processor, &y.reshape((tokens, outputs))?, &rows.x, &rows.weight.t()?, Was::Sum)?;
    Ok(y)
}

/// See [`crate::input_gradient`]. Of several terms the sum is made in f32.
pub(crate) fn input_gradient<const N: usize>(
    processor: &dyn Processor,
    projections: [Affine<'_>; N],
    dy: [&Tensor; N],
) -> Result<Tensor> {
    let Some((first, projection)) = dy.first().zip(projections.first()) else {
        bail!("projection: found no gradient, wanted one per projection");
    };
    let shape = with_last(first.shape(), projection.weight.dims2()?.1);
    let narrow = first.dtype();
    let dtype = if N == 1 { narrow } else { DType::F32 };
    // SAFETY: the first product writes all of it.
    let dx = unsafe { unwritten(processor, &shape, dtype) }?;
    for (index, (Affine { weight, .. }, dy)) in projections.iter().zip(dy).enumerate() {
        let sizes = Sizes::new(&shape, weight.shape())?;
        let dy = gradient(processor, dy, sizes, narrow)?;
        let weight = plain(processor, weight, narrow)?;
        let was = if index == 0 { Was::Nothing } else { Was::Sum };
        multiply(processor, &dx.reshape((sizes.tokens, sizes.inputs))?, &dy, &weight, was)?;
    }
    if dtype == narrow { Ok(dx) } else { cast(processor, &dx, narrow) }
}

/// See [`crate::parameter_gradients`]: f32, whatever the inputs are, or tables of order-free sums.
pub(crate) fn parameter_gradients<const N: usize>(
    processor: &dyn Processor,
    x: &Tensor,
    projections: [Affine<'_>; N],
    dy: [&Tensor; N],
) -> Result<[AffineGradients; N]> {
    let x = plain(processor, x, x.dtype())?;
    array(projections.iter().zip(dy).map(|(Affine { weight, bias }, dy)| {
        let sizes = Sizes::new(x.shape(), weight.shape())?;
        let dy = gradient(processor, dy, sizes, x.dtype())?;
        let dw = weight_gradient(processor, &dy, &x.reshape((sizes.tokens, sizes.inputs))?)?;
        let bias = bias.map(|_| sums::over_rows(processor, &dy)).transpose()?;
        Ok(AffineGradients { weight: dw, bias })
    }))
}

/// `dyᵀ x`, of `dy` [tokens, O] and `x` [tokens, I], plain: f32 [O, I], or a table of order-free sums.
fn weight_gradient(processor: &dyn Processor, dy: &Tensor, x: &Tensor) -> Result<Tensor> {
    let (outputs, inputs) = (dy.dim(1)?, x.dim(1)?);
    if let Some(block) = processor.block() {
        let sums = order_free::nothing(processor, outputs * inputs)?;
        order_free::add_products(processor, &sums, dy, x, block)?;
        return Ok(sums);
    }
    // SAFETY: the product writes all of it.
    let dw = unsafe { unwritten(processor, (outputs, inputs), DType::F32) }?;
    multiply(processor, &dw, &dy.t()?, x, Was::Nothing)?;
    Ok(dw)
}

/// The gradient of an output, [tokens, O], plain.
fn gradient(
    processor: &dyn Processor,
    dy: &Tensor,
    Sizes { tokens, outputs, .. }: Sizes,
    dtype: DType,
) -> Result<Tensor> {
    if dy.elem_count() != tokens * outputs {
        bail!("projection: found a gradient {:?}, wanted [{tokens}, {outputs}]", dy.shape());
    }
    plain(processor, dy, dtype)?.reshape((tokens, outputs))
}

/// An input as it meets a weight: plain, of one type.
struct Rows {
    /// Who says what is wrong.
    operator: &'static str,
    sizes: Sizes,
    /// [tokens, I].
    x: Tensor,
    /// [O, I].
    weight: Tensor,
}

impl Rows {
    fn new(
        operator: &'static str,
        processor: &dyn Processor,
        x: &Tensor,
        weight: &Tensor,
    ) -> Result<Rows> {
        let sizes = Sizes::new(x.shape(), weight.shape())?;
        let weight = plain(processor, weight, x.dtype())?;
        let x = plain(processor, x, x.dtype())?.reshape((sizes.tokens, sizes.inputs))?;
        Ok(Rows { operator, sizes, x, weight })
    }

    fn bias(&self, processor: &dyn Processor, bias: &Tensor) -> Result<Tensor> {
        if bias.elem_count() != self.sizes.outputs {
            let (found, wanted) = (bias.elem_count(), self.sizes.outputs);
            bail!("{}: found a bias of {found}, wanted {wanted}", self.operator);
        }
        plain(processor, bias, self.x.dtype())
    }

    /// `x wᵀ + bias`, rounded once: the bias lies in every row before the product is added.
    fn projected(
        &self,
        processor: &dyn Processor,
        bias: Option<&Tensor>,
        shape: &Shape,
    ) -> Result<Tensor> {
        let Sizes { tokens, outputs, .. } = self.sizes;
        let (y, was) = if let Some(bias) = bias {
            let rows = self.bias(processor, bias)?.broadcast_as((tokens, outputs))?;
            (copied(processor, &rows)?, Was::Sum)
        } else {
            // SAFETY: the product writes all of it.
            let y = unsafe { unwritten(processor, (tokens, outputs), self.x.dtype()) }?;
            (y, Was::Nothing)
        };
        multiply(processor, &y, &self.x, &self.weight.t()?, was)?;
        y.reshape(with_last(shape, outputs))
    }
}
