//! Projections and their gradients: products by cuBLAS, biases by kernels.
//!
//! Several projections of one input are one product where what they read is one matrix: weights that follow one another in memory, and
//! gradients side by side. Not where sums are order-free: each weight then has a table of its own.

use candle_core::{DType, Result, Shape, Tensor, bail};

use super::super::Processor;
use super::elementwise::{add_row, cast, copied, gathered};
use super::product::{Output, multiply};
use super::view::{self, View};
use super::{here, off_tape, order_free, plain, sums, unwritten, with_last};
use crate::linear::Sizes;
use crate::projections::{Affine, AffineGradients, array, check_sum};

/// [`crate::linear()`] on a processor.
pub(crate) fn linear(
    processor: &dyn Processor,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    off_tape("linear", [x, weight].into_iter().chain(bias))?;
    let [y] = projections(processor, x, [Affine { weight, bias }])?;
    Ok(y)
}

/// [`crate::wide_linear`] on a processor.
pub(crate) fn wide_linear(
    processor: &dyn Processor,
    x: &Tensor,
    weight: &Tensor,
) -> Result<Tensor> {
    off_tape("linear", [x, weight])?;
    let Sizes { tokens, outputs, .. } = Sizes::new(x.shape(), weight.shape())?;
    let (x, weight) = (rows(processor, x, x.dtype())?, rows(processor, weight, x.dtype())?);
    // SAFETY: a product writes every element of its output.
    let y = unsafe { unwritten(processor, (tokens, outputs), DType::F32) }?;
    multiply(
        processor,
        &View::of(&y)?,
        &view::rows(&x)?,
        &view::rows(&weight)?.t(),
        Output::Overwrite,
    )?;
    y.reshape(with_last(x.shape(), outputs))
}

