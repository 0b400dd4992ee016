//! What arrives from one process: frames in their order, and payloads once the ranks they are for have asked for them.

use std::collections::VecDeque;
use std::time::Instant;

use annulus_memory::on_behalf_of;
use annulus_mpi::{Arriving, Elements, Receiving, Session};
use candle_core::Tensor;

use super::envelope::{Envelope, FRAME, News, Parcel, Passes, opened};
use super::express::Express;
use super::office::Shared;
use crate::threads::{self, Group, lock};

/// What arrives from one process with one tag: frames, which tell what comes. A payload has a tag of its own, and is received once the
/// rank that it is for has posted a receive: a rank whose neighbour is ahead of it holds no more than it asked for. Frames go on
/// meanwhile, so no rank of a process waits for what another one has not asked for.
pub(super) struct Inbox {
    /// The process, as MPI has it.
    pub(super) from: usize,
    tag: i32,
    /// The next frame; `None`: the process has said its last word, or nothing that can be read.
    frame: Option<Receiving>,
    /// What frames have told and is not handed on yet, in their order.
    queue: VecDeque<Told>,
    /// A payload was offered or asked for.
    has_begun: bool,
}

/// What a frame has told.
enum Told {
    /// It is here.
    Here(Arrived),
    /// The payload of a parcel of this run is to come.
    Offered(u64, Parcel),
    /// It is under way.
    UnderWay(u64, Parcel, Receiving),
}

/// What has arrived.
pub(super) enum Arrived {
    /// That NCCL brings a tensor, in a run.
    Announced(u64, Parcel),
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
            Arrived::Announced(run, _) | Arrived::Tensor(run, ..) | Arrived::Part(run, _) => *run,
            Arrived::News(envelope) => envelope.run,
        }
    }

    /// Whether it only shows that a process is alive.
    pub(super) fn is_routine(&self) -> bool {
        matches!(self, Arrived::News(envelope) if envelope.news.is_routine())
    }

    /// Whether a rank has done all it was to do, for whatever reason.
    pub(super) fn is_of_a_rank_that_left(&self) -> bool {
        matches!(self, Arrived::News(Envelope { news: News::Left(_), .. }))
    }

    /// Hands it to its run.
    pub(super) fn reach(self, group: &Group, express: Option<&Express>, passes: &mut Passes) {
        match self {
            Arrived::Announced(_, parcel) => {
                group.moves(parcel.from);
                if let Some(express) = express {
                    express.told(parcel);
                }
            }
            Arrived::Tensor(_, parcel, tensor) => {
                let (ticket, label) = (parcel.ticket(), parcel.label(passes));
                let after = None;
                group.deliver(
                    parcel.from,
                    parcel.to,
                    threads::Parcel { ticket, label, tensor, after },
                );
                if let Some(express) = express {
                    express.is_here(parcel.from, ticket);
                }
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
                News::Clique(id) => {
                    if let Some(express) = express {
                        express.is_named(&id);
                    }
                }
                News::Left(_) | News::Parcel(_) | News::Bye(..) | News::Alive => {}
            },
        }
    }
}

impl Inbox {
    /// Waits for the first frame.
    pub(super) fn open(session: &Session, from: usize, tag: i32) -> annulus_mpi::Result<Inbox> {
        let mut inbox = Inbox { from, tag, frame: None, queue: VecDeque::new(), has_begun: false };
        inbox.wait_for_frame(session)?;
        Ok(inbox)
    }

    fn wait_for_frame(&mut self, session: &Session) -> annulus_mpi::Result<()> {
        let room = Arriving::Bytes(vec![0; FRAME]);
        self.frame = Some(session.receive(room, self.from, self.tag)?);
        Ok(())
    }

    /// Whether nothing is left that a frame has told of.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether a payload is under way.
    pub(super) fn is_receiving(&self) -> bool {
        self.queue.iter().any(|told| matches!(told, Told::UnderWay(..)))
    }

    /// Whether a payload was offered or asked for since this was asked last: what comes next is soon there.
    pub(super) fn takes_begun(&mut self) -> bool {
        std::mem::take(&mut self.has_begun)
    }

