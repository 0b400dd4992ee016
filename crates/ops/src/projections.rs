//! Several projections of one input at once, and their gradients: off the tape, for callers that compute backward themselves.

use annulus_memory::{Class, scope};
use candle_core::{CpuStorage, DType, InplaceOp1, Layout, Result, Shape, Tensor, bail};

use crate::gpu::operators;
use crate::linear::{Sizes, of_bias};
use crate::matrix::{Matrix, Output, Product, multiply};
use crate::rows::{Elements, in_place_mut, rows_per_chunk, tensor, unwritten};
use crate::{Backend, Pool, order_free};

/// A projection: `x wᵀ + bias`.
#[derive(Clone, Copy, Debug)]
pub struct Affine<'a> {
    /// The weight, [O, I].
    pub weight: &'a Tensor,
    /// The bias, `[O]`, if any.
    pub bias: Option<&'a Tensor>,
}

/// All `projections` of `x` [.., I]: [.., O] each, in the dtype of `x`.
///
/// # Errors
/// When the shapes do not fit, or a tensor is neither f32 nor bf16.
pub fn projections<const N: usize>(
    backend: &Backend,
    x: &Tensor,
    projections: [Affine<'_>; N],
) -> Result<[Tensor; N]> {
    let pool = match backend {
        Backend::Gpu(processor) => return operators::projections(&**processor, x, projections),
        Backend::Cpu(pool) => pool,
    };
    let x_values = Elements::of(pool, x)?;
    let all = read(pool, x.shape(), &projections)?;
    let mut outputs: Vec<_> = all.iter().map(Read::output).collect();
    for (read, y) in all.iter().zip(&mut outputs) {
        let onto = read.bias.as_deref().map_or(Output::Overwrite, Output::AddRow);
        let weight = read.weight(pool)?;
        let product = Product::new(read.x(&x_values), read.matrix(&weight).transposed(), y);
        multiply(pool, vec![Product { onto, ..product }]);
    }
    let tensors = all.iter().zip(outputs).map(|(read, y)| {
        let mut dims = x.dims().to_vec();
        dims.splice(dims.len() - 1.., [read.sizes.outputs]);
        tensor(pool, y, dims, x.dtype())
    });
    array(tensors)
}

/// The end of a residual branch: `onto + x wᵀ + bias`, in the dtype and shape of `onto`.
///
/// # Errors
/// When the shapes do not fit, or a tensor is neither f32 nor bf16.
pub fn projected_onto(
    backend: &Backend,
    onto: &Tensor,
    x: &Tensor,
    projection: Affine<'_>,
) -> Result<Tensor> {
    let pool = match backend {
        Backend::Gpu(processor) => {
            return operators::projected_onto(&**processor, onto, x, projection);
        }
        Backend::Cpu(pool) => pool,
    };
    let (x_values, onto_values) = (Elements::of(pool, x)?, Elements::of(pool, onto)?);
    let [read] = &read(pool, x.shape(), &[projection])?[..] else {
        unreachable!("one projection was read")
    };
    let mut y = read.output();
    if onto_values.len() != y.len() {
        bail!("projection: found {:?} to add to, expected {} elements", onto.shape(), y.len());
    }
    let weight = read.weight(pool)?;
    let product = Product::new(read.x(&x_values), read.matrix(&weight).transposed(), &mut y);
    multiply(pool, vec![Product { onto: Output::AddMatrix(&onto_values), ..product }]);
    drop(weight);
    if let Some(bias) = &read.bias {
        let width = bias.len().max(1);
        pool.for_chunks(&mut y, rows_per_chunk(width) * width, |_, piece| {
            for row in piece.chunks_exact_mut(width) {
                row.iter_mut().zip(&**bias).for_each(|(y, bias)| *y += bias);
            }
        });
    }
    tensor(pool, y, onto.shape(), onto.dtype())
}

/// The gradient of the input of [`projections`], given those of the outputs, [.., O] each: [.., I], in
/// their type.
///
/// # Errors
/// When the shapes do not fit, or a tensor is neither f32 nor bf16.
pub fn input_gradient<const N: usize>(
    backend: &Backend,
    projections: [Affine<'_>; N],
    dy: [&Tensor; N],
) -> Result<Tensor> {
    let pool = match backend {
        Backend::Gpu(processor) => return operators::input_gradient(&**processor, projections, dy),
        Backend::Cpu(pool) => pool,
    };
    let Some((first, projection)) = dy.first().zip(projections.first()) else {
        bail!("projection: found no gradient, expected one per projection");
    };
    let mut dims = first.dims().to_vec();
    let inputs = projection.weight.dims2()?.1;
    dims.splice(dims.len().saturating_sub(1).., [inputs]);
    let shape = Shape::from(dims);
    let all = read(pool, &shape, &projections)?;
    let values = gradients(pool, &all, &dy)?;
    // SAFETY: a product writes every element of its output.
    let mut dx = unsafe { unwritten(shape.elem_count()) };
    let mut onto = Output::Overwrite;
    for (read, dy) in all.iter().zip(&values) {
        let weight = read.weight(pool)?;
        let product = Product::new(read.y(dy), read.matrix(&weight), &mut dx);
        multiply(pool, vec![Product { onto, ..product }]);
        onto = Output::Accumulate;
    }
    tensor(pool, dx, shape, first.dtype())
}

/// The gradients of the parameters of one of [`projections`]: f32, or where the pool's sums are order-free, tables of those.
#[derive(Debug)]
pub struct AffineGradients {
    /// The gradient of the weight, [O, I].
    pub weight: Tensor,
    /// The gradient of the bias, `[O]`, where there is one.
    pub bias: Option<Tensor>,
}

/// The gradients of the parameters of [`projections`] of `x` [.., I], given those of the outputs,
/// [.., O] each. Where `sums` has the sum of a weight's earlier gradients, the product is added to it in place (the beta of BLAS), in all
/// its views, and it is returned: no gradient of its own takes memory or a pass over it.
///
/// # Errors
/// When the shapes do not fit, a tensor is neither f32 nor bf16, or a sum has gaps or another type than a gradient.
pub fn parameter_gradients<const N: usize>(
    backend: &Backend,
    x: &Tensor,
    projections: [Affine<'_>; N],
    dy: [&Tensor; N],
    sums: [Option<&Tensor>; N],
) -> Result<[AffineGradients; N]> {
    let pool = match backend {
        Backend::Gpu(processor) => {
            return operators::parameter_gradients(&**processor, x, projections, dy, sums);
        }
        Backend::Cpu(pool) => pool,
    };
    let x_values = Elements::of(pool, x)?;
    let all = read(pool, x.shape(), &projections)?;
    let dy = gradients(pool, &all, &dy)?;
    array(projections.iter().zip(&all).zip(dy.iter().zip(sums)).map(
        |((projection, read), (dy, sum))| {
            let weight = WeightGradient { pool, read, x: &x_values, dy }.onto(sum)?;
            let bias = projection.bias.map(|bias| {
                of_bias(pool, dy, bias.elem_count()).tensor(pool, bias.shape(), DType::F32)
            });
            Ok(AffineGradients { weight, bias: bias.transpose()? })
        },
    ))
}

/// The gradient `dw = dyᵀ x` of a weight: f32, or a table of order-free sums.
struct WeightGradient<'a> {
    pool: &'a Pool,
    read: &'a Read<'a>,
    x: &'a [f32],
    dy: &'a [f32],
}

impl WeightGradient<'_> {
    /// The gradient, added to `sum` where there is one; else counted as gradients from the start.
    fn onto(self, sum: Option<&Tensor>) -> Result<Tensor> {
        let WeightGradient { pool, read, x, dy } = self;
        let Sizes { outputs, inputs, .. } = read.sizes;
        if let Some(sum) = sum {
            check_sum(sum, [outputs, inputs], pool.block().is_some())?;
            sum.inplace_op1(&self)?;
            return Ok(sum.clone());
        }
        if let Some(block) = pool.block() {
            return order_free::weight_gradient(pool, dy, outputs, x, inputs, block);
        }
        let mut dw = {
            let _gradients = scope(Class::Gradients);
            // SAFETY: a product writes every element of its output.
            unsafe { unwritten(outputs * inputs) }
        };
        multiply(pool, vec![Product::new(read.y(dy).transposed(), read.x(x), &mut dw)]);
        tensor(pool, dw, (outputs, inputs), DType::F32)
    }
}

impl InplaceOp1 for WeightGradient<'_> {
    fn name(&self) -> &'static str {
        "weight gradient"
    }
    fn cpu_fwd(&self, sum: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let &WeightGradient { pool, read, x, dy } = self;
        if let Some(block) = pool.block() {
            let Sizes { outputs, inputs, .. } = read.sizes;
            let table = order_free::table_mut(sum, layout)?;
            return order_free::add_weight_gradient(pool, table, (dy, outputs), (x, inputs), block);
        }
        let sum = in_place_mut(sum, layout)?;
        let product = Product::new(read.y(dy).transposed(), read.x(x), sum);
        multiply(pool, vec![Product { onto: Output::Accumulate, ..product }]);
        Ok(())
    }
}

