//! What arrives from one process: frame by frame, each with its payload before the next.

use std::time::Instant;

use annulus_mpi::{Arriving, Elements, Receiving, Session};
use candle_core::{Device, Tensor};

use super::envelope::{Envelope, FRAME, News, Parcel, Passes, opened};
use crate::threads::{self, Group};

/// What arrives from one process with one tag.
pub(super) struct Inbox {
    /// The process, as MPI has it.
    pub(super) from: usize,
    tag: i32,
    next: Next,
}

/// What arrives next.
enum Next {
    /// A frame.
    Frame(Receiving),
    /// The payload of a parcel of this run.
    Payload(u64, Parcel, Receiving),
    /// Nothing: the process has said its last word, or nothing that can be read.
    Closed,
}

/// What has arrived.
pub(super) enum Arrived {
    /// A tensor, in a run.
    Tensor(u64, Parcel, Tensor),
    /// A part of one, of this rank, in a run.
    Part(u64, usize),
    /// News.
    News(Envelope),
}

impl Arrived {
    pub(super) fn run(&self) -> u64 {
        match self {
            Arrived::Tensor(run, ..) | Arrived::Part(run, _) => *run,
            Arrived::News(envelope) => envelope.run,
        }
    }

    /// Hands it to its run.
    pub(super) fn reach(self, group: &Group, passes: &mut Passes) {
        match self {
            Arrived::Tensor(_, parcel, tensor) => {
                let (ticket, label) = (parcel.ticket(), parcel.label(passes));
                group.deliver(parcel.from, parcel.to, threads::Parcel { ticket, label, tensor });
            }
            Arrived::Part(_, from) => group.moves(from),
            Arrived::News(Envelope { news, .. }) => match news {
                News::Beats(beats) => {
                    let now = Instant::now();
                    for (rank, beat) in beats {
                        group.hear(rank, beat, now);
                    }
                }
                News::Left(rank) if rank < group.world() => group.has_left(rank),
                News::Failed(rank) => group.fail(rank),
                News::Stop => group.stop(),
                News::Left(_) | News::Parcel(_) | News::Bye(..) | News::Alive => {}
            },
        }
    }
}

impl Inbox {
    /// Waits for the first frame.
    pub(super) fn open(session: &Session, from: usize, tag: i32) -> annulus_mpi::Result<Inbox> {
        let mut inbox = Inbox { from, tag, next: Next::Closed };
        inbox.wait_for_frame(session)?;
        Ok(inbox)
    }

    fn wait_for_frame(&mut self, session: &Session) -> annulus_mpi::Result<()> {
        let room = Arriving::Bytes(vec![0; FRAME]);
        self.next = Next::Frame(session.receive(room, self.from, self.tag)?);
        Ok(())
    }

    /// What has arrived since, if anything has.
    pub(super) fn look(&mut self, session: &Session) -> annulus_mpi::Result<Option<Arrived>> {
        match &mut self.next {
            Next::Closed => Ok(None),
            Next::Frame(receiving) => match session.arrived(receiving)? {
                Some(Arriving::Bytes(frame)) => self.read(session, &frame),
                _ => Ok(None),
            },
            Next::Payload(run, parcel, receiving) => {
                let pieces = receiving.pieces();
                let Some(Arriving::Elements(elements)) = session.arrived(receiving)? else {
                    let part = Arrived::Part(*run, parcel.from);
                    return Ok((receiving.pieces() < pieces).then_some(part));
                };
                let tensor = elements.tensor(parcel.dims.as_slice()).map_err(unread)?;
                let arrived = Arrived::Tensor(*run, parcel.clone(), tensor);
                self.wait_for_frame(session)?;
                Ok(Some(arrived))
            }
        }
    }

    fn read(&mut self, session: &Session, frame: &[u8]) -> annulus_mpi::Result<Option<Arrived>> {
        let (envelope, payload) = opened(frame).ok_or_else(|| unread("a frame"))?;
        let Envelope { run, news: News::Parcel(parcel) } = envelope else {
            self.next = Next::Closed;
            if !matches!(envelope.news, News::Bye(..)) {
                self.wait_for_frame(session)?;
            }
            return Ok(Some(Arrived::News(envelope)));
        };
        let dtype = parcel.dtype().ok_or_else(|| unread("a dtype"))?;
        if payload.len() == parcel.elements() * dtype.size_in_bytes() {
            let tensor = Tensor::from_raw_buffer(payload, dtype, &parcel.dims, &Device::Cpu);
            let arrived = Arrived::Tensor(run, parcel, tensor.map_err(unread)?);
            self.wait_for_frame(session)?;
            return Ok(Some(arrived));
        }
        if !payload.is_empty() {
            return Err(unread("a short payload"));
        }
        let elements = Elements::new(dtype, parcel.elements());
        let elements = elements.ok_or_else(|| unread(format!("a tensor of {dtype:?}")))?;
        let receiving = session.receive(Arriving::Elements(elements), self.from, self.tag)?;
        self.next = Next::Payload(run, parcel, receiving);
        Ok(None)
    }

    /// Waits for nothing any more.
    pub(super) fn close(self, session: &Session) -> annulus_mpi::Result<()> {
        match self.next {
            Next::Frame(receiving) => session.give_up(receiving),
            _ => Ok(()),
        }
    }
}

fn unread(why: impl std::fmt::Display) -> annulus_mpi::Error {
    annulus_mpi::Error { what: "a message cannot be read".to_owned(), why: why.to_string() }
}
