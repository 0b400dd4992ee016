//! Sends and receives of a schedule that are in flight.

use std::cell::RefCell;

use annulus_comm::{Label, P2pOp, Pending};
use annulus_ops::order_free::is_order_free;
use annulus_sequence::{self as sequence, Block, Hop};
use annulus_trace::{Activity, Begun, begin};
use candle_core::{DType, Result, Tensor, bail};

use crate::buffers::{Buffers, Tensors};
use crate::traced::{Scene, settle, size};

/// The moves that were posted and have not been waited for.
pub(crate) struct Travels<'a> {
    pub(crate) scene: Scene<'a>,
    under_way: RefCell<Vec<Travel>>,
}

/// Moves that were posted in one exchange, and are waited for at the end of the same hop.
struct Travel {
    /// The hop that posted the moves, and how many hops they may take.
    hop: usize,
    hops: usize,
    pending: Pending,
    receives: Vec<sequence::Move>,
    /// The number of tensors that are sent.
    sends: usize,
    posted: Begun,
}

impl<'a> Travels<'a> {
    pub(crate) fn new(scene: Scene<'a>) -> Travels<'a> {
        Travels { scene, under_way: RefCell::default() }
    }

    /// Posts all sends and receives of `hop`, the first awaited first.
    pub(crate) fn post(&self, label: Label, hop: &Hop, held: &mut Buffers) -> Result<()> {
        let moves = hop.sends.iter().chain(&hop.receives);
        let mut waits: Vec<usize> = moves.map(|moved| moved.hops).collect();
        waits.sort_unstable();
        waits.dedup();
        for hops in waits {
            let same = |moved: &&sequence::Move| moved.hops == hops;
            let receives: Vec<_> = hop.receives.iter().copied().filter(|m| same(&m)).collect();
            let posting = begin();
            let mut moves = Vec::new();
            for send in hop.sends.iter().filter(same) {
                self.send(label, send, held, &mut moves)?;
            }
            let bytes = if posting.is_recorded() { size(sent(&moves)) } else { 0 };
            let sends = moves.len();
            for receive in &receives {
                let forms = self.scene.forms(receive.block).into_iter();
                moves.extend(
                    forms.map(|form| P2pOp::Receive { from: receive.from, form: Some(form) }),
                );
            }
            let pending = self.scene.attention.comm.exchange(label, moves)?;
            let place = self.scene.at(label.hop);
            posting.end(|| Activity::Post { place, bytes, receives: receives.len() });
            let travel = Travel { hop: label.hop, hops, pending, receives, sends, posted: begin() };
            self.under_way.borrow_mut().push(travel);
        }
        Ok(())
    }

    /// Shows that this rank is alive, and lets the engine work; called between tiles.
    pub(crate) fn progress(&self) -> Result<()> {
        self.scene.attention.comm.progress()?;
        for travel in &mut *self.under_way.borrow_mut() {
            travel.pending.poll()?;
        }
        Ok(())
    }

    /// Waits for what is awaited at the end of hop `hop`, and holds what arrived.
    pub(crate) fn arrive(&self, hop: usize, held: &mut Buffers) -> Result<()> {
        let mut under_way = self.under_way.borrow_mut();
        let now: Vec<_> = under_way.extract_if(.., |travel| travel.awaited() == hop).collect();
        drop(under_way);
        for travel in now {
            for (block, tensors) in travel.wait(self.scene)? {
                let adding = begin();
                let tensors = landed(block, tensors)?;
                let device = tensors[0].device().clone();
                held.insert_or_add(block, tensors)?;
                if block.part.is_sum() {
                    settle(adding, &device)?;
                    adding
                        .end(|| Activity::Fold { place: self.scene.at(hop), block: block.into() });
                }
            }
        }
        Ok(())
    }

    /// Sends a block as its tensors. The sender still reads what is lent; what is given away leaves its buffers.
    fn send(
        &self,
        label: Label,
        send: &sequence::Move,
        held: &mut Buffers,
        moves: &mut Vec<P2pOp>,
    ) -> Result<()> {
        let (sending, before) = (begin(), moves.len());
        let part = send.block.part;
        let tensors = if part.is_lent() { held.lend(send.block)? } else { held.take(send.block)? };
        for tensor in tensors {
            // Values were rounded where they were made.
            let tensor = if part.is_sum() && !is_order_free(&tensor) {
                self.scene.attention.rounded(part, &tensor)?
            } else {
                tensor
            };
            moves.push(P2pOp::Send { tensor, to: send.to });
        }
        let place = self.scene.at(label.hop);
        let moved = || self.scene.moved(send, size(sent(&moves[before..])));
        sending.end(|| Activity::Send { place, moved: moved() });
        Ok(())
    }
}

impl Travel {
    /// The hop at whose end the moves are awaited.
    fn awaited(&self) -> usize {
        self.hop + self.hops - 1
    }

    /// Waits until all blocks have arrived.
    fn wait(mut self, scene: Scene<'_>) -> Result<Vec<(Block, Tensors)>> {
        let place = scene.at(self.hop);
        let mut came = Vec::with_capacity(self.receives.len());
        for receive in &self.receives {
            let (waiting, wanted) = (begin(), scene.forms(receive.block).len());
            let mut tensors = Tensors::with_capacity(wanted);
            for _ in 0..wanted {
                let Some(tensor) = self.pending.receive()? else {
                    bail!("attention: fewer tensors came than were awaited")
                };
                tensors.push(tensor);
            }
            waiting.end(|| Activity::Wait {
                place,
                moved: scene.moved(receive, size(&tensors)),
                flight: self.posted.age(),
            });
            came.push((receive.block, tensors));
        }
        let leaving = begin();
        self.pending.wait()?;
        if self.sends > 0 {
            leaving.end(|| Activity::Drain { place });
        }
        Ok(came)
    }
}

/// The tensors that are sent.
fn sent(moves: &[P2pOp]) -> impl Iterator<Item = &Tensor> {
    moves.iter().filter_map(|step| match step {
        P2pOp::Send { tensor, .. } => Some(tensor),
        P2pOp::Receive { .. } => None,
    })
}

/// Received tensors as they are held: sums are f32 wherever they are added to.
fn landed(block: Block, tensors: Tensors) -> Result<Tensors> {
    if !block.part.is_sum() || tensors.iter().all(is_order_free) {
        return Ok(tensors);
    }
    tensors.iter().map(|tensor| tensor.to_dtype(DType::F32)).collect()
}
