//! Collectives that are posted now and waited for later, of several tensors at once: the two halves of
//! [`Communicator::all_reduce`]. Ranks compute meanwhile.
//!
//! They are made from [`Communicator::exchange`]. The caller that waits says how parts are added: if always by one tree, sums have the
//! same bits whichever rank sums which elements.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};

use crate::collectives::peers;
use crate::{Communicator, Form, Label, P2pOp, Pending, Result, payload};

/// A reduce-scatter on its way: of tensors of all ranks, each rank sums some elements.
#[derive(Debug)]
pub struct ReduceScatter {
    posted: Posted,
    /// The elements of every tensor that this rank sums.
    own: Vec<Tensor>,
}

impl ReduceScatter {
    /// Posts `tensors`, of the same shapes on all ranks: rank r sums the elements `range(index, r)` of the one at `index`, flattened.
    ///
    /// # Errors
    /// As [`Communicator::exchange`], and what Candle says of the tensors.
    pub fn post(
        comm: &dyn Communicator,
        label: Label,
        tensors: &[Tensor],
        range: impl Fn(usize, usize) -> Range<usize>,
    ) -> Result<ReduceScatter> {
        let (rank, world) = (comm.rank(), comm.world_size());
        let (mut moves, mut own) = (Vec::new(), Vec::new());
        for (index, tensor) in tensors.iter().enumerate() {
            let flat = tensor.detach().flatten_all()?;
            let part = |of: usize| {
                let range = range(index, of);
                flat.narrow(0, range.start, range.len())
            };
            let mine = part(rank)?;
            for peer in peers(rank, world) {
                moves.extend(receive(peer, mine.elem_count(), mine.dtype()));
                moves.extend(send(peer, part(peer)?));
            }
            own.push(mine);
        }
        Ok(ReduceScatter { posted: Posted::new(comm, label, moves)?, own })
    }

    /// Bytes that this rank sends to others.
    pub fn sent(&self) -> u64 {
        self.posted.sent
    }

    /// Blocks until all have come. Returns of every tensor the sums of the own elements, flat. `add` makes a sum of all ranks' elements,
    /// by rank, and may not write into them.
    ///
    /// # Errors
    /// As [`Pending::receive`], and those of `add`.
    pub fn wait(self, add: impl Fn(Vec<Tensor>) -> Result<Tensor>) -> Result<Vec<Tensor>> {
        let mut parts = self.posted.wait()?;
        let sum = |own: Tensor| match own.elem_count() {
            // An empty view would keep the whole tensor in memory.
            0 => Ok(empty(own.dtype(), own.device())?),
            _ => add(parts.with(own, |_| true)),
        };
        self.own.into_iter().map(sum).collect()
    }
}

/// An all-gather on its way: of tensors of which each rank has a piece.
#[derive(Debug)]
pub struct AllGather {
    posted: Posted,
    /// The own piece of every tensor, and the numbers of elements of all ranks' pieces.
    own: Vec<(Tensor, Vec<usize>)>,
}

impl AllGather {
    /// Posts the own pieces, flat: rank r has `elements(index, r)` elements of the tensor at `index`.
    ///
    /// # Errors
    /// As [`Communicator::exchange`].
    pub fn post(
        comm: &dyn Communicator,
        label: Label,
        own: Vec<Tensor>,
        elements: impl Fn(usize, usize) -> usize,
    ) -> Result<AllGather> {
        let (rank, world) = (comm.rank(), comm.world_size());
        let counts = |index| (0..world).map(|of| elements(index, of)).collect::<Vec<_>>();
        let own: Vec<_> =
            own.into_iter().enumerate().map(|(index, own)| (own, counts(index))).collect();
        let mut moves = Vec::new();
        for (piece, counts) in &own {
            for peer in peers(rank, world) {
                moves.extend(receive(peer, counts[peer], piece.dtype()));
                moves.extend(send(peer, piece.clone()));
            }
        }
        Ok(AllGather { posted: Posted::new(comm, label, moves)?, own })
    }

    /// Bytes that this rank sends to others.
    pub fn sent(&self) -> u64 {
        self.posted.sent
    }

