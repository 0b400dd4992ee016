//! One pass of a schedule on one rank, over any communicator and block kernel.
//!
//! Forward and backward run the same lines per hop: post, compute, finish, wait, free. Only the schedule depends on the strategy.

mod views;

use std::collections::BTreeMap;

use annulus_comm::Label;
use annulus_memory::{Class, scope};
use annulus_ops::attention::{Attended, Dropout, Dropped, Prepared, State};
use annulus_ops::order_free::of_shape;
use annulus_sequence::{Block, BlockShape, Hop, Part, Pass, Positions, Rows, Side, TilePlan, View};
use annulus_trace::{Activity, Begun, begin};
use candle_core::{DType, Device, Result, Tensor, bail};

use crate::buffers::{Buffers, Tensors};
use crate::scores::Scores;
use crate::tile_views::{added, joined, rows};
use crate::traced::{Scene, settle};
use crate::travel::Travels;
use crate::{Attention, CallSite};

/// A pass in progress.
pub(crate) struct Running<'a> {
    held: Buffers,
    /// Running states of queries that have seen some of their keys.
    states: BTreeMap<Block, BTreeMap<Rows, Box<dyn State>>>,
    /// Scores of queries whose keys and values arrive separately.
    scores: BTreeMap<Block, Scores>,
    travels: Travels<'a>,
    /// The dtype that queries are computed in.
    dtype: DType,
    device: Device,
}

