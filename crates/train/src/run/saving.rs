//! When a step is saved, and by which ranks: rank 0 or, where processes hold shards of the state, every rank (`run/sharded_save.rs`).
//!
//! A run that is asked to stop ends wherever its ranks are, so the state it leaves is saved by ranks that nobody stops: those of a second
//! run over the same state.

use crate::step::finished::Finished;
use std::sync::Arc;

use annulus_comm::{Communicator, Label, all_gather_values};
use annulus_plan::Plan;
use parking_lot::Mutex;

use crate::run::attempt::Attempt;
use crate::run::recorder::Recorder;
use crate::run::sharded_save::{self, PendingSave};
use crate::step::slices::Slices;
use crate::step::state::parameters::RankParameters;
use crate::step::trainer::Trainer;
use crate::{Result, TrainError};

/// One rank of a run.
pub(crate) struct RankRun<'a> {
    pub(crate) trainer: Trainer,
    /// What records the run, on rank 0.
    pub(crate) recorder: Option<Recorder<'a>>,
    /// This rank's share of a checkpoint that is being written beside training.
    pub(crate) pending: Option<PendingSave>,
}

impl RankRun<'_> {
    /// Saves the last step: rank 0 all of it, or every rank its share.
    pub(crate) fn save(&mut self, plan: &Plan) -> Result<()> {
        if self.trainer.rank.setup.shards_state() {
            self.end_saving()?;
            let pending = sharded_save::save(self.trainer.finished(), plan, &mut self.recorder);
            self.pending = pending.map_err(|error| self.blamed(error))?;
            return Ok(());
        }
        let finished = self.trainer.finished();
        self.recorder.as_mut().map_or(Ok(()), |recorder| recorder.save(finished))
    }

    /// Lets rank 0 commit the checkpoint that ranks write beside training, once all have written their shares.
    pub(crate) fn look_after_saving(&mut self) -> Result<()> {
        if let Some(pending) = self.pending.take() {
            let comm = self.trainer.rank.comm.as_ref();
            let pending = pending.look(comm, self.trainer.finished, &mut self.recorder);
            self.pending = pending.map_err(|error| self.blamed(error))?;
        }
        Ok(())
    }

    /// `error` of a save, or that the run's folder is another, where rank 0 sees that this is the reason.
    fn blamed(&self, error: TrainError) -> TrainError {
        match &self.recorder {
            Some(recorder) => recorder.claim.blamed(error),
            None => error,
        }
    }

    /// Waits for the checkpoint that is being written beside training.
    pub(crate) fn end_saving(&mut self) -> Result<()> {
        let comm = self.trainer.rank.comm.as_ref();
        let ended = match self.pending.take() {
            Some(pending) => pending.end(comm, &mut self.recorder),
            None => Ok(()),
        };
        let settled = ended.and_then(|()| settle(comm, &mut self.recorder));
        settled.map_err(|error| self.blamed(error))
    }
}

/// By rank: the step that it has finished, which must be the same, whether it knows that step to be on disk, and the step that it still
/// writes.
fn agreed(comm: &dyn Communicator, own: [u64; 3]) -> Result<Vec<Vec<i64>>> {
    let label = Label { step: own[0], pass: "checkpoint, what is reached", ..Label::default() };
    let all = all_gather_values(comm, label, &own.map(|number| number as i64))?;
    if let Some(rank) = all.iter().position(|one| one[0] != all[0][0]) {
        let (one, other) = (all[0][0], all[rank][0]);
        let message = format!("rank {rank} has finished step {other}, rank 0 step {one}");
        return Err(TrainError::Internal(message));
    }
    Ok(all)
}

/// Waits for the checkpoint that rank 0 commits.
fn settle(comm: &dyn Communicator, recorder: &mut Option<Recorder<'_>>) -> Result<()> {
    recorder.as_mut().map_or(Ok(()), |recorder| recorder.settle_beside(comm))
}

/// Notes in the flight record what is being written.
pub(crate) fn noted(comm: &dyn Communicator, step: u64, pass: &'static str) {
    comm.note(Label { step, pass, ..Label::default() });
}

/// The last step that the ranks of a process have finished.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reached {
    pub(crate) step: u64,
    pub(crate) since: u64,
}

impl Attempt<'_> {
    /// Saves the step that all processes have reached, where each holds a shard of the state; `recorder` is that of rank 0.
    pub(crate) fn save_sharded<'r>(
        &self,
        reached: Reached,
        shares: Vec<Option<PendingSave>>,
        recorder: Option<Recorder<'r>>,
    ) -> Result<Option<Recorder<'r>>> {
        let (recorder, here) = (Mutex::new(recorder), shares.len());
        let shares: Vec<_> = shares.into_iter().map(Mutex::new).collect();
        let pens = self.on_ranks(Arc::default(), |comm| {
            let mut pen = None;
            if comm.rank() == 0 {
                pen = recorder.lock().take();
            }
            let share = &shares[comm.rank() % here];
            let begun = share.lock().take();
            self.save_share(&comm, reached, begun, &mut pen).map(|()| pen)
        })?;
        Ok(pens.into_iter().flatten().next())
    }

    /// Saves one rank's share, which may have begun to write an earlier step.
    fn save_share(
        &self,
        comm: &Arc<dyn Communicator>,
        reached: Reached,
        begun: Option<PendingSave>,
        recorder: &mut Option<Recorder<'_>>,
    ) -> Result<()> {
        let Reached { step, since } = reached;
        settle(comm.as_ref(), recorder)?;
        // Only rank 0 knows whether the step is on disk.
        let is_saved = recorder.as_ref().is_some_and(|recorder| recorder.saved == step);
        let begins = begun.as_ref().map_or(0, |share| share.step);
        let all = agreed(comm.as_ref(), [step, u64::from(is_saved), begins])?;
        if let Some(share) = begun
            && all.iter().all(|one| one[2] == all[0][2])
        {
            // A checkpoint that is already being written is finished first: it is on disk sooner than a new one.
            share.end(comm.as_ref(), recorder)?;
            settle(comm.as_ref(), recorder)?;
        }
        if all[0][1] == 1 || all.iter().all(|one| one[2] == one[0]) {
            return Ok(());
        }
        let (_, division) = self.setup.divided(comm)?;
        let state = RankParameters::of(&self.store, &division);
        let only_trained = self.setup.config.lora.is_some();
        let slices = Slices { state: &state, division: &division, only_trained };
        let finished = Finished { step, since, comm: comm.as_ref(), slices };
        // Training has ended, so there is nothing to do meanwhile: wait.
        if let Some(share) = sharded_save::save(finished, self.plan, recorder)? {
            share.end(comm.as_ref(), recorder)?;
        }
        settle(comm.as_ref(), recorder)
    }
}
