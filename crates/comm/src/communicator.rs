//! The contract of an engine.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use candle_core::{DType, Shape, Tensor};

use crate::{Result, collectives};

/// Where in the program a transfer belongs. Opaque here; printed in every error, compared between
/// peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label {
    /// The optimizer step.
    pub step: u64,
    /// The layer, or 0 outside layers.
    pub layer: usize,
    /// What is being done: `forward`, `backward`, `gradient sum`, …
    pub pass: &'static str,
    /// The hop within it.
    pub hop: usize,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Label { step, layer, pass, hop } = self;
        write!(f, "step {step}, layer {layer}, {pass}, hop {hop}")
    }
}

/// What a tensor is, without its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    /// The type of its elements.
    pub dtype: DType,
    /// How many there are along each dimension.
    pub shape: Shape,
}

impl Form {
    /// That of `tensor`.
    pub fn of(tensor: &Tensor) -> Form {
        Form { dtype: tensor.dtype(), shape: tensor.shape().clone() }
    }

    /// How many bytes its elements have.
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
pub enum Move {
    /// `tensor` goes to rank `to`. Ranks of a process may get the same memory: nobody writes it until all have waited.
    Send {
        /// What goes.
        tensor: Tensor,
        /// Where.
        to: usize,
    },
    /// A tensor comes from rank `from`; several from the same rank come in the order in which they
    /// were sent.
    Receive {
        /// From where.
        from: usize,
        /// What it must be; `None`: only the sender knows.
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
    /// This rank, `0 .. world()`.
    fn rank(&self) -> usize;
    /// How many ranks there are.
    fn world(&self) -> usize;
    /// What `rank` of this group is called in the communicator that all groups were split from: the
    /// number that errors name.
    fn original(&self, rank: usize) -> usize;
    /// What the first and the last rank of this group are called there.
    fn ends(&self) -> [usize; 2] {
        [0, self.world() - 1].map(|rank| self.original(rank))
    }
    /// Posts sends and receives and returns; a move to oneself is allowed.
    ///
    /// # Errors
    /// A peer that posts something else under this label, or a group that has ended.
    fn exchange(&self, label: Label, moves: Vec<Move>) -> Result<Pending>;
    /// Everybody's tensor, by rank; shapes may differ.
    ///
    /// # Errors
    /// A rank that is late, gone or stopped, and what Candle says of the tensors.
    fn all_gather(&self, label: Label, tensor: &Tensor) -> Result<Vec<Tensor>> {
        collectives::all_gather(self, label, tensor)
    }
    /// `parts[r]` goes to rank `r`; the sum over ranks of what they sent here.
    ///
    /// # Errors
    /// A rank that is late, gone or stopped, and what Candle says of the tensors.
    fn reduce_scatter(&self, label: Label, parts: Vec<Tensor>) -> Result<Tensor> {
        collectives::reduce_scatter(self, label, parts)
    }
    /// `parts[r]` goes to rank `r`; what every rank sent here, by rank.
    ///
    /// # Errors
    /// A rank that is late, gone or stopped, and what Candle says of the tensors.
    fn all_to_all(&self, label: Label, parts: Vec<Tensor>) -> Result<Vec<Tensor>> {
        collectives::all_to_all(self, label, parts)
    }
    /// The same tensor, bit for bit, on every rank.
    ///
    /// # Errors
    /// A rank that is late, gone or stopped, and what Candle says of the tensors.
    fn all_reduce(&self, label: Label, tensor: &Tensor, reduce: Reduce) -> Result<Tensor> {
        collectives::all_reduce(self, label, tensor, reduce)
    }
    /// The root's tensor, on every rank; the root gives `Some`.
    ///
    /// # Errors
    /// A rank that is late, gone or stopped, and what Candle says of the tensors.
    fn broadcast(&self, label: Label, tensor: Option<&Tensor>, root: usize) -> Result<Tensor> {
        collectives::broadcast(self, label, tensor, root)
    }
    /// Everybody's tensor, by rank, on the root, and nothing elsewhere; shapes may differ.
    ///
    /// # Errors
    /// A rank that is late, gone or stopped, and what Candle says of the tensors.
    fn gather(&self, label: Label, tensor: &Tensor, root: usize) -> Result<Option<Vec<Tensor>>> {
        collectives::gather(self, label, tensor, root)
    }
    /// Returns when every rank is here.
    ///
    /// # Errors
    /// A rank that is late, gone or stopped, and what Candle says of the tensors.
    fn barrier(&self, label: Label) -> Result<()> {
        collectives::barrier(self, label)
    }
    /// The ranks that name the same `color`, ordered by `key`, then rank.
    ///
    /// # Errors
    /// A rank that is late, gone or stopped, and what Candle says of the tensors.
    fn split(&self, label: Label, color: usize, key: usize) -> Result<Arc<dyn Communicator>>;
    /// Says where this rank is outside of calls, for its [flight record](crate::flight).
    fn note(&self, label: Label);
    /// From now on, or no more, this rank goes on though the run is to stop, for as long as those go on that it waits for: a
    /// wait for one that has left for the stop fails with [`Error::Stopped`](crate::Error::Stopped). For what all ranks are to do, or
    /// none: whoever has contributed to it does not leave the others without their end of it.
    fn hold_on(&self, on: bool);
    /// Says that this rank is alive: bumped per tile, so that a long hop is not taken for a dead
    /// peer. Fails when the group has ended or the run is to stop, so that no rank computes on for
    /// nothing.
    ///
    /// # Errors
    /// The group has ended, or the run is to stop.
    fn progress(&self) -> Result<()>;
    /// This rank waits for rank `peer` outside of calls, in memory that they share: others know of it for as long as this lives.
    fn watch(&self, label: Label, peer: usize) -> Box<dyn Watching + '_>;
}

/// A wait outside of calls.
pub trait Watching {
    /// How long to wait between two looks.
    fn slice(&self) -> Duration;
    /// Looks whether the peer moves.
    ///
    /// # Errors
    /// It has stood still for the whole deadline, and waits for nobody itself: [`Error::Deadline`](crate::Error::Deadline).
    fn look(&mut self) -> Result<()>;
}

/// What an engine does for a posted exchange. Engines implement it; callers hold a [`Pending`].
///
/// One that is dropped before its end gives up what it would have received: that is not handed to a
/// later exchange.
pub trait Transfer: Send {
    /// Lets the engine progress between tiles.
    ///
    /// # Errors
    /// A group that has ended.
    fn poll(&mut self) -> Result<()>;
    /// Blocks until the next tensor is here, in the order of the `Receive` moves; `None` once all
    /// have come and what was sent has left: nobody else holds it then, unless it was lent within the process.
    ///
    /// # Errors
    /// A peer that is late, gone, or sends something else: for another call, or of another form.
    fn receive(&mut self) -> Result<Option<Tensor>>;
}

/// Tensors on their way. They are only to be had by waiting for them.
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
