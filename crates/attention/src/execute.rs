//! Sets up an attention on one rank, and runs its two passes.

use std::sync::Arc;

use annulus_comm::Communicator;
use annulus_memory::{Class, scope};
use annulus_ops::attention::{Attended, AttentionKernel, Dropout, Prepared};
use annulus_ops::charge;
use annulus_ops::order_free::{is_order_free, values};
use annulus_sequence::{Block, Extent, Heads, Hop, Mask, Part, Pass, Positions, Schedules, Wire};
use candle_core::{DType, Result, Tensor, bail};
use parking_lot::Mutex;

use crate::buffers::Tensors;
use crate::cache::{Cache, Growing};
use crate::pass::Running;

/// Queries [B, Hq, S, D], keys and values [B, Hkv, S, D] of the positions on this rank.
#[derive(Clone, Debug)]
pub struct Qkv {
    /// Queries [B, Hq, S, D].
    pub q: Tensor,
    /// Keys [B, Hkv, S, D].
    pub k: Tensor,
    /// Values [B, Hkv, S, D].
    pub v: Tensor,
}

/// The step and the layer that attention is computed for: named in errors and traces, and part of what dropout draws.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallSite {
    /// The number of the optimizer step.
    pub step: u64,
    /// The number of the layer.
    pub layer: usize,
}

/// Exact attention over a split sequence, on one of the ranks that share it.
#[derive(Clone, Debug)]
pub struct Attention {
    /// The mask: the schedules', or one that shows less.
    pub(crate) mask: Mask,
    /// The factor of scores.
    pub(crate) scale: f64,
    /// The schedules of all ranks, shared by those of this process.
    schedules: Arc<Schedules>,
    /// The hops of this rank, forward and backward.
    hops: [Arc<[Hop]>; 2],
    /// The comm dtypes; `None`: values as they are computed with, sums in f32.
    pub(crate) wire: Wire<Option<DType>>,
    /// The use of a cache of keys and values, if any.
    pub(crate) growing: Option<Growing>,
    /// The dropout of weights, if any; step and layer are those of a call.
    dropout: Option<Dropout>,
    pub(crate) comm: Arc<dyn Communicator>,
    pub(crate) kernel: Arc<dyn AttentionKernel>,
    /// Own keys and values of the last forward pass, kept until the next pass of any kind: where memory is shared, a slower rank may still
    /// read them, and a rank's memory should not depend on who is slow.
    kept: Arc<Mutex<Option<[Tensor; 2]>>>,
}

