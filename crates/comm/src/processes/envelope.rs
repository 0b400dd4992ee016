//! What stands before every payload, so that a mismatched call is an error and not a hang.

use annulus_memory::Class;
use candle_core::DType;
use serde::{Deserialize, Serialize};

use crate::Label;
use crate::threads::{Beat, SMALL, Ticket};

/// Bytes of a frame at most: an envelope, and behind it the payload where there is room. So no payload that a sender waits for is in one.
pub(super) const FRAME: usize = SMALL as usize;
/// Ranks that one frame has room to tell of.
pub(super) const BEATS: usize = 16;

/// What one process tells another.
#[derive(Serialize, Deserialize)]
pub(super) struct Envelope {
    /// The run of ranks that it belongs to, counted from the start of the processes.
    pub(super) run: u64,
    pub(super) news: News,
}

/// What is told.
#[derive(Clone, Serialize, Deserialize)]
pub(super) enum News {
    /// A tensor for a rank.
    Parcel(Parcel),
    /// How far the sender's ranks are.
    Beats(Vec<(usize, Beat)>),
    /// A rank's program has returned.
    Left(usize),
    /// A rank has failed.
    Failed(usize),
    /// The run is to stop.
    Stop,
    /// The name of the run's clique of NCCL.
    Clique(Vec<u8>),
    /// The process is alive, between runs.
    Alive,
    /// The process ends with this exit code; whether it is its own fault.
    Bye(i32, bool),
}

/// A tensor's way, name, place in the program and form.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Parcel {
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
    /// That of its payload, where a frame has no room for it.
    pub(super) tag: i32,
    /// It comes from a GPU, and goes on to one where the receiver has one.
    pub(super) on_gpu: bool,
    /// NCCL brings it.
    pub(super) by_nccl: bool,
    /// What it is for where it was sent, and so where it arrives.
    class: usize,
}

impl Parcel {
    pub(super) fn new(from: usize, to: usize, parcel: &crate::threads::Parcel) -> Parcel {
        let crate::threads::Parcel { ticket, label, tensor, .. } = parcel;
        let Label { step, layer, pass, hop } = *label;
        Parcel {
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
        let Parcel { step, layer, hop, .. } = *self;
        Label { step, layer, pass: passes.known(&self.pass), hop }
    }

    pub(super) fn dtype(&self) -> Option<DType> {
        self.dtype.parse().ok()
    }

    /// Which class it is counted to: keys and values, unless the sender says another that there is.
    pub(super) fn class(&self) -> Class {
        Class::ALL.get(self.class).copied().unwrap_or(Class::KeyValue)
    }

    pub(super) fn elements(&self) -> usize {
        self.dims.iter().product()
    }
}

/// The passes that labels named so far: a label holds its pass for as long as the program runs.
#[derive(Default)]
pub(super) struct Passes(Vec<&'static str>);

/// Programs have fewer passes.
const MOST: usize = 256;

impl Passes {
    fn known(&mut self, pass: &str) -> &'static str {
        if let Some(known) = self.0.iter().find(|known| **known == pass) {
            return known;
        }
        if self.0.len() == MOST {
            return "another pass";
        }
        let kept: &'static str = Box::leak(pass.to_owned().into_boxed_str());
        self.0.push(kept);
        kept
    }
}

impl News {
    /// Whether it is told again and again, and only shows how far ranks are.
    pub(super) fn is_routine(&self) -> bool {
        matches!(self, News::Beats(_) | News::Alive)
    }

    /// Messages of one tag arrive in the order in which a process sent them. What is told of ranks has one of its own, so that it
    /// does not stand behind tensors: a slow link carries those for longer than a deadline.
    pub(super) fn tag(&self) -> i32 {
        match self {
            News::Parcel(_) | News::Left(_) | News::Bye(..) | News::Clique(_) => TAGS[0],
            News::Beats(_) | News::Failed(_) | News::Stop | News::Alive => TAGS[1],
        }
    }
}

/// The tags: of tensors and of what is to come behind them, and of what is not to wait for them.
pub(super) const TAGS: [i32; 2] = [7, 8];

/// The tags of payloads to one process, in turn: a receiver takes them in an order of its own.
pub(super) struct Tags(i32);

/// Every MPI has at least so many.
const LAST: i32 = 32_767;

impl Tags {
    pub(super) fn new() -> Tags {
        Tags(TAGS[1])
    }

    pub(super) fn draw(&mut self) -> i32 {
        self.0 = if self.0 == LAST { TAGS[1] + 1 } else { self.0 + 1 };
        self.0
    }
}

/// An envelope as bytes, their number first.
pub(super) fn sealed(envelope: &Envelope) -> Vec<u8> {
    let head = serde_json::to_vec(envelope).expect("numbers, words and lists of them are JSON");
    [&(head.len() as u32).to_le_bytes(), &head[..]].concat()
}

/// The envelope of a frame, and what lies behind it: the payload, where a frame has room for it.
pub(super) fn opened(frame: &[u8]) -> Option<(Envelope, &[u8])> {
    let (length, rest) = frame.split_first_chunk::<4>()?;
    let (head, payload) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    Some((serde_json::from_slice(head).ok()?, payload))
}
