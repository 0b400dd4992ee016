//! Messages between processes: envelopes, which go before every payload, so that a mismatched call is an error and not a hang.

use annulus_memory::Class;
use candle_core::DType;
use serde::{Deserialize, Serialize};

use crate::Label;
use crate::threads::{Heartbeat, SMALL, Ticket};

/// Bytes of a frame at most: an envelope, followed by the payload where there is room. So no payload that a sender waits for is in a
/// frame.
pub(super) const FRAME: usize = SMALL as usize;
/// How many heartbeats one frame has room for.
pub(super) const HEARTBEATS: usize = 16;

/// What one process tells another.
#[derive(Serialize, Deserialize)]
pub(super) struct Envelope {
    /// The run of ranks that the message belongs to, counted from the start of the processes.
    pub(super) run: u64,
    pub(super) message: ControlMessage,
}

/// What an envelope says.
#[derive(Clone, Serialize, Deserialize)]
pub(super) enum ControlMessage {
    /// A tensor is sent to a rank.
    Tensor(TensorHeader),
    /// How far the sender's ranks are.
    Heartbeats(Vec<(usize, Heartbeat)>),
    /// The program of a rank has returned.
    Left(usize),
    /// A rank has failed.
    Failed(usize),
    /// The run is to stop.
    Stop,
    /// The unique id of the run's communicator of NCCL.
    Clique(Vec<u8>),
    /// The process is alive, between runs.
    Alive,
    /// The process ends with this exit code; whether it is its own fault. Nothing comes from it after this.
    Exit(i32, bool),
}

/// What is said of a tensor ahead of its elements: its ranks, ticket, label and form, and how the elements travel.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct TensorHeader {
    pub(super) from: usize,
    pub(super) to: usize,
    group: u64,
    number: u64,
    step: u64,
    layer: usize,
    pass: String,
    hop: usize,
    dtype: String,
    pub(super) dims: Vec<usize>,
    /// The tag with which the payload is sent where the frame has no room for it.
    pub(super) tag: i32,
    /// It comes from a GPU, and is received on one where the receiver has one.
    pub(super) on_gpu: bool,
    /// Its elements go by NCCL.
    pub(super) by_nccl: bool,
    /// The memory class that it is counted to where it was sent, and so where it arrives.
    class: usize,
}

impl TensorHeader {
    pub(super) fn new(from: usize, to: usize, message: &crate::threads::Message) -> TensorHeader {
        let crate::threads::Message { ticket, label, tensor, .. } = message;
        let Label { step, layer, pass, hop } = *label;
        TensorHeader {
            from,
            to,
            group: ticket.group,
            number: ticket.number,
            step,
            layer,
            pass: pass.to_owned(),
            hop,
            dtype: tensor.dtype().as_str().to_owned(),
            dims: tensor.dims().to_vec(),
            tag: 0,
            on_gpu: tensor.device().is_cuda(),
            by_nccl: false,
            class: annulus_memory::class() as usize,
        }
    }

    pub(super) fn ticket(&self) -> Ticket {
        Ticket { group: self.group, number: self.number }
    }

    pub(super) fn label(&self, passes: &mut Passes) -> Label {
        let TensorHeader { step, layer, hop, .. } = *self;
        Label { step, layer, pass: passes.known(&self.pass), hop }
    }

    pub(super) fn dtype(&self) -> Option<DType> {
        self.dtype.parse().ok()
    }

    /// The memory class that the tensor is counted to: key/value, unless the sender names another that exists.
    pub(super) fn class(&self) -> Class {
        Class::ALL.get(self.class).copied().unwrap_or(Class::KeyValue)
    }

    pub(super) fn elements(&self) -> usize {
        self.dims.iter().product()
    }
}

/// The names of passes received so far. [`Label::pass`] is `'static`, so every name is kept for as long as the program runs.
#[derive(Default)]
pub(super) struct Passes(Vec<&'static str>);

/// How many names are kept at most: programs have fewer.
const MOST_PASSES: usize = 256;

impl Passes {
    fn known(&mut self, pass: &str) -> &'static str {
        if let Some(known) = self.0.iter().find(|known| **known == pass) {
            return known;
        }
        if self.0.len() == MOST_PASSES {
            return "another pass";
        }
        let kept: &'static str = Box::leak(pass.to_owned().into_boxed_str());
        self.0.push(kept);
        kept
    }
}

impl ControlMessage {
    /// Whether it is sent periodically, and only shows how far ranks are.
    pub(super) fn is_routine(&self) -> bool {
        matches!(self, ControlMessage::Heartbeats(_) | ControlMessage::Alive)
    }

    /// The tag with which the message is sent: messages of one tag arrive in the order in which a process sent them. Heartbeats and
    /// failures have a tag of their own, so that they do not queue behind tensors, which a slow link may carry for longer than a
    /// deadline.
    pub(super) fn tag(&self) -> i32 {
        match self {
            ControlMessage::Tensor(_)
            | ControlMessage::Left(_)
            | ControlMessage::Exit(..)
            | ControlMessage::Clique(_) => TAGS[0],
            ControlMessage::Heartbeats(_)
            | ControlMessage::Failed(_)
            | ControlMessage::Stop
            | ControlMessage::Alive => TAGS[1],
        }
    }
}

/// The tags of frames: of tensors and of what must arrive after them, and of what is not to wait for them.
pub(super) const TAGS: [i32; 2] = [7, 8];

/// Gives every payload to one process a tag of its own, as the receiver posts their receives in an order of its own.
pub(super) struct Tags(i32);

/// The last tag, after which the first is used again: the least upper bound that the standard of MPI allows.
const LAST_TAG: i32 = 32_767;

impl Tags {
    pub(super) fn new() -> Tags {
        Tags(TAGS[1])
    }

    pub(super) fn next(&mut self) -> i32 {
        self.0 = if self.0 == LAST_TAG { TAGS[1] + 1 } else { self.0 + 1 };
        self.0
    }
}

/// An envelope as bytes: their number, then JSON.
pub(super) fn serialize(envelope: &Envelope) -> Vec<u8> {
    let head = serde_json::to_vec(envelope).expect("numbers, words and lists of them are JSON");
    [&(head.len() as u32).to_le_bytes(), &head[..]].concat()
}

/// The envelope of a frame, and the bytes after it: the payload, if the frame had room for it. `None`: it cannot be read.
pub(super) fn parse(frame: &[u8]) -> Option<(Envelope, &[u8])> {
    let (length, rest) = frame.split_first_chunk::<4>()?;
    let (head, payload) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    Some((serde_json::from_slice(head).ok()?, payload))
}
