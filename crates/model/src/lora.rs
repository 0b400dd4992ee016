//! LoRA (Hu et al., arXiv 2106.09685): weights stay as they are, and beside some projections two narrow matrices learn.
//!
//! ```text
//! y = x wᵀ + bias + scale · (dropped(x) aᵀ) bᵀ        a [rank, I] random, b [O, rank] 0
//! ```
//! Names are those of PEFT without its prefix, so that adapters are parameters like all others.

use annulus_architecture::{Lora, Target};
use annulus_comm::sum;
use annulus_ops::{
    Affine, Backend, InputDropout, RowPlaces, contiguous, input_gradient, parameter_gradients,
    projected_onto, projections,
};
use candle_core::{D, DType, Result, Tensor};
use half::bf16;

use crate::parameters::OUTPUTS;
use crate::tensor::CollectiveLabel;
use crate::{GradientSink, Placement, Shard, Specification, Weights};

/// The two matrices of an adapter beside a projection.
#[derive(Clone, Debug)]
pub(crate) struct Adapter {
    pub(crate) a: Specification,
    pub(crate) b: Specification,
    scale: f64,
    dropout: f64,
    /// The module number, which makes the adapter's dropout independent of others'.
    module: u32,
}

/// What a projection is computed with: the weights, this rank's shard, and which of its rows.
#[derive(Clone, Copy)]
pub(crate) struct ProjectionContext<'a> {
    pub(crate) weights: &'a Weights,
    pub(crate) shard: &'a Shard,
    pub(crate) layer: usize,
    /// The first row, among this rank's rows of all sequences between layers.
    pub(crate) first: usize,
}

impl ProjectionContext<'_> {
    pub(crate) fn backend(&self) -> &Backend {
        &self.shard.backend
    }
    /// The label of a collective in this layer.
    pub(crate) fn label(&self, name: &'static str) -> CollectiveLabel {
        CollectiveLabel { layer: self.layer, ..self.shard.label(name) }
    }
}

