//! SwiGLU: `silu(gate) * up` (Shazeer, arXiv 2002.05202).

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, bail};
use pulp::{Simd, WithSimd};

use crate::exp::exp;
use crate::gpu::operators;
use crate::rows::{CHUNK, Elements, elements, narrow, tensor, unwritten};
use crate::{Backend, Pool};

/// SwiGLU of `gate` and `up` of one shape: that shape in the dtype of `gate`, with gradients for both.
///
/// # Errors
/// When the shapes differ, or a tensor is neither f32 nor bf16.
pub fn swiglu(backend: &Backend, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    same_shape(gate.shape(), up.shape())?;
    let pool = match backend {
        Backend::Gpu(processor) => return operators::swiglu(&**processor, gate, up),
        Backend::Cpu(pool) => pool,
    };
    gate.apply_op2(up, SwiGlu { pool: pool.clone() })
}

fn same_shape(gate: &Shape, up: &Shape) -> Result<()> {
    if gate != up {
        bail!("swiglu: found a gate of {gate:?} and an up of {up:?}");
    }
    Ok(())
}

struct SwiGlu {
    pool: Pool,
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Computes y = g s(g) u, with s the logistic function.
struct Forward<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    y: &'a mut [f32],
}

impl WithSimd for Forward<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for ((y, &g), u) in self.y.iter_mut().zip(self.gate).zip(self.up) {
            *y = g * sigmoid(g) * u;
        }
    }
}

/// Computes dg = dy u s (1 + g (1 - s)) and du = dy g s, and y = g s u again.
struct Backward<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    dy: &'a [f32],
    dgate: &'a mut [f32],
    dup: &'a mut [f32],
    y: &'a mut [f32],
}

impl WithSimd for Backward<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let arguments = self.gate.iter().zip(self.up).zip(self.dy);
        let results = self.dgate.iter_mut().zip(self.dup).zip(self.y);
        for (((dg, du), y), ((&g, u), dy)) in results.zip(arguments) {
            let s = sigmoid(g);
            *dg = dy * u * s * g.mul_add(1.0 - s, 1.0);
            *du = dy * g * s;
            *y = g * s * u;
        }
    }
}

/// The results of [`swiglu_backward`], in the dtypes of its inputs.
#[derive(Debug)]
pub struct SwiGluGradients {
    /// The gradient of the gate.
    pub gate: Tensor,
    /// The gradient of up.
    pub up: Tensor,
    /// The output again, which the gradient of the next projection needs, so that it need not be kept.
    pub y: Tensor,
}

/// The gradients of [`swiglu`], given that of its output. Off the tape.
///
/// # Errors
/// When the shapes differ, or a tensor is neither f32 nor bf16.
pub fn swiglu_backward(
    backend: &Backend,
    gate: &Tensor,
    up: &Tensor,
    dy: &Tensor,
) -> Result<SwiGluGradients> {
    same_shape(gate.shape(), up.shape())?;
    if dy.shape() != gate.shape() {
        bail!("swiglu: found a gradient {:?}, expected {:?}", dy.shape(), gate.shape());
    }
    let pool = match backend {
        Backend::Gpu(processor) => return operators::swiglu_backward(&**processor, gate, up, dy),
        Backend::Cpu(pool) => pool,
    };
    let (gates, ups) = (Elements::of(pool, gate)?, Elements::of(pool, up)?);
    let dy = Elements::of(pool, dy)?;
    // SAFETY: every piece is written.
    let [mut dgate, mut dup, mut y] = [(); 3].map(|()| unsafe { unwritten(gates.len()) });
    let arguments = gates.chunks(CHUNK).zip(ups.chunks(CHUNK)).zip(dy.chunks(CHUNK));
    let results = dgate.chunks_mut(CHUNK).zip(dup.chunks_mut(CHUNK)).zip(y.chunks_mut(CHUNK));
    pool.each(results.zip(arguments), |(((dgate, dup), y), ((gate, up), dy))| {
        pool.arch().dispatch(Backward { gate, up, dy, dgate, dup, y });
    });
    Ok(SwiGluGradients {
        gate: tensor(pool, dgate, gate.shape(), gate.dtype())?,
        up: tensor(pool, dup, up.shape(), up.dtype())?,
        y: tensor(pool, y, gate.shape(), gate.dtype())?,
    })
}

impl CustomOp2 for SwiGlu {
    fn name(&self) -> &'static str {
        "swiglu"
    }
    fn cpu_fwd(
        &self,
        gate: &CpuStorage,
        gate_layout: &Layout,
        up: &CpuStorage,
        up_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let shape = gate_layout.shape();
        let gates = elements(&self.pool, gate, gate_layout)?;
        let ups = elements(&self.pool, up, up_layout)?;
        // SAFETY: every piece is written.
        let mut y = unsafe { unwritten(gates.len()) };
        let pieces = y.chunks_mut(CHUNK).zip(gates.chunks(CHUNK)).zip(ups.chunks(CHUNK));
        self.pool
            .each(pieces, |((y, gate), up)| self.pool.arch().dispatch(Forward { gate, up, y }));
        Ok((narrow(&self.pool, y, gate.dtype())?, shape.clone()))
    }
    fn bwd(
        &self,
        gate: &Tensor,
        up: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let found = swiglu_backward(&Backend::Cpu(self.pool.clone()), gate, up, dy)?;
        Ok((Some(found.gate), Some(found.up)))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::testing::{check, output_and_gradients, random, to_f64};

    #[test]
    fn agrees_with_plain_loops_and_finite_differences() -> Result<()> {
        let reference = |v: &[Vec<f64>]| {
            v[0].iter().zip(&v[1]).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect()
        };
        for shape in [&[3, 7][..], &[1], &[2, 1, 40]] {
            let inputs = [(random("gate", shape)? * 3.0)?, random("up", shape)?];
            check(&inputs, |v| swiglu(&Backend::cpu(2), &v[0], &v[1]), reference, 1e-6)?;
        }
        Ok(())
    }

    #[test]
    fn large_gates_saturate_and_nan_stays() -> Result<()> {
        let gate = Tensor::new(&[-1e4_f32, -100.0, 100.0, 1e4, f32::NAN], &Device::Cpu)?;
        let up = Tensor::ones_like(&gate)?;
        let all = output_and_gradients(&[gate, up], |v| swiglu(&Backend::serial(), &v[0], &v[1]))?;
        let y = to_f64(&all[0])?;
        assert_eq!(y[..4], [0.0, 0.0, 100.0, 1e4]);
        for tensor in all {
            let values = to_f64(&tensor)?;
            assert!(values[..4].iter().all(|x| x.is_finite()) && values[4].is_nan(), "{values:?}");
        }
        Ok(())
    }
}
