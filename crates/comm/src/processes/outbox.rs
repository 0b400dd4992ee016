//! What goes to other processes: frames in their order, and payloads behind them with tags of their own.

use annulus_mpi::{Leaving, Sending, Session};

use super::envelope::{Envelope, FRAME, News, Parcel, Tags, sealed};
use super::office::{Letter, Shared};
use crate::threads::lock;

/// What is on its way out.
pub(super) struct Outbox {
    /// By rank of MPI, of payloads to it.
    tags: Vec<Tags>,
    /// Payloads that MPI does not have yet.
    payloads: Vec<Payload>,
    /// What MPI has.
    leaving: Vec<Going>,
}

/// The payload of a parcel in a run, for a process, as MPI has it. From a GPU it is copied first.
struct Payload {
    to: usize,
    bytes: Leaving,
    run: u64,
    parcel: Parcel,
}

/// A message that MPI has.
struct Going {
    sending: Sending,
    /// Of which parcel in which run it is the payload: the sender is told when it has left.
    of: Option<(u64, Parcel)>,
}

impl Outbox {
    /// To so many processes.
    pub(super) fn new(processes: usize) -> Outbox {
        let tags = (0..processes).map(|_| Tags::new()).collect();
        Outbox { tags, payloads: Vec::new(), leaving: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.payloads.is_empty() && self.leaving.is_empty()
    }

    /// Hands a letter to MPI: a frame; what has no room there follows with a tag of its own.
    pub(super) fn post(
        &mut self,
        session: &Session,
        Letter { to, mut envelope, mut payload }: Letter,
    ) -> annulus_mpi::Result<()> {
        let tag = envelope.news.tag();
        if let News::Parcel(parcel) = &mut envelope.news {
            parcel.tag = self.tags[to].draw();
        }
        let mut frame = sealed(&envelope);
        if let Some(small) = payload.as_mut().filter(|all| frame.len() + all.size() <= FRAME)
            && small.is_ready().map_err(|error| unsent(&error))?
        {
            frame.extend(small.bytes());
            payload = None;
        }
        let sending = session.send(Leaving::Bytes(frame), to, tag)?;
        self.leaving.push(Going { sending, of: None });
        if let (Some(bytes), Envelope { run, news: News::Parcel(parcel) }) = (payload, envelope) {
            self.payloads.push(Payload { to, bytes, run, parcel });
        }
        Ok(())
    }

    /// Hands payloads to MPI, and forgets what has left. Whether there was a payload.
    pub(super) fn look(&mut self, session: &Session, shared: &Shared) -> annulus_mpi::Result<bool> {
        let mut any = false;
        for mut payload in std::mem::take(&mut self.payloads) {
            if !payload.bytes.is_ready().map_err(|error| unsent(&error))? {
                self.payloads.push(payload);
                continue;
            }
            let Payload { to, bytes, run, parcel } = payload;
            let sending = session.send(bytes, to, parcel.tag)?;
            self.leaving.push(Going { sending, of: Some((run, parcel)) });
            any = true;
        }
        for mut going in std::mem::take(&mut self.leaving) {
            if !going.has_left(session, shared) {
                self.leaving.push(going);
            }
        }
        Ok(any)
    }
}

impl Going {
    /// Whether it has left; its sender is told, and sees by its parts that the receiver takes it.
    fn has_left(&mut self, session: &Session, shared: &Shared) -> bool {
        let pieces = self.sending.pieces();
        let has_left = session.has_left(&mut self.sending);
        if let Some((run, parcel)) = &self.of
            && self.sending.pieces() < pieces
        {
            let desk = lock(&shared.desk);
            if let Some((_, group)) = desk.current.as_ref().filter(|(current, _)| run == current) {
                group.moves(parcel.to);
                if has_left {
                    group.has_sent(parcel.from, parcel.to, parcel.ticket());
                }
            }
        }
        has_left
    }
}

fn unsent(error: &candle_core::Error) -> annulus_mpi::Error {
    annulus_mpi::Error { what: "a tensor cannot be sent".to_owned(), why: error.to_string() }
}
