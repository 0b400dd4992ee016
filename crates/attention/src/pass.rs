//! One pass of a schedule on one rank, over any communicator and block kernel.
//!
//! Forward and backward are the same lines per hop: post, compute, finish, wait, free. What a strategy is, is in the
//! schedule alone.

use std::collections::BTreeMap;
use std::iter::zip;

use annulus_comm::Label;
use annulus_memory::{Class, scope};
use annulus_ops::attention::{
    Attended, BackwardTile, Dropout, Dropped, KeyValueGradients, Prepared, State, Tile,
};
use annulus_ops::charge;
use annulus_ops::order_free::of_shape;
use annulus_sequence::{Block, Hop, Part, Pass, Positions, Rows, TilePlan, View};
use annulus_trace::{Begun, Doing, begin};
use candle_core::{DType, Device, Result, Tensor, bail};

use crate::buffers::{Buffers, Tensors};
use crate::scores::Scores;
use crate::seen::{Seen, added, joined, rows};
use crate::traced::{Scene, settle};
use crate::travel::Travels;
use crate::{Attention, Place};

/// A pass in progress.
pub(crate) struct Running<'a> {
    attention: &'a Attention,
    pass: Pass,
    place: Place,
    held: Buffers,
    /// Running states of queries that have seen some of their keys.
    states: BTreeMap<Block, BTreeMap<Rows, Box<dyn State>>>,
    /// Scores of queries whose keys and values arrive separately.
    scores: BTreeMap<Block, Scores>,
    travels: Travels<'a>,
    batch: usize,
    head_dim: usize,
    /// The dtype that queries are computed in.
    dtype: DType,
    device: Device,
}

