//! A communicator that counts the bytes and waiting of another.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::Tensor;
use parking_lot::Mutex;

use crate::{
    Communicator, Label, P2pOp, Pending, RankHosts, Reduce, Result, Transfer, Watching, payload,
};

/// What one rank handed to its communicator. Bytes are those of payloads; of a collective its input counts once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Payload bytes by [`crate::Label::pass`].
    pub bytes: BTreeMap<&'static str, u64>,
    /// Time spent waiting.
    pub waiting: Duration,
    /// The part of all bytes and waiting that is between hosts: sends to ranks of other hosts, waits for them, and collectives of ranks
    /// on several hosts.
    pub between_hosts: Flow,
}

/// Bytes and waiting over one kind of link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Bytes of payload that were handed over.
    pub bytes: u64,
    /// Time spent waiting.
    pub waiting: Duration,
}

impl Traffic {
    /// All bytes and waiting.
    pub fn total(&self) -> Flow {
        Flow { bytes: self.bytes.values().sum(), waiting: self.waiting }
    }

    /// Bytes and waiting within a host.
    pub fn within_host(&self) -> Flow {
        let (all, between) = (self.total(), self.between_hosts);
        Flow {
            bytes: all.bytes - between.bytes,
            waiting: all.waiting.saturating_sub(between.waiting),
        }
    }
}

/// A communicator that counts. Groups split from it count into the same totals.
#[derive(Debug)]
pub struct Metered {
    inner: Arc<dyn Communicator>,
    traffic: Totals,
    /// The processes and hosts of ranks, by their [`Communicator::global_rank`] numbers.
    hosts: RankHosts,
    /// Whether the ranks of this group are on several hosts.
    spread: bool,
}

impl Metered {
    /// Wraps `inner`, whose ranks are on one host.
    pub fn new(inner: Arc<dyn Communicator>) -> Arc<Metered> {
        let hosts = RankHosts::new([], inner.world_size());
        Metered::at(inner, hosts)
    }
    /// Wraps `inner`, whose ranks run on `hosts`.
    pub fn at(inner: Arc<dyn Communicator>, hosts: RankHosts) -> Arc<Metered> {
        Arc::new(Metered::of(inner, Totals::default(), hosts))
    }
    fn of(inner: Arc<dyn Communicator>, traffic: Totals, hosts: RankHosts) -> Metered {
        let metered = Metered { inner, traffic, hosts, spread: false };
        let spread =
            (0..metered.world_size()).any(|rank| metered.is_away(metered.global_rank(rank)));
        Metered { spread, ..metered }
    }
    /// Whether a rank, by its original number, is on another host than this one.
    fn is_away(&self, rank: usize) -> bool {
        self.hosts.are_apart(self.global_rank(self.rank()), rank)
    }
    /// Returns what was counted since the last call, and starts again from zero.
    pub fn take(&self) -> Traffic {
        self.traffic.with(mem::take)
    }
    /// Counts a collective that hands over `tensors`; all its time counts as waiting.
    fn collective<'a, T>(
        &self,
        label: Label,
        tensors: impl IntoIterator<Item = &'a Tensor>,
        run: impl FnOnce(&dyn Communicator) -> Result<T>,
    ) -> Result<T> {
        let bytes = tensors.into_iter().map(payload::bytes_of).sum();
        self.traffic.call(label, bytes, if self.spread { bytes } else { 0 });
        self.traffic.timed(self.spread, || run(&*self.inner))
    }
}

impl Communicator for Metered {
    fn rank(&self) -> usize {
        self.inner.rank()
    }
    fn world_size(&self) -> usize {
        self.inner.world_size()
    }
    fn global_rank(&self, rank: usize) -> usize {
        self.inner.global_rank(rank)
    }
    fn deadline(&self) -> Duration {
        self.inner.deadline()
    }
    fn exchange(&self, label: Label, moves: Vec<P2pOp>) -> Result<Pending> {
        let (mut bytes, mut between, mut senders) = (0, 0, Vec::new());
        for step in &moves {
            let (P2pOp::Send { to: peer, .. } | P2pOp::Receive { from: peer, .. }) = step;
            let away = self.is_away(self.global_rank(*peer));
            match step {
                P2pOp::Send { tensor, .. } => {
                    let size = payload::bytes_of(tensor);
                    bytes += size;
                    between += if away { size } else { 0 };
                }
                P2pOp::Receive { .. } => senders.push(away),
            }
        }
        self.traffic.call(label, bytes, between);
        let inner = self.inner.exchange(label, moves)?;
        let (traffic, senders) = (self.traffic.clone(), senders.into_iter());
        Ok(Pending::new(Box::new(Timed { inner, traffic, senders })))
    }
    fn all_gather(&self, label: Label, tensor: &Tensor) -> Result<Vec<Tensor>> {
        self.collective(label, [tensor], |inner| inner.all_gather(label, tensor))
    }
    fn reduce_scatter(&self, label: Label, parts: Vec<Tensor>) -> Result<Tensor> {
        self.collective(label, &parts.clone(), |inner| inner.reduce_scatter(label, parts))
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
        Ok(Arc::new(Metered::of(inner, self.traffic.clone(), self.hosts.clone())))
    }
    fn note(&self, label: Label) {
        self.inner.note(label);
    }
    fn begin_commit(&self) {
        self.inner.begin_commit();
    }
    fn end_commit(&self) {
        self.inner.end_commit();
    }
    fn progress(&self) -> Result<()> {
        self.inner.progress()
    }
    fn computes(&self) -> Result<()> {
        self.inner.computes()
    }
    fn watch(&self, label: Label, peer: usize) -> Box<dyn Watching + '_> {
        self.inner.watch(label, peer)
    }
}

/// The totals to which a communicator, its groups and their transfers add.
#[derive(Clone, Debug, Default)]
struct Totals(Arc<Mutex<Traffic>>);

impl Totals {
    fn with<T>(&self, change: impl FnOnce(&mut Traffic) -> T) -> T {
        change(&mut self.0.lock())
    }
    /// Counts a call that hands over so many bytes, `between` of them between hosts.
    fn call(&self, label: Label, bytes: u64, between: u64) {
        self.with(|traffic| {
            traffic.between_hosts.bytes += between;
            if bytes > 0 {
                *traffic.bytes.entry(label.pass).or_default() += bytes;
            }
        });
    }
    /// Counts the time of `wait`, for ranks of another host if `away`.
    fn timed<T>(&self, away: bool, wait: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = wait();
        let waited = start.elapsed();
        self.with(|traffic| {
            traffic.waiting += waited;
            if away {
                traffic.between_hosts.waiting += waited;
            }
        });
        result
    }
}

/// A transfer whose waits are timed.
struct Timed {
    inner: Pending,
    traffic: Totals,
    /// Whether each sender of the tensors that are still to come, in order, is on another host.
    senders: std::vec::IntoIter<bool>,
}

impl Transfer for Timed {
    fn poll(&mut self) -> Result<()> {
        self.inner.poll()
    }
    fn receive(&mut self) -> Result<Option<Tensor>> {
        // After the last tensor the wait is for what was sent to leave.
        let away = self.senders.next().unwrap_or_default();
        self.traffic.timed(away, || self.inner.receive())
    }
}
