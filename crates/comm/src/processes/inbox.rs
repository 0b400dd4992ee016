//! What arrives from one process: frames in their order, and payloads once the ranks that they are for have posted receives.

use std::collections::VecDeque;
use std::time::Instant;

use annulus_memory::on_behalf_of;
use annulus_mpi::{Arriving, Elements, Receiving, Session};
use candle_core::Tensor;

use super::envelope::{ControlMessage, Envelope, FRAME, Passes, TensorHeader, parse};
use super::mpi_process::Shared;
use super::nccl_transfers::NcclTransfers;
use crate::threads::{self, Group};

/// Receives the frames of one tag from one process, and the payloads that they announce. A payload has a tag of its own, and is
/// received once the rank that it is for has posted a receive: a rank whose neighbour is ahead of it holds no more than it asked for.
/// Frames are received meanwhile, so no rank of a process waits for a payload that another one has not asked for.
pub(super) struct Inbox {
    /// The process, by its rank of MPI.
    pub(super) from: usize,
    tag: i32,
    /// The receive of the next frame; `None`: the process has announced its end, or sent what cannot be read.
    frame: Option<Receiving>,
    /// What frames have announced and is not delivered yet, in their order.
    queue: VecDeque<Announced>,
    /// A payload was announced or its receive posted since [`Inbox::take_has_begun`] was called last.
    has_begun: bool,
}

/// What a frame has announced.
enum Announced {
    /// All of it has arrived.
    Complete(Arrived),
    /// The payload of a tensor of this run is to be received.
    Payload(u64, TensorHeader),
    /// The payload is being received.
    Receiving(u64, TensorHeader, Receiving),
}

/// What has arrived.
pub(super) enum Arrived {
    /// That a tensor of a run comes by NCCL.
    ByNccl(u64, TensorHeader),
    /// A tensor of a run.
    Tensor(u64, TensorHeader, Tensor),
    /// A piece of a tensor of a run, from this rank.
    Piece(u64, usize),
    /// A control message.
    Control(Envelope),
}

impl Arrived {
    pub(super) fn run(&self) -> u64 {
        match self {
            Arrived::ByNccl(run, _) | Arrived::Tensor(run, ..) | Arrived::Piece(run, _) => *run,
            Arrived::Control(envelope) => envelope.run,
        }
    }

    /// Whether it only shows that a process is alive and how far its ranks are.
    pub(super) fn is_routine(&self) -> bool {
        matches!(self, Arrived::Control(envelope) if envelope.message.is_routine())
    }

    /// Whether it says that the program of a rank has returned, for whatever reason.
    pub(super) fn says_that_a_rank_left(&self) -> bool {
        matches!(self, Arrived::Control(Envelope { message: ControlMessage::Left(_), .. }))
    }

    /// Delivers it to its run.
    pub(super) fn deliver(
        self,
        group: &Group,
        transfers: Option<&NcclTransfers>,
        passes: &mut Passes,
    ) {
        match self {
            Arrived::ByNccl(_, header) => {
                group.makes_progress(header.from);
                if let Some(transfers) = transfers {
                    transfers.announce(header);
                }
            }
            Arrived::Tensor(_, header, tensor) => {
                let (ticket, label) = (header.ticket(), header.label(passes));
                let after = None;
                group.deliver(
                    header.from,
                    header.to,
                    threads::Message { ticket, label, tensor, after },
                );
                if let Some(transfers) = transfers {
                    transfers.came_by_mpi(header.from, ticket);
                }
            }
            Arrived::Piece(_, from) => group.makes_progress(from),
            Arrived::Control(envelope) => deliver_control(envelope.message, group, transfers),
        }
    }
}

