//! What is on its way from one rank to another.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use candle_core::Tensor;

use crate::Label;

/// Which message: the `number`-th that goes this way in a group. Numbers are drawn when a move is
/// posted, so that a receive that is given up cannot shift those that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) group: u64,
    pub(crate) number: u64,
}

/// A message.
pub(crate) struct Parcel {
    pub(crate) ticket: Ticket,
    pub(crate) label: Label,
    pub(crate) tensor: Tensor,
}

/// The way from one rank to another.
#[derive(Default)]
pub(super) struct Mailbox {
    mail: Mutex<Mail>,
    arrived: Condvar,
}

#[derive(Default)]
struct Mail {
    parcels: Vec<Parcel>,
    /// Nobody waits for these any more.
    unwanted: Vec<Ticket>,
}

impl Mailbox {
    /// Never blocks.
    pub(super) fn put(&self, parcel: Parcel) {
        let mut mail = lock(&self.mail);
        let unwanted = mail.unwanted.iter().position(|ticket| *ticket == parcel.ticket);
        match unwanted {
            Some(index) => drop(mail.unwanted.swap_remove(index)),
            None => mail.parcels.push(parcel),
        }
        self.arrived.notify_all();
    }

    /// The parcel of `ticket`, if it comes within `time`.
    pub(super) fn take(&self, ticket: Ticket, time: Duration) -> Option<Parcel> {
        let mail = lock(&self.mail);
        let (mut mail, _) = self
            .arrived
            .wait_timeout_while(mail, time, |mail| mail.find(ticket).is_none())
            .unwrap_or_else(PoisonError::into_inner);
        mail.find(ticket).map(|index| mail.parcels.swap_remove(index))
    }

    /// The parcel of `ticket` is thrown away, now or when it comes.
    pub(super) fn refuse(&self, ticket: Ticket) {
        let mut mail = lock(&self.mail);
        match mail.find(ticket) {
            Some(index) => drop(mail.parcels.swap_remove(index)),
            None => mail.unwanted.push(ticket),
        }
    }
}

impl Mail {
    fn find(&self, ticket: Ticket) -> Option<usize> {
        self.parcels.iter().position(|parcel| parcel.ticket == ticket)
    }
}

/// Locks also after a panic: what these locks guard is whole between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
