//! The RMS norm: `x / sqrt(mean(x²) + epsilon) * weight` over the last dimension (Zhang and Sennrich, arXiv 1910.07467).

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, DType, Layout, Result, Shape, Tensor, bail};
use pulp::{Simd, WithSimd};

use crate::gpu::operators;
use crate::rows::{Elements, Rows, elements, narrow, rows_per_chunk, tensor, unwritten};
use crate::sums::{sum_lanes, sum_rows_and};
use crate::{Backend, Pool};

/// The RMS norm of `x` [.., D] with `weight` `[D]`: [.., D] in the dtype of `x`, with gradients for both.
///
/// # Errors
/// When `weight` is not as long as the rows of `x`, or a tensor is neither f32 nor bf16.
pub fn rms_norm(backend: &Backend, x: &Tensor, weight: &Tensor, epsilon: f64) -> Result<Tensor> {
    let pool = match backend {
        Backend::Gpu(processor) => return operators::rms_norm(&**processor, x, weight, epsilon),
        Backend::Cpu(pool) => pool,
    };
    pool.off_tape("rms-norm", [x, weight])?;
    x.apply_op2(weight, RmsNorm { pool: pool.clone(), epsilon })
}

/// The number of rows of x, and their width, which the weight has.
pub(crate) fn sizes(x: &Shape, weight: &Shape) -> Result<(usize, usize)> {
    let width = weight.dims1()?;
    match x.dims().split_last() {
        Some((&last, leading)) if last == width => Ok((leading.iter().product(), width)),
        _ => bail!("rms-norm: found x {x:?}, expected [.., {width}]"),
    }
}

struct RmsNorm {
    pool: Pool,
    epsilon: f64,
}

/// The scale `1 / sqrt(mean(x²) + epsilon)` of a row. Backward computes it again, which costs less than reading it.
#[inline(always)]
fn scale(x: &[f32], epsilon: f64) -> f32 {
    let squares = sum_lanes([x], |sum, [x]| x.mul_add(x, sum));
    (1.0 / (f64::from(squares) / x.len() as f64 + epsilon).sqrt()) as f32
}

/// Computes y = x r w with r the row's scale, in place.
struct Forward<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    epsilon: f64,
}

impl WithSimd for Forward<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for row in self.x.chunks_exact_mut(self.weight.len()) {
            let r = scale(row, self.epsilon);
            for (x, w) in row.iter_mut().zip(self.weight) {
                *x = *x * r * w;
            }
        }
    }
}

/// Computes dx = onto + r (dy w) - x r³ mean(dy w x), and dw += sum over rows of dy x r.
struct Backward<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    dy: &'a [f32],
    /// The rows that dx is added to; empty: nothing.
    onto: &'a [f32],
    dx: &'a mut [f32],
    dw: &'a mut [f32],
    epsilon: f64,
}

impl WithSimd for Backward<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (weight, width) = (self.weight, self.weight.len());
        let rows = self.x.chunks_exact(width).zip(self.dy.chunks_exact(width));
        for (index, (dx, (x, dy))) in self.dx.chunks_exact_mut(width).zip(rows).enumerate() {
            let r = scale(x, self.epsilon);
            let along = sum_lanes([x, weight, dy], |sum, [x, w, dy]| (dy * w).mul_add(x, sum));
            let back = r * r * r * along / width as f32;
            let arguments = x.iter().zip(weight.iter().zip(dy));
            for ((dx, dw), (x, (w, dy))) in dx.iter_mut().zip(&mut *self.dw).zip(arguments) {
                *dx = (r * w).mul_add(*dy, -(back * x));
                *dw = (dy * r).mul_add(*x, *dw);
            }
            if let Some(onto) = self.onto.chunks_exact(width).nth(index) {
                dx.iter_mut().zip(onto).for_each(|(dx, onto)| *dx += onto);
            }
        }
    }
}