/// Refuses a sum to which a weight's gradient [O, I] cannot be added: f32 of its shape, or a table of order-free sums without gaps.
pub(crate) fn check_sum(sum: &Tensor, shape: [usize; 2], is_order_free: bool) -> Result<()> {
    let (wanted, dtype) = if is_order_free {
        (order_free::table_of(shape[0] * shape[1]), DType::U32)
    } else {
        (shape, DType::F32)
    };
    if sum.dims() != wanted || sum.dtype() != dtype {
        let found = (sum.dtype(), sum.dims());
        bail!("projection: found a sum of gradients {found:?}, expected {dtype:?} {wanted:?}");
    }
    if is_order_free && !sum.is_contiguous() {
        bail!("projection: found a table of order-free sums with gaps");
    }
    Ok(())
}

/// The elements of the outputs' gradients.
fn gradients<'a>(pool: &Pool, all: &[Read<'_>], dy: &[&'a Tensor]) -> Result<Vec<Elements<'a>>> {
    let one = |(read, dy): (&Read<'_>, &&'a Tensor)| {
        let Sizes { tokens, outputs, .. } = read.sizes;
        if dy.elem_count() != tokens * outputs {
            bail!("projection: found a gradient {:?}, expected [{tokens}, {outputs}]", dy.shape());
        }
        Elements::of(pool, dy)
    };
    all.iter().zip(dy).map(one).collect()
}

/// A projection, for one x.
struct Read<'a> {
    sizes: Sizes,
    weight: &'a Tensor,
    bias: Option<Elements<'a>>,
}

