//! Communicators that fail on purpose, for tests.

use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use crate::{Communicator, Label, P2pOp, Pending, Result, Wrapper, payload};

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call comes late.
    Delay(Duration),
    /// What the call sends to other ranks is dropped, and so is all else with the same label.
    Drop,
    /// One bit of the first tensor sent to another rank is flipped.
    Corrupt,
    /// The rank panics.
    Die,
}

/// At which call a fault happens: the first with a matching label, which also sends something to another
/// rank if the fault concerns what is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct When {
    /// On which rank (of the wrapped communicator).
    pub rank: usize,
    /// In which pass, as in [`crate::Label::pass`].
    pub pass: &'static str,
    /// At which hop; `None`: the first call of the pass, whatever its hop.
    pub hop: Option<usize>,
    /// In which step and layer; `None`: in any.
    pub layer: Option<(u64, usize)>,
}

/// A communicator with one fault. Groups split from it have it too, and it happens once in all of
/// them. Collectives are made from its own exchange, so that their messages are hit too.
#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn Communicator>,
    /// `None` on ranks where nothing happens.
    shot: Option<Arc<Shot>>,
}

#[derive(Debug)]
struct Shot {
    when: When,
    fault: Fault,
    /// The label of the call at which it happened.
    fired: OnceLock<Label>,
}

impl Faulty {
    /// Wraps `inner`; all ranks must.
    pub fn new(inner: Arc<dyn Communicator>, when: When, fault: Fault) -> Arc<Faulty> {
        let shot = Shot { when, fault, fired: OnceLock::new() };
        let shot = (inner.rank() == when.rank).then(|| Arc::new(shot));
        Arc::new(Faulty { inner, shot })
    }

    /// Makes the fault happen if this is its call, which is about to post `moves`.
    fn strike(&self, label: Label, moves: &mut Vec<P2pOp>) -> Result<()> {
        let Some(shot) = &self.shot else { return Ok(()) };
        let Shot { when, fault, fired } = &**shot;
        let rank = self.rank();
        let leaves = |step: &P2pOp| matches!(step, P2pOp::Send { to, .. } if *to != rank);
        let concerned = match fault {
            Fault::Delay(_) | Fault::Die => true,
            Fault::Drop | Fault::Corrupt => moves.iter().any(leaves),
        };
        let matches = label.pass == when.pass
            && when.hop.is_none_or(|hop| hop == label.hop)
            && when.layer.is_none_or(|layer| layer == (label.step, label.layer));
        let again = *fault == Fault::Drop && fired.get() == Some(&label);
        if !(matches && concerned && fired.set(label).is_ok() || again) {
            return Ok(());
        }
        match fault {
            Fault::Delay(time) => thread::sleep(*time),
            Fault::Drop => moves.retain(|step| !leaves(step)),
            Fault::Corrupt => {
                if let Some(P2pOp::Send { tensor, .. }) = moves.iter_mut().find(|step| leaves(step))
                {
                    *tensor = payload::flip_bit(tensor)?;
                }
            }
            Fault::Die => panic!("died on purpose at {label}"),
        }
        Ok(())
    }
}

impl Wrapper for Faulty {
    fn inner(&self) -> &dyn Communicator {
        &*self.inner
    }
    fn exchange(&self, label: Label, mut moves: Vec<P2pOp>) -> Result<Pending> {
        self.strike(label, &mut moves)?;
        self.inner.exchange(label, moves)
    }
    fn split(&self, label: Label, color: usize, key: usize) -> Result<Arc<dyn Communicator>> {
        self.strike(label, &mut Vec::new())?;
        let inner = self.inner.split(label, color, key)?;
        Ok(Arc::new(Faulty { inner, shot: self.shot.clone() }))
    }
}
