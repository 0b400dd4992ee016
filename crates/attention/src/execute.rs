//! Sets up an attention on one rank, and runs its two passes.

use std::sync::{Arc, Mutex, PoisonError};

use annulus_comm::Communicator;
use annulus_memory::{Class, scope};
use annulus_ops::attention::{Attended, AttentionKernel, Dropout, Prepared};
use annulus_ops::charge;
use annulus_sequence::{
    Block, Extent, Flaw, Heads, Hop, Layout, Mask, Part, Pass, Positions, Return, Schedule,
    Strategy, StrategyError, Wire,
};
use candle_core::{DType, Result, Tensor};

use crate::buffers::Tensors;
use crate::cache::{Cache, Growing};
use crate::pass::Running;
use crate::schedules::{Asked, Dealing, Schedules, schedules};

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
    /// Query heads, and the key/value heads that they share.
    pub heads: Heads,
    /// What travels backward in a ring, and how gradients come home.
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
#[derive(Clone, Debug)]
pub struct Attention {
    pub(crate) mask: Mask,
    pub(crate) scale: f64,
    pub(crate) heads: Heads,
    /// What every rank holds.
    pub(crate) positions: Arc<[Positions]>,
    /// What all ranks do, shared by those of this process.
    schedules: Arc<Schedules>,
    /// What travels is of this type; `None`: values as they are computed with, sums in f32.
    pub(crate) wire: Wire<Option<DType>>,
    /// Whether keys and values are kept for tokens to come.
    pub(crate) growing: Option<Growing>,
    /// Which weights are left out; step and layer are those of a call.
    dropout: Option<Dropout>,
    pub(crate) comm: Arc<dyn Communicator>,
    pub(crate) kernel: Arc<dyn AttentionKernel>,
    /// Own keys and values of the last forward pass, until the next pass of any kind: a slower rank may still read them
    /// where memory is shared, and what a rank takes should not depend on who is slow.
    kept: Arc<Mutex<Option<[Tensor; 2]>>>,
}

impl Attention {
    /// Generates and proves the schedules of `setting` over the ranks of `comm`, which hold alike.
    pub fn new(
        setting: &Setting,
        comm: Arc<dyn Communicator>,
        kernel: Arc<dyn AttentionKernel>,
    ) -> std::result::Result<Attention, AttentionError> {
        let alike = vec![1; comm.world()];
        Attention::weighted(setting, &alike, comm, kernel)
    }

    /// The same where ranks hold positions in proportion to `weights`, one for each.
    pub fn weighted(
        setting: &Setting,
        weights: &[usize],
        comm: Arc<dyn Communicator>,
        kernel: Arc<dyn AttentionKernel>,
    ) -> std::result::Result<Attention, AttentionError> {
        Attention::dealt(setting, setting.strategy.layout(), weights, comm, kernel)
    }

    /// The same where positions are dealt as `layout` says, and not in the strategy's own way.
    pub fn dealt(
        setting: &Setting,
        layout: Layout,
        weights: &[usize],
        comm: Arc<dyn Communicator>,
        kernel: Arc<dyn AttentionKernel>,
    ) -> std::result::Result<Attention, AttentionError> {
        let Setting { strategy, ref mask, tokens, heads, gradients, scale } = *setting;
        let (mask, dealing) = (mask.clone(), Dealing::Weighted(weights.to_vec()));
        let asked = Asked { strategy, layout, mask, tokens, heads, gradients, dealing };
        let schedules = schedules(asked.clone())?;
        Ok(Attention {
            mask: asked.mask,
            scale,
            heads,
            positions: schedules.positions.clone(),
            schedules,
            wire: Wire::default(),
            growing: None,
            dropout: None,
            comm,
            kernel,
            kept: Arc::default(),
        })
    }

    /// Another attention on the same rank, over positions that are dealt as they are for this one: layers may differ, but what a rank
    /// holds of the residual stream is the same in all. The two run one after the other, never at once.
    pub fn beside(&self, setting: &Setting) -> std::result::Result<Attention, AttentionError> {
        let Setting { strategy, ref mask, tokens, heads, gradients, scale } = *setting;
        let (mask, dealing) = (mask.clone(), Dealing::Dealt(self.positions.clone()));
        let layout = self.schedules.forward.layout;
        let asked = Asked { strategy, layout, mask, tokens, heads, gradients, dealing };
        let schedules = schedules(asked.clone())?;
        Ok(Attention { mask: asked.mask, scale, heads, schedules, ..self.clone() })
    }

    /// The same schedules for a batch under a mask of its own, which shows nothing that the mask they were made for does not:
    /// documents of a batch under schedules for [`Mask::of_any_documents`].
    #[must_use]
    pub fn seeing(&self, mask: Mask) -> Attention {
        Attention { mask, ..self.clone() }
    }

    /// The same where what travels is of these types; `None`: values as they are computed with, sums in f32.
    ///
    /// Values (queries and the gradient of their output, keys, values, outputs) are rounded to their type once, by the rank that
    /// has them, before anybody computes with them, the own ones too and on one rank too: what is computed is attention of the
    /// rounded values, whatever the strategy and the number of ranks. Sums (gradients) are rounded only while they travel, once per
    /// move, and are f32 wherever they are added to.
    #[must_use]
    pub fn wired(&self, wire: Wire<Option<DType>>) -> Attention {
        Attention { wire, ..self.clone() }
    }

    /// The same where weights are left out, for a batch whose first row is sequence [`Dropout::sequence`] of its step. Which ones
    /// depends on positions in the whole sequence, and on the step and the layer of a call, which take the place of its own.
    #[must_use]
    pub fn dropping(&self, dropout: Dropout) -> Attention {
        Attention { dropout: Some(dropout), ..self.clone() }
    }

