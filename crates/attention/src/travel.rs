//! Moves, under way.

use std::cell::RefCell;

use annulus_comm::{Hold, Label, Move, Pending};
use annulus_sequence::{self as sequence, Block, Hop};
use candle_core::{DType, Result, bail};

use crate::Attention;
use crate::buffers::{Buffers, Tensors, tensors};

/// What was posted and not awaited yet.
pub(crate) struct Travels<'a> {
    attention: &'a Attention,
    backward: bool,
    under_way: RefCell<Vec<Travel>>,
}

/// Moves that are awaited together.
struct Travel {
    /// The hop at whose end.
    awaited: usize,
    pending: Pending,
    receives: Vec<Block>,
}

impl<'a> Travels<'a> {
    pub(crate) fn new(attention: &'a Attention, backward: bool) -> Travels<'a> {
        Travels { attention, backward, under_way: RefCell::default() }
    }

    /// Posts all sends and receives of `hop`, those first that are awaited first.
    pub(crate) fn post(&self, label: Label, hop: &Hop, held: &mut Buffers) -> Result<()> {
        let moves = hop.sends.iter().chain(&hop.receives);
        let mut waits: Vec<usize> = moves.map(|moved| moved.hops).collect();
        waits.sort_unstable();
        waits.dedup();
        for hops in waits {
            let same = |moved: &&sequence::Move| moved.hops == hops;
            let receives: Vec<_> = hop.receives.iter().filter(same).collect();
            let mut moves = Vec::new();
            for send in hop.sends.iter().filter(same) {
                self.send(send, held, &mut moves)?;
            }
            for receive in &receives {
                let tensors = tensors(receive.block.part, self.backward);
                let receive = Move::Receive { from: receive.from };
                moves.extend(std::iter::repeat_n(receive, tensors));
            }
            let pending = self.attention.comm.exchange(label, moves)?;
            let receives = receives.into_iter().map(|receive| receive.block).collect();
            let awaited = label.hop + hops - 1;
            self.under_way.borrow_mut().push(Travel { awaited, pending, receives });
        }
        Ok(())
    }

    /// Called between tiles: shows that this rank is alive, and lets the engine work.
    pub(crate) fn progress(&self) -> Result<()> {
        self.attention.comm.progress()?;
        for travel in &mut *self.under_way.borrow_mut() {
            travel.pending.poll()?;
        }
        Ok(())
    }

    /// Waits for what is awaited at the end of hop `hop`; what has come is held.
    pub(crate) fn arrive(&self, hop: usize, held: &mut Buffers) -> Result<()> {
        let now =
            self.under_way.borrow_mut().extract_if(.., |travel| travel.awaited == hop).collect();
        let now: Vec<Travel> = now;
        for Travel { pending, receives, .. } in now {
            let mut came = pending.wait()?.into_iter();
            for block in receives {
                let wanted = tensors(block.part, self.backward);
                let tensors: Vec<_> = came.by_ref().take(wanted).collect();
                if tensors.len() < wanted {
                    bail!("attention: fewer tensors came than were awaited");
                }
                held.put(block, landed(block, tensors)?, &*self.attention.kernel)?;
            }
        }
        Ok(())
    }

    /// A block travels as its tensors. What is lent the sender still reads, the rest is gone.
    fn send(&self, send: &sequence::Move, held: &mut Buffers, moves: &mut Vec<Move>) -> Result<()> {
        let part = send.block.part;
        let (tensors, hold) = if part.is_lent() {
            (held.lend(send.block)?, Hold::Lend)
        } else {
            (held.take(send.block)?, Hold::Give)
        };
        for tensor in tensors {
            // Values were rounded where they were made.
            let tensor =
                if part.is_sum() { self.attention.rounded(part, &tensor)? } else { tensor };
            moves.push(Move::Send { tensor, to: send.to, hold });
        }
        Ok(())
    }
}

/// What came, as it is held: sums are f32 wherever they are added to.
fn landed(block: Block, tensors: Tensors) -> Result<Tensors> {
    if !block.part.is_sum() {
        return Ok(tensors);
    }
    tensors.iter().map(|tensor| tensor.to_dtype(DType::F32)).collect()
}
