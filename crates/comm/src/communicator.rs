//! What every engine that joins ranks offers: exchanges, collectives and signs of life.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use candle_core::{DType, Device, Shape, Tensor};

use crate::Result;
use crate::collectives::{all_to_all, misused, peers, tree};

/// The pass of messages that carry weights.
pub const WEIGHTS: &str = "weights";

/// Where in the program a transfer belongs. Opaque here; printed in every error, compared between
/// peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label {
    /// The optimizer step.
    pub step: u64,
    /// The layer, or 0 outside layers; of [`WEIGHTS`] the stage: the embedding is one, then two for every layer.
    pub layer: usize,
    /// What is being done: `forward`, `backward`, `gradient sum`, …
    pub pass: &'static str,
    /// The hop within it.
    pub hop: usize,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_place(f, self.step, self.layer, self.pass, self.hop)
    }
}

/// Writes a place in words.
pub(crate) fn write_place(
    f: &mut fmt::Formatter<'_>,
    step: u64,
    layer: usize,
    pass: &str,
    hop: usize,
) -> fmt::Result {
    let what = if pass == WEIGHTS { "stage" } else { "layer" };
    write!(f, "step {step}, {what} {layer}, {pass}, hop {hop}")
}

/// What a tensor is, without its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    /// The type of its elements.
    pub dtype: DType,
    /// The number of elements along each dimension.
    pub shape: Shape,
}

impl Form {
    /// The form of `tensor`.
    pub fn of(tensor: &Tensor) -> Form {
        Form { dtype: tensor.dtype(), shape: tensor.shape().clone() }
    }

    /// Bytes of a tensor of this form.
    pub(crate) fn bytes(&self) -> u64 {
        (self.shape.elem_count() * self.dtype.size_in_bytes()) as u64
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.dtype.as_str(), self.shape.dims())
    }
}

/// One half of a transfer, as one rank sees it.
#[derive(Clone, Debug)]
pub enum P2pOp {
    /// `tensor` goes to rank `to`. Ranks of a process may get the same memory: nobody writes it until all have waited.
    Send {
        /// The tensor that is sent.
        tensor: Tensor,
        /// The rank that it is sent to.
        to: usize,
    },
    /// A tensor comes from rank `from`; several from the same rank come in the order in which they
    /// were sent.
    Receive {
        /// The rank that sends the tensor.
        from: usize,
        /// The form that the tensor must have; `None`: only the sender knows it.
        form: Option<Form>,
    },
}

/// How elements of several ranks become one. Sums are made in a fixed binary tree in rank order, in
/// the tensor's own dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// Their sum.
    Sum,
    /// The largest; NaN if any is.
    Max,
}