/// Delivers a control message to its run.
fn deliver_control(message: ControlMessage, group: &Group, transfers: Option<&NcclTransfers>) {
    match message {
        ControlMessage::Heartbeats(heartbeats) => {
            let now = Instant::now();
            for (rank, heartbeat) in heartbeats {
                group.note_heartbeat(rank, heartbeat, now);
            }
        }
        ControlMessage::Left(rank) if rank < group.world_size() => group.has_left(rank),
        ControlMessage::Failed(rank) => group.fail(rank),
        ControlMessage::Stop => group.stop(),
        ControlMessage::Clique(id) => {
            if let Some(transfers) = transfers {
                transfers.set_clique_id(&id);
            }
        }
        ControlMessage::Left(_)
        | ControlMessage::Tensor(_)
        | ControlMessage::Exit(..)
        | ControlMessage::Alive => {}
    }
}

impl Inbox {
    /// Posts the receive of the first frame from the rank `from` of MPI.
    pub(super) fn open(session: &Session, from: usize, tag: i32) -> annulus_mpi::Result<Inbox> {
        let mut inbox = Inbox { from, tag, frame: None, queue: VecDeque::new(), has_begun: false };
        inbox.receive_frame(session)?;
        Ok(inbox)
    }

    fn receive_frame(&mut self, session: &Session) -> annulus_mpi::Result<()> {
        let buffer = Arriving::Bytes(vec![0; FRAME]);
        self.frame = Some(session.receive(buffer, self.from, self.tag)?);
        Ok(())
    }

    /// Whether all that frames have announced is delivered.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether a payload is being received.
    pub(super) fn is_receiving(&self) -> bool {
        self.queue.iter().any(|announced| matches!(announced, Announced::Receiving(..)))
    }

    /// Whether a payload was announced or its receive posted since the last call: if so, more is soon to arrive.
    pub(super) fn take_has_begun(&mut self) -> bool {
        std::mem::take(&mut self.has_begun)
    }

    /// The next thing that has arrived and is to be delivered, if there is one.
    pub(super) fn poll(
        &mut self,
        session: &Session,
        shared: &Shared,
    ) -> annulus_mpi::Result<Option<Arrived>> {
        let frame = self.frame.as_mut().map(|frame| session.arrived(frame)).transpose()?.flatten();
        if let Some(Arriving::Bytes(frame)) = frame {
            self.read(session, shared, &frame)?;
        }
        let mut index = 0;
        while index < self.queue.len() {
            self.receive_payload(session, shared, index)?;
            if let Some(arrived) = self.take_arrived(session, index)? {
                return Ok(Some(arrived));
            }
            index += 1;
        }
        Ok(None)
    }

    /// Reads a frame, and queues what it announces.
    fn read(
        &mut self,
        session: &Session,
        shared: &Shared,
        frame: &[u8],
    ) -> annulus_mpi::Result<()> {
        let (envelope, payload) = parse(frame).ok_or_else(|| unread("a frame"))?;
        self.frame = None;
        if !matches!(envelope.message, ControlMessage::Exit(..)) {
            self.receive_frame(session)?;
        }
        let Envelope { run, message: ControlMessage::Tensor(header) } = envelope else {
            self.queue.push_back(Announced::Complete(Arrived::Control(envelope)));
            return Ok(());
        };
        if header.by_nccl {
            self.queue.push_back(Announced::Complete(Arrived::ByNccl(run, header)));
            return Ok(());
        }
        let dtype = header.dtype().ok_or_else(|| unread("a dtype"))?;
        let announced = if payload.len() == header.elements() * dtype.size_in_bytes() {
            let device = shared.state.lock().device_of(&header);
            let tensor = || Tensor::from_raw_buffer(payload, dtype, &header.dims, &device);
            let tensor = on_behalf_of(header.to, header.class(), tensor).map_err(unread)?;
            Announced::Complete(Arrived::Tensor(run, header, tensor))
        } else if payload.is_empty() {
            self.has_begun = true;
            Announced::Payload(run, header)
        } else {
            return Err(unread("a short payload"));
        };
        self.queue.push_back(announced);
        Ok(())
    }

