//! The sources of the weights that a run starts from. Elements are read only when they are wanted: no process has more of them in memory
//! than its ranks will hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use annulus_model::{Config, Flaw, Llama, Runs, Specification, Stored, Weights, WeightsError};
use candle_core::{DType, Tensor};

use crate::checkpoint::{Kept, OptimizerTensor};
use crate::{Result, TrainError};

/// The weights that a run starts from, on the host; trained ones are f32.
#[derive(Debug)]
pub struct InitialWeights {
    /// The shapes of all weights, by name.
    shapes: BTreeMap<String, Vec<usize>>,
    /// Where weights come from; if several layers have a weight, the first one's counts.
    layers: Vec<Layer>,
}

/// How many elements of weights are hashed at a time.
const PIECE: usize = 1 << 22;

/// Where weights are that are in no file, for errors.
const IN_MEMORY: &str = "memory";

/// A source of some weights.
#[derive(Debug)]
pub(crate) enum Layer {
    /// Weights in memory.
    Given(Weights),
    /// Weights drawn from a seed.
    Fresh { config: Box<Config>, seed: u64, parameters: BTreeMap<String, Specification> },
    /// Weights in files.
    Stored(Stored),
    /// The f32 masters of weights that are stored narrower.
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
    /// All parameters of a model, each of them in one of `layers`.
    pub(crate) fn of(config: &Config, layers: Vec<Layer>) -> InitialWeights {
        let all = Llama::specification(config).into_iter();
        InitialWeights { shapes: all.map(|one| (one.name, one.shape)).collect(), layers }
    }

    /// These weights, but those that `layer` has are taken from it.
    pub(crate) fn beneath(mut self, layer: Layer) -> InitialWeights {
        self.layers.insert(0, layer);
        self
    }

    /// Checks that these are exactly the parameters of a model, in its shapes: elements are read flat, so another shape with as many would
    /// do unnoticed.
    ///
    /// # Errors
    /// Everything that is missing, surplus or of another shape.
    pub(crate) fn check(&self, config: &Config) -> Result<()> {
        let all = Llama::specification(config).into_iter();
        let wanted: BTreeMap<_, _> = all.map(|one| (one.name, one.shape)).collect();
        let flaw = |(tensor, wanted): (&String, &Vec<usize>)| {
            let (tensor, wanted) = (tensor.clone(), wanted.clone());
            match self.shapes.get(&tensor) {
                None => Some(Flaw::Missing { tensor, wanted }),
                Some(found) if *found != wanted => Some(Flaw::Shape {
                    tensor,
                    file: IN_MEMORY.into(),
                    found: found.clone(),
                    wanted,
                }),
                Some(_) => None,
            }
        };
        let surplus = self.shapes.iter().filter(|(name, _)| !wanted.contains_key(*name));
        let surplus = surplus.map(|(name, found)| Flaw::Surplus {
            tensor: name.clone(),
            file: IN_MEMORY.into(),
            found: found.clone(),
        });
        let flaws: Vec<Flaw> = wanted.iter().filter_map(flaw).chain(surplus).collect();
        if flaws.is_empty() {
            return Ok(());
        }
        Err(WeightsError::Unfit { folder: IN_MEMORY.into(), flaws }.into())
    }

    /// blake3 of names, shapes and elements as f32, in the order of names; only a few elements at a time are in memory.
    pub(crate) fn hash(&self) -> Result<String> {
        let mut hasher = blake3::Hasher::new();
        for (name, shape) in self.shapes() {
            hasher.update(format!("{name} {shape:?}\n").as_bytes());
            let elements = shape.iter().product();
            for begins in (0..elements).step_by(PIECE) {
                let many = PIECE.min(elements - begins);
                let some = self.elements(name, &[(begins, many)])?;
                some.to_dtype(DType::F32)?.write_bytes(&mut hasher)?;
            }
        }
        Ok(hasher.finalize().to_hex().to_string())
    }

    /// The shapes of all weights, in the order of names.
    pub(crate) fn shapes(&self) -> &BTreeMap<String, Vec<usize>> {
        &self.shapes
    }

    /// The number of elements of all weights.
    pub(crate) fn parameters(&self) -> u64 {
        self.shapes.values().map(|shape| shape.iter().product::<usize>() as u64).sum()
    }

    /// A copy of some elements of a weight, flat.
    pub(crate) fn elements(&self, name: &str, runs: &Runs) -> Result<Tensor> {
        for layer in &self.layers {
            if let Some(found) = layer.elements(name, runs)? {
                return Ok(found);
            }
        }
        Err(TrainError::Internal(format!("nothing says what `{name}` begins with")))
    }

    /// A whole weight, in its shape.
    pub(crate) fn whole(&self, name: &str) -> Result<Tensor> {
        let shape = self.shapes.get(name).map_or(&[][..], Vec::as_slice);
        let all = self.elements(name, &[(0, shape.iter().product())])?;
        Ok(all.reshape(shape)?)
    }

    /// All weights, read.
    pub(crate) fn all(&self) -> Result<Weights> {
        self.shapes.keys().map(|name| Ok((name.clone(), self.whole(name)?))).collect()
    }

    /// All weights, read and rounded to `dtype` one by one.
    pub(crate) fn all_in(&self, dtype: DType) -> Result<Weights> {
        let names = self.shapes.keys();
        names.map(|name| Ok((name.clone(), self.whole(name)?.to_dtype(dtype)?))).collect()
    }
}

impl Layer {
    /// The given `parameters` of a model, drawn from a seed, f32.
    pub(crate) fn fresh(config: &Config, seed: u64, parameters: Vec<Specification>) -> Layer {
        let config = Box::new(Config { dtype: DType::F32, ..config.clone() });
        let parameters = parameters.into_iter().map(|one| (one.name.clone(), one)).collect();
        Layer::Fresh { config, seed, parameters }
    }

    /// Some elements of a weight, flat; `None` if this layer does not have it.
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
                let master = OptimizerTensor::Master;
                kept.has(master, name).then(|| kept.elements(master, name, runs)).transpose()?
            }
        })
    }
}

/// A copy of some elements of a tensor, flat.
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
