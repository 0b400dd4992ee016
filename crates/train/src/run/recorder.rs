//! What rank 0 does besides computing: it writes measurements to their sinks and checkpoints to disk.

use std::collections::BTreeSet;
use std::path::PathBuf;

use annulus_comm::Communicator;
use annulus_experiment::tags::COMM_OVERLAP;
use annulus_model::Stage;
use annulus_plan::Plan;
use annulus_trace::{Span, Sums};

use crate::Result;
use crate::checkpoint::{Layouts, Pruned, Retention, State, Texts, VERSION, identity, prune, save};
use crate::error::failure;
use crate::folder::claim::Claim;
use crate::folder::curves::Curves;
use crate::folder::lines::Lines;
use crate::folder::manifest::StateHash;
use crate::folder::record::Record;
use crate::folder::traces::trace_of;
use crate::folder::write_atomically;
use crate::run::console::Console;
use crate::run::hashes::HashLines;
use crate::run::saving::noted;
use crate::run::writing::Writing;
use crate::sink::{Notice, Sink, Value};
use crate::step::finished::Finished;
use crate::step::hashes::Hashes;
use crate::step::hashes::points::Points;
use crate::step::measure::alive::{alive, calling};
use crate::step::measure::spans;
use crate::step::slices::copied::CopiedSlices;
use crate::step::trainer::Trainer;

/// Writer of everything that a run records; only rank 0 has one.
pub(crate) struct Recorder<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) output: PathBuf,
    /// Whether `output` still leads to this run's folder.
    pub(crate) claim: Claim,
    pub(crate) lines: Lines,
    pub(crate) curves: Curves,
    /// The writer of hashes, if the run hashes its state.
    pub(crate) hashes: Option<HashLines>,
    pub(crate) console: Console<'a>,
    pub(crate) record: Record,
    /// The data's fingerprint.
    pub(crate) data: String,
    /// What lies beside the weights of checkpoints.
    pub(crate) texts: Texts,
    /// The hash of the base weights beside which adapters lie.
    pub(crate) base: Option<String>,
    /// Steps and tokens before the attempt's first step.
    pub(crate) began: (u64, u64),
    /// The last step of which a checkpoint is on disk; 0: none.
    pub(crate) saved: u64,
    /// Steps whose checkpoints are known to be damaged.
    pub(crate) refused: Vec<u64>,
    /// Steps of which it was said that another run needs their checkpoints.
    pub(crate) needed: BTreeSet<u64>,
    /// The step of which a checkpoint is being written, and its thread.
    pub(crate) writing: Option<(u64, Writing<PathBuf>)>,
    /// Whether the warning was given that other ranks do not see the run's folder.
    pub(crate) warned: bool,
}

