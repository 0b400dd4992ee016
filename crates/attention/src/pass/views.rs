//! The views of one side of a block of queries, and what becomes of the gradients that they make of keys and values.
//!
//! A CPU is given a view of every tile at a time, as all together would take far more memory than tiles. On a GPU every time takes
//! launches, which wait for the host where they are short: it is given as many views as take no more than a tile does.

use std::collections::BTreeMap;
use std::iter::{Peekable, zip};

use annulus_comm::bytes_of;
use annulus_memory::Class;
use annulus_ops::attention::{BackwardTile, Dropout, KeyValueGradients, State, Tile};
use annulus_ops::{Backend, charge};
use annulus_sequence::{Block, Part, Pass, Positions, Rows, Side, Spans, TilePlan, View};
use candle_core::{Result, Tensor, bail};

use super::{Running, travelling};
use crate::buffers::Tensors;
use crate::tile_views::{TileView, added};

/// Gradients of some keys of blocks.
type Thinned = BTreeMap<Block, Vec<(Rows, KeyValueGradients)>>;

/// The keys and values of blocks.
type Keys = BTreeMap<Block, Tensors>;

/// Tiles of one side, and the views that are left of each.
struct Views<'a> {
    tiles: Vec<(TilePlan, [&'a Tensor; 2], Peekable<Box<dyn Iterator<Item = View> + 'a>>)>,
    dropout: Option<Dropout>,
    /// Bytes that views may take at a time; `None`: a view of every tile.
    most: Option<usize>,
}

impl Views<'_> {
    /// The next ones, at least one of every tile that has any.
    fn next(&mut self) -> Result<Vec<TileView>> {
        let (mut seen, mut taken) = (Vec::new(), 0);
        loop {
            let before = seen.len();
            if let Some(most) = self.most {
                let next = self.tiles.iter_mut().filter_map(|(tile, keys, views)| {
                    views.peek().map(|view| bytes(view, tile, *keys))
                });
                taken += next.sum::<usize>();
                if before > 0 && taken > most {
                    return Ok(seen);
                }
            }
            for (tile, keys, views) in &mut self.tiles {
                if let Some(view) = views.next() {
                    seen.push(TileView::new(tile, view, *keys, self.dropout)?);
                }
            }
            if self.most.is_none() || seen.len() == before {
                return Ok(seen);
            }
        }
    }

    /// Whether it is known that none are left. A CPU's are made when their turn comes.
    fn are_over(&mut self) -> bool {
        self.most.is_some() && self.tiles.iter_mut().all(|(.., views)| views.peek().is_none())
    }
}

/// Bytes of a view of a tile: of its visibility, and of its keys and values where they are copied.
fn bytes(view: &View, tile: &TilePlan, [k, v]: [&Tensor; 2]) -> usize {
    let seen = view.visibility.iter().map(|seen| seen.queries.len() + seen.keys.len());
    let seen = seen.sum::<usize>() * size_of::<Spans>();
    let rows = view.keys.rows;
    if rows.are_all_of(tile.keys.rows.len()) {
        return seen;
    }
    seen + (bytes_of(k) + bytes_of(v)) as usize / tile.keys.rows.len().max(1) * rows.count
}

impl<'a> Running<'a> {
    /// Computes one side of a block of queries, whether its state ends with that or not.
    pub(super) fn add_side(
        &mut self,
        side: &Side,
        tiles: &[TilePlan],
        last: bool,
        keys: &Keys,
        dropout: Option<Dropout>,
    ) -> Result<()> {
        let of_keys: Vec<Positions> = tiles.iter().map(|tile| self.positions(tile.keys)).collect();
        let mut views = self.views(side, tiles, &of_keys, keys, dropout)?;
        let mut thinned = Thinned::new();
        loop {
            let seen = views.next()?;
            if seen.is_empty() {
                return self.add_thinned(thinned);
            }
            let attention = self.attention();
            let mut state = self.state(tiles[0].queries, side.rows)?;
            if last && (attention.mask.is_of_two_spans() || views.are_over()) {
                state.end_with_next();
            }
            match self.travels.scene.pass {
                Pass::Forward => {
                    let progress = || self.travels.progress();
                    let tiles: Vec<Tile<'_>> = seen.iter().map(TileView::tile).collect();
                    attention.kernel.forward(&tiles, &mut *state, &progress)?;
                }
                Pass::Backward => self.backward(&seen, &mut *state, &mut thinned)?,
            }
            self.states.entry(tiles[0].queries).or_default().insert(side.rows, state);
        }
    }