impl Attention {
    /// Sets up `schedules` over the ranks of `comm`; scores are multiplied by `scale`, usually `1 / sqrt(head_dim)`.
    ///
    /// # Panics
    /// When the schedules are for another number of ranks.
    pub fn new(
        schedules: Arc<Schedules>,
        scale: f64,
        comm: Arc<dyn Communicator>,
        kernel: Arc<dyn AttentionKernel>,
    ) -> Attention {
        let forward = schedules.of(Pass::Forward);
        assert_eq!(
            forward.world(),
            comm.world_size(),
            "schedules are of as many ranks as there are"
        );
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

    /// Another attention on this rank over the same positions: layers may differ, but all share the residual stream. The two run one after
    /// the other, never concurrently.
    ///
    /// # Errors
    /// When the schedules are for other positions.
    pub fn with_schedules(&self, schedules: Arc<Schedules>) -> Result<Attention> {
        let positions = &schedules.of(Pass::Forward).positions;
        if **positions != *self.sharded() {
            let (found, wanted) = (positions.len(), self.comm.world_size());
            bail!(
                "attention: found schedules of {found} ranks with other positions, expected those of \
                 the attention beside it, on {wanted} ranks"
            );
        }
        let mask = schedules.of(Pass::Forward).mask.clone();
        let hops = own_hops(&schedules, self.comm.rank());
        Ok(Attention { mask, schedules, hops, ..self.clone() })
    }

    /// This attention for a batch with a mask of its own, which must show nothing that the schedules' mask hides: a batch's documents under
    /// schedules for [`Mask::of_any_documents`].
    ///
    /// # Errors
    /// A mask that shows more than the schedules' mask, or of which [`Mask::shows_all_of`] cannot tell.
    pub fn with_mask(&self, mask: Mask) -> Result<Attention> {
        let planned = &self.schedules.of(Pass::Forward).mask;
        if !planned.shows_all_of(&mask, self.end()) {
            bail!(
                "attention: found the mask `{mask}`, expected one that shows nothing beyond `{planned}`, for \
                 which the schedules were made: what they do not plan is not computed; make schedules \
                 for `{mask}`, or, where only documents differ, for `of_any_documents` of it"
            );
        }
        Ok(Attention { mask, ..self.clone() })
    }

    /// This attention with these comm dtypes; `None`: values as they are computed with, sums in f32.
    ///
    /// Values (queries and the gradient of their output, keys, values, outputs) are rounded to their type once, by the rank that
    /// has them, before anybody computes with them, the own ones too and on one rank too: what is computed is attention of the
    /// rounded values, whatever the strategy and the number of ranks. Sums (gradients) are rounded only while they travel, once per
    /// move, and are f32 wherever they are added to.
    #[must_use]
    pub fn with_wire_dtypes(&self, wire: Wire<Option<DType>>) -> Attention {
        Attention { wire, ..self.clone() }
    }

    /// This attention with dropout of its weights, for a batch whose first row is sequence [`Dropout::sequence`] of its step. Which weights
    /// are dropped depends on positions in the whole sequence, and on a call's step and layer, which replace those of `dropout`.
    ///
    /// # Errors
    /// A probability that is not from 0 to below 1.
    pub fn with_dropout(&self, dropout: Dropout) -> Result<Attention> {
        let probability = dropout.probability;
        if !(0.0..1.0).contains(&probability) {
            bail!("attention: found dropout of probability {probability}, expected 0 to below 1");
        }
        Ok(Attention { dropout: Some(dropout), ..self.clone() })
    }

    /// This attention for a prompt, whose keys and values are kept in `cache`.
    #[must_use]
    pub fn with_prefill_cache(&self, cache: &Arc<Cache>) -> Attention {
        Attention { growing: Some(Growing::Prompt(cache.clone())), ..self.clone() }
    }

    /// This attention for one more token, at `position` right after all that `cache` holds, which every rank passes alike: queries, keys,
    /// values and the output have one row, the same on every rank. The mask must show that much in one view. A forward pass refuses any
    /// other position; there is no backward pass.
    #[must_use]
    pub fn decoding_at(&self, cache: &Arc<Cache>, position: usize) -> Attention {
        Attention { growing: Some(Growing::Token(cache.clone(), position)), ..self.clone() }
    }

    /// The dropout of a call.
    pub(crate) fn dropped(&self, CallSite { step, layer }: CallSite) -> Option<Dropout> {
        self.dropout.map(|dropout| Dropout { step, layer, ..dropout })
    }

    /// The positions on this rank.
    pub fn positions(&self) -> &Positions {
        &self.sharded()[self.comm.rank()]
    }

    /// The positions of every rank.
    pub(crate) fn sharded(&self) -> &[Positions] {
        &self.schedules.of(Pass::Forward).positions
    }

    /// One past the last position of the whole sequence.
    pub(crate) fn end(&self) -> usize {
        self.sharded().iter().map(|positions| positions.extent().end).max().unwrap_or_default()
    }

    /// The numbers of query and KV heads.
    pub(crate) fn heads(&self) -> Heads {
        self.schedules.of(Pass::Forward).heads
    }

    /// Runs forward: output [B, Hq, S, D] in the queries' dtype and log-sum-exp f32 [B, Hq, S] of this rank's queries. Off the tape.
    ///
    /// # Errors
    /// Tensors of other shapes, a rank that is late or gone, a kernel that fails.
    pub fn forward(&self, site: CallSite, qkv: &Qkv) -> Result<Attended> {
        if let Some(Growing::Token(cache, position)) = &self.growing {
            self.check(qkv, 1)?;
            return self.add(site, cache, *position, qkv);
        }
        self.check(qkv, self.positions().tokens())?;
        self.remember(site, qkv)?;
        let _workspace = scope(Class::Workspace);
        self.keep(None);
        let (batch, heads, rows, dim) = qkv.q.dims4()?;
        let mut running = Running::new(self, Pass::Forward, site, &qkv.q)?;
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
        if self.comm.world_size() > 1 {
            self.keep(Some(lent));
        }
        Ok(Attended { out, lse })
    }

    /// Runs backward: gradients of this rank's queries, keys and values, in their dtypes. Off the tape. Arguments are freed as soon as they
    /// are no longer needed.
    ///
    /// # Errors
    /// Tensors of other shapes, a rank that is late or gone, a kernel that fails.
    pub fn backward(
        &self,
        site: CallSite,
        qkv: Qkv,
        attended: Attended,
        gradient: Tensor,
    ) -> Result<Qkv> {
        self.check_backward()?;
        self.check(&qkv, self.positions().tokens())?;
        self.check_output(&attended.out, "out", &qkv.q)?;
        self.check_output(&gradient, "gradient", &qkv.q)?;
        let _workspace = scope(Class::Workspace);
        self.keep(None);
        let mut running = Running::new(self, Pass::Backward, site, &qkv.q)?;
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
        let device = qkv.q.device().clone();
        drop(qkv);
        running.run(self.hops(Pass::Backward))?;
        let queries = running.result(self.own(Part::QueryGradient))?;
        let keys = running.result(self.own(Part::Gradient))?;
        // Frees all that is left.
        drop(running);
        let mut all = queries.into_iter().chain(keys).flatten().collect::<Tensors>().into_iter();
        let [q, k, v] = like.map(|(dtype, shape)| match all.next() {
            Some(gradient) => self.floats(&gradient)?.to_dtype(dtype),
            None => Tensor::zeros(shape, dtype, &device),
        });
        let gradients = Qkv { q: q?, k: k?, v: v? };
        charge([&gradients.q, &gradients.k, &gradients.v], Class::Activations);
        Ok(gradients)
    }

    /// A gradient as floats, where it is a table of order-free sums.
    fn floats(&self, gradient: &Tensor) -> Result<Tensor> {
        if is_order_free(gradient) {
            return values(&self.kernel.backend(), gradient);
        }
        Ok(gradient.clone())
    }

    /// The hops of this rank in a pass.
    fn hops(&self, pass: Pass) -> &[Hop] {
        match pass {
            Pass::Forward => &self.hops[0],
            Pass::Backward => &self.hops[1],
        }
    }

    /// Whether forward keeps scores until values arrive, which no kernel does.
    pub(crate) fn keeps_scores(&self) -> bool {
        let first = self.hops(Pass::Forward).iter().find_map(|hop| hop.tiles.iter().next());
        first.is_some_and(|tile| tile.keys.part == Part::Key)
    }

    /// The block of all heads and rows of a part on this rank.
    fn own(&self, part: Part) -> Block {
        let rows = Extent::all(self.positions().tokens());
        Block { part, owner: self.comm.rank(), heads: self.heads().of(part), rows }
    }

    /// Keys and values as other ranks read them.
    pub(crate) fn lent(&self, qkv: &Qkv) -> Result<[Tensor; 2]> {
        let rounded = |tensor| self.rounded(Part::KeyValue, tensor);
        Ok([rounded(&qkv.k)?, rounded(&qkv.v)?])
    }

    /// A tensor rounded to the comm dtype of its part; the same storage where it has that already.
    pub(crate) fn rounded(&self, part: Part, tensor: &Tensor) -> Result<Tensor> {
        let _key_value = scope(Class::KeyValue);
        self.wire.of(part).map_or_else(|| Ok(tensor.clone()), |dtype| tensor.to_dtype(dtype))
    }

    fn keep(&self, own: Option<[Tensor; 2]>) {
        *self.kept.lock() = own;
    }
}

/// The hops of a rank, forward and backward.
fn own_hops(schedules: &Schedules, rank: usize) -> [Arc<[Hop]>; 2] {
    schedules.both().map(|schedule| schedule.of_rank(rank).into())
}

fn two(tensors: Tensors) -> [Tensor; 2] {
    tensors.try_into().expect("an output is two tensors: it was made of a kernel's two")
}
