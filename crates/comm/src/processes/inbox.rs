//! What arrives from one process: frame by frame, each with its payload before the next.

use std::time::Instant;

use annulus_memory::on_behalf_of;
use annulus_mpi::{Arriving, Elements, Receiving, Session};
use candle_core::Tensor;

use super::envelope::{Envelope, FRAME, News, Parcel, Passes, opened};
use crate::threads::{self, Group};

/// What arrives next from a process.
pub(super) enum Inbox {
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
    /// News.
    News(Envelope),
}

impl Arrived {
    pub(super) fn run(&self) -> u64 {
        match self {
            Arrived::Tensor(run, ..) => *run,
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
    /// Waits for the first frame of a process.
    pub(super) fn open(session: &Session, from: usize) -> annulus_mpi::Result<Inbox> {
        let room = Arriving::Bytes(vec![0; FRAME]);
        Ok(Inbox::Frame(session.receive(room, from, TAG)?))
    }

    /// What has arrived since, if anything has.
    pub(super) fn look(
        &mut self,
        session: &Session,
        from: usize,
    ) -> annulus_mpi::Result<Option<Arrived>> {
        match self {
            Inbox::Closed => Ok(None),
            Inbox::Frame(receiving) => match session.arrived(receiving)? {
                Some(Arriving::Bytes(frame)) => self.read(session, from, &frame),
                _ => Ok(None),
            },
            Inbox::Payload(.., receiving) => {
                let Some(Arriving::Elements(elements)) = session.arrived(receiving)? else {
                    return Ok(None);
                };
                let done = std::mem::replace(self, Inbox::open(session, from)?);
                let Inbox::Payload(run, parcel, _) = done else { return Ok(None) };
                let tensor = elements.tensor(parcel.dims.as_slice()).map_err(unread)?;
                Ok(Some(Arrived::Tensor(run, parcel, tensor)))
            }
        }
    }

    fn read(
        &mut self,
        session: &Session,
        from: usize,
        frame: &[u8],
    ) -> annulus_mpi::Result<Option<Arrived>> {
        let (envelope, payload) = opened(frame).ok_or_else(|| unread("a frame"))?;
        let Envelope { run, news: News::Parcel(parcel) } = envelope else {
            let last = matches!(envelope.news, News::Bye(..));
            *self = if last { Inbox::Closed } else { Inbox::open(session, from)? };
            return Ok(Some(Arrived::News(envelope)));
        };
        let dtype = parcel.dtype().ok_or_else(|| unread("a dtype"))?;
        if parcel.inline {
            *self = Inbox::open(session, from)?;
            let size = parcel.elements() * dtype.size_in_bytes();
            let bytes = payload.get(..size).ok_or_else(|| unread("a short payload"))?;
            let tensor = on_behalf_of(parcel.to, parcel.class(), || {
                Tensor::from_raw_buffer(bytes, dtype, &parcel.dims, &candle_core::Device::Cpu)
            });
            return Ok(Some(Arrived::Tensor(run, parcel, tensor.map_err(unread)?)));
        }
        // Asked for on MPI's thread, but it is the receiver's from here on.
        let elements =
            on_behalf_of(parcel.to, parcel.class(), || Elements::new(dtype, parcel.elements()));
        let elements = elements.ok_or_else(|| unread(format!("a tensor of {dtype:?}")))?;
        let receiving = session.receive(Arriving::Elements(elements), from, TAG)?;
        *self = Inbox::Payload(run, parcel, receiving);
        Ok(None)
    }
}

/// All messages have one tag: those of a process arrive in the order in which it sent them.
pub(super) const TAG: i32 = 7;

fn unread(why: impl std::fmt::Display) -> annulus_mpi::Error {
    annulus_mpi::Error { what: "a message cannot be read".to_owned(), why: why.to_string() }
}