impl<'a> Running<'a> {
    /// A pass whose queries have these dimensions: [B, Hq, S, D].
    pub(crate) fn new(
        attention: &'a Attention,
        pass: Pass,
        site: CallSite,
        q: &Tensor,
    ) -> Result<Running<'a>> {
        let travels = Travels::new(Scene::new(attention, pass, site, q)?);
        let held = Buffers::of(attention.comm.rank(), attention.kernel.backend());
        let (states, scores) = (BTreeMap::new(), BTreeMap::new());
        let (dtype, device) = (q.dtype(), q.device().clone());
        Ok(Running { held, states, scores, travels, dtype, device })
    }

    fn attention(&self) -> &'a Attention {
        self.travels.scene.attention
    }

    /// Holds a block that the pass starts with.
    pub(crate) fn hold(&mut self, block: Block, tensors: Tensors) -> Result<()> {
        if block.is_empty() {
            return Ok(());
        }
        self.held.insert_or_add(block, tensors)
    }

    pub(crate) fn run(&mut self, hops: &[Hop]) -> Result<()> {
        for (index, hop) in hops.iter().enumerate() {
            let label = self.label(index);
            travelling(|| self.travels.post(label, hop, &mut self.held))?;
            let computing = begin();
            self.compute(hop)?;
            self.record(computing, !hop.tiles.is_empty(), |scene| scene.computed(index, hop))?;
            let finishing = begin();
            hop.finishes.iter().try_for_each(|queries| self.finish_queries(*queries))?;
            self.record(finishing, !hop.finishes.is_empty(), |scene| scene.finished(index, hop))?;
            travelling(|| {
                self.travels.arrive(index, &mut self.held)?;
                hop.frees.iter().try_for_each(|block| self.held.take(*block).map(drop))
            })?;
        }
        Ok(())
    }

    /// A result at its owner, its pieces put together; `None` where the rank has no positions.
    pub(crate) fn result(&mut self, whole: Block) -> Result<Option<Tensors>> {
        self.held.assemble(whole)
    }

    /// Records a span, unless nothing was done.
    fn record(
        &self,
        begun: Begun,
        any: bool,
        activity: impl FnOnce(Scene<'_>) -> Activity,
    ) -> Result<()> {
        if any {
            settle(begun, &self.device)?;
            begun.end(|| activity(self.travels.scene));
        }
        Ok(())
    }

    fn compute(&mut self, hop: &Hop) -> Result<()> {
        for sum in &hop.zeros {
            self.put_zeros(*sum)?;
        }
        let keys = self.held.keys(&hop.tiles)?;
        let dropout = self.attention().dropped(self.travels.scene.site);
        // Tiles of keys or values alone are those of a strategy that sends them separately.
        let (whole, halves): (Vec<TilePlan>, Vec<TilePlan>) =
            hop.tiles.iter().partition(|tile| tile.keys.part == Part::KeyValue);
        halves.iter().try_for_each(|tile| self.attend_half(tile, &keys[&tile.keys], dropout))?;
        let calls: Vec<&[TilePlan]> = whole.chunk_by(|a, b| a.queries == b.queries).collect();
        for (index, tiles) in calls.iter().enumerate() {
            let queries = tiles[0].queries;
            let more = || calls[index + 1..].iter().any(|tiles| tiles[0].queries == queries);
            let last = hop.finishes.contains(&queries) && !more();
            self.attend_tiles(tiles, last, &keys, dropout)?;
        }
        Ok(())
    }

    /// Attends a block of queries to the keys and values of `tiles`; `last`: no tile of these queries follows.
    fn attend_tiles(
        &mut self,
        tiles: &[TilePlan],
        last: bool,
        keys: &BTreeMap<Block, Tensors>,
        dropout: Option<Dropout>,
    ) -> Result<()> {
        let queries = self.positions(tiles[0].queries);
        let sides = Side::cut(&self.attention().mask, &queries, self.cut());
        // A state is of all sides with the same rows.
        let ends: BTreeMap<Rows, usize> =
            sides.iter().enumerate().map(|(index, side)| (side.rows, index)).collect();
        for (index, side) in sides.iter().enumerate() {
            self.add_side(side, tiles, last && ends[&side.rows] == index, keys, dropout)?;
        }
        if self.travels.scene.pass == Pass::Backward {
            tiles.iter().try_for_each(|tile| self.zeros_if_none(tile.keys.of(Part::Gradient)))?;
        }
        Ok(())
    }

    /// A tile whose keys and values arrive separately: computes and keeps the scores of keys, or weights values by the kept scores.
    fn attend_half(
        &mut self,
        tile: &TilePlan,
        half: &Tensors,
        dropout: Option<Dropout>,
    ) -> Result<()> {
        let TilePlan { queries, keys } = *tile;
        let [half] = &half[..] else { bail!("attention: {keys} are not one tensor") };
        let mut scores = self.scores_of(queries)?;
        let [q, k] = [queries, keys].map(|block| self.positions(block));
        let progress = || self.travels.progress();
        if keys.part == Part::Key {
            scores.score(keys, half, &View::all(&self.attention().mask, &q, &k), &progress)?;
        } else {
            let dropped = dropout.map(|dropout| {
                let head = dropout.head + queries.heads.start;
                Dropped { dropout, head, queries: &q, keys: &k }
            });
            scores.weigh(keys.of(Part::Key), half, dropped, &progress)?;
        }
        self.scores.insert(queries, scores);
        Ok(())
    }

    /// The running state of some rows of a block of queries, which must be put back.
    fn state(&mut self, queries: Block, which: Rows) -> Result<Box<dyn State>> {
        let running = self.states.get_mut(&queries).and_then(|states| states.remove(&which));
        running.map_or_else(|| self.begin(queries, which), Ok)
    }

    /// The scores of a block of queries, which must be put back.
    fn scores_of(&mut self, queries: Block) -> Result<Scores> {
        let attention = self.attention();
        let begin = || {
            let backend = attention.kernel.backend();
            let q = self.held.read(queries)?.remove(0);
            Scores::begin(backend, &q, self.dtype, attention.scale)
        };
        self.scores.remove(&queries).map_or_else(begin, Ok)
    }

    fn begin(&self, queries: Block, which: Rows) -> Result<Box<dyn State>> {
        let (kernel, scale) = (&self.attention().kernel, self.attention().scale);
        let held = self.held.read(queries)?;
        let held = held.iter().map(|tensor| rows(tensor, which)).collect::<Result<Tensors>>()?;
        // A kernel computes in its queries' dtype, and widens keys and values itself.
        let wide = |tensor: &Tensor| tensor.to_dtype(self.dtype);
        match (self.travels.scene.pass, &held[..]) {
            (Pass::Forward, [q]) => kernel.begin(&wide(q)?, scale),
            (Pass::Backward, [q, gradient, lse, delta]) => {
                let (gradient, lse, delta) = (wide(gradient)?, lse.clone(), delta.clone());
                kernel.begin_prepared(&wide(q)?, &Prepared { gradient, lse, delta }, scale)
            }
            _ => bail!("attention: {queries} are not what this pass begins with"),
        }
    }

    fn finish_queries(&mut self, queries: Block) -> Result<()> {
        let kernel = &*self.attention().kernel;
        if let Some(scores) = self.scores.remove(&queries) {
            let Attended { out, lse } = scores.finish()?;
            let output = vec![self.attention().rounded(Part::Output, &out)?, lse];
            return self.held.insert_or_add(queries.of(Part::Output), output);
        }
        let all = Rows::all(queries.rows.len());
        let mut parts = self.states.remove(&queries).unwrap_or_default();
        let whole = parts.remove(&all);
        // Where only some rows have running states, the one of all rows is begun after those are finished: they are not held at once.
        let whole = || whole.map_or_else(|| self.begin(queries, all), Ok);
        let parts = parts.into_iter();
        let (part, tensors) = match self.travels.scene.pass {
            Pass::Forward => {
                let parts = parts.map(|(rows, state)| Ok((rows, kernel.finish(state)?)));
                let parts = parts.collect::<Result<_>>()?;
                let Attended { out, lse } = joined(kernel.finish(whole()?)?, parts)?;
                (Part::Output, vec![self.attention().rounded(Part::Output, &out)?, lse])
            }
            Pass::Backward => {
                let parts = parts.map(|(rows, state)| Ok((rows, kernel.finish_backward(state)?)));
                let parts = parts.collect::<Result<_>>()?;
                let whole = kernel.finish_backward(whole()?)?;
                (Part::QueryGradient, vec![added(&kernel.backend(), whole, parts)?])
            }
        };
        self.held.insert_or_add(queries.of(part), tensors)
    }

    /// Adds zeros for a sum without parts: under a batch's own mask a tile may show nothing that the schedule's mask shows.
    fn zeros_if_none(&mut self, sum: Block) -> Result<()> {
        if self.held.has(sum) {
            return Ok(());
        }
        self.put_zeros(sum)
    }

    /// Adds zeros to a sum, which begins with them if there is none.
    fn put_zeros(&mut self, sum: Block) -> Result<()> {
        let zeros = travelling(|| self.zeros(sum))?;
        self.held.insert_or_add(sum, zeros)
    }

    /// Zero gradients of keys and values.
    fn zeros(&self, sum: Block) -> Result<Tensors> {
        let BlockShape { batch, head_dim, order_free, .. } = self.travels.scene.shape;
        let shape = [batch, sum.heads.len(), sum.rows.len(), head_dim];
        let zeros = || {
            if order_free {
                return of_shape(&shape, &self.device);
            }
            Tensor::zeros(&shape[..], DType::F32, &self.device)
        };
        Ok(vec![zeros()?, zeros()?])
    }

    /// The size of the blocks at which views are cut: with order-free sums they are then equal wherever two strict blocks meet.
    fn cut(&self) -> Option<usize> {
        let block = self.attention().kernel.block();
        block.filter(|_| !self.attention().mask.is_of_two_spans())
    }

    /// The positions of a block's rows.
    fn positions(&self, block: Block) -> Positions {
        self.attention().sharded()[block.owner].rows(block.rows.range())
    }

    fn label(&self, hop: usize) -> Label {
        let Scene { pass, site: CallSite { step, layer }, .. } = self.travels.scene;
        Label { step, layer, pass: pass.name(), hop }
    }
}

/// Runs what makes keys, values or their gradients for sending, in their memory class.
fn travelling<T>(make: impl FnOnce() -> Result<T>) -> Result<T> {
    let _key_value = scope(Class::KeyValue);
    make()
}
