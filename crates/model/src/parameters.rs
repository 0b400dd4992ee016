//! Parameters: what they are called, what shape they have, and how activations meet them.

use annulus_ops::{Affine, Pool, parameter_gradients, rms_norm, rms_norm_backward};
use candle_core::{Result, Tensor};

use crate::{Harvest, Weights};

/// A parameter as it must be: its name and shape.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Specification {
    /// As in a Hugging Face file.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
}

impl Specification {
    pub(crate) fn new(name: String, shape: &[usize]) -> Specification {
        Specification { name, shape: shape.to_vec() }
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
    pub(crate) fn new(path: &str, size: usize, epsilon: f64) -> Norm {
        Norm { weight: Specification::new(format!("{path}.weight"), &[size]), epsilon }
    }
    /// `x` [.., D] to [.., D].
    pub(crate) fn apply(&self, x: &Tensor, weights: &Weights, pool: &Pool) -> Result<Tensor> {
        rms_norm(pool, x, self.weight.of(weights)?, self.epsilon)
    }
    /// The gradient of `x`, given that of the output, plus `onto`.
    pub(crate) fn backward(
        &self,
        x: &Tensor,
        weights: &Weights,
        pool: &Pool,
        (dy, onto): (&Tensor, Option<&Tensor>),
        harvest: Harvest<'_>,
    ) -> Result<Tensor> {
        let weight = self.weight.of(weights)?;
        let (dx, dw) = rms_norm_backward(pool, x, weight, self.epsilon, dy, onto)?;
        harvest(&self.weight.name, dw)?;
        Ok(dx)
    }
}

/// A projection: its matrix, and its bias if it has one.
#[derive(Clone, Debug)]
pub(crate) struct Projection {
    pub(crate) weight: Specification,
    pub(crate) bias: Option<Specification>,
}

impl Projection {
    /// The projection at `path`, as in `model.layers.0.self_attn.q_proj`, of `shape` [O, I].
    pub(crate) fn new(path: &str, shape: [usize; 2], bias: bool) -> Projection {
        let weight = Specification::new(format!("{path}.weight"), &shape);
        let bias = bias.then(|| Specification::new(format!("{path}.bias"), &shape[..1]));
        Projection { weight, bias }
    }
    /// Its matrix and bias.
    pub(crate) fn of<'a>(&self, weights: &'a Weights) -> Result<Affine<'a>> {
        let bias = self.bias.as_ref().map(|bias| bias.of(weights)).transpose()?;
        Ok(Affine { weight: self.weight.of(weights)?, bias })
    }
    /// Its parameters.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = &Specification> {
        std::iter::once(&self.weight).chain(&self.bias)
    }
}

/// Several projections' matrices and biases.
pub(crate) fn of<'a, const N: usize>(
    projections: [&Projection; N],
    weights: &'a Weights,
) -> Result<[Affine<'a>; N]> {
    let all = projections.iter().map(|projection| projection.of(weights));
    let all: Vec<_> = all.collect::<Result<_>>()?;
    all.try_into().or_else(|_| candle_core::bail!("internal: a projection was lost"))
}

/// Hands over the gradients of the parameters of `projections` of `x`, given those of the outputs.
pub(crate) fn reap<const N: usize>(
    projections: [&Projection; N],
    x: &Tensor,
    dy: [&Tensor; N],
    (weights, pool): (&Weights, &Pool),
    harvest: Harvest<'_>,
) -> Result<()> {
    let gradients = parameter_gradients(pool, x, of(projections, weights)?, dy)?;
    for (projection, gradients) in projections.iter().zip(gradients) {
        harvest(&projection.weight.name, gradients.weight)?;
        if let Some((bias, gradient)) = projection.bias.as_ref().zip(gradients.bias) {
            harvest(&bias.name, gradient)?;
        }
    }
    Ok(())
}
