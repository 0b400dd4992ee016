//! Where the weights that a run starts from lie. Of each is read what is wanted of it, when it is wanted: no process has more of them in
//! memory than its ranks will hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use annulus_model::{Config, Llama, Runs, Specification, Stored, Weights};
use candle_core::{DType, Tensor};

use crate::checkpoint::Kept;
use crate::{Result, TrainError};

/// The weights of a model, on the host: what is trained f32.
#[derive(Debug)]
pub struct InitialWeights {
    /// What they are, by name.
    shapes: BTreeMap<String, Vec<usize>>,
    /// Of a weight that several have, the first's counts.
    layers: Vec<Layer>,
}

/// Some of them.
#[derive(Debug)]
pub(crate) enum Layer {
    /// In memory.
    Given(Weights),
    /// Made of a seed.
    Fresh { config: Box<Config>, seed: u64, parameters: BTreeMap<String, Specification> },
    /// In files.
    Stored(Stored),
    /// Beside narrower ones, the masters of those.
    Masters(Arc<Kept>),
}

impl From<Weights> for InitialWeights {
    fn from(weights: Weights) -> InitialWeights {
        let shape = |(name, weight): (&String, &Tensor)| (name.clone(), weight.dims().to_vec());
        InitialWeights {
            shapes: weights.iter().map(shape).collect(),
            layers: vec![Layer::Given(weights)],
        }
    }
}

impl InitialWeights {
    /// All parameters of a model, each in one of `layers`.
    pub(crate) fn of(config: &Config, layers: Vec<Layer>) -> InitialWeights {
        let all = Llama::specification(config).into_iter();
        InitialWeights { shapes: all.map(|one| (one.name, one.shape)).collect(), layers }
    }

    /// The same, but for those that `layer` has.
    pub(crate) fn beneath(mut self, layer: Layer) -> InitialWeights {
        self.layers.insert(0, layer);
        self
    }

    /// What there is, in the order of names.
    pub(crate) fn shapes(&self) -> &BTreeMap<String, Vec<usize>> {
        &self.shapes
    }

    /// How many elements all have.
    pub(crate) fn parameters(&self) -> u64 {
        self.shapes.values().map(|shape| shape.iter().product::<usize>() as u64).sum()
    }

    /// Some elements of a weight, flat, a copy.
    pub(crate) fn elements(&self, name: &str, runs: &Runs) -> Result<Tensor> {
        for layer in &self.layers {
            if let Some(found) = layer.elements(name, runs)? {
                return Ok(found);
            }
        }
        Err(TrainError::Internal(format!("nothing says what `{name}` begins with")))
    }

    /// A weight in its shape.
    pub(crate) fn whole(&self, name: &str) -> Result<Tensor> {
        let shape = self.shapes.get(name).map_or(&[][..], Vec::as_slice);
        let all = self.elements(name, &[(0, shape.iter().product())])?;
        Ok(all.reshape(shape)?)
    }

    /// All of them, read.
    pub(crate) fn all(&self) -> Result<Weights> {
        self.shapes.keys().map(|name| Ok((name.clone(), self.whole(name)?))).collect()
    }
}

impl Layer {
    /// Of a seed; `parameters` of a model, f32.
    pub(crate) fn fresh(config: &Config, seed: u64, parameters: Vec<Specification>) -> Layer {
        let config = Box::new(Config { dtype: DType::F32, ..config.clone() });
        let parameters = parameters.into_iter().map(|one| (one.name.clone(), one)).collect();
        Layer::Fresh { config, seed, parameters }
    }

    /// None where it has no such weight.
    fn elements(&self, name: &str, runs: &Runs) -> Result<Option<Tensor>> {
        Ok(match self {
            Layer::Given(weights) => {
                weights.get(name).map(|weight| narrowed(weight, runs)).transpose()?
            }
            Layer::Fresh { config, seed, parameters } => {
                let one = parameters.get(name);
                one.map(|one| Llama::fresh_elements(config, one, *seed, runs)).transpose()?
            }
            Layer::Stored(stored) => stored.elements(name, runs)?,
            Layer::Masters(kept) => {
                kept.has("master", name).then(|| kept.elements("master", name, runs)).transpose()?
            }
        })
    }
}

/// Some elements of a tensor, a copy.
fn narrowed(whole: &Tensor, runs: &Runs) -> candle_core::Result<Tensor> {
    let flat = whole.flatten_all()?;
    let runs = runs.iter().map(|(begins, many)| flat.narrow(0, *begins, *many));
    let runs = runs.collect::<candle_core::Result<Vec<_>>>()?;
    match &runs[..] {
        [one] => one.force_contiguous(),
        _ => Tensor::cat(&runs, 0),
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn elements_are_those_of_the_first_layer_that_has_a_weight() -> Result<()> {
        let of = |names: &[&str], first: f64| -> Result<Weights> {
            let one = |name: &&str| {
                let weight = Tensor::arange(first, first + 12.0, &Device::Cpu)?;
                Ok(((*name).to_owned(), weight.reshape((3, 4))?))
            };
            names.iter().map(one).collect()
        };
        let initial =
            InitialWeights::from(of(&["a", "b"], 0.0)?).beneath(Layer::Given(of(&["b"], 100.0)?));
        let elements = |name: &str, runs: &Runs| -> Result<Vec<f64>> {
            Ok(initial.elements(name, runs)?.to_vec1()?)
        };
        assert_eq!(elements("a", &[(4, 3)])?, [4.0, 5.0, 6.0]);
        assert_eq!(elements("b", &[(1, 2), (9, 1)])?, [101.0, 102.0, 109.0]);
        assert_eq!((initial.whole("a")?.dims(), initial.parameters()), (&[3, 4][..], 24));
        assert!(elements("c", &[(0, 1)]).is_err());
        Ok(())
    }
}
