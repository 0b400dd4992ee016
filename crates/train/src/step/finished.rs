//! A finished step, to be saved, hashed or dumped.

use annulus_comm::Communicator;

use crate::step::slices::Slices;
use crate::step::trainer::Trainer;

/// A finished step, as one rank has it.
#[derive(Debug)]
pub(crate) struct Finished<'a> {
    pub(crate) step: u64,
    /// The step since which moments are accumulated.
    pub(crate) since: u64,
    pub(crate) comm: &'a dyn Communicator,
    pub(crate) slices: Slices<'a>,
}

impl Trainer {
    /// The last step.
    pub(crate) fn finished(&self) -> Finished<'_> {
        let (rank, step) = (&self.rank, self.finished);
        let only_trained = rank.setup.config.lora.is_some();
        let slices = Slices { state: &self.store, division: &rank.division, only_trained };
        Finished { step, since: self.since, comm: rank.comm.as_ref(), slices }
    }
}
