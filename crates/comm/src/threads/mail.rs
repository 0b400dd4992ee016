//! Messages from one rank to another.

use std::time::Duration;

use candle_core::Tensor;
use parking_lot::{Condvar, Mutex};

use crate::{Label, Result};

/// Which message: the `number`-th from one rank to another in a group. Numbers are assigned when a move is
/// posted, so that a receive that is given up cannot shift those that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) group: u64,
    pub(crate) number: u64,
}

/// A tensor that one rank sends to another.
pub(crate) struct Message {
    pub(crate) ticket: Ticket,
    pub(crate) label: Label,
    pub(crate) tensor: Tensor,
    /// What the receiver must do before it reads the tensor; `None`: nothing.
    pub(crate) after: Option<After>,
}

/// What a receiver does before it reads a tensor: if the device has yet to write it, orders what is computed from now on after that;
/// if it is on another device, copies it.
pub(crate) type After = Box<dyn FnOnce(Tensor) -> Result<Tensor> + Send>;

/// Messages from one rank to another that is here.
#[derive(Default)]
pub(super) struct Mailbox {
    mail: Mutex<Mail>,
    changed: Condvar,
}

#[derive(Default)]
struct Mail {
    messages: Vec<Message>,
    /// Posted receives whose messages have not come yet. Only kept where there are several processes.
    asked: Vec<Ticket>,
    /// Messages that nobody waits for any more.
    unwanted: Vec<Ticket>,
    /// Incomplete sends in the opposite direction: bytes that have not left or, within this process, receives that were not posted.
    leaving: Vec<Ticket>,
}

impl Mailbox {
    /// Puts a message in, without blocking. Returns whether its receive was posted, or the message refused.
    pub(super) fn put(&self, message: Message) -> bool {
        let mut mail = self.mail.lock();
        let was_asked = remove(&mut mail.asked, message.ticket);
        let was_refused = remove(&mut mail.unwanted, message.ticket);
        if !was_refused {
            mail.messages.push(message);
        }
        self.changed.notify_all();
        was_asked || was_refused
    }

    /// Notes that the receive for `ticket` was posted, unless its message has come already.
    pub(super) fn ask(&self, ticket: Ticket) {
        let mut mail = self.mail.lock();
        if mail.find(ticket).is_none() {
            mail.asked.push(ticket);
        }
    }

    /// Whether the message of `ticket` may be received: its receive was posted, or nobody waits for it any more.
    pub(super) fn may_receive(&self, ticket: Ticket) -> bool {
        let mail = self.mail.lock();
        mail.asked.contains(&ticket) || mail.unwanted.contains(&ticket)
    }

    /// Notes that a send of `ticket` in the opposite direction begins.
    pub(super) fn leaves(&self, ticket: Ticket) {
        self.mail.lock().leaving.push(ticket);
    }

    /// Notes that the send of `ticket` in the opposite direction is complete.
    pub(super) fn has_left(&self, ticket: Ticket) {
        remove(&mut self.mail.lock().leaving, ticket);
        self.changed.notify_all();
    }

    /// Whether the send of `ticket` in the opposite direction is complete, after waiting for `time` at most.
    pub(super) fn leaves_within(&self, ticket: Ticket, time: Duration) -> bool {
        let is_leaving = |mail: &mut Mail| mail.leaving.contains(&ticket);
        let mut mail = self.mail.lock();
        self.changed.wait_while_for(&mut mail, is_leaving, time);
        !is_leaving(&mut mail)
    }

    /// The message of `ticket`, if it comes within `time`.
    pub(super) fn take(&self, ticket: Ticket, time: Duration) -> Option<Message> {
        let mut mail = self.mail.lock();
        self.changed.wait_while_for(&mut mail, |mail| mail.find(ticket).is_none(), time);
        mail.find(ticket).map(|index| mail.messages.swap_remove(index))
    }

    /// The message of `ticket` is dropped, now or when it comes.
    pub(super) fn refuse(&self, ticket: Ticket) {
        let mut mail = self.mail.lock();
        remove(&mut mail.asked, ticket);
        match mail.find(ticket) {
            Some(index) => drop(mail.messages.swap_remove(index)),
            None => mail.unwanted.push(ticket),
        }
    }
}

impl Mail {
    fn find(&self, ticket: Ticket) -> Option<usize> {
        self.messages.iter().position(|message| message.ticket == ticket)
    }
}

/// Removes `ticket` from the list. Returns whether it was there.
fn remove(tickets: &mut Vec<Ticket>, ticket: Ticket) -> bool {
    let found = tickets.iter().position(|one| *one == ticket);
    found.map(|index| tickets.swap_remove(index)).is_some()
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    #[test]
    fn nothing_is_kept_of_messages_that_were_received() {
        let mailbox = Mailbox::default();
        for number in 0..6 {
            let ticket = Ticket { group: 0, number };
            let message = || Message {
                ticket,
                label: Label { step: 0, layer: 0, pass: "forward", hop: 0 },
                tensor: Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap(),
                after: None,
            };
            // The message comes before its receive is posted, or after.
            if number % 2 == 0 {
                assert!(!mailbox.put(message()));
                mailbox.ask(ticket);
            } else {
                mailbox.ask(ticket);
                assert!(mailbox.may_receive(ticket));
                assert!(mailbox.put(message()));
            }
            assert!(mailbox.take(ticket, Duration::ZERO).is_some());
        }
        let mail = mailbox.mail.lock();
        assert!(mail.messages.is_empty() && mail.asked.is_empty() && mail.unwanted.is_empty());
    }
}