/// Ranks that run the same program: all of them must make the same calls in the same order.
///
/// What is received never carries a gradient graph. It may share memory with what was sent, so
/// neither side writes into it in place. Collectives are made from `exchange` where an engine has none
/// of its own.
pub trait Communicator: Send + Sync + fmt::Debug {
    /// This rank, `0 .. world_size()`.
    fn rank(&self) -> usize;
    /// How many ranks there are.
    fn world_size(&self) -> usize;
    /// What `rank` of this group is called in the communicator that all groups were split from: the
    /// number that errors name. A number that is no rank of this group stays itself.
    fn global_rank(&self, rank: usize) -> usize;
    /// The [`Communicator::global_rank`] numbers of the first and the last rank of this group.
    fn ends(&self) -> [usize; 2] {
        [0, self.world_size() - 1].map(|rank| self.global_rank(rank))
    }
    /// How long a rank waits for another that makes no progress.
    fn deadline(&self) -> Duration;
    /// Posts sends and receives and returns; a move to oneself is allowed.
    ///
    /// Several exchanges may be under way, and be waited for in another order than they were posted. Of two ranks' messages, the n-th that
    /// one sends is for the n-th receive that the other posts: a receive takes its place when it is posted, not when it is waited for.
    ///
    /// # Errors
    /// A peer that posts something else under this label, or a group that has ended.
    fn exchange(&self, label: Label, moves: Vec<P2pOp>) -> Result<Pending>;
    /// The tensors of all ranks, by rank; shapes may differ. The own tensor does not travel, and ranks of a process get the same memory:
    /// who changes it in place, as an optimizer's step does, changes a copy ([`Tensor::copy`], or a `Var` of it).
    ///
    /// # Errors
    /// A rank that is late, gone or stopped, and what Candle says of the tensors.
    fn all_gather(&self, label: Label, tensor: &Tensor) -> Result<Vec<Tensor>> {
        all_to_all(self, label, vec![tensor.clone(); self.world_size()], None)
    }
    /// Sends `parts[r]` to rank `r`, and returns the sum of what all ranks sent here, which must have one form. `parts` has a tensor for
    /// every rank.
    ///
    /// # Errors
    /// Another number of parts, a rank that is late, gone or stopped, and what Candle says of the tensors.
    fn reduce_scatter(&self, label: Label, parts: Vec<Tensor>) -> Result<Tensor> {
        if parts.len() != self.world_size() {
            let (found, wanted) = (parts.len(), self.world_size());
            let (found, wanted) =
                (format!("{found} parts"), format!("one for each of {wanted} ranks"));
            return Err(misused(self, label, &found, &wanted));
        }
        let form = Form::of(&parts[self.rank()]);
        tree(all_to_all(self, label, parts, Some(&form))?, Reduce::Sum)
    }
    /// Reduces tensors of one form, elementwise over all ranks: the result has the same bits on every rank. Every rank reduces a slice
    /// of the flattened tensors, and the slices are gathered; tensors with fewer elements than there are ranks are gathered whole and
    /// reduced by every rank, by the same tree. All ranks pass one shape and the same `reduce`: of what differs only the numbers and the
    /// type of elements are noticed.
    ///
    /// # Errors
    /// A rank that is late, gone or stopped, and what Candle says of the tensors.
    fn all_reduce(&self, label: Label, tensor: &Tensor, reduce: Reduce) -> Result<Tensor> {
        let (elements, world) = (tensor.elem_count(), self.world_size());
        if elements < world || world == 1 {
            let (form, whole) = (Form::of(tensor), vec![tensor.clone(); world]);
            return tree(all_to_all(self, label, whole, Some(&form))?, reduce);
        }
        let flat = tensor.detach().flatten_all()?;
        let bound = |rank: usize| elements * rank / world;
        let slices = (0..world).map(|r| flat.narrow(0, bound(r), bound(r + 1) - bound(r)));
        let slices = slices.collect::<candle_core::Result<Vec<_>>>()?;
        let form = Form::of(&slices[self.rank()]);
        let own = tree(all_to_all(self, label, slices, Some(&form))?, reduce)?;
        let reduced = Tensor::cat(&self.all_gather(label, &own)?, 0)?;
        Ok(reduced.reshape(tensor.shape())?)
    }
    /// Returns the tensor of rank `root` on every rank. The root passes it; `tensor` of other ranks is not used. Ranks of a process get the
    /// same memory, the root's own: who changes it in place, as an optimizer's step does, changes a copy ([`Tensor::copy`], or a `Var` of
    /// it), or every rank would step the same weights.
    ///
    /// # Errors
    /// A rank that is late, gone or stopped, and what Candle says of the tensors.
    fn broadcast(&self, label: Label, tensor: Option<&Tensor>, root: usize) -> Result<Tensor> {
        if self.rank() != root {
            let receive = P2pOp::Receive { from: root, form: None };
            let mut arrived = self.exchange(label, vec![receive])?.wait()?;
            return arrived.pop().ok_or_else(|| misused(self, label, "no tensor", "one"));
        }
        let missing = || misused(self, label, "nothing to broadcast", "the root's tensor");
        let tensor = tensor.ok_or_else(missing)?;
        let sends =
            peers(root, self.world_size()).map(|to| P2pOp::Send { tensor: tensor.clone(), to });
        self.exchange(label, sends.collect())?.wait()?;
        Ok(tensor.detach())
    }
    /// Returns the tensors of all ranks, by rank, on rank `root`, and `None` on the others; shapes may differ. The root's own does not
    /// travel.
    ///
    /// # Errors
    /// A rank that is late, gone or stopped, and what Candle says of the tensors.
    fn gather(&self, label: Label, tensor: &Tensor, root: usize) -> Result<Option<Vec<Tensor>>> {
        if self.rank() != root {
            let send = P2pOp::Send { tensor: tensor.clone(), to: root };
            self.exchange(label, vec![send])?.wait()?;
            return Ok(None);
        }
        let receives =
            peers(root, self.world_size()).map(|from| P2pOp::Receive { from, form: None });
        let mut gathered = self.exchange(label, receives.collect())?.wait()?;
        gathered.insert(root, tensor.detach());
        Ok(Some(gathered))
    }
    /// Returns once every rank has called it.
    ///
    /// # Errors
    /// A rank that is late, gone or stopped, and what Candle says of the tensors.
    fn barrier(&self, label: Label) -> Result<()> {
        self.all_gather(label, &Tensor::zeros((), DType::U8, &Device::Cpu)?).map(drop)
    }
    /// Splits the ranks into groups, and returns that of this rank: those that pass the same `color`, ordered by `key`, then rank.
    ///
    /// # Errors
    /// A rank that is late, gone or stopped, and what Candle says of the tensors.
    fn split(&self, label: Label, color: usize, key: usize) -> Result<Arc<dyn Communicator>>;
    /// Writes into the [flight record](crate::flight) where in the program this rank is, outside of other calls.
    fn note(&self, label: Label);
    /// Begins what all ranks must complete, or none: until [`Communicator::end_commit`], this rank goes on even if the run is to stop,
    /// so that it does not leave the others waiting for its part. It goes on only as long as the ranks that it waits for: a wait for
    /// one that has left because of the stop fails with [`Error::Stopped`](crate::Error::Stopped).
    fn begin_commit(&self);
    /// Ends what [`Communicator::begin_commit`] began, if it did: from now on calls fail if the run is to stop.
    fn end_commit(&self);
    /// Says that this rank is alive: called per tile, so that a long hop is not taken for a dead
    /// peer. Fails when the group has ended or the run is to stop, so that no rank computes in vain.
    ///
    /// # Errors
    /// The group has ended, or the run is to stop.
    fn progress(&self) -> Result<()>;
    /// Says that this rank, in no other call, waits for what its device computes: called again and again until it goes on, when it calls
    /// [`Communicator::progress`]. As that, it counts as alive, unless the device itself waits for a transfer: then for the rank at its
    /// other end, so that a transfer that hangs is found.
    ///
    /// # Errors
    /// As [`Communicator::progress`].
    fn computes(&self) -> Result<()> {
        self.progress()
    }
    /// Notes, for as long as the returned value lives, that this rank waits for rank `peer` outside of calls, in memory that they
    /// share.
    fn watch(&self, label: Label, peer: usize) -> Box<dyn Watching + '_>;
}

