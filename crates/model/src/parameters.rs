//! Parameters: their names and shapes, and how activations meet them.

use annulus_architecture::FullyTrained;
use annulus_comm::sum;
use annulus_ops::{
    Affine, Backend, input_gradient, parameter_gradients, projected_onto, projections, rms_norm,
    rms_norm_backward,
};
use candle_core::{Result, Tensor};

use crate::lora::{Adapter, ProjectionContext};
use crate::{Config, GradientSink, Placement, Weights};

/// The description of a parameter: its name, shape and placement.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Specification {
    /// The name as in a Hugging Face file.
    pub name: String,
    /// The shape of the whole parameter.
    pub shape: Vec<usize>,
    /// Whether it is trained.
    pub trained: bool,
    /// How tensor-parallel ranks hold the parameter.
    pub placement: Placement,
}

impl Specification {
    pub(crate) fn new(name: String, shape: &[usize]) -> Specification {
        let placement = Placement::Replicated;
        Specification { name, shape: shape.to_vec(), trained: true, placement }
    }
    /// This parameter, sharded over tensor-parallel ranks along a dimension.
    pub(crate) fn sharded(self, dim: usize) -> Specification {
        Specification { placement: Placement::Sharded(dim), ..self }
    }
    /// This parameter, trained or not.
    pub(crate) fn trained(self, trained: bool) -> Specification {
        Specification { trained, ..self }
    }
    /// This parameter among `weights`; without it the caller has handed in the wrong ones.
    pub(crate) fn of<'a>(&self, weights: &'a Weights) -> Result<&'a Tensor> {
        match weights.get(&self.name) {
            Some(weight) => Ok(weight),
            None => candle_core::bail!("internal: the weight `{}` was not handed in", self.name),
        }
    }
}

/// The names of `specifications`.
pub(crate) fn names<'a>(
    specifications: impl IntoIterator<Item = &'a Specification>,
) -> Vec<String> {
    specifications.into_iter().map(|parameter| parameter.name.clone()).collect()
}

/// RMSNorm and its weight.
#[derive(Clone, Debug)]
pub(crate) struct Norm {
    pub(crate) weight: Specification,
    epsilon: f64,
}

impl Norm {
    /// The norm at `path`, as in `model.norm`, over `size` elements.
    pub(crate) fn new(path: &str, size: usize, config: &Config) -> Norm {
        let weight = Specification::new(format!("{path}.weight"), &[size]);
        let weight = weight.trained(config.trains(FullyTrained::Norms));
        Norm { weight, epsilon: config.shape.rms_norm_eps }
    }
    /// The norm of `x` [.., D], of the same shape.
    pub(crate) fn apply(&self, x: &Tensor, weights: &Weights, backend: &Backend) -> Result<Tensor> {
        rms_norm(backend, x, self.weight.of(weights)?, self.epsilon)
    }
    /// The gradient of `x`, given that of the output, plus `onto`.
    pub(crate) fn backward(
        &self,
        x: &Tensor,
        weights: &Weights,
        backend: &Backend,
        dy: &Tensor,
        onto: Option<&Tensor>,
        sink: &mut dyn GradientSink,
    ) -> Result<Tensor> {
        let weight = self.weight.of(weights)?;
        let (dx, dw) = rms_norm_backward(backend, x, weight, self.epsilon, dy, onto)?;
        if self.weight.trained {
            sink.add(&self.weight.name, dw)?;
        }
        Ok(dx)
    }
}

/// The dimension of a projection's matrix along which its outputs lie.
pub(crate) const OUTPUTS: usize = 0;
/// The dimension of a projection's matrix along which its inputs lie.
pub(crate) const INPUTS: usize = 1;

/// A projection: its matrix, its bias if it has one, and the adapter that is trained in their place, if any.
#[derive(Clone, Debug)]
pub(crate) struct Projection {
    pub(crate) weight: Specification,
    pub(crate) bias: Option<Specification>,
    adapter: Option<Adapter>,
}

impl Projection {
    /// The projection at `path`, as in `model.layers.0.self_attn.q_proj`, of `shape` [O, I], in layer `layer`. Tensor-parallel ranks split
    /// dimension `dim`: the outputs, which read the same input, or the inputs, which gives each a part of a sum.
    pub(crate) fn new(
        config: &Config,
        layer: usize,
        path: &str,
        shape: [usize; 2],
        dim: usize,
        bias: bool,
    ) -> Projection {
        let lora = config.lora.as_ref();
        let own = |end: &str, shape: &[usize]| {
            Specification::new(format!("{path}.{end}"), shape).trained(lora.is_none())
        };
        let of_bias = |bias: Specification| if dim == OUTPUTS { bias.sharded(0) } else { bias };
        Projection {
            weight: own("weight", &shape).sharded(dim),
            bias: bias.then(|| of_bias(own("bias", &shape[..1]))),
            adapter: lora.and_then(|lora| Adapter::new(lora, layer, path, shape, dim)),
        }
    }
    /// A projection of `weight` alone, without bias and adapter.
    pub(crate) fn bare(weight: Specification) -> Projection {
        Projection { weight, bias: None, adapter: None }
    }
    /// The projection's matrix and bias among `weights`.
    fn of<'a>(&self, weights: &'a Weights) -> Result<Affine<'a>> {
        let bias = self.bias.as_ref().map(|bias| bias.of(weights)).transpose()?;
        Ok(Affine { weight: self.weight.of(weights)?, bias })
    }
    /// The projection's parameters.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = &Specification> {
        let adapter = self.adapter.iter().flat_map(|adapter| [&adapter.a, &adapter.b]);
        std::iter::once(&self.weight).chain(&self.bias).chain(adapter)
    }
    /// `onto`, this rank's own rows, plus these rows of the projection of `x`.
    pub(crate) fn onto(
        &self,
        onto: &Tensor,
        x: &Tensor,
        context: ProjectionContext<'_>,
    ) -> Result<Tensor> {
        let beside = |y: Tensor| match &self.adapter {
            Some(adapter) => adapter.onto(&y, x, context),
            None => Ok(y),
        };
        let whole = self.of(context.weights)?;
        if context.shard.tensor.is_alone() {
            return beside(projected_onto(context.backend(), onto, x, whole)?);
        }
        let [part] = projections(context.backend(), x, [Affine { bias: None, ..whole }])?;
        let own = context.shard.own_rows(context.label("sum of parts"), &beside(part)?)?;
        let y = sum(onto, &own)?;
        whole.bias.map_or(Ok(y.clone()), |bias| sum(&y, &bias.broadcast_as(y.shape())?))
    }
    /// Hands the gradient of the projection's bias to the sink, if it has one, given that of the output.
    fn emit_bias(
        &self,
        gradient: Option<Tensor>,
        dy: &Tensor,
        context: ProjectionContext<'_>,
        sink: &mut dyn GradientSink,
    ) -> Result<()> {
        let Some((bias, gradient)) = self.bias.as_ref().zip(gradient) else { return Ok(()) };
        let is_shared = !context.shard.tensor.is_alone() && bias.placement == Placement::Replicated;
        sink.add(&bias.name, if is_shared { of_own_rows(dy, context)? } else { gradient })
    }
}