/// The gradients of [`rms_norm`], given that of its output and, for a branch that leaves a residual
/// stream, that of the stream, which dx is added to: dx in the type of `x`, dw in f32. Off the tape.
///
/// # Errors
/// When the shapes differ, or a tensor is neither f32 nor bf16.
pub fn rms_norm_backward(
    backend: &Backend,
    x: &Tensor,
    weight: &Tensor,
    epsilon: f64,
    dy: &Tensor,
    onto: Option<&Tensor>,
) -> Result<(Tensor, Tensor)> {
    let (_, width) = sizes(x.shape(), weight.shape())?;
    for other in [Some(dy), onto].into_iter().flatten() {
        if other.shape() != x.shape() {
            bail!("rms-norm: found a gradient {:?}, expected {:?}", other.shape(), x.shape());
        }
    }
    let pool = match backend {
        Backend::Gpu(processor) => {
            return operators::rms_norm_backward(&**processor, x, weight, epsilon, dy, onto);
        }
        Backend::Cpu(pool) => pool,
    };
    let (x_values, dy) = (Elements::of(pool, x)?, Elements::of(pool, dy)?);
    let onto = onto.map(|onto| Elements::of(pool, onto)).transpose()?;
    let onto = onto.as_deref().unwrap_or(&[]);
    let weights = Elements::of(pool, weight)?;
    // SAFETY: the rows are whole, as x is of rows of `width`, and backward writes all of each.
    let mut dx = unsafe { unwritten(x_values.len()) };
    let dw = sum_rows_and(pool, &mut dx, width, |rows, dx, dw| {
        let range = rows.start * width..rows.end * width;
        let (x, dy) = (&x_values[range.clone()], &dy[range.clone()]);
        let onto = onto.get(range).unwrap_or(&[]);
        pool.arch().dispatch(Backward { x, weight: &weights, dy, onto, dx, dw, epsilon });
    });
    let dx = tensor(pool, dx, x.shape(), x.dtype())?;
    Ok((dx, dw.tensor(pool, weight.shape(), DType::F32)?))
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms-norm"
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (_, width) = sizes(x_layout.shape(), weight_layout.shape())?;
        let rows = Rows::new(x, x_layout)?;
        let weight = elements(&self.pool, weight, weight_layout)?;
        // SAFETY: the pieces are whole rows and cover the output; `copy` writes all of each.
        let mut y = unsafe { unwritten(x_layout.shape().elem_count()) };
        let chunk = rows_per_chunk(width);
        self.pool.for_chunks(&mut y, chunk * width.max(1), |index, piece| {
            rows.copy(index * chunk, piece);
            self.pool.arch().dispatch(Forward { x: piece, weight: &weight, epsilon: self.epsilon });
        });
        Ok((narrow(&self.pool, y, x.dtype())?, x_layout.shape().clone()))
    }
    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (dx, dw) =
            rms_norm_backward(&Backend::Cpu(self.pool.clone()), x, weight, self.epsilon, dy, None)?;
        Ok((Some(dx), Some(dw.to_dtype(weight.dtype())?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check, random};

    fn reference(epsilon: f64, v: &[Vec<f64>]) -> Vec<f64> {
        let (x, weight) = (&v[0], &v[1]);
        let norm = |row: &[f64]| {
            let squares: f64 = row.iter().map(|x| x * x).sum();
            (squares / row.len() as f64 + epsilon).sqrt()
        };
        x.chunks(weight.len())
            .flat_map(|row| row.iter().zip(weight).map(move |(x, w)| x / norm(row) * w))
            .collect()
    }

    #[test]
    fn agrees_with_plain_loops_and_finite_differences() -> Result<()> {
        for shape in [[4, 6], [1, 2], [1, 70], [5, 33]] {
            let (x, weight) = (random("x", &shape)?, random("weight", &shape[1..])?);
            let operator = |v: &[Tensor]| rms_norm(&Backend::cpu(2), &v[0], &v[1], 1e-3);
            check(&[x, weight], operator, |v| reference(1e-3, v), 2e-6)?;
        }
        Ok(())
    }

    #[test]
    fn a_row_of_zeros_has_finite_gradients() -> Result<()> {
        let x = Tensor::zeros((2, 4), candle_core::DType::F32, &candle_core::Device::Cpu)?;
        let operator = |v: &[Tensor]| rms_norm(&Backend::serial(), &v[0], &v[1], 1e-5);
        check(&[x, random("weight", &[4])?], operator, |v| reference(1e-5, v), 1e-3)
    }
}