/// A wait outside of calls, from [`Communicator::watch`].
pub trait Watching {
    /// How long to wait between two calls of [`Watching::look`].
    fn slice(&self) -> Duration;
    /// Checks whether the peer makes progress.
    ///
    /// # Errors
    /// It has made none for the whole deadline, and waits for nobody itself: [`Error::Deadline`](crate::Error::Deadline).
    fn look(&mut self) -> Result<()>;
}

/// A posted exchange, as its engine implements it; callers hold a [`Pending`].
///
/// If it is dropped before its end, what it would have received is dropped too, and not handed to a
/// later exchange.
pub trait Transfer: Send {
    /// Lets the engine progress between tiles.
    ///
    /// # Errors
    /// A group that has ended.
    fn poll(&mut self) -> Result<()>;
    /// Blocks until the next tensor has come, in the order of the `Receive` moves. Returns `None` once all
    /// have come and what was sent has left: only ranks of the same process may hold that then.
    ///
    /// # Errors
    /// A peer that is late, gone, or sends something else: for another call, or of another form.
    fn receive(&mut self) -> Result<Option<Tensor>>;
}

/// Tensors on their way, which are received by waiting for them.
#[must_use = "a transfer that is not waited for may never finish"]
pub struct Pending(Box<dyn Transfer>);

impl Pending {
    /// Wraps an engine's transfer.
    pub fn new(transfer: Box<dyn Transfer>) -> Pending {
        Pending(transfer)
    }
    /// Lets the engine progress between tiles.
    ///
    /// # Errors
    /// A group that has ended.
    pub fn poll(&mut self) -> Result<()> {
        self.0.poll()
    }
    /// Blocks until the next tensor is here, in the order of the `Receive` moves; `None` after the
    /// last.
    ///
    /// # Errors
    /// A peer that is late, gone, or sends something else.
    pub fn receive(&mut self) -> Result<Option<Tensor>> {
        self.0.receive()
    }
    /// Blocks until all tensors are here, in the order of the `Receive` moves.
    ///
    /// # Errors
    /// As [`Pending::receive`].
    pub fn wait(mut self) -> Result<Vec<Tensor>> {
        std::iter::from_fn(|| self.receive().transpose()).collect()
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}
