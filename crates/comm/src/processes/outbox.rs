//! Messages to other processes: frames in the order in which they were posted, and payloads after them with tags of their own.

use annulus_mpi::{Leaving, Sending, Session};

use super::envelope::{ControlMessage, Envelope, FRAME, Tags, TensorHeader, serialize};
use super::mpi_process::{OutgoingMessage, Shared};

/// Messages to other processes that have not left.
pub(super) struct Outbox {
    /// By rank of MPI, the tags of payloads to it.
    tags: Vec<Tags>,
    /// Payloads that are not handed to MPI yet: those from a GPU are still being copied.
    payloads: Vec<Payload>,
    /// What MPI is sending.
    sends: Vec<PostedSend>,
}

/// The elements of the tensor that `header` announces in a run, for the rank `to` of MPI.
struct Payload {
    to: usize,
    bytes: Leaving,
    run: u64,
    header: TensorHeader,
}

/// A message that MPI is sending.
struct PostedSend {
    sending: Sending,
    /// Of a payload its run and header: the rank that sent it is told when it has left.
    payload_of: Option<(u64, TensorHeader)>,
}

impl Outbox {
    /// An empty outbox for messages to any of `processes`.
    pub(super) fn new(processes: usize) -> Outbox {
        let tags = (0..processes).map(|_| Tags::new()).collect();
        Outbox { tags, payloads: Vec::new(), sends: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.payloads.is_empty() && self.sends.is_empty()
    }

    /// Hands a message to MPI as a frame. A payload that has no room there follows with a tag of its own.
    pub(super) fn post(
        &mut self,
        session: &Session,
        OutgoingMessage { to, mut envelope, mut payload }: OutgoingMessage,
    ) -> annulus_mpi::Result<()> {
        let tag = envelope.message.tag();
        if let ControlMessage::Tensor(header) = &mut envelope.message {
            header.tag = self.tags[to].next();
        }
        let mut frame = serialize(&envelope);
        if let Some(small) = payload.as_mut().filter(|all| frame.len() + all.size() <= FRAME)
            && small.is_ready().map_err(|error| unsent(&error))?
        {
            frame.extend(small.bytes());
            payload = None;
        }
        let sending = session.send(Leaving::Bytes(frame), to, tag)?;
        self.sends.push(PostedSend { sending, payload_of: None });
        if let (Some(bytes), Envelope { run, message: ControlMessage::Tensor(header) }) =
            (payload, envelope)
        {
            self.payloads.push(Payload { to, bytes, run, header });
        }
        Ok(())
    }

    /// Hands payloads to MPI once they are copied, and drops what has left. Returns whether a payload was handed over.
    pub(super) fn poll(&mut self, session: &Session, shared: &Shared) -> annulus_mpi::Result<bool> {
        let mut any = false;
        for mut payload in std::mem::take(&mut self.payloads) {
            if !payload.bytes.is_ready().map_err(|error| unsent(&error))? {
                // A device computes what it is to copy: its rank is alive, however long that takes, unless the device waits for others.
                let current = shared.state.lock().current.clone();
                let group = current.filter(|(run, _)| payload.run == *run).map(|(_, group)| group);
                if let Some(group) = group.filter(|group| group.awaited().is_empty()) {
                    group.makes_progress(payload.header.from);
                }
                self.payloads.push(payload);
                continue;
            }
            let Payload { to, bytes, run, header } = payload;
            let sending = session.send(bytes, to, header.tag)?;
            self.sends.push(PostedSend { sending, payload_of: Some((run, header)) });
            any = true;
        }
        for mut send in std::mem::take(&mut self.sends) {
            if !send.has_left(session, shared) {
                self.sends.push(send);
            }
        }
        Ok(any)
    }
}

impl PostedSend {
    /// Whether the message has left, which its sender is told. Every piece that leaves counts as progress of the receiver.
    fn has_left(&mut self, session: &Session, shared: &Shared) -> bool {
        let pieces = self.sending.pieces();
        let has_left = session.has_left(&mut self.sending);
        if let Some((run, header)) = &self.payload_of
            && self.sending.pieces() < pieces
        {
            let state = shared.state.lock();
            if let Some((_, group)) = state.current.as_ref().filter(|(current, _)| run == current) {
                group.makes_progress(header.to);
                if has_left {
                    group.has_sent(header.from, header.to, header.ticket());
                }
            }
        }
        has_left
    }
}

fn unsent(error: &candle_core::Error) -> annulus_mpi::Error {
    annulus_mpi::Error { what: "a tensor cannot be sent".to_owned(), why: error.to_string() }
}
