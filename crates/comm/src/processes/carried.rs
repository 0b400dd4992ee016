//! What a run's ranks hand to other processes: envelopes by MPI, and tensors by NCCL where all use it, else by MPI, too.

use std::sync::Arc;

use annulus_mpi::Leaving;

use super::envelope::{Envelope, News, Parcel};
use super::express::Express;
use super::office::{Letter, Shared};
use crate::threads::{self, Carrier, Ticket, lock};
use crate::{Error, Form, Label};

/// What a run's ranks leave for other processes.
pub(super) struct Carried {
    pub(super) shared: Arc<Shared>,
    pub(super) run: u64,
    /// Ranks of a process.
    pub(super) here: usize,
    pub(super) process: usize,
    /// By number of a process, its rank as MPI has it.
    pub(super) order: Vec<usize>,
    /// What goes by NCCL.
    pub(super) express: Option<Arc<Express>>,
}

impl Carried {
    fn post(&self, process: usize, news: News, payload: Option<Leaving>) {
        let to = self.order[process];
        let envelope = Envelope { run: self.run, news };
        lock(&self.shared.desk).letters.push_back(Letter { to, envelope, payload });
        self.shared.wake.notify_one();
    }

    fn tell(&self, news: impl Fn() -> News) {
        for to in (0..self.order.len()).filter(|to| *to != self.process) {
            self.post(to, news(), None);
        }
    }
}

impl Carrier for Carried {
    fn send(&self, from: usize, to: usize, parcel: threads::Parcel) -> candle_core::Result<()> {
        let mut announced = Parcel::new(from, to, &parcel);
        if let Some(express) = self.express.as_ref().filter(|express| express.takes(&parcel.tensor))
        {
            express.send((to, parcel.ticket), &parcel.tensor)?;
            announced.by_nccl = true;
            self.post(to / self.here, News::Parcel(announced), None);
            return Ok(());
        }
        let news = News::Parcel(announced);
        // On the sender's thread: a copy is its own, and one from a GPU comes behind what the rank has computed so far.
        let payload = Leaving::tensor(&parcel.tensor)?;
        self.post(to / self.here, news, Some(payload));
        Ok(())
    }
    fn posted(
        &self,
        label: Label,
        receives: Vec<(usize, Ticket, Option<Form>)>,
    ) -> candle_core::Result<()> {
        let express = self.express.as_ref();
        express.map_or(Ok(()), |express| express.post(label, receives))
    }
    fn is_coming(&self, from: usize, ticket: Ticket) -> bool {
        self.express.as_ref().is_some_and(|express| express.is_coming(from, ticket))
    }
    fn wait_to_leave(&self, to: usize, ticket: Ticket) -> Result<(), Error> {
        let express = self.express.as_ref();
        express.map_or(Ok(()), |express| express.wait_to_leave((to, ticket)))
    }
    fn holds_on(&self) -> bool {
        self.express.is_some()
    }
    fn wake(&self) {
        lock(&self.shared.desk).is_woken = true;
        self.shared.wake.notify_one();
    }
    fn failed(&self, rank: usize) {
        self.tell(|| News::Failed(rank));
    }
    fn left(&self, rank: usize) {
        self.tell(|| News::Left(rank));
    }
    fn stopped(&self) {
        self.tell(|| News::Stop);
    }
}
