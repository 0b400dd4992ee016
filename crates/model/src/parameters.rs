//! Parameters: what they are called, what shape they have, and how activations meet them.

use annulus_architecture::Besides;
use annulus_ops::{
    Affine, Backend, input_gradient, parameter_gradients, projected_onto, projections, rms_norm,
    rms_norm_backward,
};
use candle_core::{Result, Tensor};

use crate::lora::{Adapter, Site};
use crate::{Config, Harvest, Weights};

/// A parameter as it must be: its name and shape.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Specification {
    /// As in a Hugging Face file.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Whether it is trained.
    pub trained: bool,
}

impl Specification {
    pub(crate) fn new(name: String, shape: &[usize]) -> Specification {
        Specification { name, shape: shape.to_vec(), trained: true }
    }
    /// The same, trained or not.
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

/// RMSNorm with its weight.
#[derive(Clone, Debug)]
pub(crate) struct Norm {
    pub(crate) weight: Specification,
    epsilon: f64,
}

impl Norm {
    /// The norm at `path`, as in `model.norm`, over `size` elements.
    pub(crate) fn new(path: &str, size: usize, config: &Config) -> Norm {
        let weight = Specification::new(format!("{path}.weight"), &[size]);
        let weight = weight.trained(config.trains(Besides::Norms));
        Norm { weight, epsilon: config.shape.rms_norm_eps }
    }
    /// `x` [.., D] to [.., D].
    pub(crate) fn apply(&self, x: &Tensor, weights: &Weights, backend: &Backend) -> Result<Tensor> {
        rms_norm(backend, x, self.weight.of(weights)?, self.epsilon)
    }
    /// The gradient of `x`, given that of the output, plus `onto`.
    pub(crate) fn backward(
        &self,
        x: &Tensor,
        weights: &Weights,
        backend: &Backend,
        (dy, onto): (&Tensor, Option<&Tensor>),
        harvest: Harvest<'_>,
    ) -> Result<Tensor> {
        let weight = self.weight.of(weights)?;
        let (dx, dw) = rms_norm_backward(backend, x, weight, self.epsilon, dy, onto)?;
        if self.weight.trained {
            harvest(&self.weight.name, dw)?;
        }
        Ok(dx)
    }
}

/// A projection: its matrix, its bias if it has one, and what learns beside it where it does not itself.
#[derive(Clone, Debug)]
pub(crate) struct Projection {
    pub(crate) weight: Specification,
    pub(crate) bias: Option<Specification>,
    adapter: Option<Adapter>,
}

impl Projection {
    /// The projection at `path`, as in `model.layers.0.self_attn.q_proj`, of `shape` [O, I], in layer `layer`.
    pub(crate) fn new(
        config: &Config,
        layer: usize,
        path: &str,
        shape: [usize; 2],
        bias: bool,
    ) -> Projection {
        let lora = config.lora.as_ref();
        let own = |end: &str, shape: &[usize]| {
            Specification::new(format!("{path}.{end}"), shape).trained(lora.is_none())
        };
        Projection {
            weight: own("weight", &shape),
            bias: bias.then(|| own("bias", &shape[..1])),
            adapter: lora.and_then(|lora| Adapter::new(lora, layer, path, shape)),
        }
    }
    /// That of `weight` alone.
    pub(crate) fn bare(weight: Specification) -> Projection {
        Projection { weight, bias: None, adapter: None }
    }
    /// Its matrix and bias.
    fn of<'a>(&self, weights: &'a Weights) -> Result<Affine<'a>> {
        let bias = self.bias.as_ref().map(|bias| bias.of(weights)).transpose()?;
        Ok(Affine { weight: self.weight.of(weights)?, bias })
    }
    /// Its parameters.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = &Specification> {
        let adapter = self.adapter.iter().flat_map(|adapter| [&adapter.a, &adapter.b]);
        std::iter::once(&self.weight).chain(&self.bias).chain(adapter)
    }
    /// `onto` plus the projection of `x`.
    pub(crate) fn onto(&self, onto: &Tensor, x: &Tensor, site: Site<'_>) -> Result<Tensor> {
        let y = projected_onto(site.backend(), onto, x, self.of(site.weights)?)?;
        self.adapter.as_ref().map_or(Ok(y.clone()), |adapter| adapter.onto(&y, x, site))
    }
}

/// Several projections' matrices and biases.
fn of<'a, const N: usize>(
    projections: [&Projection; N],
    weights: &'a Weights,
) -> Result<[Affine<'a>; N]> {
    let all = projections.iter().map(|projection| projection.of(weights));
    let all: Vec<_> = all.collect::<Result<_>>()?;
    all.try_into().or_else(|_| candle_core::bail!("internal: a projection was lost"))
}

/// Several projections of `x`.
pub(crate) fn project<const N: usize>(
    all: [&Projection; N],
    x: &Tensor,
    site: Site<'_>,
) -> Result<[Tensor; N]> {
    let mut outputs = projections(site.backend(), x, of(all, site.weights)?)?;
    for (projection, y) in all.into_iter().zip(&mut outputs) {
        if let Some(adapter) = &projection.adapter {
            *y = adapter.onto(y, x, site)?;
        }
    }
    Ok(outputs)
}

/// The gradient of the input of several projections, given those of the outputs.
pub(crate) fn project_back<const N: usize>(
    all: [&Projection; N],
    dy: [&Tensor; N],
    site: Site<'_>,
) -> Result<Tensor> {
    let mut dx = input_gradient(site.backend(), of(all, site.weights)?, dy)?;
    for (projection, dy) in all.into_iter().zip(dy) {
        if let Some(adapter) = &projection.adapter {
            dx = adapter.back_onto(&dx, dy, site)?;
        }
    }
    Ok(dx)
}

/// Hands over the gradients of the parameters of `all` of `x` that are trained, given those of the outputs.
pub(crate) fn reap<const N: usize>(
    all: [&Projection; N],
    x: &Tensor,
    dy: [&Tensor; N],
    site: Site<'_>,
    harvest: Harvest<'_>,
) -> Result<()> {
    // Of one model's projections all are trained themselves, or none is.
    if all.iter().all(|projection| projection.weight.trained) {
        let gradients = parameter_gradients(site.backend(), x, of(all, site.weights)?, dy)?;
        for (projection, gradients) in all.iter().zip(gradients) {
            harvest(&projection.weight.name, gradients.weight)?;
            if let Some((bias, gradient)) = projection.bias.as_ref().zip(gradients.bias) {
                harvest(&bias.name, gradient)?;
            }
        }
    }
    for (projection, dy) in all.into_iter().zip(dy) {
        if let Some(adapter) = &projection.adapter {
            adapter.reap(x, dy, site, harvest)?;
        }
    }
    Ok(())
}