    /// The same for a prompt whose keys and values are kept in `cache`.
    #[must_use]
    pub fn filling(&self, cache: &Arc<Cache>) -> Attention {
        Attention { growing: Some(Growing::Prompt(cache.clone())), ..self.clone() }
    }

    /// The same for one more token, at `position` behind all that `cache` has, which all ranks hand in alike: queries, keys and
    /// values are of one row, and so is the output, on every rank the same. Its mask must show as much in one view.
    #[must_use]
    pub fn adding(&self, cache: &Arc<Cache>, position: usize) -> Attention {
        Attention { growing: Some(Growing::Token(cache.clone(), position)), ..self.clone() }
    }

    /// The weights that are left out in a call.
    pub(crate) fn dropped(&self, Place { step, layer }: Place) -> Option<Dropout> {
        self.dropout.map(|dropout| Dropout { step, layer, ..dropout })
    }

    /// The positions on this rank.
    pub fn positions(&self) -> &Positions {
        &self.positions[self.comm.rank()]
    }

    /// Output [B, Hq, S, D] in the queries' dtype and log-sum-exp f32 [B, Hq, S] of this rank's queries. Off the tape.
    pub fn forward(&self, place: Place, qkv: &Qkv) -> Result<Attended> {
        if let Some(Growing::Token(cache, position)) = &self.growing {
            return self.add(place, (cache, *position), qkv);
        }
        self.remember(place, qkv)?;
        let _workspace = scope(Class::Workspace);
        self.keep(None);
        let (batch, heads, rows, dim) = qkv.q.dims4()?;
        let mut running = Running::new(self, (Pass::Forward, place), &qkv.q)?;
        running.hold(self.own(Part::Query), vec![self.rounded(Part::Query, &qkv.q)?])?;
        let lent = self.lent(qkv)?;
        running.hold(self.own(Part::KeyValue), lent.to_vec())?;
        running.run(self.hops(&self.schedules.forward))?;
        let zeros = |dtype, shape: &[usize]| Tensor::zeros(shape, dtype, qkv.q.device());
        let [out, lse] = two(match running.result(self.own(Part::Output))? {
            Some(tensors) => tensors,
            None => vec![
                zeros(qkv.q.dtype(), &[batch, heads, rows, dim])?,
                zeros(DType::F32, &[batch, heads, rows])?,
            ],
        });
        let out = out.to_dtype(qkv.q.dtype())?;
        charge([&out, &lse], Class::Activations);
        if self.comm.world() > 1 {
            self.keep(Some(lent));
        }
        Ok(Attended { out, lse })
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
        self.keep(None);
        let mut running = Running::new(self, (Pass::Backward, place), &qkv.q)?;
        if !self.own(Part::Query).is_empty() {
            let rounded = |tensor| self.rounded(Part::Query, tensor);
            let gradient = rounded(&gradient)?.to_dtype(qkv.q.dtype())?;
            let Prepared { gradient, lse, delta } = self.kernel.prepare(&attended, &gradient)?;
            let queries = vec![rounded(&qkv.q)?, rounded(&gradient)?, lse, delta];
            running.hold(self.own(Part::Query), queries)?;
        }
        drop((attended, gradient));
        running.hold(self.own(Part::KeyValue), self.lent(&qkv)?.to_vec())?;
        let like = [&qkv.q, &qkv.k, &qkv.v].map(|tensor| (tensor.dtype(), tensor.shape().clone()));
        drop(qkv);
        running.run(self.hops(&self.schedules.backward))?;
        let queries = running.result(self.own(Part::QueryGradient))?;
        let keys = running.result(self.own(Part::Gradient))?;
        let device = running.finish();
        let all = queries.into_iter().chain(keys).flatten();
        let mut all = all.collect::<Tensors>().into_iter();
        let gradients = like.map(|(dtype, shape)| match all.next() {
            Some(gradient) => gradient.to_dtype(dtype),
            None => Tensor::zeros(shape, dtype, &device),
        });
        let [q, k, v] = gradients;
        let gradients = Qkv { q: q?, k: k?, v: v? };
        let Qkv { q, k, v } = &gradients;
        charge([q, k, v], Class::Activations);
        Ok(gradients)
    }

    /// What this rank does of a schedule.
    fn hops<'a>(&self, schedule: &'a Schedule) -> &'a [Hop] {
        &schedule.ranks[self.comm.rank()]
    }

    /// All heads and rows of a part on this rank.
    fn own(&self, part: Part) -> Block {
        let rows = Extent::all(self.positions().tokens());
        Block { part, owner: self.comm.rank(), heads: self.heads.of(part), rows }
    }

    /// Keys and values as they are lent.
    pub(crate) fn lent(&self, qkv: &Qkv) -> Result<[Tensor; 2]> {
        let rounded = |tensor| self.rounded(Part::KeyValue, tensor);
        Ok([rounded(&qkv.k)?, rounded(&qkv.v)?])
    }

    /// A tensor in the type in which its part travels: the same storage where it is that already.
    pub(crate) fn rounded(&self, part: Part, tensor: &Tensor) -> Result<Tensor> {
        let _key_value = scope(Class::KeyValue);
        self.wire.of(part).map_or_else(|| Ok(tensor.clone()), |dtype| tensor.to_dtype(dtype))
    }

    fn keep(&self, own: Option<[Tensor; 2]>) {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = own;
    }
}

fn two(tensors: Tensors) -> [Tensor; 2] {
    tensors.try_into().expect("an output is two tensors: it was made of a kernel's two")
}
