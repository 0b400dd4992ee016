//! One pass of a schedule on one rank, over any communicator and block kernel.
//!
//! Forward and backward are the same lines per hop: post, compute, finish, wait, free. What a strategy is, is in the
//! schedule alone.

use std::collections::BTreeMap;
use std::iter::zip;
use std::slice::from_ref;

use annulus_comm::Label;
use annulus_memory::{Class, scope};
use annulus_ops::attention::{Attended, BackwardTile, KeyValueGradients, Prepared, State, Tile};
use annulus_ops::charge;
use annulus_sequence::{Block, Hop, Part, Pass, TilePlan, Visibility};
use candle_core::{DType, Device, Result, Tensor, bail};

use crate::buffers::{Buffers, Tensors};
use crate::travel::Travels;
use crate::{Attention, Place};

/// A pass under way.
pub(crate) struct Running<'a> {
    attention: &'a Attention,
    pass: Pass,
    held: Buffers,
    /// Of queries that have seen some of their keys.
    states: BTreeMap<Block, Box<dyn State>>,
    travels: Travels<'a>,
    batch: usize,
    head_dim: usize,
    device: Device,
}

impl<'a> Running<'a> {
    /// Of queries like these: [B, Hq, S, D].
    pub(crate) fn new(attention: &'a Attention, pass: Pass, q: &Tensor) -> Result<Running<'a>> {
        let (batch, _, _, head_dim) = q.dims4()?;
        let travels = Travels::new(&*attention.comm, pass == Pass::Backward);
        let (held, states, device) = (Buffers::default(), BTreeMap::new(), q.device().clone());
        Ok(Running { attention, pass, held, states, travels, batch, head_dim, device })
    }

    /// What the pass starts with.
    pub(crate) fn hold(&mut self, block: Block, tensors: Tensors) -> Result<()> {
        if block.is_empty() {
            return Ok(());
        }
        self.held.put(block, tensors, &*self.attention.kernel)
    }

    pub(crate) fn run(&mut self, place: Place, hops: &[Hop]) -> Result<()> {
        for (index, hop) in hops.iter().enumerate() {
            let label = self.label(place, index);
            travelling(|| self.travels.post(label, hop, &mut self.held))?;
            self.compute(hop)?;
            hop.finishes.iter().try_for_each(|queries| self.finish_queries(*queries))?;
            travelling(|| {
                self.travels.arrive(index, &mut self.held, &*self.attention.kernel)?;
                hop.frees.iter().try_for_each(|block| self.held.take(*block).map(drop))
            })?;
        }
        Ok(())
    }

    /// A result that is home, its pieces put together; none where the rank has no positions.
    pub(crate) fn result(&mut self, whole: Block) -> Result<Option<Tensors>> {
        self.held.assemble(whole)
    }

    /// Frees what is left; says where it was.
    pub(crate) fn finish(self) -> Device {
        self.device
    }

    fn compute(&mut self, hop: &Hop) -> Result<()> {
        for sum in &hop.zeros {
            let zeros = travelling(|| self.zeros(*sum))?;
            self.held.put(*sum, zeros, &*self.attention.kernel)?;
        }
        let keys = self.held.keys(&hop.tiles)?;
        for tiles in hop.tiles.chunk_by(|a, b| a.queries == b.queries) {
            let mut state = match self.states.remove(&tiles[0].queries) {
                Some(state) => state,
                None => self.begin(tiles[0].queries)?,
            };
            // Made anew for every block of queries: kept for all of them they would grow with the whole sequence.
            let seen: Vec<Visibility> = tiles.iter().map(|tile| self.visibility(tile)).collect();
            let plain = zip(tiles, &seen).map(|(tile, seen)| {
                let [k, v] = &keys[&tile.keys][..] else {
                    bail!("attention: {tile:?} has no keys")
                };
                Ok(Tile { k, v, visibility: from_ref(seen) })
            });
            let plain = plain.collect::<Result<Vec<_>>>()?;
            match self.pass {
                Pass::Forward => {
                    let progress = || self.travels.progress();
                    self.attention.kernel.forward(&plain, &mut *state, &progress)?;
                }
                Pass::Backward => self.backward(tiles, plain, &mut *state)?,
            }
            self.states.insert(tiles[0].queries, state);
        }
        Ok(())
    }

    /// Adds tiles to the gradients of their keys and values, which come to be where they are not here yet.
    fn backward(
        &mut self,
        plans: &[TilePlan],
        tiles: Vec<Tile<'_>>,
        state: &mut dyn State,
    ) -> Result<()> {
        let sums = plans.iter().map(|plan| plan.keys.of(Part::Gradient));
        let carried = sums.clone().map(|sum| self.held.taken(sum).and_then(gradients));
        let tiles = zip(tiles, carried).map(|(tile, carried)| BackwardTile { tile, carried });
        let tiles = tiles.collect();
        let progress = || self.travels.progress();
        let made = self.attention.kernel.backward(tiles, state, &progress)?;
        for (sum, KeyValueGradients { dk, dv }) in zip(sums, made) {
            charge([&dk, &dv], Class::KeyValue);
            self.held.put(sum, vec![dk, dv], &*self.attention.kernel)?;
        }
        Ok(())
    }

    fn begin(&self, queries: Block) -> Result<Box<dyn State>> {
        let (kernel, scale) = (&self.attention.kernel, self.attention.scale);
        match (self.pass, &self.held.lend(queries)?[..]) {
            (Pass::Forward, [q]) => kernel.begin(q, scale),
            (Pass::Backward, [q, gradient, lse, delta]) => {
                let [gradient, lse, delta] = [gradient, lse, delta].map(Clone::clone);
                kernel.begin_prepared(q, &Prepared { gradient, lse, delta }, scale)
            }
            _ => bail!("attention: {queries} are not what this pass begins with"),
        }
    }

    fn finish_queries(&mut self, queries: Block) -> Result<()> {
        let kernel = &*self.attention.kernel;
        let state = match self.states.remove(&queries) {
            Some(state) => state,
            None => self.begin(queries)?,
        };
        let (part, tensors) = match self.pass {
            Pass::Forward => {
                let Attended { out, lse } = kernel.finish(state)?;
                (Part::Output, vec![out, lse])
            }
            Pass::Backward => (Part::QueryGradient, vec![kernel.finish_backward(state)?]),
        };
        self.held.put(queries.of(part), tensors, kernel)
    }

    /// Gradients of keys and values that nobody has added to.
    fn zeros(&self, sum: Block) -> Result<Tensors> {
        let shape = (self.batch, sum.heads.len(), sum.rows.len(), self.head_dim);
        let zeros = || Tensor::zeros(shape, DType::F32, &self.device);
        Ok(vec![zeros()?, zeros()?])
    }

    fn visibility(&self, tile: &TilePlan) -> Visibility {
        let [q, k] = [tile.queries, tile.keys]
            .map(|block| self.attention.positions[block.owner].rows(block.rows.range()));
        Visibility::new(&self.attention.mask, &q, &k)
    }

    fn label(&self, Place { step, layer }: Place, hop: usize) -> Label {
        let pass = match self.pass {
            Pass::Forward => "forward",
            Pass::Backward => "backward",
        };
        Label { step, layer, pass, hop }
    }
}

/// Two tensors as what a tile adds to.
fn gradients(tensors: Tensors) -> Option<KeyValueGradients> {
    let [dk, dv] = <[Tensor; 2]>::try_from(tensors).ok()?;
    Some(KeyValueGradients { dk, dv })
}

/// Runs what makes keys, values or their gradients for the way.
fn travelling<T>(make: impl FnOnce() -> Result<T>) -> Result<T> {
    let _key_value = scope(Class::KeyValue);
    make()
}
