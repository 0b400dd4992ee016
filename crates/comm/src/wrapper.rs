//! Communicators around others.

use std::fmt;
use std::sync::Arc;

use crate::{Communicator, Label, Move, Pending, Result, Watching};

/// A communicator that changes what another one does with exchanges, and leaves the rest to it. Collectives are made from its own
/// exchanges.
pub trait Wrapper: Send + Sync + fmt::Debug {
    /// The one inside.
    fn inner(&self) -> &dyn Communicator;
    /// Takes the place of [`Communicator::exchange`].
    ///
    /// # Errors
    /// Those of the one inside, and its own.
    fn exchange(&self, label: Label, moves: Vec<Move>) -> Result<Pending>;
    /// The same around a group that the one inside was split into.
    ///
    /// # Errors
    /// Those of the one inside, and its own.
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
    fn world(&self) -> usize {
        self.inner().world()
    }
    fn original(&self, rank: usize) -> usize {
        self.inner().original(rank)
    }
    fn exchange(&self, label: Label, moves: Vec<Move>) -> Result<Pending> {
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
    fn watch(&self, label: Label, peer: usize) -> Box<dyn Watching + '_> {
        self.inner().watch(label, peer)
    }
}
