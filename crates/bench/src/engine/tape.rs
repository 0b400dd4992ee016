//! A communicator that records one rank's messages, so that its computing can be repeated without messages, and its messages without
//! computing.

use std::sync::Arc;

use annulus_comm::{Communicator, Label, P2pOp, Pending, Result, Transfer, Wrapper};
use candle_core::Tensor;
use parking_lot::Mutex;

/// A recorder around a rank's communicator.
#[derive(Debug)]
pub(crate) struct Taped {
    inner: Arc<dyn Communicator>,
    tape: Arc<Mutex<Tape>>,
}

#[derive(Debug, Default)]
struct Tape {
    mode: Mode,
    events: Vec<Event>,
    /// Received tensors, by exchange.
    got: Vec<Vec<Tensor>>,
    /// The number of exchanges posted in this mode.
    posted: usize,
}

/// What happens with a rank's calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Calls are passed on.
    #[default]
    Through,
    /// Calls are passed on and recorded.
    Record,
    /// Nothing is sent; recorded tensors arrive immediately.
    Answer,
}

#[derive(Clone, Debug)]
enum Event {
    Post(Label, Vec<P2pOp>),
    /// The next tensor of the exchange of this number.
    Take(usize),
}

impl Taped {
    pub(crate) fn new(inner: Arc<dyn Communicator>) -> Arc<Taped> {
        Arc::new(Taped { inner, tape: Arc::default() })
    }

    /// Changes the mode; calls from now on are those of the program from its start.
    pub(crate) fn turn(&self, mode: Mode) {
        let mut tape = self.tape.lock();
        if mode == Mode::Record {
            *tape = Tape::default();
        }
        (tape.mode, tape.posted) = (mode, 0);
    }

    /// Repeats the recorded sends and receives in the same order, without anything between.
    pub(crate) fn play(&self) -> Result<()> {
        let events = self.tape.lock().events.clone();
        let mut pending = Vec::new();
        for event in events {
            match event {
                Event::Post(label, moves) => pending.push(self.inner.exchange(label, moves)?),
                Event::Take(index) => drop(pending[index].receive()?),
            }
        }
        Ok(())
    }
}

impl Wrapper for Taped {
    fn inner(&self) -> &dyn Communicator {
        &*self.inner
    }
    fn exchange(&self, label: Label, moves: Vec<P2pOp>) -> Result<Pending> {
        let mut tape = self.tape.lock();
        let index = tape.posted;
        tape.posted += 1;
        let inner = match tape.mode {
            Mode::Through => return self.inner.exchange(label, moves),
            Mode::Answer => None,
            Mode::Record => {
                tape.events.push(Event::Post(label, moves.clone()));
                tape.got.push(Vec::new());
                Some(self.inner.exchange(label, moves)?)
            }
        };
        Ok(Pending::new(Box::new(Taking { inner, tape: self.tape.clone(), index, taken: 0 })))
    }
    fn split(&self, label: Label, color: usize, key: usize) -> Result<Arc<dyn Communicator>> {
        self.inner.split(label, color, key)
    }
}

/// An exchange that is recorded, or answered from the recording.
struct Taking {
    /// The exchange of the inner communicator; `None`: it is answered from the recording.
    inner: Option<Pending>,
    tape: Arc<Mutex<Tape>>,
    index: usize,
    taken: usize,
}

impl Transfer for Taking {
    fn poll(&mut self) -> Result<()> {
        self.inner.as_mut().map_or(Ok(()), Pending::poll)
    }
    fn receive(&mut self) -> Result<Option<Tensor>> {
        let Some(inner) = &mut self.inner else {
            self.taken += 1;
            return Ok(self.tape.lock().got[self.index].get(self.taken - 1).cloned());
        };
        let got = inner.receive()?;
        let mut tape = self.tape.lock();
        tape.events.push(Event::Take(self.index));
        tape.got[self.index].extend(got.clone());
        Ok(got)
    }
}