    /// The views of all tiles of a side.
    fn views<'b>(
        &self,
        side: &'b Side,
        tiles: &[TilePlan],
        of_keys: &'b [Positions],
        keys: &'b Keys,
        dropout: Option<Dropout>,
    ) -> Result<Views<'b>>
    where
        'a: 'b,
    {
        let (attention, cut) = (self.attention(), self.cut());
        let of_tile = |(tile, positions): (&TilePlan, &'b Positions)| {
            let [k, v] = &keys[&tile.keys][..] else { bail!("attention: {tile:?} has no keys") };
            let views: Box<dyn Iterator<Item = View>> =
                Box::new(side.views(&attention.mask, positions, cut));
            Ok((*tile, [k, v], views.peekable()))
        };
        let tiles: Vec<_> = zip(tiles, of_keys).map(of_tile).collect::<Result<_>>()?;
        let spans = |positions: &Positions| side.rows.count + positions.tokens();
        let spans = of_keys.iter().map(spans).sum::<usize>() * attention.mask.rows();
        let largest = tiles
            .iter()
            .map(|(_, [k, v], _)| (bytes_of(k) + bytes_of(v)) as usize)
            .max()
            .unwrap_or(0);
        let on_gpu = matches!(attention.kernel.backend(), Backend::Gpu(_));
        let most = on_gpu.then_some(spans * size_of::<Spans>() + largest);
        Ok(Views { tiles, dropout, most })
    }

    /// Computes the gradients of keys and values of views: those of all keys of a block are added to what there is of them, those of some
    /// are left in `thinned`.
    fn backward(
        &mut self,
        seen: &[TileView],
        state: &mut dyn State,
        thinned: &mut Thinned,
    ) -> Result<()> {
        for round in rounds(seen) {
            let carry = |one: &&TileView| {
                let sum = one.is_of_all_keys().then(|| one.of.of(Part::Gradient));
                sum.and_then(|sum| self.held.remove(sum)).and_then(gradients)
            };
            let carried = round.iter().map(carry).collect();
            let made = self.kernel_backward(&round, carried, state)?;
            for (one, made) in zip(round, made) {
                if one.is_of_all_keys() {
                    let KeyValueGradients { dk, dv } = made;
                    self.held.insert_or_add(one.of.of(Part::Gradient), vec![dk, dv])?;
                } else {
                    thinned.entry(one.of).or_default().push((one.keys(), made));
                }
            }
        }
        Ok(())
    }

    /// Adds gradients of some keys of blocks, to zeros where there are none yet.
    fn add_thinned(&mut self, thinned: Thinned) -> Result<()> {
        let backend = self.attention().kernel.backend();
        for (keys, made) in thinned {
            let sum = keys.of(Part::Gradient);
            let held = match self.held.remove(sum) {
                Some(held) => held,
                None => travelling(|| self.zeros(sum))?,
            };
            let made = made.into_iter();
            let (dk, dv) = made.map(|(rows, made)| ((rows, made.dk), (rows, made.dv))).unzip();
            let sums = zip(held, [dk, dv]).map(|(sum, parts)| added(&backend, sum, parts));
            let sums = sums.collect::<Result<Tensors>>()?;
            charge(&sums, Class::KeyValue);
            self.held.insert_or_add(sum, sums)?;
        }
        Ok(())
    }

    fn kernel_backward(
        &self,
        seen: &[&TileView],
        carried: Vec<Option<KeyValueGradients>>,
        state: &mut dyn State,
    ) -> Result<Vec<KeyValueGradients>> {
        let tiles =
            zip(seen, carried).map(|(one, carried)| BackwardTile { tile: one.tile(), carried });
        let progress = || self.travels.progress();
        let made = self.attention().kernel.backward(tiles.collect(), state, &progress)?;
        for KeyValueGradients { dk, dv } in &made {
            charge([dk, dv], Class::KeyValue);
        }
        Ok(made)
    }
}

/// The views in rounds, in each of which all keys of a block are in one at most: the next continues from its sums.
fn rounds(seen: &[TileView]) -> Vec<Vec<&TileView>> {
    let (mut rounds, mut before) = (Vec::<Vec<&TileView>>::new(), BTreeMap::<Block, usize>::new());
    for one in seen {
        let nth = before.entry(one.of).or_default();
        let round = if one.is_of_all_keys() { *nth } else { 0 };
        *nth += usize::from(one.is_of_all_keys());
        if round == rounds.len() {
            rounds.push(Vec::new());
        }
        rounds[round].push(one);
    }
    rounds
}

/// Two tensors as the gradients that a tile adds to.
fn gradients(tensors: Tensors) -> Option<KeyValueGradients> {
    let [dk, dv] = <[Tensor; 2]>::try_from(tensors).ok()?;
    Some(KeyValueGradients { dk, dv })
}
