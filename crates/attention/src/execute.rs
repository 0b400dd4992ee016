//! Runs any schedule over a communicator and a block kernel.
//!
//! Forward and backward are the same five lines per hop: post, compute, wait, fold, free. What a strategy is, is in the
//! schedule alone.

use std::sync::{Arc, Mutex, PoisonError};

use annulus_comm::{Communicator, Label};
use annulus_memory::{Class, scope};
use annulus_ops::attention::{Attended, AttentionKernel, BackwardTile, KeyValueGradients, Tile};
use annulus_ops::charge;
use annulus_sequence::{
    Buffer, Flaw, Hop, Mask, Part, Positions, Return, Schedule, Strategy, StrategyError, TilePlan,
    Visibility, prove,
};
use candle_core::{Result, Tensor};

use crate::buffers::{Buffers, Pair};
use crate::travel::Travel;

/// Queries [B, Hq, S, D], keys and values [B, Hkv, S, D] of the positions on this rank.
#[derive(Clone, Debug)]
pub struct Qkv {
    /// Queries.
    pub q: Tensor,
    /// Keys.
    pub k: Tensor,
    /// Values.
    pub v: Tensor,
}

/// Where in the program an attention is: printed in errors and traces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The optimizer step.
    pub step: u64,
    /// The layer.
    pub layer: usize,
}

/// What an attention is to be.
#[derive(Clone, Debug)]
pub struct Setting {
    /// How the sequence is split.
    pub strategy: Strategy,
    /// Which key a query sees.
    pub mask: Mask,
    /// Positions of the whole sequence.
    pub tokens: usize,
    /// Key/value heads.
    pub key_value_heads: usize,
    /// How gradients of keys and values come home.
    pub gradients: Return,
    /// Scores are multiplied by this; `1 / sqrt(head_dim)` as a rule.
    pub scale: f64,
}

/// Why an attention cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum AttentionError {
    /// The strategy cannot deal or split so.
    #[error("{0}")]
    Strategy(StrategyError),
    /// The schedule does not hold: a bug of its generator, found before anything ran.
    #[error("the schedule of `{strategy}` is wrong: {flaw}")]
    Flaw {
        /// Whose schedule.
        strategy: &'static str,
        /// What is wrong with it.
        flaw: Flaw,
    },
}

/// Exact attention over a split sequence, on one rank of those that share it.
#[derive(Debug)]
pub struct Attention {
    mask: Mask,
    scale: f64,
    /// What every rank holds.
    positions: Vec<Positions>,
    /// What this rank does.
    forward: Vec<Hop>,
    backward: Vec<Hop>,
    comm: Arc<dyn Communicator>,
    kernel: Arc<dyn AttentionKernel>,
    /// Own keys and values of the last forward pass, until the next pass of any kind: a slower rank may still read them
    /// where memory is shared, and what a rank takes should not depend on who is slow.
    lent: Mutex<Option<Pair>>,
}

impl Attention {
    /// Generates and proves the schedules of `setting` over the ranks of `comm`.
    pub fn new(
        setting: &Setting,
        comm: Arc<dyn Communicator>,
        kernel: Arc<dyn AttentionKernel>,
    ) -> std::result::Result<Attention, AttentionError> {
        let Setting { strategy, ref mask, tokens, key_value_heads: heads, gradients, scale } =
            *setting;
        let (world, rank) = (comm.world(), comm.rank());
        let forward = proved(strategy.forward(mask, tokens, world, heads))?;
        let backward = proved(strategy.backward(mask, tokens, world, heads, gradients))?;
        let own = |mut schedule: Schedule| schedule.ranks.swap_remove(rank);
        Ok(Attention {
            mask: mask.clone(),
            scale,
            positions: forward.positions.clone(),
            forward: own(forward),
            backward: own(backward),
            comm,
            kernel,
            lent: Mutex::default(),
        })
    }

    /// The positions on this rank.
    pub fn positions(&self) -> &Positions {
        &self.positions[self.comm.rank()]
    }

    /// Output [B, Hq, S, D] in the queries' dtype and log-sum-exp f32 [B, Hq, S] of this rank's queries. Off the tape.
    pub fn forward(&self, place: Place, qkv: &Qkv) -> Result<Attended> {
        let _workspace = scope(Class::Workspace);
        let mut state = self.kernel.begin(&qkv.q, self.scale)?;
        let mut held = self.held(qkv);
        for (index, hop) in self.forward.iter().enumerate() {
            let label = Label { pass: "forward", ..label(place, index) };
            let travel = travelling(|| Travel::post(&*self.comm, label, hop, &mut held))?;
            let seen = self.visibility(&hop.tiles);
            let tiles = tiles(&hop.tiles, &seen, &held)?;
            self.kernel.forward(&tiles, &mut *state, &|| travel.progress())?;
            drop(tiles);
            travelling(|| {
                travel.arrive(hop, &mut held)?;
                held.fold_and_free(hop, &*self.kernel)
            })?;
        }
        let attended = self.kernel.finish(state)?;
        charge([&attended.out, &attended.lse], Class::Activations);
        if self.comm.world() > 1 {
            *self.lent.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(Pair(qkv.k.clone(), qkv.v.clone()));
        }
        Ok(attended)
    }