    /// Posts the receive of the payload announced at `index`, if its rank has posted one. Messages with one tag are matched in the order
    /// in which they were sent, and tags are used again: so a payload with the same tag as an earlier one waits for that.
    fn receive_payload(
        &mut self,
        session: &Session,
        shared: &Shared,
        index: usize,
    ) -> annulus_mpi::Result<()> {
        let Announced::Payload(run, header) = &self.queue[index] else { return Ok(()) };
        let is_before = |announced: &Announced| matches!(announced, Announced::Payload(_, other) if other.tag == header.tag);
        if self.queue.iter().take(index).any(is_before) {
            return Ok(());
        }
        let state = shared.state.lock();
        if !state.may_receive(*run, header) {
            return Ok(());
        }
        let device = state.device_of(header);
        drop(state);
        let dtype = header.dtype().ok_or_else(|| unread("a dtype"))?;
        // Allocated on MPI's thread, but counted to the receiving rank from here on.
        let buffer = || Elements::pinned_for(dtype, header.elements(), &device);
        let buffer = on_behalf_of(header.to, header.class(), buffer);
        let buffer = buffer.ok_or_else(|| unread(format!("a tensor of {dtype:?}")))?;
        let receiving = session.receive(Arriving::Elements(buffer), self.from, header.tag)?;
        self.queue[index] = Announced::Receiving(*run, header.clone(), receiving);
        self.has_begun = true;
        Ok(())
    }

    /// Takes out what was announced at `index`, if it has arrived and may be delivered.
    fn take_arrived(
        &mut self,
        session: &Session,
        index: usize,
    ) -> annulus_mpi::Result<Option<Arrived>> {
        let arrived = match &mut self.queue[index] {
            Announced::Payload(..) => return Ok(None),
            Announced::Receiving(run, header, receiving) => {
                let pieces = receiving.pieces();
                let Some(Arriving::Elements(elements)) = session.arrived(receiving)? else {
                    let piece = Arrived::Piece(*run, header.from);
                    return Ok((receiving.pieces() < pieces).then_some(piece));
                };
                let tensor = elements.tensor(header.dims.as_slice()).map_err(unread)?;
                Some(Arrived::Tensor(*run, header.clone(), tensor))
            }
            Announced::Complete(_) => None,
        };
        if arrived.is_none() && self.must_follow_tensors(index) {
            return Ok(None);
        }
        let announced = self.queue.remove(index);
        Ok(arrived.or(announced.and_then(|announced| match announced {
            Announced::Complete(arrived) => Some(arrived),
            Announced::Payload(..) | Announced::Receiving(..) => None,
        })))
    }

    /// Whether the message at `index` says that a rank has left whose tensors are still to come: ranks that wait for those must get them
    /// first.
    fn must_follow_tensors(&self, index: usize) -> bool {
        let Announced::Complete(Arrived::Control(Envelope {
            run,
            message: ControlMessage::Left(rank),
        })) = &self.queue[index]
        else {
            return false;
        };
        self.queue.iter().take(index).any(|announced| match announced {
            Announced::Payload(of, header) | Announced::Receiving(of, header, _) => {
                of == run && header.from == *rank
            }
            Announced::Complete(_) => false,
        })
    }

    /// Gives up all receives.
    pub(super) fn close(self, session: &Session) -> annulus_mpi::Result<()> {
        let under_way = self.queue.into_iter().filter_map(|announced| match announced {
            Announced::Receiving(_, _, receiving) => Some(receiving),
            Announced::Complete(_) | Announced::Payload(..) => None,
        });
        self.frame.into_iter().chain(under_way).try_for_each(|one| session.give_up(one))
    }
}

fn unread(why: impl std::fmt::Display) -> annulus_mpi::Error {
    annulus_mpi::Error { what: "a message cannot be read".to_owned(), why: why.to_string() }
}