impl Recorder<'_> {
    /// Writes the values of a logged step to every sink.
    pub(crate) fn log(&mut self, step: u64, values: &[(&str, Value<'_>)]) -> Result<()> {
        if self.writing.as_ref().is_some_and(|(_, writing)| writing.is_done()) {
            self.settle()?;
        }
        self.claim.check()?;
        for (tag, value) in values {
            self.record.note(tag, step, value.number());
        }
        let failed = |error| failure("write to", &self.output, &error);
        self.lines.record(step, values).map_err(failed)?;
        self.curves.record(step, values).map_err(failed)?;
        self.record.warnings.extend(self.console.record(step, values));
        Ok(())
    }

    /// Writes the hashes of a step with these stages; warns of messages that were corrupted in transit.
    pub(crate) fn hash(
        &mut self,
        step: u64,
        hashes: &(Hashes, Points),
        stages: &[Box<dyn Stage>],
    ) -> Result<()> {
        let Some(lines) = &mut self.hashes else { return Ok(()) };
        self.claim.check()?;
        let written = lines.write(step, hashes, stages);
        let (hash, damaged) = written.map_err(|error| failure("write to", &self.output, &error))?;
        self.record.state = Some(StateHash { step, hash });
        if let Some((at, rank)) = damaged {
            let text = format!(
                "step {step}, {at}: a message from rank {rank} was corrupted in transit (`mesh.checksum: true` ends the run there)"
            );
            self.console.notice(&Notice::Warning(&text));
        }
        Ok(())
    }

    /// Saves a step of which this rank has everything, unless it is on disk. A request to stop does not end this; peers that may be waiting
    /// for this rank are told that it is alive.
    pub(crate) fn save(&mut self, finished: Finished<'_>) -> Result<()> {
        let Finished { step, since, comm, mut slices } = finished;
        self.settle_beside(comm)?;
        if step == self.saved {
            return Ok(());
        }
        let state = calling(comm, || self.state(step, since))?;
        let plan = self.plan;
        let layouts = Layouts::of(plan, &slices.weights(), &slices.optimizer())?;
        if plan.experiment.background_saves {
            let mut copied = alive(comm, || CopiedSlices::of(slices, comm.rank()))?;
            let (claim, texts) = (self.claim.clone(), self.texts.clone());
            let write = move || save(&claim, &texts, &state, &layouts, &mut copied, &|_| ());
            self.writing = Some((step, Writing::begin(&self.output, write)?));
            return Ok(());
        }
        let note = |pass| noted(comm, step, pass);
        let save = || save(&self.claim, &self.texts, &state, &layouts, &mut slices, &note);
        let folder = alive(comm, save)?;
        calling(comm, || self.is_saved(step, folder))
    }

    /// Tokens that were trained on up to the end of `step`, padding included; of a fork with those of the run that it was forked from.
    pub(crate) fn tokens_after(&self, step: u64) -> u64 {
        let (data, (first, before)) = (&self.plan.experiment.data, self.began);
        let each = (data.batch as u64).saturating_mul(data.tokens as u64);
        before.saturating_add((step - first).saturating_mul(each))
    }

    /// The state of the loop for a checkpoint of a step; first everything that was recorded is flushed to disk.
    pub(crate) fn state(&mut self, step: u64, since: u64) -> Result<State> {
        self.flush()?;
        if self.saved == self.began.0 {
            // Fewer may be wanted than at the last start, and the disk be full of them.
            self.prune()?;
        }
        Ok(State {
            moments: Some(since),
            version: VERSION,
            step,
            tokens: self.tokens_after(step),
            data: self.data.clone(),
            experiment: identity::resolved_text(self.plan),
            model: identity::model_text(self.plan),
            base: self.base.clone(),
        })
    }

    /// Waits for the checkpoint that is being written, if any.
    pub(crate) fn settle(&mut self) -> Result<()> {
        if let Some((step, mut writing)) = self.writing.take() {
            let folder = writing.wait()?;
            self.is_saved(step, folder)?;
        }
        Ok(())
    }

    /// Waits for the checkpoint that is being written, if any, telling peers meanwhile that this rank is alive.
    pub(crate) fn settle_beside(&mut self, comm: &dyn Communicator) -> Result<()> {
        alive(comm, || self.settle())
    }

    /// Notes that the checkpoint of a step is on disk, and removes old ones.
    pub(crate) fn is_saved(&mut self, step: u64, folder: PathBuf) -> Result<()> {
        self.saved = step;
        // If it was damaged, it has been replaced.
        self.refused.retain(|refused| *refused != step);
        self.prune()?;
        self.console.notice(&Notice::Saved { step, folder: &folder });
        self.record.checkpoint = Some(folder);
        Ok(())
    }

    /// Removes old checkpoints.
    fn prune(&mut self) -> Result<()> {
        let experiment = &self.plan.experiment;
        let (newest, best) = (experiment.keep, experiment.keep_best);
        let retention = Retention { newest, best, verified: self.saved };
        let Pruned { failed, needed } = prune(&self.claim, retention, &self.refused)?;
        for error in failed {
            // Too many checkpoints are no reason to stop.
            self.console.notice(&Notice::Warning(&error.to_string()));
        }
        for (step, why) in needed {
            if self.needed.insert(step) {
                self.console.notice(&Notice::Warning(&why));
            }
        }
        Ok(())
    }

    /// Writes the trace of the last step, and which share of its communication was hidden.
    pub(crate) fn trace(&mut self, trainer: &Trainer, ranks: Vec<Vec<Span>>) -> Result<()> {
        let step = trainer.finished;
        let places = trainer.rank.setup.rank_hosts();
        let trace = spans::trace(self.plan, step, ranks, &places);
        self.claim.check()?;
        let path = trace_of(&self.output, step);
        let write = || write_atomically(&path, trace.to_json().as_bytes());
        alive(trainer.rank.comm.as_ref(), write)
            .map_err(|error| failure("write", &path, &error))?;
        let overlap = Sums::of(&trace).total(|_, _, _| true).overlap();
        let log = |part| {
            let values = [(COMM_OVERLAP, Value::Number(part))];
            calling(trainer.rank.comm.as_ref(), || self.log(step, &values))
        };
        overlap.map_or(Ok(()), log)
    }

    /// Flushes to disk everything that was recorded, by every sink. The caller's own may take long.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.claim.check()?;
        let failed = |error| failure("write to", &self.output, &error);
        self.lines.flush().map_err(failed)?;
        self.curves.flush().map_err(failed)?;
        self.record.warnings.extend(self.console.flush());
        Ok(())
    }
}
