//! `x / sqrt(mean(x²) + epsilon) * weight` over the last dimension (Zhang and Sennrich, arXiv 1910.07467).

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, bail};
use pulp::Arch;

use crate::Pool;
use crate::rows::{Elements, Rows, elements, narrow, rows_per_chunk, tensor};
use crate::sums::{sum_lanes, sum_rows};

/// `x` [.., D], `weight` [D]: [.., D] in the type of `x`, with gradients for both.
///
/// # Errors
/// When `weight` is not as long as the rows of `x`, or a tensor is neither f32 nor bf16.
pub fn rms_norm(pool: &Pool, x: &Tensor, weight: &Tensor, epsilon: f64) -> Result<Tensor> {
    x.apply_op2(weight, RmsNorm { pool: pool.clone(), epsilon })
}

struct RmsNorm {
    pool: Pool,
    epsilon: f64,
}

impl RmsNorm {
    /// `1 / sqrt(mean(x²) + epsilon)` of a row. Backward makes it again: that costs less than reading it.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "inlined into a dispatched loop, it is vectorised")]
    fn scale(&self, x: &[f32]) -> f32 {
        let squares = sum_lanes([x], |sum, [x]| x.mul_add(x, sum));
        (1.0 / (f64::from(squares) / x.len() as f64 + self.epsilon).sqrt()) as f32
    }
    /// With r the row's scale: dx = r (dy w) - x r³ mean(dy w x).
    fn of_x(&self, x: &[f32], weight: &[f32], dy: &[f32], dx: &mut [f32]) {
        let width = weight.len();
        let rows = x.chunks_exact(width).zip(dy.chunks_exact(width));
        Arch::new().dispatch(
            #[inline(always)]
            || {
                for (dx, (x, dy)) in dx.chunks_exact_mut(width).zip(rows) {
                    let r = self.scale(x);
                    let along =
                        sum_lanes([x, weight, dy], |sum, [x, w, dy]| (dy * w).mul_add(x, sum));
                    let back = r * r * r * along / width as f32;
                    for ((dx, x), (w, dy)) in dx.iter_mut().zip(x).zip(weight.iter().zip(dy)) {
                        *dx = (r * w).mul_add(*dy, -(back * x));
                    }
                }
            },
        );
    }
    /// dw = sum over rows of dy x r.
    fn of_weight(&self, x: &[f32], dy: &[f32], sums: &mut [f32]) {
        let width = sums.len();
        Arch::new().dispatch(
            #[inline(always)]
            || {
                for (x, dy) in x.chunks_exact(width).zip(dy.chunks_exact(width)) {
                    let r = self.scale(x);
                    for (sum, (x, dy)) in sums.iter_mut().zip(x.iter().zip(dy)) {
                        *sum = (dy * r).mul_add(*x, *sum);
                    }
                }
            },
        );
    }
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
        let rows = Rows::new(x, x_layout)?;
        let width = weight_layout.shape().dims1()?;
        if rows.width != width {
            bail!("rms-norm: found x {:?}, wanted [.., {width}]", x_layout.shape());
        }
        let weight = elements(&self.pool, weight, weight_layout)?;
        let mut y = vec![0.0; x_layout.shape().elem_count()];
        let chunk = rows_per_chunk(width);
        self.pool.for_chunks(&mut y, chunk * width.max(1), |index, piece| {
            rows.copy(index * chunk, piece);
            Arch::new().dispatch(
                #[inline(always)]
                || {
                    for row in piece.chunks_exact_mut(width) {
                        let r = self.scale(row);
                        row.iter_mut().zip(&*weight).for_each(|(x, w)| *x = *x * r * w);
                    }
                },
            );
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
        let pool = &self.pool;
        let (x_values, dy) = (Elements::of(pool, x)?, Elements::of(pool, dy)?);
        let weights = Elements::of(pool, weight)?;
        let width = weights.len();
        let mut dx = vec![0.0; x_values.len()];
        let chunk = rows_per_chunk(width) * width.max(1);
        let pieces = dx.chunks_mut(chunk).zip(x_values.chunks(chunk)).zip(dy.chunks(chunk));
        pool.each(pieces, |((dx, x), dy)| self.of_x(x, &weights, dy, dx));
        let rows = x_values.len() / width.max(1);
        let dw = sum_rows(pool, rows, width, |rows, sums| {
            let elements = rows.start * width..rows.end * width;
            self.of_weight(&x_values[elements.clone()], &dy[elements], sums);
        });
        let dx = tensor(pool, dx, x.shape(), x.dtype())?;
        Ok((Some(dx), Some(tensor(pool, dw, weight.shape(), weight.dtype())?)))
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
            let operator = |v: &[Tensor]| rms_norm(&Pool::new(2), &v[0], &v[1], 1e-3);
            check(&[x, weight], operator, |v| reference(1e-3, v), 2e-6)?;
        }
        Ok(())
    }

    #[test]
    fn a_row_of_zeros_has_finite_gradients() -> Result<()> {
        let x = Tensor::zeros((2, 4), candle_core::DType::F32, &candle_core::Device::Cpu)?;
        let operator = |v: &[Tensor]| rms_norm(&Pool::serial(), &v[0], &v[1], 1e-5);
        check(&[x, random("weight", &[4])?], operator, |v| reference(1e-5, v), 1e-3)
    }
}
