//! Counts bytes, calls and waiting around any other communicator.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use candle_core::Tensor;

use crate::{Communicator, Label, Move, Pending, Reduce, Result, Transfer, payload};

/// What one rank handed to its communicator. A byte is payload; a collective counts its input once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Payload bytes by [`crate::Label::pass`].
    pub bytes: BTreeMap<&'static str, u64>,
    /// Calls.
    pub calls: u64,
    /// Time spent waiting.
    pub waiting: Duration,
    /// Time spent waiting for each peer, by its [`Communicator::original`] number (collectives: not
    /// attributed).
    pub waiting_for: BTreeMap<usize, Duration>,
}

/// A communicator that counts. Groups split from it count into the same totals.
#[derive(Debug)]
pub struct Metered {
    inner: Arc<dyn Communicator>,
    traffic: Totals,
}

impl Metered {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Communicator>) -> Arc<Metered> {
        Arc::new(Metered { inner, traffic: Totals::default() })
    }
    /// What was counted since the last call, and starts again from zero.
    pub fn take(&self) -> Traffic {
        self.traffic.with(mem::take)
    }
    /// A collective that hands over `tensors`: all its time is waiting.
    fn collective<'a, T>(
        &self,
        label: Label,
        tensors: impl IntoIterator<Item = &'a Tensor>,
        run: impl FnOnce(&dyn Communicator) -> Result<T>,
    ) -> Result<T> {
        self.traffic.call(label, tensors);
        self.traffic.timed(None, || run(&*self.inner))
    }
}

impl Communicator for Metered {
    fn rank(&self) -> usize {
        self.inner.rank()
    }
    fn world(&self) -> usize {
        self.inner.world()
    }
    fn original(&self, rank: usize) -> usize {
        self.inner.original(rank)
    }
    fn exchange(&self, label: Label, moves: Vec<Move>) -> Result<Pending> {
        let (mut sent, mut peers) = (Vec::new(), Vec::new());
        for step in &moves {
            match step {
                Move::Send { tensor, .. } => sent.push(tensor),
                Move::Receive { from } => peers.push(self.original(*from)),
            }
        }
        self.traffic.call(label, sent);
        let inner = self.inner.exchange(label, moves)?;
        let (traffic, peers) = (self.traffic.clone(), peers.into_iter());
        Ok(Pending::new(Box::new(Timed { inner, traffic, peers })))
    }
    fn all_gather(&self, label: Label, tensor: &Tensor) -> Result<Vec<Tensor>> {
        self.collective(label, [tensor], |inner| inner.all_gather(label, tensor))
    }
    fn reduce_scatter(&self, label: Label, parts: Vec<Tensor>) -> Result<Tensor> {
        self.collective(label, &parts.clone(), |inner| inner.reduce_scatter(label, parts))
    }
    fn all_to_all(&self, label: Label, parts: Vec<Tensor>) -> Result<Vec<Tensor>> {
        self.collective(label, &parts.clone(), |inner| inner.all_to_all(label, parts))
    }
    fn all_reduce(&self, label: Label, tensor: &Tensor, reduce: Reduce) -> Result<Tensor> {
        self.collective(label, [tensor], |inner| inner.all_reduce(label, tensor, reduce))
    }
    fn broadcast(&self, label: Label, tensor: Option<&Tensor>, root: usize) -> Result<Tensor> {
        let handed = tensor.filter(|_| self.rank() == root);
        self.collective(label, handed, |inner| inner.broadcast(label, tensor, root))
    }
    fn barrier(&self, label: Label) -> Result<()> {
        self.collective(label, [], |inner| inner.barrier(label))
    }
    fn split(&self, label: Label, color: usize, key: usize) -> Result<Arc<dyn Communicator>> {
        let inner = self.collective(label, [], |inner| inner.split(label, color, key))?;
        Ok(Arc::new(Metered { inner, traffic: self.traffic.clone() }))
    }
    fn note(&self, label: Label) {
        self.inner.note(label);
    }
    fn progress(&self) -> Result<()> {
        self.inner.progress()
    }
}

/// What a communicator, its groups and their transfers count into.
#[derive(Clone, Debug, Default)]
struct Totals(Arc<Mutex<Traffic>>);

impl Totals {
    fn with<T>(&self, change: impl FnOnce(&mut Traffic) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
    fn call<'a>(&self, label: Label, tensors: impl IntoIterator<Item = &'a Tensor>) {
        let bytes: u64 = tensors.into_iter().map(payload::size).sum();
        self.with(|traffic| {
            traffic.calls += 1;
            if bytes > 0 {
                *traffic.bytes.entry(label.pass).or_default() += bytes;
            }
        });
    }
    fn timed<T>(&self, peer: Option<usize>, wait: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = wait();
        let waited = start.elapsed();
        self.with(|traffic| {
            traffic.waiting += waited;
            if let Some(peer) = peer {
                *traffic.waiting_for.entry(peer).or_default() += waited;
            }
        });
        result
    }
}

/// A transfer whose waits are timed, each for the peer it waits for.
struct Timed {
    inner: Pending,
    traffic: Totals,
    /// Who sends the tensors that are still to come.
    peers: std::vec::IntoIter<usize>,
}

impl Transfer for Timed {
    fn poll(&mut self) -> Result<()> {
        self.inner.poll()
    }
    fn receive(&mut self) -> Result<Option<Tensor>> {
        let peer = self.peers.next();
        self.traffic.timed(peer, || self.inner.receive())
    }
}