    /// Gradients of this rank's queries, keys and values, in their dtypes. Off the tape. What is handed in is freed as soon as
    /// it is not needed any more.
    pub fn backward(
        &self,
        place: Place,
        qkv: Qkv,
        attended: Attended,
        gradient: Tensor,
    ) -> Result<Qkv> {
        let _workspace = scope(Class::Workspace);
        let mut state = self.kernel.begin_backward(&qkv.q, &attended, &gradient, self.scale)?;
        drop((attended, gradient));
        let mut held = self.held(&qkv);
        let types = [&qkv.q, &qkv.k, &qkv.v].map(Tensor::dtype);
        drop(qkv);
        for (index, hop) in self.backward.iter().enumerate() {
            let label = Label { pass: "backward", ..label(place, index) };
            let travel = travelling(|| Travel::post(&*self.comm, label, hop, &mut held))?;
            let seen = self.visibility(&hop.tiles);
            let carried: Vec<_> = hop.tiles.iter().map(|plan| held.carried(plan)).collect();
            let tiles = tiles(&hop.tiles, &seen, &held)?;
            let tiles = std::iter::zip(tiles, carried)
                .map(|(tile, carried)| BackwardTile { tile, carried })
                .collect();
            let made = self.kernel.backward(tiles, &mut *state, &|| travel.progress())?;
            for (plan, KeyValueGradients { dk, dv }) in std::iter::zip(&hop.tiles, made) {
                charge([&dk, &dv], Class::KeyValue);
                held.put_gradients(plan, Pair(dk, dv))?;
            }
            travelling(|| {
                travel.arrive(hop, &mut held)?;
                held.fold_and_free(hop, &*self.kernel)
            })?;
        }
        let q = self.kernel.finish_backward(state)?.to_dtype(types[0])?;
        let Pair(dk, dv) = held.gradients(self.comm.rank())?;
        drop(held);
        let gradients = Qkv { q, k: dk.to_dtype(types[1])?, v: dv.to_dtype(types[2])? };
        let Qkv { q, k, v } = &gradients;
        charge([q, k, v], Class::Activations);
        Ok(gradients)
    }

    /// What a pass starts with: this rank's own keys and values.
    fn held(&self, qkv: &Qkv) -> Buffers {
        *self.lent.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let own = Buffer { part: Part::KeyValue, owner: self.comm.rank() };
        Buffers::new(own, Pair(qkv.k.clone(), qkv.v.clone()))
    }

    /// Made anew for every hop: kept for all of them they would grow with the whole sequence.
    fn visibility(&self, plans: &[TilePlan]) -> Vec<Visibility> {
        plans
            .iter()
            .map(|plan| {
                let (queries, keys) = (&self.positions[plan.queries], &self.positions[plan.keys]);
                Visibility::new(&self.mask, queries, keys)
            })
            .collect()
    }
}

/// Runs what makes keys, values or their gradients for the way.
fn travelling<T>(make: impl FnOnce() -> Result<T>) -> Result<T> {
    let _key_value = scope(Class::KeyValue);
    make()
}

fn tiles<'a>(
    plans: &[TilePlan],
    seen: &'a [Visibility],
    held: &'a Buffers,
) -> Result<Vec<Tile<'a>>> {
    std::iter::zip(plans, seen)
        .map(|(plan, seen)| {
            let Pair(k, v) = held.get(Buffer { part: Part::KeyValue, owner: plan.keys })?;
            Ok(Tile { k, v, visibility: std::slice::from_ref(seen) })
        })
        .collect()
}

fn label(Place { step, layer }: Place, hop: usize) -> Label {
    Label { step, layer, hop, pass: "" }
}

fn proved(
    schedule: std::result::Result<Schedule, StrategyError>,
) -> std::result::Result<Schedule, AttentionError> {
    let schedule = schedule.map_err(AttentionError::Strategy)?;
    let strategy = schedule.strategy;
    prove(&schedule).map_err(|flaw| AttentionError::Flaw { strategy, flaw })?;
    Ok(schedule)
}