fn read<'a>(pool: &Pool, x: &Shape, projections: &[Affine<'a>]) -> Result<Vec<Read<'a>>> {
    let one = |&Affine { weight, bias }: &Affine<'a>| {
        let sizes = Sizes::new(x, weight.shape())?;
        let bias = bias.map(|bias| Elements::of(pool, bias)).transpose()?;
        if let Some(bias) = bias.as_ref().filter(|bias| bias.len() != sizes.outputs) {
            bail!("projection: found a bias of {}, expected {}", bias.len(), sizes.outputs);
        }
        Ok(Read { sizes, weight, bias })
    };
    projections.iter().map(one).collect()
}

impl<'w> Read<'w> {
    /// The weight's elements. A narrower one is widened, one at a time: where rows are few, nothing takes more memory.
    fn weight(&self, pool: &Pool) -> Result<Elements<'w>> {
        Elements::of(pool, self.weight)
    }
    /// The weight, [O, I], of its elements.
    fn matrix<'a>(&self, values: &'a [f32]) -> Matrix<'a> {
        Matrix::new(values, self.sizes.outputs, self.sizes.inputs)
    }
    /// The input, [tokens, I].
    fn x<'a>(&self, values: &'a [f32]) -> Matrix<'a> {
        Matrix::new(values, self.sizes.tokens, self.sizes.inputs)
    }
    /// The output, [tokens, O].
    fn y<'a>(&self, values: &'a [f32]) -> Matrix<'a> {
        Matrix::new(values, self.sizes.tokens, self.sizes.outputs)
    }
    /// A buffer for the projection.
    fn output(&self) -> Vec<f32> {
        // SAFETY: the callers make it the output of a product, which writes every element.
        unsafe { unwritten(self.sizes.tokens * self.sizes.outputs) }
    }
}

/// The N results, or the first error.
pub(crate) fn array<T, const N: usize>(results: impl Iterator<Item = Result<T>>) -> Result<[T; N]> {
    let all: Vec<T> = results.collect::<Result<_>>()?;
    all.try_into().or_else(|all: Vec<T>| bail!("internal: {} results instead of {N}", all.len()))
}