impl<'a> Running<'a> {
    /// A pass whose queries have these dimensions: [B, Hq, S, D].
    pub(crate) fn new(
        attention: &'a Attention,
        pass: Pass,
        place: Place,
        q: &Tensor,
    ) -> Result<Running<'a>> {
        let (batch, _, _, head_dim) = q.dims4()?;
        let travels = Travels::new(Scene::new(attention, pass, place, q)?);
        let held = Buffers::of(attention.comm.rank(), attention.kernel.backend());
        let (states, scores) = (BTreeMap::new(), BTreeMap::new());
        let (dtype, device) = (q.dtype(), q.device().clone());
        Ok(Running {
            attention,
            pass,
            place,
            held,
            states,
            scores,
            travels,
            batch,
            head_dim,
            dtype,
            device,
        })
    }

    /// Holds a block that the pass starts with.
    pub(crate) fn hold(&mut self, block: Block, tensors: Tensors) -> Result<()> {
        if block.is_empty() {
            return Ok(());
        }
        self.held.put(block, tensors)
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

    /// Frees all that is left; returns the device that it was on.
    pub(crate) fn finish(self) -> Device {
        self.device
    }

    /// Records a span, unless nothing was done.
    fn record(
        &self,
        begun: Begun,
        any: bool,
        doing: impl FnOnce(Scene<'_>) -> Doing,
    ) -> Result<()> {
        if any {
            settle(begun, &self.device)?;
            begun.end(|| doing(self.travels.scene));
        }
        Ok(())
    }

    fn compute(&mut self, hop: &Hop) -> Result<()> {
        for sum in &hop.zeros {
            let zeros = travelling(|| self.zeros(*sum))?;
            self.held.put(*sum, zeros)?;
        }
        let keys = self.held.keys(&hop.tiles)?;
        let dropout = self.attention.dropped(self.place);
        let (together, apart): (Vec<TilePlan>, Vec<TilePlan>) =
            hop.tiles.iter().partition(|tile| tile.keys.part == Part::KeyValue);
        apart.iter().try_for_each(|tile| self.apart(tile, &keys[&tile.keys], dropout))?;
        let calls: Vec<&[TilePlan]> = together.chunk_by(|a, b| a.queries == b.queries).collect();
        for (index, tiles) in calls.iter().enumerate() {
            let queries = tiles[0].queries;
            let more = || calls[index + 1..].iter().any(|tiles| tiles[0].queries == queries);
            let last = hop.finishes.contains(&queries) && !more();
            self.together(tiles, last, &keys, dropout)?;
        }
        Ok(())
    }

    /// Computes a block of queries with keys and values, whether these are the last it sees or not.
    fn together(
        &mut self,
        tiles: &[TilePlan],
        last: bool,
        keys: &BTreeMap<Block, Tensors>,
        dropout: Option<Dropout>,
    ) -> Result<()> {
        // Views are made for each block of queries: all of them together would grow with the sequence.
        let mut seen: BTreeMap<Rows, Vec<Seen>> = BTreeMap::new();
        for tile in tiles {
            let [k, v] = &keys[&tile.keys][..] else { bail!("attention: {tile:?} has no keys") };
            for view in self.views(tile) {
                let one = Seen::new(tile, view, [k, v], dropout)?;
                seen.entry(one.queries()).or_default().push(one);
            }
        }
        for (rows, seen) in &seen {
            let mut state = self.state(tiles[0].queries, *rows)?;
            if last {
                state.end_with_next();
            }
            match self.pass {
                Pass::Forward => {
                    let progress = || self.travels.progress();
                    let tiles: Vec<Tile<'_>> = seen.iter().map(Seen::tile).collect();
                    self.attention.kernel.forward(&tiles, &mut *state, &progress)?;
                }
                Pass::Backward => self.backward(seen, &mut *state)?,
            }
            self.states.entry(tiles[0].queries).or_default().insert(*rows, state);
        }
        if self.pass == Pass::Backward {
            tiles.iter().try_for_each(|tile| self.zeros_if_none(tile.keys.of(Part::Gradient)))?;
        }
        Ok(())
    }

    /// Computes scores with keys that arrive without values, or weights the values with their scores.
    fn apart(&mut self, tile: &TilePlan, half: &Tensors, dropout: Option<Dropout>) -> Result<()> {
        let TilePlan { queries, keys } = *tile;
        let [half] = &half[..] else { bail!("attention: {keys} are not one tensor") };
        let mut scores = self.scores_of(queries)?;
        let progress = || self.travels.progress();
        if keys.part == Part::Key {
            scores.score(keys, half, &self.views(tile), &progress)?;
        } else {
            let [q, k] = self.sides(tile);
            let dropped = dropout.map(|dropout| {
                let head = dropout.head + queries.heads.start;
                Dropped { dropout, head, queries: &q, keys: &k }
            });
            scores.weigh(keys.of(Part::Key), half, dropped, &progress)?;
        }
        self.scores.insert(queries, scores);
        Ok(())
    }

    /// Computes the views' gradients of keys and values and adds them, starting from zeros where there are none. With several views of all
    /// keys of a block, each continues from the sums of the one before.
    fn backward(&mut self, seen: &[Seen], state: &mut dyn State) -> Result<()> {
        let (mut whole, thinned): (Vec<&Seen>, Vec<&Seen>) =
            seen.iter().partition(|one| one.is_of_all_keys());
        while !whole.is_empty() {
            let mut round: Vec<&Seen> = Vec::new();
            whole.retain(|one| {
                let first = round.iter().all(|other| other.of != one.of);
                if first {
                    round.push(one);
                }
                !first
            });
            let carry =
                |one: &&Seen| self.held.taken(one.of.of(Part::Gradient)).and_then(gradients);
            let carried = round.iter().map(carry).collect();
            let made = self.kernel_backward(&round, carried, state)?;
            for (one, KeyValueGradients { dk, dv }) in zip(round, made) {
                self.held.put(one.of.of(Part::Gradient), vec![dk, dv])?;
            }
        }
        let nothing = thinned.iter().map(|_| None).collect();
        let made = self.kernel_backward(&thinned, nothing, state)?;
        let made: Vec<(&Seen, KeyValueGradients)> = zip(thinned, made).collect();
        for of_block in made.chunk_by(|a, b| a.0.of == b.0.of) {
            let sum = of_block[0].0.of.of(Part::Gradient);
            let parts = |of: fn(&KeyValueGradients) -> &Tensor| -> Vec<(Rows, Tensor)> {
                of_block.iter().map(|(one, made)| (one.keys(), of(made).clone())).collect()
            };
            let zeros = travelling(|| self.zeros(sum))?;
            let [dk, dv] = [parts(|made| &made.dk), parts(|made| &made.dv)];
            let backend = self.attention.kernel.backend();
            let sums = vec![added(&backend, &zeros[0], &dk)?, added(&backend, &zeros[1], &dv)?];
            self.held.put(sum, sums)?;
        }
        Ok(())
    }

    fn kernel_backward(
        &self,
        seen: &[&Seen],
        carried: Vec<Option<KeyValueGradients>>,
        state: &mut dyn State,
    ) -> Result<Vec<KeyValueGradients>> {
        let tiles =
            zip(seen, carried).map(|(one, carried)| BackwardTile { tile: one.tile(), carried });
        let progress = || self.travels.progress();
        let made = self.attention.kernel.backward(tiles.collect(), state, &progress)?;
        for KeyValueGradients { dk, dv } in &made {
            charge([dk, dv], Class::KeyValue);
        }
        Ok(made)
    }

    /// The running state of some rows of a block of queries, which must be put back.
    fn state(&mut self, queries: Block, which: Rows) -> Result<Box<dyn State>> {
        let running = self.states.get_mut(&queries).and_then(|states| states.remove(&which));
        running.map_or_else(|| self.begin(queries, which), Ok)
    }

    /// The scores of a block of queries, which must be put back.
    fn scores_of(&mut self, queries: Block) -> Result<Scores> {
        let begin = || {
            let backend = self.attention.kernel.backend();
            let q = self.held.read(queries)?.remove(0);
            Scores::begin(backend, &q, self.dtype, self.attention.scale)
        };
        self.scores.remove(&queries).map_or_else(begin, Ok)
    }

    fn begin(&self, queries: Block, which: Rows) -> Result<Box<dyn State>> {
        let (kernel, scale) = (&self.attention.kernel, self.attention.scale);
        let held = self.held.read(queries)?;
        let held = held.iter().map(|tensor| rows(tensor, which)).collect::<Result<Tensors>>()?;
        // A kernel computes in its queries' dtype, and widens keys and values itself.
        let wide = |tensor: &Tensor| tensor.to_dtype(self.dtype);
        match (self.pass, &held[..]) {
            (Pass::Forward, [q]) => kernel.begin(&wide(q)?, scale),
            (Pass::Backward, [q, gradient, lse, delta]) => {
                let (gradient, lse, delta) = (wide(gradient)?, lse.clone(), delta.clone());
                kernel.begin_prepared(&wide(q)?, &Prepared { gradient, lse, delta }, scale)
            }
            _ => bail!("attention: {queries} are not what this pass begins with"),
        }
    }

    fn finish_queries(&mut self, queries: Block) -> Result<()> {
        let kernel = &*self.attention.kernel;
        if let Some(scores) = self.scores.remove(&queries) {
            let Attended { out, lse } = scores.finish()?;
            let output = vec![self.attention.rounded(Part::Output, &out)?, lse];
            return self.held.put(queries.of(Part::Output), output);
        }
        let all = Rows { offset: 0, stride: 1, count: queries.rows.len() };
        let whole = self.state(queries, all)?;
        let parts = self.states.remove(&queries).unwrap_or_default().into_iter();
        let (part, tensors) = match self.pass {
            Pass::Forward => {
                let parts = parts.map(|(rows, state)| Ok((rows, kernel.finish(state)?)));
                let whole = kernel.finish(whole)?;
                let Attended { out, lse } = joined(whole, &parts.collect::<Result<Vec<_>>>()?)?;
                (Part::Output, vec![self.attention.rounded(Part::Output, &out)?, lse])
            }
            Pass::Backward => {
                let parts = parts.map(|(rows, state)| Ok((rows, kernel.finish_backward(state)?)));
                let whole = kernel.finish_backward(whole)?;
                let parts = parts.collect::<Result<Vec<_>>>()?;
                let dq = added(&kernel.backend(), &whole, &parts)?;
                (Part::QueryGradient, vec![dq])
            }
        };
        self.held.put(queries.of(part), tensors)
    }

    /// Adds zeros for a sum without parts: under a batch's own mask a tile may show nothing that the schedule's mask shows.
    fn zeros_if_none(&mut self, sum: Block) -> Result<()> {
        if self.held.has(sum) {
            return Ok(());
        }
        let zeros = travelling(|| self.zeros(sum))?;
        self.held.put(sum, zeros)
    }

    /// Zero gradients of keys and values.
    fn zeros(&self, sum: Block) -> Result<Tensors> {
        let shape = [self.batch, sum.heads.len(), sum.rows.len(), self.head_dim];
        let order_free = self.attention.kernel.block().is_some();
        let zeros = || {
            if order_free {
                return of_shape(&shape, &self.device);
            }
            Tensor::zeros(&shape[..], DType::F32, &self.device)
        };
        Ok(vec![zeros()?, zeros()?])
    }

    fn views(&self, tile: &TilePlan) -> Vec<View> {
        let ([q, k], mask) = (self.sides(tile), &self.attention.mask);
        match self.attention.kernel.block() {
            // With order-free sums, views are cut at strict blocks, so that they are equal wherever two blocks meet.
            Some(block) if !mask.is_of_two_spans() => View::by_blocks(mask, &q, &k, block),
            _ => View::all(mask, &q, &k),
        }
    }

    /// The positions of a tile's queries and of its keys.
    fn sides(&self, tile: &TilePlan) -> [Positions; 2] {
        [tile.queries, tile.keys]
            .map(|block| self.attention.sharded()[block.owner].rows(block.rows.range()))
    }

    fn label(&self, hop: usize) -> Label {
        let Place { step, layer } = self.place;
        let pass = match self.pass {
            Pass::Forward => "forward",
            Pass::Backward => "backward",
        };
        Label { step, layer, pass, hop }
    }
}

/// Two tensors as the gradients that a tile adds to.
fn gradients(tensors: Tensors) -> Option<KeyValueGradients> {
    let [dk, dv] = <[Tensor; 2]>::try_from(tensors).ok()?;
    Some(KeyValueGradients { dk, dv })
}

/// Runs what makes keys, values or their gradients for sending, in their memory class.
fn travelling<T>(make: impl FnOnce() -> Result<T>) -> Result<T> {
    let _key_value = scope(Class::KeyValue);
    make()
}