impl Adapter {
    /// The adapter of the projection at `path`, whose last word `lora` may name, of `shape` [O, I] in layer `layer`.
    pub(crate) fn new(
        lora: &Lora,
        layer: usize,
        path: &str,
        [outputs, inputs]: [usize; 2],
        dim: usize,
    ) -> Option<Adapter> {
        let word = path.rsplit('.').next().unwrap_or(path);
        let target = Target::from_word(word).filter(|target| lora.targets.contains(target))?;
        let a = Specification::new(format!("{path}{}", Lora::A), &[lora.rank, inputs]);
        let b = Specification::new(format!("{path}{}", Lora::B), &[outputs, lora.rank]);
        // Where one matrix is sharded, the other's gradient is a part of a sum.
        let (a, b) = if dim == OUTPUTS { (a, b.sharded(dim)) } else { (a.sharded(dim), b) };
        Some(Adapter {
            a,
            b,
            scale: lora.scale(),
            dropout: lora.dropout,
            module: (layer * Target::WORDS.len() + target as usize) as u32,
        })
    }
    fn matrices<'a>(&self, weights: &'a Weights) -> Result<[Affine<'a>; 2]> {
        let bare = |weight| Affine { weight, bias: None };
        Ok([bare(self.a.of(weights)?), bare(self.b.of(weights)?)])
    }
    /// `x` with dropout where this is training.
    fn dropped(&self, x: &Tensor, context: ProjectionContext<'_>) -> Result<Tensor> {
        let Some(draws) = context.shard.dropout.filter(|_| self.dropout > 0.0) else {
            return Ok(x.clone());
        };
        let dropout = InputDropout {
            seed: draws.seed,
            probability: self.dropout,
            step: context.shard.step,
            module: self.module,
            first: self.first_input(context),
        };
        // Tensor-parallel ranks have as many rows each, starting from the same one of their own.
        let (_, ranks) = context.shard.tensor.place();
        let places = RowPlaces {
            positions: context.shard.attention.positions(),
            sequence: draws.sequence,
            piece: x.elem_count() / x.dim(D::Minus1)?.max(1) / ranks,
            stride: context.shard.inputs.elem_count() / ranks,
            first: context.first,
        };
        dropout.apply(context.backend(), x, &places)
    }
    /// The first input of the projection that this rank has.
    fn first_input(&self, context: ProjectionContext<'_>) -> usize {
        match self.a.placement {
            Placement::Replicated => 0,
            Placement::Sharded(dim) => context.shard.tensor.own(self.a.shape[dim]).start,
        }
    }
    /// `scale · (x aᵀ)` [.., rank] of an `x` after dropout.
    fn narrow(&self, x: &Tensor, a: Affine<'_>, backend: &Backend) -> Result<Tensor> {
        let [narrow] = projections(backend, x, [a])?;
        scaled(&narrow, self.scale)
    }
    /// `y`, the output of the projection for `x`, plus what the adapter adds.
    pub(crate) fn onto(
        &self,
        y: &Tensor,
        x: &Tensor,
        context: ProjectionContext<'_>,
    ) -> Result<Tensor> {
        let [a, b] = self.matrices(context.weights)?;
        let narrow = self.narrow(&self.dropped(x, context)?, a, context.backend())?;
        projected_onto(context.backend(), y, &narrow, b)
    }
    /// The gradient of `x aᵀ`, given that of the output.
    fn narrowed(&self, dy: &Tensor, b: Affine<'_>, backend: &Backend) -> Result<Tensor> {
        scaled(&input_gradient(backend, [b], [dy])?, self.scale)
    }
    /// Hands the gradients of a and b to the sink, given the input and the gradient of the output.
    pub(crate) fn emit_gradients(
        &self,
        x: &Tensor,
        dy: &Tensor,
        context: ProjectionContext<'_>,
        sink: &mut dyn GradientSink,
    ) -> Result<()> {
        let ([a, b], backend) = (self.matrices(context.weights)?, context.backend());
        let x = self.dropped(x, context)?;
        let mut emit = |name: &str, x: &Tensor, matrix, dy: &Tensor| {
            let sum = sink.sum(name);
            let [found] = parameter_gradients(backend, x, [matrix], [dy], [sum.as_ref()])?;
            if sum.is_none() { sink.add(name, found.weight) } else { Ok(()) }
        };
        emit(&self.b.name, &self.narrow(&x, a, backend)?, b, dy)?;
        emit(&self.a.name, &x, a, &self.narrowed(dy, b, backend)?)
    }
    /// `dx` plus the adapter's part of the input's gradient, given the output's.
    pub(crate) fn back_onto(
        &self,
        dx: &Tensor,
        dy: &Tensor,
        context: ProjectionContext<'_>,
    ) -> Result<Tensor> {
        let ([a, b], backend) = (self.matrices(context.weights)?, context.backend());
        let narrowed = self.narrowed(dy, b, backend)?;
        if self.dropout > 0.0 && context.shard.dropout.is_some() {
            let own = input_gradient(backend, [a], [&narrowed])?;
            return sum(dx, &self.dropped(&own, context)?);
        }
        let turned = contiguous(backend, &a.weight.t()?)?;
        projected_onto(backend, dx, &narrowed, Affine { weight: &turned, bias: None })
    }
}

/// `tensor · by`, rounded once: Candle would round the factor to the tensor's dtype first, in bf16 by up to 0.4 %.
pub(crate) fn scaled(tensor: &Tensor, by: f64) -> Result<Tensor> {
    let is_exact = tensor.dtype() != DType::BF16 || bf16::from_f64(by).to_f64() == by;
    if is_exact { tensor * by } else { (tensor.to_dtype(DType::F32)? * by)?.to_dtype(DType::BF16) }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn adapters_are_scaled_by_what_bf16_does_not_hold() -> Result<()> {
        let values: Vec<f32> = (0..75).map(|value| (value as f32 - 30.5) / 7.0).collect();
        let narrow = Tensor::new(values, &Device::Cpu)?.to_dtype(DType::BF16)?;
        for by in [2.0, 16.0 / 12.0, 1.0 / 3.0, 16.0 / 8f64.sqrt()] {
            let found = scaled(&narrow, by)?.to_vec1::<bf16>()?;
            let rounded = |value: &bf16| bf16::from_f32(value.to_f32() * by as f32);
            let wanted: Vec<_> = narrow.to_vec1::<bf16>()?.iter().map(rounded).collect();
            assert_eq!(found, wanted, "by {by}");
            assert_eq!(scaled(&narrow.to_dtype(DType::F32)?, by)?.dtype(), DType::F32);
        }
        Ok(())
    }
}
