//! How the ranks of a run send to ranks of other processes: envelopes by MPI, and tensors by NCCL where all use it, otherwise by MPI, too.

use std::sync::Arc;

use annulus_mpi::Leaving;

use super::envelope::{ControlMessage, Envelope, TensorHeader};
use super::mpi_process::{OutgoingMessage, Shared};
use super::nccl_transfers::NcclTransfers;
use crate::threads::{self, Ticket, Transport};
use crate::{Error, Form, Label};

/// Sends for the ranks of one run that are threads of this process.
pub(super) struct RemoteTransport {
    pub(super) shared: Arc<Shared>,
    pub(super) run: u64,
    /// How many ranks each process has.
    pub(super) ranks_each: usize,
    pub(super) process: usize,
    /// Ranks of MPI by the number that a process has here.
    pub(super) order: Vec<usize>,
    /// What the run sends by NCCL; `None`: nothing.
    pub(super) nccl: Option<Arc<NcclTransfers>>,
}

impl RemoteTransport {
    fn post(&self, process: usize, message: ControlMessage, payload: Option<Leaving>) {
        let to = self.order[process];
        let envelope = Envelope { run: self.run, message };
        self.shared.state.lock().outgoing.push_back(OutgoingMessage { to, envelope, payload });
        self.shared.wake.notify_one();
    }

    fn post_to_all(&self, message: impl Fn() -> ControlMessage) {
        for to in (0..self.order.len()).filter(|to| *to != self.process) {
            self.post(to, message(), None);
        }
    }
}

impl Transport for RemoteTransport {
    fn send(&self, from: usize, to: usize, message: threads::Message) -> candle_core::Result<()> {
        let mut header = TensorHeader::new(from, to, &message);
        if let Some(transfers) =
            self.nccl.as_ref().filter(|transfers| transfers.takes(&message.tensor))
        {
            transfers.send((to, message.ticket), &message.tensor)?;
            header.by_nccl = true;
            self.post(to / self.ranks_each, ControlMessage::Tensor(header), None);
            return Ok(());
        }
        // On the sender's thread: the time of a copy is the sender's, and a copy from a GPU is ordered after what the rank has computed
        // so far.
        let payload = Leaving::tensor(&message.tensor)?;
        self.post(to / self.ranks_each, ControlMessage::Tensor(header), Some(payload));
        Ok(())
    }
    fn posted(
        &self,
        label: Label,
        receives: Vec<(usize, Ticket, Option<Form>)>,
    ) -> candle_core::Result<()> {
        let transfers = self.nccl.as_ref();
        transfers.map_or(Ok(()), |transfers| transfers.post(label, receives))
    }
    fn is_coming(&self, from: usize, ticket: Ticket) -> bool {
        self.nccl.as_ref().is_some_and(|transfers| transfers.is_coming(from, ticket))
    }
    fn wait_to_leave(&self, to: usize, ticket: Ticket) -> Result<(), Error> {
        let transfers = self.nccl.as_ref();
        transfers.map_or(Ok(()), |transfers| transfers.wait_to_leave((to, ticket)))
    }
    fn awaited(&self) -> Vec<usize> {
        self.nccl.as_ref().map_or(Vec::new(), |transfers| transfers.state().awaited.clone())
    }
    fn stops_by_agreement(&self) -> bool {
        self.nccl.is_some()
    }
    fn wake(&self) {
        self.shared.state.lock().is_woken = true;
        self.shared.wake.notify_one();
    }
    fn failed(&self, rank: usize) {
        self.post_to_all(|| ControlMessage::Failed(rank));
    }
    fn left(&self, rank: usize) {
        self.post_to_all(|| ControlMessage::Left(rank));
    }
    fn stopped(&self) {
        self.post_to_all(|| ControlMessage::Stop);
    }
}