    /// Blocks until all have come. Returns the whole tensors, flat: their pieces in the order of ranks.
    ///
    /// # Errors
    /// As [`Pending::receive`], and what Candle says of the tensors.
    pub fn wait(self) -> Result<Vec<Tensor>> {
        let empty: Vec<Tensor> = self.own.iter().map(|(own, _)| own.clone()).collect();
        let whole = |(mut pieces, own): (Vec<(usize, Tensor)>, Tensor)| match pieces.len() {
            0 => Ok(own),
            1 => Ok(pieces.remove(0).1),
            _ => {
                let pieces: Vec<Tensor> = pieces.into_iter().map(|(_, piece)| piece).collect();
                Ok(Tensor::cat(&pieces, 0)?)
            }
        };
        self.pieces()?.into_iter().zip(empty).map(whole).collect()
    }

    /// Blocks until all have come. Returns the pieces of every tensor that have elements, each with its rank, the own one among them.
    ///
    /// # Errors
    /// As [`Pending::receive`].
    pub fn pieces(self) -> Result<Vec<Vec<(usize, Tensor)>>> {
        let mut parts = self.posted.wait()?;
        let of = |(own, counts): (Tensor, Vec<usize>)| {
            let ranks: Vec<usize> = (0..counts.len()).filter(|rank| counts[*rank] > 0).collect();
            let pieces = parts.with(own, |rank| counts[rank] > 0);
            ranks.into_iter().zip(pieces).collect()
        };
        Ok(self.own.into_iter().map(of).collect())
    }
}

/// An exchange on its way between this rank and its peers.
#[derive(Debug)]
struct Posted {
    pending: Pending,
    sent: u64,
    rank: usize,
    world: usize,
}

impl Posted {
    fn new(comm: &dyn Communicator, label: Label, moves: Vec<P2pOp>) -> Result<Posted> {
        let (sent, rank, world) = (sent(&moves), comm.rank(), comm.world_size());
        Ok(Posted { pending: comm.exchange(label, moves)?, sent, rank, world })
    }

    /// Blocks until all have come.
    fn wait(self) -> Result<Parts> {
        let arrived = self.pending.wait()?.into_iter();
        Ok(Parts { arrived, rank: self.rank, world: self.world })
    }
}

/// What has come: tensor by tensor, and of each the parts of all peers that sent any.
struct Parts {
    arrived: std::vec::IntoIter<Tensor>,
    rank: usize,
    world: usize,
}

impl Parts {
    /// The parts of the next tensor, the own one among them, in the order of the ranks for which `has` is true.
    fn with(&mut self, own: Tensor, has: impl Fn(usize) -> bool) -> Vec<Tensor> {
        let mut own = Some(own);
        let mut part = |rank| if rank == self.rank { own.take() } else { self.arrived.next() };
        (0..self.world).filter(|&rank| has(rank)).filter_map(&mut part).collect()
    }
}

/// A tensor without elements on `device`. It views a storage of one element, as a GPU has none without.
///
/// # Errors
/// What Candle says.
pub fn empty(dtype: DType, device: &Device) -> candle_core::Result<Tensor> {
    Tensor::zeros(1, dtype, device)?.narrow(0, 0, 0)
}

/// Bytes that `moves` send.
fn sent(moves: &[P2pOp]) -> u64 {
    let size = |step: &P2pOp| match step {
        P2pOp::Send { tensor, .. } => payload::bytes_of(tensor),
        P2pOp::Receive { .. } => 0,
    };
    moves.iter().map(size).sum()
}

/// The send of a tensor; `None` if it has no elements.
fn send(to: usize, tensor: Tensor) -> Option<P2pOp> {
    (tensor.elem_count() > 0).then_some(P2pOp::Send { tensor, to })
}

/// The receive of so many elements; `None` if there are none.
fn receive(from: usize, elements: usize, dtype: DType) -> Option<P2pOp> {
    let form = Form { dtype, shape: elements.into() };
    (elements > 0).then_some(P2pOp::Receive { from, form: Some(form) })
}
