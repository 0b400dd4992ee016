//! Which ranks of a group are threads of this process, and how messages reach the others.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use candle_core::Tensor;

use super::mail::{Message, Ticket};
use crate::flight::Log;
use crate::{Form, Label, Result};

/// How ranks here reach ranks of other processes.
pub(crate) trait Transport: Send + Sync {
    /// Sends `message` of rank `from`, which is here, to rank `to`, which is not.
    fn send(&self, from: usize, to: usize, message: Message) -> candle_core::Result<()>;
    /// A rank here has posted an exchange: the sends since the last call, and these receives from ranks of other processes, with their
    /// forms where those are known.
    fn posted(
        &self,
        label: Label,
        receives: Vec<(usize, Ticket, Option<Form>)>,
    ) -> candle_core::Result<()>;
    /// Whether the message of `ticket` is on its way from a rank of another process, even if that rank has ended.
    fn is_coming(&self, from: usize, ticket: Ticket) -> bool;
    /// Blocks until a rank here may write over the tensor of a message that has left.
    fn wait_to_leave(&self, to: usize, ticket: Ticket) -> Result<()>;
    /// The ranks of a transfer for which the device of the rank here waits, if it waits for one.
    fn awaited(&self) -> Vec<usize>;
    /// Whether ranks that are asked to stop go on until all agree to: if one left alone, transfers on the devices of others would wait
    /// for it.
    fn stops_by_agreement(&self) -> bool;
    /// Polls for arrivals at once: a rank here has posted receives from ranks of other processes, or begins to wait.
    fn wake(&self);
    /// Tells the other processes that a rank here has failed.
    fn failed(&self, rank: usize);
    /// Tells the other processes that the program of a rank here has returned.
    fn left(&self, rank: usize);
    /// Tells the other processes that the run is to stop.
    fn stopped(&self);
}

/// Copies tensors between ranks of one process that compute on different devices.
pub trait DeviceCopy: Send + Sync + fmt::Debug {
    /// Rank `from` sends `tensor` to rank `to` now. Returns what makes the receiver's copy, to be called on the receiver's thread;
    /// `None` where the receiver can read the same tensor.
    ///
    /// # Errors
    /// A device that failed.
    fn send(&self, from: usize, to: usize, tensor: &Tensor) -> candle_core::Result<Option<Copied>>;
}

/// Makes the receiver's copy of a tensor that was sent.
pub type Copied = Box<dyn FnOnce() -> candle_core::Result<Tensor> + Send>;

/// Which ranks of a group are threads of this process, and how they reach each other and the rest.
pub(crate) struct LocalRanks {
    pub(crate) ranks: Range<usize>,
    /// How they reach ranks of other processes; `None`: there are none.
    pub(crate) transport: Option<Arc<dyn Transport>>,
    /// The number of this process and how many there are, so that no two processes give groups the same name.
    pub(crate) process: [u64; 2],
    /// The flight record in which ranks here say where they are.
    pub(crate) log: Option<Log>,
    /// How tensors are copied between the devices of ranks here; `None`: they compute on one device.
    pub(crate) device_copy: Option<Arc<dyn DeviceCopy>>,
    /// Each rank stands for its process: it counts as making progress as long as anything arrives from the process.
    pub(crate) of_processes: bool,
}

impl LocalRanks {
    /// A group of `world` ranks that are all threads of this process.
    pub(crate) fn all(world: usize) -> LocalRanks {
        LocalRanks {
            ranks: 0..world,
            transport: None,
            process: [0, 1],
            log: None,
            device_copy: None,
            of_processes: false,
        }
    }
}
