//! Communicators around others.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{Communicator, Label, P2pOp, Pending, Result, Watching};

/// A communicator that changes the exchanges of another one, and passes all other calls on. Its collectives are made from the changed
/// exchanges.
pub trait Wrapper: Send + Sync + fmt::Debug {
    /// The communicator inside.
    fn inner(&self) -> &dyn Communicator;
    /// Takes the place of [`Communicator::exchange`].
    ///
    /// # Errors
    /// As [`Communicator::exchange`], and the wrapper's own.
    fn exchange(&self, label: Label, moves: Vec<P2pOp>) -> Result<Pending>;
    /// Splits the communicator inside, and returns this wrapper around the group.
    ///
    /// # Errors
    /// As [`Communicator::split`].
    fn split(&self, label: Label, color: usize, key: usize) -> Result<Arc<dyn Communicator>>;
    /// Takes the place of [`Communicator::note`].
    fn note(&self, label: Label) {
        self.inner().note(label);
    }
}

impl<W: Wrapper> Communicator for W {
    fn rank(&self) -> usize {
        self.inner().rank()
    }
    fn world_size(&self) -> usize {
        self.inner().world_size()
    }
    fn global_rank(&self, rank: usize) -> usize {
        self.inner().global_rank(rank)
    }
    fn deadline(&self) -> Duration {
        self.inner().deadline()
    }
    fn exchange(&self, label: Label, moves: Vec<P2pOp>) -> Result<Pending> {
        Wrapper::exchange(self, label, moves)
    }
    fn split(&self, label: Label, color: usize, key: usize) -> Result<Arc<dyn Communicator>> {
        Wrapper::split(self, label, color, key)
    }
    fn note(&self, label: Label) {
        Wrapper::note(self, label);
    }
    fn begin_commit(&self) {
        self.inner().begin_commit();
    }
    fn end_commit(&self) {
        self.inner().end_commit();
    }
    fn progress(&self) -> Result<()> {
        self.inner().progress()
    }
    fn computes(&self) -> Result<()> {
        self.inner().computes()
    }
    fn watch(&self, label: Label, peer: usize) -> Box<dyn Watching + '_> {
        self.inner().watch(label, peer)
    }
}
