//! The order of weights in memory: on a GPU, those of products with the same input lie one after another, so that it computes one product.

use std::collections::{BTreeMap, BTreeSet};

use annulus_model::{Llama, Weights};
use candle_core::{Shape, Tensor};

use crate::Setup;

/// Which weights lie one after another in memory, and in which order.
#[derive(Debug, Default)]
pub(crate) struct SideBySide {
    groups: Vec<Vec<String>>,
    /// The number of a weight's group, by the weight's name.
    of: BTreeMap<String, usize>,
}

impl SideBySide {
    /// The groups of the model of `setup`; none on a CPU, which takes several products at once wherever their weights are.
    pub(crate) fn of(setup: &Setup) -> SideBySide {
        if setup.processors.is_empty() {
            return SideBySide::default();
        }
        let groups = Llama::fused_projections(&setup.config);
        let all = groups.iter().enumerate();
        let of = all.flat_map(|(group, names)| names.iter().map(move |name| (name.clone(), group)));
        SideBySide { of: of.collect(), groups }
    }

    /// The group of `name` if all its weights are among `names`, else `name` alone.
    fn group<'s>(&'s self, name: &'s String, names: &BTreeSet<&String>) -> Vec<&'s String> {
        let group = self.of.get(name).map(|group| &self.groups[*group]);
        let whole = group.filter(|group| group.iter().all(|one| names.contains(one)));
        whole.map_or_else(|| vec![name], |group| group.iter().collect())
    }

    /// The weights `names` in their shapes, each of flat `pieces`, which `join` puts one after another.
    pub(crate) fn weights<E: From<candle_core::Error>>(
        &self,
        names: &BTreeSet<&String>,
        shape: impl Fn(&String) -> Shape,
        pieces: impl Fn(&String) -> Result<Vec<Tensor>, E>,
        join: impl Fn(&[Tensor]) -> candle_core::Result<Tensor>,
    ) -> Result<Weights, E> {
        let mut weights = Weights::new();
        for name in names {
            if weights.contains_key(*name) {
                continue;
            }
            let group = self.group(name, names);
            let pieces = group.iter().map(|name| pieces(name)).collect::<Result<Vec<_>, E>>()?;
            let pieces = pieces.concat();
            let whole = if pieces.len() == 1 { pieces[0].clone() } else { join(&pieces)? };
            let mut begin = 0;
            for name in group {
                let shape = shape(name);
                let part = whole.narrow(0, begin, shape.elem_count())?;
                begin += shape.elem_count();
                weights.insert(name.clone(), part.reshape(shape)?);
            }
        }
        Ok(weights)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Result};

    use super::*;

    #[test]
    fn groups_that_are_all_there_lie_one_after_another() -> Result<()> {
        let [a, b, c] = ["a", "b", "c"].map(str::to_owned);
        // The group's order is not that of names.
        let groups = vec![vec![b.clone(), a.clone()]];
        let of = [(a.clone(), 0), (b.clone(), 0)].into();
        let side_by_side = SideBySide { groups, of };
        let pieces = |name: &String| {
            let first = if *name == "a" { 0.0 } else { 6.0 };
            let all = Tensor::arange(first, first + 6.0, &Device::Cpu)?;
            Ok::<_, candle_core::Error>(vec![all.narrow(0, 0, 2)?, all.narrow(0, 2, 4)?])
        };
        let made = |names: &BTreeSet<&String>| {
            side_by_side.weights(names, |_| (2, 3).into(), pieces, |all| Tensor::cat(all, 0))
        };
        let all = made(&[&a, &b, &c].into())?;
        assert_eq!(all["a"].to_vec2::<f64>()?, [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]);
        assert_eq!(all["b"].to_vec2::<f64>()?, all["c"].to_vec2::<f64>()?);
        let begins =
            |weights: &Weights| ["a", "b", "c"].map(|name| weights[name].layout().start_offset());
        assert_eq!(begins(&all), [6, 0, 0]);
        let some = made(&[&a, &c].into())?;
        assert_eq!((some.len(), some["a"].layout().start_offset()), (2, 0));
        Ok(())
    }
}