/// [`crate::projections()`] on a processor.
pub(crate) fn projections<const N: usize>(
    processor: &dyn Processor,
    x: &Tensor,
    projections: [Affine<'_>; N],
) -> Result<[Tensor; N]> {
    let x = rows(processor, x, x.dtype())?;
    let read = projections.iter().map(|one| Read::new(processor, &x, one));
    let read: [Read; N] = array(read)?;
    let all: [Operands<'_>; N] = array(read.iter().map(Read::operands))?;
    match Operands::joined(processor, &all) {
        Some(one) => {
            let y = one.projected(processor, &x)?;
            array(parts(&y, y.rank() - 1, all.iter().map(|one| one.weight.dims[0])))
        }
        None => array(all.iter().map(|one| one.projected(processor, &x))),
    }
}

/// [`crate::projected_onto`] on a processor.
pub(crate) fn projected_onto(
    processor: &dyn Processor,
    onto: &Tensor,
    x: &Tensor,
    projection: Affine<'_>,
) -> Result<Tensor> {
    let Sizes { tokens, outputs, .. } = Sizes::new(x.shape(), projection.weight.shape())?;
    if onto.elem_count() != tokens * outputs {
        let wanted = tokens * outputs;
        bail!("projection: found {:?} to add to, expected {wanted} elements", onto.shape());
    }
    here(processor, onto)?;
    let x = rows(processor, x, x.dtype())?;
    let Read { weight, bias } = Read::new(processor, &x, &projection)?;
    let y = match bias {
        Some(bias) => add_row(processor, &plain(processor, onto, x.dtype())?, &bias)?,
        None if onto.dtype() == x.dtype() => copied(processor, onto)?,
        None => plain(processor, onto, x.dtype())?,
    };
    let matrix = y.reshape((tokens, outputs))?;
    multiply(
        processor,
        &View::of(&matrix)?,
        &view::rows(&x)?,
        &view::rows(&weight)?.t(),
        Output::Accumulate,
    )?;
    Ok(y)
}

/// [`crate::input_gradient`] on a processor. The sum of several terms is computed in f32.
pub(crate) fn input_gradient<const N: usize>(
    processor: &dyn Processor,
    projections: [Affine<'_>; N],
    dy: [&Tensor; N],
) -> Result<Tensor> {
    let Some((first, projection)) = dy.first().zip(projections.first()) else {
        bail!("projection: found no gradient, expected one per projection");
    };
    let (inputs, narrow) = (projection.weight.dims2()?.1, first.dtype());
    let shape = with_last(first.shape(), inputs);
    let (dy, weights): ([Tensor; N], [Tensor; N]) = (
        gradients(processor, &shape, &projections, dy, narrow)?,
        array(projections.iter().map(|one| rows(processor, one.weight, narrow)))?,
    );
    let [dy, weights] = [views(&dy)?, views(&weights)?];
    let joined = joined(processor, &dy, 1).zip(joined(processor, &weights, 0));
    let dtype = if N == 1 || joined.is_some() { narrow } else { DType::F32 };
    // SAFETY: the first product writes all of it.
    let dx = unsafe { unwritten(processor, &shape, dtype) }?;
    let matrix = dx.reshape((dy[0].dims[0], inputs))?;
    let terms = joined.map_or_else(|| dy.into_iter().zip(weights).collect(), |one| vec![one]);
    for (index, (dy, weight)) in terms.iter().enumerate() {
        let output = if index == 0 { Output::Overwrite } else { Output::Accumulate };
        multiply(processor, &View::of(&matrix)?, dy, weight, output)?;
    }
    if dtype == narrow { Ok(dx) } else { cast(processor, &dx, narrow) }
}

/// [`crate::parameter_gradients`] on a processor: f32 for any inputs, or tables of order-free sums.
pub(crate) fn parameter_gradients<const N: usize>(
    processor: &dyn Processor,
    x: &Tensor,
    projections: [Affine<'_>; N],
    dy: [&Tensor; N],
    sums: [Option<&Tensor>; N],
) -> Result<[AffineGradients; N]> {
    let x = plain(processor, x, x.dtype())?;
    let dy = gradients(processor, x.shape(), &projections, dy, x.dtype())?;
    let dy = views(&dy)?;
    let weights = weight_gradients(processor, &view::rows(&x)?, &dy, sums)?;
    let biases = bias_gradients(processor, &projections, &dy)?;
    array(
        weights.into_iter().zip(biases).map(|(weight, bias)| Ok(AffineGradients { weight, bias })),
    )
}

/// The gradients `dyᵀ x` of weights [O, I]: f32, or tables of order-free sums; added to `sums` where there are some.
fn weight_gradients<const N: usize>(
    processor: &dyn Processor,
    x: &View<'_>,
    dy: &[View<'_>; N],
    sums: [Option<&Tensor>; N],
) -> Result<[Tensor; N]> {
    let inputs = x.dims[1];
    for (dy, sum) in dy.iter().zip(sums) {
        let Some(sum) = sum else { continue };
        here(processor, sum)?;
        check_sum(sum, [dy.dims[1], inputs], processor.block().is_some())?;
    }
    if let Some(block) = processor.block() {
        return array(dy.iter().zip(sums).map(|(dy, sum)| {
            let new = || order_free::nothing(processor, dy.dims[1] * inputs);
            let sum = sum.map_or_else(new, |sum| Ok(sum.clone()))?;
            order_free::add_products(processor, &sum, dy, x, block)?;
            Ok(sum)
        }));
    }
    let had = sums.iter().flatten().map(|sum| view::rows(sum)).collect::<Result<Vec<_>>>()?;
    let had_one = joined(processor, &had, 0);
    let is_fit = had.is_empty() || had_one.is_some();
    let Some(one) = joined(processor, dy, 1).filter(|_| is_fit) else {
        return array(dy.iter().zip(sums).map(|(dy, sum)| weight_gradient(processor, dy, x, sum)));
    };
    if let Some(had) = had_one {
        multiply(processor, &had, &one.t(), x, Output::Accumulate)?;
        return array(sums.iter().flatten().map(|sum| Ok((*sum).clone())));
    }
    let whole = weight_gradient(processor, &one, x, None)?;
    array(parts(&whole, 0, dy.iter().map(|dy| dy.dims[1])))
}

/// The gradient `dyᵀ x` of a weight, f32 [O, I], added to `sum` where there is one.
fn weight_gradient(
    processor: &dyn Processor,
    dy: &View<'_>,
    x: &View<'_>,
    sum: Option<&Tensor>,
) -> Result<Tensor> {
    let new = || {
        // SAFETY: the product writes all of it.
        unsafe { unwritten(processor, (dy.dims[1], x.dims[1]), DType::F32) }
    };
    let dw = sum.map_or_else(new, |sum| Ok(sum.clone()))?;
    let output = if sum.is_some() { Output::Accumulate } else { Output::Overwrite };
    multiply(processor, &View::of(&dw)?, &dy.clone().t(), x, output)?;
    Ok(dw)
}

/// The gradients of biases, where projections have them: f32 `[O]`, or tables of order-free sums.
fn bias_gradients<const N: usize>(
    processor: &dyn Processor,
    projections: &[Affine<'_>; N],
    dy: &[View<'_>; N],
) -> Result<[Option<Tensor>; N]> {
    let all_have_some = projections.iter().all(|one| one.bias.is_some());
    if let Some(one) = joined(processor, dy, 1).filter(|_| all_have_some) {
        let whole = sums::over_rows(processor, &one)?;
        return array(parts(&whole, 0, dy.iter().map(|dy| dy.dims[1])).map(|bias| bias.map(Some)));
    }
    array(
        projections
            .iter()
            .zip(dy)
            .map(|(one, dy)| one.bias.map(|_| sums::over_rows(processor, dy)).transpose()),
    )
}

/// The tensor itself where it is rows of `dtype`, with or without gaps between them; else a copy without gaps.
pub(super) fn rows(processor: &dyn Processor, x: &Tensor, dtype: DType) -> Result<Tensor> {
    here(processor, x)?;
    if x.dtype() == dtype && View::rows(x).is_some() {
        return Ok(x.detach());
    }
    plain(processor, x, dtype)
}

/// The gradients of the outputs for an input of shape `x`, as rows of `dtype`.
fn gradients<const N: usize>(
    processor: &dyn Processor,
    x: &Shape,
    projections: &[Affine<'_>; N],
    dy: [&Tensor; N],
    dtype: DType,
) -> Result<[Tensor; N]> {
    array(dy.iter().zip(projections).map(|(dy, projection)| {
        let Sizes { tokens, outputs, .. } = Sizes::new(x, projection.weight.shape())?;
        if dy.elem_count() != tokens * outputs {
            bail!("projection: found a gradient {:?}, expected [{tokens}, {outputs}]", dy.shape());
        }
        let dy = rows(processor, dy, dtype)?;
        let is_row = dy.dims().last() == Some(&outputs);
        if is_row { Ok(dy) } else { plain(processor, &dy, dtype)?.reshape((tokens, outputs)) }
    }))
}

fn views<const N: usize>(all: &[Tensor; N]) -> Result<[View<'_>; N]> {
    array(all.iter().map(view::rows))
}

/// Several views as one, where a single product may take them.
fn joined<'a>(processor: &dyn Processor, all: &[View<'a>], dim: usize) -> Option<View<'a>> {
    let is_fit = all.len() > 1 && processor.block().is_none();
    if is_fit { View::joined(all, dim) } else { None }
}

/// The parts of these sizes that follow one another along `dim` of a tensor.
fn parts(
    whole: &Tensor,
    dim: usize,
    sizes: impl Iterator<Item = usize>,
) -> impl Iterator<Item = Result<Tensor>> {
    let mut begin = 0;
    sizes.map(move |size| {
        begin += size;
        whole.narrow(dim, begin - size, size)
    })
}

/// A projection prepared for an input: of one dtype, with its weight [O, I] in rows.
struct Read {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Read {
    fn new(
        processor: &dyn Processor,
        x: &Tensor,
        Affine { weight, bias }: &Affine<'_>,
    ) -> Result<Read> {
        let Sizes { outputs, .. } = Sizes::new(x.shape(), weight.shape())?;
        if let Some(found) = bias.map(Tensor::elem_count).filter(|found| *found != outputs) {
            bail!("projection: found a bias of {found}, expected {outputs}");
        }
        let bias = bias.map(|bias| plain(processor, bias, x.dtype())).transpose()?;
        Ok(Read { weight: rows(processor, weight, x.dtype())?, bias })
    }

    fn operands(&self) -> Result<Operands<'_>> {
        let bias = self.bias.as_ref().map(view::rows).transpose()?;
        Ok(Operands { weight: view::rows(&self.weight)?, bias })
    }
}

/// The operands of a projection, or of several as one.
struct Operands<'a> {
    /// The weight, [O, I].
    weight: View<'a>,
    /// The bias, [1, O].
    bias: Option<View<'a>>,
}

impl<'a> Operands<'a> {
    /// A single projection to all outputs, where all weights touch, and all biases do or there are none.
    fn joined(processor: &dyn Processor, all: &[Operands<'a>]) -> Option<Operands<'a>> {
        let weights: Vec<_> = all.iter().map(|one| one.weight.clone()).collect();
        let biases: Vec<_> = all.iter().filter_map(|one| one.bias.clone()).collect();
        let weight = joined(processor, &weights, 0)?;
        match biases.len() {
            0 => Some(Operands { weight, bias: None }),
            many if many == all.len() => {
                Some(Operands { weight, bias: Some(joined(processor, &biases, 1)?) })
            }
            _ => None,
        }
    }

    /// `x wᵀ + bias` for rows `x` [.., I]: [.., O]. Rounded once: every row starts from the bias in f32, to which the product is added.
    fn projected(&self, processor: &dyn Processor, x: &Tensor) -> Result<Tensor> {
        let (rows, outputs) = (view::rows(x)?, self.weight.dims[0]);
        let (dims, dtype) = ([rows.dims[0], outputs], x.dtype());
        let (y, output) = match &self.bias {
            // SAFETY: the product writes all of it.
            None => (unsafe { unwritten(processor, &dims[..], dtype) }?, Output::Overwrite),
            Some(bias) if dtype == DType::F32 => {
                (gathered(processor, &bias.tensors, &dims, &[0, 1])?, Output::Accumulate)
            }
            Some(bias) => {
                let row = gathered(processor, &bias.tensors, &[outputs], &[1])?;
                let row = cast(processor, &row, DType::F32)?;
                (gathered(processor, &[&row], &dims, &[0, 1])?, Output::Accumulate)
            }
        };
        multiply(processor, &View::of(&y)?, &rows, &self.weight.clone().t(), output)?;
        let y = if y.dtype() == dtype { y } else { cast(processor, &y, dtype)? };
        y.reshape(with_last(x.shape(), outputs))
    }
}