/// The gradient of a bias from own rows alone, given the output's gradient in all rows: a part of a sum over tensor-parallel ranks.
fn of_own_rows(dy: &Tensor, context: ProjectionContext<'_>) -> Result<Tensor> {
    let dy = dy.flatten_to(dy.rank() - 2)?;
    let own = context.shard.tensor.own(dy.dim(0)?);
    let dy = dy.narrow(0, own.start, own.len())?.contiguous()?;
    // A bias is a weight whose input is 1.
    let ones = Tensor::ones((own.len(), 1), dy.dtype(), dy.device())?;
    let weight = &Tensor::zeros((dy.dim(1)?, 1), dy.dtype(), dy.device())?;
    let projection = Affine { weight, bias: None };
    let [gradients] = parameter_gradients(context.backend(), &ones, [projection], [&dy], [None])?;
    gradients.weight.flatten_all()
}

/// The matrices and biases of several projections.
fn of<'a, const N: usize>(
    projections: [&Projection; N],
    weights: &'a Weights,
) -> Result<[Affine<'a>; N]> {
    let all = projections.iter().map(|projection| projection.of(weights));
    let all: Vec<_> = all.collect::<Result<_>>()?;
    all.try_into().or_else(|_| candle_core::bail!("internal: a projection was lost"))
}

/// The weights of projections of one input, and their biases where all have one. Empty where only some have an adapter: it is added to a
/// copy of their output, which is then separate.
pub(crate) fn fused_projections<const N: usize>(all: [&Projection; N]) -> Vec<Vec<String>> {
    if all.iter().any(|one| one.adapter.is_some() != all[0].adapter.is_some()) {
        return Vec::new();
    }
    let weights = names(all.map(|projection| &projection.weight));
    let biases = names(all.iter().filter_map(|projection| projection.bias.as_ref()));
    if biases.len() == N { vec![weights, biases] } else { vec![weights] }
}

/// Several projections of `x`.
pub(crate) fn project<const N: usize>(
    all: [&Projection; N],
    x: &Tensor,
    context: ProjectionContext<'_>,
) -> Result<[Tensor; N]> {
    let mut outputs = projections(context.backend(), x, of(all, context.weights)?)?;
    for (projection, y) in all.into_iter().zip(&mut outputs) {
        if let Some(adapter) = &projection.adapter {
            *y = adapter.onto(y, x, context)?;
        }
    }
    Ok(outputs)
}

/// The gradient of the input of several projections, given those of the outputs.
pub(crate) fn project_back<const N: usize>(
    all: [&Projection; N],
    dy: [&Tensor; N],
    context: ProjectionContext<'_>,
) -> Result<Tensor> {
    let mut dx = input_gradient(context.backend(), of(all, context.weights)?, dy)?;
    for (projection, dy) in all.into_iter().zip(dy) {
        if let Some(adapter) = &projection.adapter {
            dx = adapter.back_onto(&dx, dy, context)?;
        }
    }
    Ok(dx)
}

/// Hands the gradients of the trained parameters of `all` to the sink, given the input `x` and the gradients of the outputs.
pub(crate) fn emit_gradients<const N: usize>(
    all: [&Projection; N],
    x: &Tensor,
    dy: [&Tensor; N],
    context: ProjectionContext<'_>,
    sink: &mut dyn GradientSink,
) -> Result<()> {
    // The projections of one model are either all trained themselves, or none is.
    if all.iter().all(|projection| projection.weight.trained) {
        let sums = all.map(|projection| sink.sum(&projection.weight.name));
        let onto = sums.each_ref().map(Option::as_ref);
        let weights = of(all, context.weights)?;
        let gradients = parameter_gradients(context.backend(), x, weights, dy, onto)?;
        for (((projection, gradients), dy), sum) in all.iter().zip(gradients).zip(dy).zip(sums) {
            if sum.is_none() {
                sink.add(&projection.weight.name, gradients.weight)?;
            }
            projection.emit_bias(gradients.bias, dy, context, sink)?;
        }
    }
    for (projection, dy) in all.into_iter().zip(dy) {
        if let Some(adapter) = &projection.adapter {
            adapter.emit_gradients(x, dy, context, sink)?;
        }
    }
    Ok(())
}
