//! What arrives from one process: frame by frame, each with its payload before the next.

use std::collections::VecDeque;
use std::time::Instant;

use annulus_memory::on_behalf_of;
use annulus_mpi::{Arriving, Elements, Receiving, Session};
use candle_core::{Device, Tensor};

use super::envelope::{Envelope, FRAME, News, Parcel, Passes, opened};
use crate::threads::{self, Group};

/// What arrives from one process with one tag: frames, each with its payload before the next. MPI matches messages with receives in
/// the order of both, so that a frame is read while payloads before it are under way: over a slow link a sender waits for nobody.
pub(super) struct Inbox {
    /// The process, as MPI has it.
    pub(super) from: usize,
    tag: i32,
    /// The next frame; `None`: the process has said its last word, or nothing that can be read.
    frame: Option<Receiving>,
    /// What frames have told, in their order.
    queue: VecDeque<Told>,
}

/// What a frame has told.
enum Told {
    /// It is here.
    Here(Arrived),
    /// The payload of a parcel of this run is under way.
    Payload(u64, Parcel, Receiving),
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
        let mut inbox = Inbox { from, tag, frame: None, queue: VecDeque::new() };
        inbox.wait_for_frame(session)?;
        Ok(inbox)
    }

    fn wait_for_frame(&mut self, session: &Session) -> annulus_mpi::Result<()> {
        let room = Arriving::Bytes(vec![0; FRAME]);
        self.frame = Some(session.receive(room, self.from, self.tag)?);
        Ok(())
    }

    /// What has arrived since, if anything has, in the order in which it was sent.
    pub(super) fn look(&mut self, session: &Session) -> annulus_mpi::Result<Option<Arrived>> {
        let frame = self.frame.as_mut().map(|frame| session.arrived(frame)).transpose()?.flatten();
        if let Some(Arriving::Bytes(frame)) = frame {
            let told = self.read(session, &frame)?;
            self.queue.push_back(told);
        }
        if let Some(Told::Payload(run, parcel, receiving)) = self.queue.front_mut() {
            let pieces = receiving.pieces();
            let Some(Arriving::Elements(elements)) = session.arrived(receiving)? else {
                let part = Arrived::Part(*run, parcel.from);
                return Ok((receiving.pieces() < pieces).then_some(part));
            };
            let tensor = elements.tensor(parcel.dims.as_slice()).map_err(unread)?;
            let arrived = Arrived::Tensor(*run, parcel.clone(), tensor);
            self.queue.pop_front();
            return Ok(Some(arrived));
        }
        Ok(self.queue.pop_front().and_then(|told| match told {
            Told::Here(arrived) => Some(arrived),
            Told::Payload(..) => None,
        }))
    }

    /// What a frame tells, once what comes behind it is waited for.
    fn read(&mut self, session: &Session, frame: &[u8]) -> annulus_mpi::Result<Told> {
        let (envelope, payload) = opened(frame).ok_or_else(|| unread("a frame"))?;
        let Envelope { run, news: News::Parcel(parcel) } = envelope else {
            self.frame = None;
            if !matches!(envelope.news, News::Bye(..)) {
                self.wait_for_frame(session)?;
            }
            return Ok(Told::Here(Arrived::News(envelope)));
        };
        let dtype = parcel.dtype().ok_or_else(|| unread("a dtype"))?;
        // Asked for on MPI's thread, but it is the receiver's from here on.
        let (to, class) = (parcel.to, parcel.class());
        let told = if payload.len() == parcel.elements() * dtype.size_in_bytes() {
            let tensor = || Tensor::from_raw_buffer(payload, dtype, &parcel.dims, &Device::Cpu);
            let tensor = on_behalf_of(to, class, tensor).map_err(unread)?;
            Told::Here(Arrived::Tensor(run, parcel, tensor))
        } else if payload.is_empty() {
            let elements = on_behalf_of(to, class, || Elements::new(dtype, parcel.elements()));
            let elements = elements.ok_or_else(|| unread(format!("a tensor of {dtype:?}")))?;
            let receiving = session.receive(Arriving::Elements(elements), self.from, self.tag)?;
            Told::Payload(run, parcel, receiving)
        } else {
            return Err(unread("a short payload"));
        };
        self.wait_for_frame(session)?;
        Ok(told)
    }

    /// Waits for nothing any more.
    pub(super) fn close(self, session: &Session) -> annulus_mpi::Result<()> {
        self.frame.map_or(Ok(()), |frame| session.give_up(frame))
    }
}

fn unread(why: impl std::fmt::Display) -> annulus_mpi::Error {
    annulus_mpi::Error { what: "a message cannot be read".to_owned(), why: why.to_string() }
}
