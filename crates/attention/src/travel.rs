//! The moves of one hop, under way.

use std::cell::RefCell;

use annulus_comm::{Communicator, Hold, Label, Move, Pending};
use annulus_sequence::{self as sequence, Buffer, Collective, Hop, Part};
use candle_core::{Result, Tensor, bail};

use crate::buffers::{Buffers, Pair};

/// The moves of one hop, under way.
pub(crate) struct Travel<'a> {
    comm: &'a dyn Communicator,
    pending: RefCell<Option<Pending>>,
}

impl<'a> Travel<'a> {
    /// Posts all sends and receives of `hop`; an engine's collective is done here and now.
    pub(crate) fn post(
        comm: &'a dyn Communicator,
        label: Label,
        hop: &Hop,
        held: &mut Buffers,
    ) -> Result<Travel<'a>> {
        let pending = match hop.collective {
            Some(Collective::AllGather) => all_gather(comm, label, held).map(|()| None)?,
            Some(Collective::ReduceScatter) => reduce_scatter(comm, label, held).map(|()| None)?,
            None if hop.sends.is_empty() && hop.receives.is_empty() => None,
            None => Some(comm.exchange(label, moves(hop, held)?)?),
        };
        Ok(Travel { comm, pending: RefCell::new(pending) })
    }

    /// Called between tiles: shows that this rank is alive, and lets the engine work.
    pub(crate) fn progress(&self) -> Result<()> {
        self.comm.progress()?;
        if let Some(pending) = &mut *self.pending.borrow_mut() {
            pending.poll()?;
        }
        Ok(())
    }

    /// Waits; what has come is held.
    pub(crate) fn arrive(self, hop: &Hop, held: &mut Buffers) -> Result<()> {
        let Some(pending) = self.pending.into_inner() else { return Ok(()) };
        let mut tensors = pending.wait()?.into_iter();
        for receive in &hop.receives {
            let (Some(first), Some(second)) = (tensors.next(), tensors.next()) else {
                bail!("attention: fewer tensors came than were awaited");
            };
            held.put(receive.buffer, Pair(first, second));
        }
        Ok(())
    }
}

/// A pair travels as two tensors. Keys and values are lent: the sender still reads them. Gradients are gone.
fn moves(hop: &Hop, held: &mut Buffers) -> Result<Vec<Move>> {
    let mut moves = Vec::with_capacity(2 * (hop.sends.len() + hop.receives.len()));
    for send in &hop.sends {
        let (Pair(first, second), hold) = match send.buffer.part {
            Part::KeyValue | Part::Query => (held.get(send.buffer)?.clone(), Hold::Lend),
            Part::Gradient | Part::Contribution => (held.take(send.buffer)?, Hold::Give),
        };
        for tensor in [first, second] {
            moves.push(Move::Send { tensor: part(&tensor, send)?, to: send.to, hold });
        }
    }
    for receive in &hop.receives {
        moves.extend(std::iter::repeat_n(Move::Receive { from: receive.from }, 2));
    }
    Ok(moves)
}

/// The heads and rows of a buffer [B, H, S, D] that move.
fn part(tensor: &Tensor, moved: &sequence::Move) -> Result<Tensor> {
    let (heads, rows) = (&moved.heads, &moved.rows);
    tensor.narrow(1, heads.start, heads.len())?.narrow(2, rows.start, rows.len())?.contiguous()
}

fn all_gather(comm: &dyn Communicator, label: Label, held: &mut Buffers) -> Result<()> {
    let buffer = |owner| Buffer { part: Part::KeyValue, owner };
    let Pair(k, v) = held.get(buffer(comm.rank()))?.clone();
    let all = std::iter::zip(comm.all_gather(label, &k)?, comm.all_gather(label, &v)?);
    for (owner, (k, v)) in all.enumerate().filter(|(owner, _)| *owner != comm.rank()) {
        held.put(buffer(owner), Pair(k, v));
    }
    Ok(())
}

fn reduce_scatter(comm: &dyn Communicator, label: Label, held: &mut Buffers) -> Result<()> {
    let contributions: Vec<Pair> =
        (0..comm.world()).map(|owner| held.contribution(owner)).collect::<Result<_>>()?;
    // All are kept until both sums are made: others read them, and every rank takes as much memory.
    let (dk, dv) = contributions.iter().map(|Pair(dk, dv)| (dk.clone(), dv.clone())).unzip();
    let own = Pair(comm.reduce_scatter(label, dk)?, comm.reduce_scatter(label, dv)?);
    held.put(Buffer { part: Part::Gradient, owner: comm.rank() }, own);
    Ok(())
}
