//! Hashes of messages, to find where two runs that should be equal differ, and which message was damaged on its way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use candle_core::Tensor;
use parking_lot::Mutex;

use crate::{Communicator, Label, P2pOp, Pending, Result, Transfer, Wrapper, payload};

/// Hashes of what one rank sent and received under a label. A hash is a sum over messages; each summand mixes the message's elements,
/// its receiver, and how many messages of its exchange went there before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exchanged {
    /// The hash of all that it sent to others.
    pub sent: u64,
    /// Hashes of what came, by the sender's [`Communicator::global_rank`] number. Summed over all receivers they equal the sender's `sent`,
    /// unless a message was damaged.
    pub came: BTreeMap<usize, u64>,
}

/// A communicator that hashes messages between [`Hashed::begin`] and [`Hashed::take`], its groups' among them. Collectives are made from
/// its own exchange, so that their messages are hashed too.
#[derive(Debug)]
pub struct Hashed {
    inner: Arc<dyn Communicator>,
    ledger: Arc<Ledger>,
}

#[derive(Debug, Default)]
struct Ledger {
    is_on: AtomicBool,
    found: Mutex<BTreeMap<Label, Exchanged>>,
}

impl Hashed {
    /// Wraps `inner`, hashing nothing yet.
    pub fn new(inner: Arc<dyn Communicator>) -> Arc<Hashed> {
        Arc::new(Hashed { inner, ledger: Arc::default() })
    }

    /// Hashes what is posted from now on.
    pub fn begin(&self) {
        self.ledger.with(BTreeMap::clear);
        self.ledger.is_on.store(true, Ordering::Relaxed);
    }

    /// Stops hashing, and returns the hashes since [`Hashed::begin`], by label.
    pub fn take(&self) -> BTreeMap<Label, Exchanged> {
        self.ledger.is_on.store(false, Ordering::Relaxed);
        self.ledger.with(std::mem::take)
    }
}

impl Ledger {
    fn with<T>(&self, change: impl FnOnce(&mut BTreeMap<Label, Exchanged>) -> T) -> T {
        change(&mut self.found.lock())
    }

    fn add(&self, label: Label, hash: impl FnOnce(&mut Exchanged) -> &mut u64, one: u64) {
        self.with(|found| {
            let hash = hash(found.entry(label).or_default());
            *hash = hash.wrapping_add(one);
        });
    }
}

/// How many messages of an exchange went to each peer, or came from it.
#[derive(Default)]
struct Counts(BTreeMap<usize, u64>);

impl Counts {
    /// The hash of the next message between this rank and a peer, which is for rank `to`.
    fn hash(&mut self, tensor: &Tensor, peer: usize, to: usize) -> Result<u64> {
        let count = self.0.entry(peer).or_default();
        *count += 1;
        payload::mixed(tensor, [to as u64, *count])
    }
}

impl Wrapper for Hashed {
    fn inner(&self) -> &dyn Communicator {
        &*self.inner
    }
    fn exchange(&self, label: Label, moves: Vec<P2pOp>) -> Result<Pending> {
        if !self.ledger.is_on.load(Ordering::Relaxed) {
            return self.inner.exchange(label, moves);
        }
        let (own, mut counts, mut peers) =
            (self.global_rank(self.rank()), Counts::default(), Vec::new());
        for step in &moves {
            match step {
                P2pOp::Receive { from, .. } => peers.push(self.global_rank(*from)),
                P2pOp::Send { to, .. } if *to == self.rank() => {}
                P2pOp::Send { tensor, to, .. } => {
                    let to = self.global_rank(*to);
                    let hash = counts.hash(tensor, to, to)?;
                    self.ledger.add(label, |found| &mut found.sent, hash);
                }
            }
        }
        let inner = self.inner.exchange(label, moves)?;
        let (ledger, peers, counts) = (self.ledger.clone(), peers.into_iter(), Counts::default());
        Ok(Pending::new(Box::new(Hashing { inner, ledger, label, own, peers, counts })))
    }
    fn split(&self, label: Label, color: usize, key: usize) -> Result<Arc<dyn Communicator>> {
        let inner = self.inner.split(label, color, key)?;
        Ok(Arc::new(Hashed { inner, ledger: self.ledger.clone() }))
    }
}

/// A transfer that hashes what it receives.
struct Hashing {
    inner: Pending,
    ledger: Arc<Ledger>,
    label: Label,
    own: usize,
    /// The senders of the tensors that are still to come, in order.
    peers: std::vec::IntoIter<usize>,
    counts: Counts,
}

impl Transfer for Hashing {
    fn poll(&mut self) -> Result<()> {
        self.inner.poll()
    }
    fn receive(&mut self) -> Result<Option<Tensor>> {
        let came = self.inner.receive()?;
        if let (Some(tensor), Some(peer)) = (&came, self.peers.next())
            && peer != self.own
        {
            let hash = self.counts.hash(tensor, peer, self.own)?;
            self.ledger.add(self.label, |found| found.came.entry(peer).or_default(), hash);
        }
        Ok(came)
    }
}
