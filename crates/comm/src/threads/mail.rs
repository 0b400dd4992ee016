//! What is on its way from one rank to another.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use candle_core::Tensor;

use crate::{Label, Result};

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
    /// What makes of it what its receiver may read.
    pub(crate) after: Option<After>,
}

/// What its receiver does with a tensor first: where its device is still to write it, has what is computed from now on wait for that;
/// where it is on another device, copies it.
pub(crate) type After = Box<dyn FnOnce(Tensor) -> Result<Tensor> + Send>;

/// The way from one rank to another that is here.
#[derive(Default)]
pub(super) struct Mailbox {
    mail: Mutex<Mail>,
    changed: Condvar,
}

#[derive(Default)]
struct Mail {
    parcels: Vec<Parcel>,
    /// What may come: a receive for it was posted. Kept where there are several processes.
    asked: Vec<Ticket>,
    /// Nobody waits for these any more.
    unwanted: Vec<Ticket>,
    /// What goes the opposite way and has not left, or is not asked for where its receiver is of this process.
    leaving: Vec<Ticket>,
}

impl Mailbox {
    /// Never blocks. Whether it was asked for, or refused.
    pub(super) fn put(&self, parcel: Parcel) -> bool {
        let mut mail = lock(&self.mail);
        let was_asked = remove(&mut mail.asked, parcel.ticket);
        let was_refused = remove(&mut mail.unwanted, parcel.ticket);
        if !was_refused {
            mail.parcels.push(parcel);
        }
        self.changed.notify_all();
        was_asked || was_refused
    }

    /// A receive for `ticket` was posted.
    pub(super) fn ask(&self, ticket: Ticket) {
        lock(&self.mail).asked.push(ticket);
    }

    /// Whether what `ticket` names may come.
    pub(super) fn may_come(&self, ticket: Ticket) -> bool {
        let mail = lock(&self.mail);
        mail.asked.contains(&ticket) || mail.unwanted.contains(&ticket)
    }

    /// `ticket` goes the opposite way.
    pub(super) fn leaves(&self, ticket: Ticket) {
        lock(&self.mail).leaving.push(ticket);
    }

    /// It has left.
    pub(super) fn has_left(&self, ticket: Ticket) {
        remove(&mut lock(&self.mail).leaving, ticket);
        self.changed.notify_all();
    }

    /// Whether it leaves within `time`, or has left.
    pub(super) fn leaves_within(&self, ticket: Ticket, time: Duration) -> bool {
        let is_leaving = |mail: &mut Mail| mail.leaving.contains(&ticket);
        let waited = self.changed.wait_timeout_while(lock(&self.mail), time, is_leaving);
        let (mut mail, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !is_leaving(&mut mail)
    }

    /// The parcel of `ticket`, if it comes within `time`.
    pub(super) fn take(&self, ticket: Ticket, time: Duration) -> Option<Parcel> {
        let mail = lock(&self.mail);
        let (mut mail, _) = self
            .changed
            .wait_timeout_while(mail, time, |mail| mail.find(ticket).is_none())
            .unwrap_or_else(PoisonError::into_inner);
        mail.find(ticket).map(|index| mail.parcels.swap_remove(index))
    }

    /// The parcel of `ticket` is thrown away, now or when it comes.
    pub(super) fn refuse(&self, ticket: Ticket) {
        let mut mail = lock(&self.mail);
        remove(&mut mail.asked, ticket);
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

/// Whether `ticket` was among those of the list; it is no more.
fn remove(tickets: &mut Vec<Ticket>, ticket: Ticket) -> bool {
    let found = tickets.iter().position(|one| *one == ticket);
    found.map(|index| tickets.swap_remove(index)).is_some()
}

/// Locks also after a panic: what these locks guard is whole between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
