//! Parameters: what they are called, what shape they have, and how activations meet them.

use annulus_ops::{Pool, rms_norm};
use candle_core::{Result, Tensor};

use crate::Weights;

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
    /// Its parameters.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = &Specification> {
        std::iter::once(&self.weight).chain(&self.bias)
    }
}

/// `x` [.., I] to [.., O]: every projection of the model but the one that is fused with the loss.
pub(crate) fn linear(
    projection: &Projection,
    x: &Tensor,
    weights: &Weights,
    pool: &Pool,
) -> Result<Tensor> {
    let bias = projection.bias.as_ref().map(|bias| bias.of(weights)).transpose()?;
    annulus_ops::linear(pool, x, projection.weight.of(weights)?, bias)
}
