//! Sets up an attention on one rank, and runs its two passes.

use std::sync::{Arc, Mutex, PoisonError};

use annulus_comm::Communicator;
use annulus_memory::{Class, scope};
use annulus_ops::attention::{Attended, AttentionKernel, Dropout, Prepared};
use annulus_ops::charge;
use annulus_ops::order_free::{is_order_free, values};
use annulus_sequence::{Block, Extent, Heads, Hop, Mask, Part, Pass, Positions, Schedules, Wire};
use candle_core::{DType, Result, Tensor};

use crate::buffers::Tensors;
use crate::cache::{Cache, Growing};
use crate::pass::Running;

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

/// Exact attention over a split sequence, on one rank of those that share it.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Which key a query sees: as the schedules' mask, or less.
    pub(crate) mask: Mask,
    /// Scores are multiplied by this.
    pub(crate) scale: f64,
    /// What all ranks do, shared by those of this process.
    schedules: Arc<Schedules>,
    /// What this rank does, forward and backward.
    hops: [Arc<[Hop]>; 2],
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
    /// Runs `schedules` over the ranks of `comm`; scores are multiplied by `scale`, `1 / sqrt(head_dim)` as a rule.
    ///
    /// # Panics
    /// When they are of another number of ranks.
    pub fn new(
        schedules: Arc<Schedules>,
        scale: f64,
        comm: Arc<dyn Communicator>,
        kernel: Arc<dyn AttentionKernel>,
    ) -> Attention {
        let forward = schedules.of(Pass::Forward);
        assert_eq!(forward.world(), comm.world(), "schedules are of as many ranks as there are");
        Attention {
            mask: forward.mask.clone(),
            scale,
            hops: own_hops(&schedules, comm.rank()),
            schedules,
            wire: Wire::default(),
            growing: None,
            dropout: None,
            comm,
            kernel,
            kept: Arc::default(),
        }
    }

    /// Another attention on the same rank, over the same positions: layers may differ, but what a rank holds of the residual stream
    /// is the same in all. The two run one after the other, never at once.
    #[must_use]
    pub fn beside(&self, schedules: Arc<Schedules>) -> Attention {
        let mask = schedules.of(Pass::Forward).mask.clone();
        let hops = own_hops(&schedules, self.comm.rank());
        Attention { mask, schedules, hops, ..self.clone() }
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
        &self.sharded()[self.comm.rank()]
    }

    /// What every rank holds.
    pub(crate) fn sharded(&self) -> &[Positions] {
        &self.schedules.of(Pass::Forward).positions
    }

    /// How many heads there are.
    pub(crate) fn heads(&self) -> Heads {
        self.schedules.of(Pass::Forward).heads
    }

    /// Output [B, Hq, S, D] in the queries' dtype and log-sum-exp f32 [B, Hq, S] of this rank's queries. Off the tape.
    ///
    /// # Errors
    /// Tensors of other shapes, a rank that is late or gone, a kernel that fails.
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
        running.run(self.hops(Pass::Forward))?;
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
    ///
    /// # Errors
    /// Tensors of other shapes, a rank that is late or gone, a kernel that fails.
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
        running.run(self.hops(Pass::Backward))?;
        let queries = running.result(self.own(Part::QueryGradient))?;
        let keys = running.result(self.own(Part::Gradient))?;
        let device = running.finish();
        let all = queries.into_iter().chain(keys).flatten();
        let mut all = all.collect::<Tensors>().into_iter();
        let gradients = like.map(|(dtype, shape)| match all.next() {
            Some(sums) if is_order_free(&sums) => {
                values(&self.kernel.backend(), &sums)?.to_dtype(dtype)
            }
            Some(gradient) => gradient.to_dtype(dtype),
            None => Tensor::zeros(shape, dtype, &device),
        });
        let [q, k, v] = gradients;
        let gradients = Qkv { q: q?, k: k?, v: v? };
        let Qkv { q, k, v } = &gradients;
        charge([q, k, v], Class::Activations);
        Ok(gradients)
    }

    /// What this rank does in a pass.
    fn hops(&self, pass: Pass) -> &[Hop] {
        match pass {
            Pass::Forward => &self.hops[0],
            Pass::Backward => &self.hops[1],
        }
    }

    /// All heads and rows of a part on this rank.
    fn own(&self, part: Part) -> Block {
        let rows = Extent::all(self.positions().tokens());
        Block { part, owner: self.comm.rank(), heads: self.heads().of(part), rows }
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

/// The hops of a rank in both passes.
fn own_hops(schedules: &Schedules, rank: usize) -> [Arc<[Hop]>; 2] {
    schedules.both().map(|schedule| schedule.of_rank(rank).into())
}

fn two(tensors: Tensors) -> [Tensor; 2] {
    tensors.try_into().expect("an output is two tensors: it was made of a kernel's two")
}