    /// What has arrived since, if anything has.
    pub(super) fn look(
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
            self.ask(session, shared, index)?;
            if let Some(arrived) = self.arrived(session, index)? {
                return Ok(Some(arrived));
            }
            index += 1;
        }
        Ok(None)
    }

    /// Notes what a frame tells.
    fn read(
        &mut self,
        session: &Session,
        shared: &Shared,
        frame: &[u8],
    ) -> annulus_mpi::Result<()> {
        let (envelope, payload) = opened(frame).ok_or_else(|| unread("a frame"))?;
        self.frame = None;
        if !matches!(envelope.news, News::Bye(..)) {
            self.wait_for_frame(session)?;
        }
        let Envelope { run, news: News::Parcel(parcel) } = envelope else {
            self.queue.push_back(Told::Here(Arrived::News(envelope)));
            return Ok(());
        };
        if parcel.by_nccl {
            self.queue.push_back(Told::Here(Arrived::Announced(run, parcel)));
            return Ok(());
        }
        let dtype = parcel.dtype().ok_or_else(|| unread("a dtype"))?;
        let told = if payload.len() == parcel.elements() * dtype.size_in_bytes() {
            let device = lock(&shared.desk).device_of(&parcel);
            let tensor = || Tensor::from_raw_buffer(payload, dtype, &parcel.dims, &device);
            let tensor = on_behalf_of(parcel.to, parcel.class(), tensor).map_err(unread)?;
            Told::Here(Arrived::Tensor(run, parcel, tensor))
        } else if payload.is_empty() {
            self.has_begun = true;
            Told::Offered(run, parcel)
        } else {
            return Err(unread("a short payload"));
        };
        self.queue.push_back(told);
        Ok(())
    }

    /// Receives a payload that is offered, if it may come. Messages with one tag are matched in the order in which they were sent, and
    /// tags are used again: so one that has the tag of another before it waits for that.
    fn ask(&mut self, session: &Session, shared: &Shared, index: usize) -> annulus_mpi::Result<()> {
        let Told::Offered(run, parcel) = &self.queue[index] else { return Ok(()) };
        let is_before =
            |told: &Told| matches!(told, Told::Offered(_, other) if other.tag == parcel.tag);
        if self.queue.iter().take(index).any(is_before) {
            return Ok(());
        }
        let desk = lock(&shared.desk);
        if !desk.may_come(*run, parcel) {
            return Ok(());
        }
        let device = desk.device_of(parcel);
        drop(desk);
        let dtype = parcel.dtype().ok_or_else(|| unread("a dtype"))?;
        // Asked for on MPI's thread, but it is the receiver's from here on.
        let room = || Elements::pinned_for(dtype, parcel.elements(), &device);
        let room = on_behalf_of(parcel.to, parcel.class(), room);
        let room = room.ok_or_else(|| unread(format!("a tensor of {dtype:?}")))?;
        let receiving = session.receive(Arriving::Elements(room), self.from, parcel.tag)?;
        self.queue[index] = Told::UnderWay(*run, parcel.clone(), receiving);
        self.has_begun = true;
        Ok(())
    }

    /// What is told at `index`, if it is here and is to be handed on; it is taken out.
    fn arrived(&mut self, session: &Session, index: usize) -> annulus_mpi::Result<Option<Arrived>> {
        let arrived = match &mut self.queue[index] {
            Told::Offered(..) => return Ok(None),
            Told::UnderWay(run, parcel, receiving) => {
                let pieces = receiving.pieces();
                let Some(Arriving::Elements(elements)) = session.arrived(receiving)? else {
                    let part = Arrived::Part(*run, parcel.from);
                    return Ok((receiving.pieces() < pieces).then_some(part));
                };
                let tensor = elements.tensor(parcel.dims.as_slice()).map_err(unread)?;
                Some(Arrived::Tensor(*run, parcel.clone(), tensor))
            }
            Told::Here(_) => None,
        };
        if arrived.is_none() && self.stands_behind_its_tensors(index) {
            return Ok(None);
        }
        let told = self.queue.remove(index);
        Ok(arrived.or(told.and_then(|told| match told {
            Told::Here(arrived) => Some(arrived),
            Told::Offered(..) | Told::UnderWay(..) => None,
        })))
    }

    /// Whether it is told at `index` that a rank has left of which tensors are still to come: who waits for those is to get them first.
    fn stands_behind_its_tensors(&self, index: usize) -> bool {
        let Told::Here(Arrived::News(Envelope { run, news: News::Left(rank) })) =
            &self.queue[index]
        else {
            return false;
        };
        self.queue.iter().take(index).any(|told| match told {
            Told::Offered(of, parcel) | Told::UnderWay(of, parcel, _) => {
                of == run && parcel.from == *rank
            }
            Told::Here(_) => false,
        })
    }

    /// Waits for nothing any more.
    pub(super) fn close(self, session: &Session) -> annulus_mpi::Result<()> {
        let under_way = self.queue.into_iter().filter_map(|told| match told {
            Told::UnderWay(_, _, receiving) => Some(receiving),
            Told::Here(_) | Told::Offered(..) => None,
        });
        self.frame.into_iter().chain(under_way).try_for_each(|one| session.give_up(one))
    }
}

fn unread(why: impl std::fmt::Display) -> annulus_mpi::Error {
    annulus_mpi::Error { what: "a message cannot be read".to_owned(), why: why.to_string() }
}
