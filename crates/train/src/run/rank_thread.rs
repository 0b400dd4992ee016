//! The ranks of an attempt, from their start to their end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use annulus_comm::threads::Options;
use annulus_comm::{Checked, Communicator, Hashed};

use crate::folder::record::Record;
use crate::run::attempt::Attempt;
use crate::run::outcome::Ending;
use crate::run::recorder::Recorder;
use crate::run::saving::{RankRun, Reached};
use crate::run::sharded_save::PendingSave;
use crate::run::train_loop::TrainLoop;
use crate::setup::pages::return_what_was_freed;
use crate::setup::start::Start;
use crate::step::trainer::Trainer;
use crate::{Result, TrainError};

/// How one rank ended.
struct End<'a> {
    ending: Ending,
    reached: Reached,
    /// What the rank still writes of a checkpoint of which every rank writes its share.
    pending: Option<PendingSave>,
    recorder: Option<Recorder<'a>>,
}

impl<'a> Attempt<'a> {
    /// Runs all ranks to their end: returns how the attempt ended, after which step, and the record.
    pub(crate) fn run(&self) -> Result<(Ending, u64, Record)> {
        let mut ends = self.on_ranks(self.stop.clone(), |comm| self.rank(comm))?;
        let pending = ends.iter_mut().map(|end| end.pending.take()).collect();
        // The process's first rank; only rank 0 has a recorder.
        let End { ending, reached, mut recorder, .. } = ends.swap_remove(0);
        if self.setup.shards_state() {
            recorder = self.save_sharded(reached, pending, recorder)?;
        }
        if let Some(recorder) = &mut recorder {
            recorder.flush()?;
        }
        let record = recorder.map(|recorder| recorder.record);
        Ok((ending, reached.step, record.unwrap_or_default()))
    }

    /// Runs `program` on all ranks, until `stop` is set: messages have checksums if the experiment says so, and a rank's error is noted in
    /// its flight record.
    pub(crate) fn on_ranks<T: Send>(
        &self,
        stop: Arc<AtomicBool>,
        program: impl Fn(Arc<dyn Communicator>) -> Result<T> + Send + Sync,
    ) -> Result<Vec<T>> {
        let setup = &self.setup;
        let options = Options { world: setup.world(), deadline: setup.deadline, stop };
        let checked = self.plan.experiment.mesh.checksum;
        let program = |comm: Arc<dyn Communicator>| {
            let rank = comm.rank();
            let comm = if checked { Checked::new(comm) } else { comm };
            program(comm).inspect_err(|error| {
                if !error.is_of_another() {
                    self.world.failed(rank, &error.to_string(), error.blames());
                }
            })
        };
        Ok(setup.joined().run(&options, program)?)
    }

    /// Runs one rank from its start to its end.
    fn rank(&self, comm: Arc<dyn Communicator>) -> Result<End<'a>> {
        let start = self.start.take(comm.rank());
        let recorder = match comm.rank() {
            0 => self.recorder.lock().take(),
            _ => None,
        };
        let reached = Reached { step: start.step, since: start.since };
        let trainer = self.trainer(comm, &start);
        drop(start);
        return_what_was_freed();
        let trainer = match trainer {
            Ok(trainer) => trainer,
            Err(error) => {
                self.preempted(error)?;
                return Ok(End { ending: Ending::Preempted, reached, pending: None, recorder });
            }
        };
        let mut rank = RankRun { trainer, recorder, pending: None };
        let ending = self.to_the_end(&mut rank)?;
        if !self.setup.shards_state() {
            rank.save(self.plan)?;
            rank.end_saving()?;
        }
        let RankRun { trainer, recorder, pending } = rank;
        let reached = Reached { step: trainer.finished, since: trainer.since };
        Ok(End { ending, reached, pending, recorder })
    }

    /// Trains all steps on one rank.
    fn to_the_end(&self, rank: &mut RankRun<'_>) -> Result<Ending> {
        match self.course().run(rank) {
            Ok(()) => Ok(Ending::Finished),
            // A half-applied step leaves a state that can be neither saved nor trained further.
            Err(error) if rank.trainer.is_between => Err(error),
            Err(error) => {
                if matches!(error, TrainError::NonFinite(_) | TrainError::NotANumber { .. }) {
                    // All ranks have the same loss, so all end here. The checkpoint that was begun before is still written.
                    let _ = rank.end_saving();
                }
                if !self.setup.shards_state() && error.leaves_steps_whole() {
                    // The error that ended the run is reported, whether this checkpoint can be written or not.
                    let _ = rank.save(self.plan);
                    let _ = rank.end_saving();
                }
                self.preempted(error)?;
                Ok(Ending::Preempted)
            }
        }
    }

    fn trainer(&self, comm: Arc<dyn Communicator>, start: &Start) -> Result<Trainer> {
        let is_hashed = self.plan.experiment.every.hash > 0;
        let messages = is_hashed.then(|| Hashed::new(comm.clone()));
        let comm = messages.clone().map_or(comm, |messages| messages);
        let rank = self.setup.rank(comm)?.within(&self.room);
        let source = self.data.train.clone();
        let trainer = Trainer::new(rank, self.plan, source, start, &self.store)?;
        Ok(trainer.dumping(self.dump.clone()).hashing(messages))
    }

    fn course(&self) -> TrainLoop<'_> {
        let experiment = &self.plan.experiment;
        TrainLoop {
            plan: self.plan,
            last: experiment.last_step(),
            every: experiment.every,
            trace: &experiment.trace,
            tokens: experiment.data.batch * experiment.data.tokens,
            peak: self.peak,
            // Inspecting a step needs no evaluation.
            held_out: self.data.held_out.as_ref().filter(|_| self.dump.is_none()),
            begins: self.begins,
            owes: self.owes,
            process: self.process,
            stop: &self.stop,
        }
    }

    /// Ok if `error` is the end that was asked for, else the error itself.
    fn preempted(&self, error: TrainError) -> Result<()> {
        if error.is_end() && self.stop.load(Ordering::Relaxed) { Ok(()) } else { Err(error) }
    }
}
