//! A checksum sent with every tensor, for engines between machines.

use std::sync::Arc;

use candle_core::Tensor;

use crate::{Communicator, Error, Label, P2pOp, Pending, Result, Transfer, Wrapper, payload};

/// A communicator that detects damaged tensors, and fails with [`Error::Corrupt`]. Collectives are
/// made from its own exchange, so that damage is detected there too.
#[derive(Debug)]
pub struct Checked {
    inner: Arc<dyn Communicator>,
}

impl Checked {
    /// Wraps `inner`; all ranks must.
    pub fn new(inner: Arc<dyn Communicator>) -> Arc<Checked> {
        Arc::new(Checked { inner })
    }
}

impl Wrapper for Checked {
    fn inner(&self) -> &dyn Communicator {
        &*self.inner
    }
    fn exchange(&self, label: Label, moves: Vec<P2pOp>) -> Result<Pending> {
        let rank = self.global_rank(self.rank());
        let mut peers = Vec::new();
        let mut doubled = Vec::with_capacity(2 * moves.len());
        for step in moves {
            let second = match &step {
                P2pOp::Send { tensor, to, .. } => {
                    let tensor = payload::checksum(tensor)?;
                    P2pOp::Send { tensor, to: *to }
                }
                &P2pOp::Receive { from, .. } => {
                    peers.push(self.global_rank(from));
                    P2pOp::Receive { from, form: Some(payload::form_of_checksum()) }
                }
            };
            doubled.extend([step, second]);
        }
        let inner = self.inner.exchange(label, doubled)?;
        let peers = peers.into_iter();
        Ok(Pending::new(Box::new(Comparing { inner, rank, label, peers })))
    }
    fn split(&self, label: Label, color: usize, key: usize) -> Result<Arc<dyn Communicator>> {
        Ok(Checked::new(self.inner.split(label, color, key)?))
    }
}

/// A transfer in which every tensor is followed by its checksum.
struct Comparing {
    inner: Pending,
    rank: usize,
    label: Label,
    /// The senders of the tensors that are still to come, in order.
    peers: std::vec::IntoIter<usize>,
}

impl Transfer for Comparing {
    fn poll(&mut self) -> Result<()> {
        self.inner.poll()
    }
    fn receive(&mut self) -> Result<Option<Tensor>> {
        let Some(tensor) = self.inner.receive()? else { return Ok(None) };
        let Comparing { rank, label, .. } = *self;
        let peer = self.peers.next().unwrap_or(rank);
        let corrupt = || Error::Corrupt { rank, peer, label };
        let wanted = self.inner.receive()?.ok_or_else(corrupt)?;
        let same = wanted.to_scalar::<i64>()? == payload::checksum(&tensor)?.to_scalar::<i64>()?;
        if same { Ok(Some(tensor)) } else { Err(corrupt()) }
    }
}
