//! Where the ranks of a group are.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use candle_core::Tensor;

use super::mail::{Parcel, Ticket};
use crate::flight::Log;
use crate::{Form, Label, Result};

/// What brings parcels and news to ranks of other processes.
pub(crate) trait Carrier: Send + Sync {
    /// `parcel` of a rank here goes to a rank that is not.
    fn send(&self, from: usize, to: usize, parcel: Parcel) -> candle_core::Result<()>;
    /// A rank here has posted an exchange: what it has sent, and these receives from ranks elsewhere, with their forms where they are known.
    fn posted(
        &self,
        label: Label,
        receives: Vec<(usize, Ticket, Option<Form>)>,
    ) -> candle_core::Result<()>;
    /// Whether what `ticket` names is on its way from a rank elsewhere, whatever has become of that.
    fn is_coming(&self, from: usize, ticket: Ticket) -> bool;
    /// A rank here waits until it may write over what it has sent, which has left.
    fn wait_to_leave(&self, to: usize, ticket: Ticket) -> Result<()>;
    /// Whether ranks go on though the run is to stop, until they agree to: one that left alone would leave transfers on the devices of
    /// others without their other end.
    fn holds_on(&self) -> bool;
    /// What brings them is to look now: a rank here has posted receives for what ranks elsewhere send, or begins to wait.
    fn wake(&self);
    /// A rank here has failed.
    fn failed(&self, rank: usize);
    /// A rank here has done all it was to do.
    fn left(&self, rank: usize);
    /// The run is to stop.
    fn stopped(&self);
}

/// How tensors come from a rank to another of the same process that computes on another device.
pub trait Between: Send + Sync + fmt::Debug {
    /// Rank `from` sends `tensor` to rank `to` now; what the receiver makes of it, on its own thread. Nothing: it reads the very same.
    ///
    /// # Errors
    /// A device that failed.
    fn send(&self, from: usize, to: usize, tensor: &Tensor) -> candle_core::Result<Option<Copied>>;
}

/// Gives the receiver's own copy of a tensor that is on its way.
pub type Copied = Box<dyn FnOnce() -> candle_core::Result<Tensor> + Send>;

/// Which ranks are threads of this process, and how the others are reached.
pub(crate) struct Home {
    pub(crate) here: Range<usize>,
    /// `None`: all are here.
    pub(crate) carrier: Option<Arc<dyn Carrier>>,
    /// Of how many processes this is which: no two draw the same name.
    pub(crate) process: [u64; 2],
    /// Where ranks here say where they are.
    pub(crate) log: Option<Log>,
    /// How ranks here reach each other; `None`: they compute on one device.
    pub(crate) between: Option<Arc<dyn Between>>,
    /// Ranks stand for processes: one moves as long as anything is heard of it, whatever it does.
    pub(crate) of_processes: bool,
}

impl Home {
    /// All of so many ranks.
    pub(crate) fn alone(world: usize) -> Home {
        Home {
            here: 0..world,
            carrier: None,
            process: [0, 1],
            log: None,
            between: None,
            of_processes: false,
        }
    }
}
