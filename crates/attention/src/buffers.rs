//! What lies on a rank during a pass, by what it holds.

use std::collections::BTreeMap;

use annulus_ops::attention::{AttentionKernel, KeyValueGradients};
use annulus_sequence::{Buffer, Hop, Part, TilePlan};
use candle_core::{Result, Tensor, bail};

/// Keys and values, or their gradients.
#[derive(Clone, Debug)]
pub(crate) struct Pair(pub(crate) Tensor, pub(crate) Tensor);

/// The buffers of one rank in one pass.
#[derive(Debug)]
pub(crate) struct Buffers {
    held: BTreeMap<Buffer, Pair>,
    /// The own keys and values: of the shape that absent gradients have.
    own: Pair,
}

impl Buffers {
    pub(crate) fn new(buffer: Buffer, own: Pair) -> Buffers {
        Buffers { held: BTreeMap::from([(buffer, own.clone())]), own }
    }

    pub(crate) fn get(&self, buffer: Buffer) -> Result<&Pair> {
        match self.held.get(&buffer) {
            Some(pair) => Ok(pair),
            None => bail!("attention: {buffer:?} is not here"),
        }
    }

    pub(crate) fn take(&mut self, buffer: Buffer) -> Result<Pair> {
        match self.held.remove(&buffer) {
            Some(pair) => Ok(pair),
            None => bail!("attention: {buffer:?} is not here"),
        }
    }

    pub(crate) fn put(&mut self, buffer: Buffer, pair: Pair) {
        self.held.insert(buffer, pair);
    }

    /// What a tile adds to: a travelling gradient that is here, or nothing.
    pub(crate) fn carried(&mut self, plan: &TilePlan) -> Option<KeyValueGradients> {
        let Pair(dk, dv) = self.held.remove(&plan.into?)?;
        Some(KeyValueGradients { dk, dv })
    }

    pub(crate) fn put_gradients(&mut self, plan: &TilePlan, pair: Pair) -> Result<()> {
        let Some(into) = plan.into else {
            bail!("attention: a backward tile has nowhere to put its gradients");
        };
        self.put(into, pair);
        Ok(())
    }

    /// Takes the gradients of `owner`'s keys and values: what was summed, or zeros where nobody saw them.
    pub(crate) fn gradients(&mut self, owner: usize) -> Result<Pair> {
        match self.held.remove(&Buffer { part: Part::Gradient, owner }) {
            Some(pair) => Ok(pair),
            None => self.zeros(),
        }
    }

    /// Takes this rank's contribution to `owner`'s gradients, or zeros.
    pub(crate) fn contribution(&mut self, owner: usize) -> Result<Pair> {
        match self.held.remove(&Buffer { part: Part::Contribution, owner }) {
            Some(pair) => Ok(pair),
            None => self.zeros(),
        }
    }

    /// The end of a hop; `kernel` adds.
    pub(crate) fn fold_and_free(&mut self, hop: &Hop, kernel: &dyn AttentionKernel) -> Result<()> {
        for fold in &hop.folds {
            let from = self.take(fold.from)?;
            if let Some(into) = self.held.get(&fold.into) {
                // In place: what was given away is nobody else's any more.
                kernel.accumulate(&into.0, &from.0)?;
                kernel.accumulate(&into.1, &from.1)?;
            } else {
                self.put(fold.into, from);
            }
        }
        for buffer in &hop.frees {
            self.take(*buffer)?;
        }
        Ok(())
    }

    fn zeros(&self) -> Result<Pair> {
        let zeros =
            |like: &Tensor| Tensor::zeros(like.shape(), candle_core::DType::F32, like.device());
        Ok(Pair(zeros(&self.own.0)?, zeros(&self.own.1)?))
    }
}
