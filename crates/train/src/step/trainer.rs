//! One optimizer step.
//!
//! Backward differentiates the *sum* of losses, because the number of targets on all ranks is known only after it. The division by that
//! number is part of the factor that the optimizer multiplies gradients by:
//!
//! ```text
//! G = sum over ranks and micro-batches of d(sum of losses)      N = targets on all ranks
//! norm = |G| / N         factor = min(1, clip / (norm + 1e-6)) / N         clip 0: factor = 1 / N
//! ```

use std::sync::Arc;

use annulus_comm::{Axis, Hashed, Label};
use annulus_data::Source;
use annulus_experiment::tags::{TRAIN_GRAD_NORM, TRAIN_LOSS};
use annulus_experiment::{Experiment, PhaseStart, Schedule};
use annulus_memory::Class;
use annulus_model::Weights;
use annulus_ops::IGNORED;
use annulus_ops::attention::Dropout;
use annulus_plan::Plan;
use annulus_trace::begin;

use crate::setup::start::Start;
use crate::step::finite::{NonFinite, Origin, Sightings, earliest};
use crate::step::hashes::dump::Dump;
use crate::step::hashes::points::{PointHashes, Points};
use crate::step::hashes::{self, Hashes};
use crate::step::measure::alive::alive;
use crate::step::rank::{MicroBatch, Rank};
use crate::step::slices::Slices;
use crate::step::state::gathered::{Gathering, WeightSource, spread};
use crate::step::state::gradients::{Gradients, Summed, Sums, by_stage};
use crate::step::state::moments::OffloadedMoments;
use crate::step::state::optimizer::Update;
use crate::step::state::parameters::{RankParameters, Store};
use crate::step::sum::{Partial, Total};
use crate::{Result, TrainError};

/// One rank of a training run.
#[derive(Debug)]
pub(crate) struct Trainer {
    pub(crate) rank: Rank,
    /// The weights that the ranks of this process share, and this rank's slices of the state.
    pub(crate) store: RankParameters,
    /// By stage, the parameters whose gradients are complete when backward has finished the stage.
    stages: Vec<Vec<String>>,
    /// Whether an update is under way: until it ends, some slices are those of the step before, and others those of the new step.
    pub(crate) is_between: bool,
    source: Arc<dyn Source>,
    schedule: Schedule,
    /// Where in the run this phase's learning-rate curve, moments and data begin.
    phase: PhaseStart,
    peak: f64,
    clip: f64,
    /// The dropout of attention, as for the first sequence of a step; `None`: no dropout.
    dropout: Option<Dropout>,
    /// The experiment's seed.
    seed: u64,
    /// Steps between hashes of the state; 0: never.
    hash: u64,
    /// Hashes of the messages of a step that is hashed.
    messages: Option<Arc<Hashed>>,
    /// The hashes of the last step, if it was hashed.
    pub(crate) hashes: Option<(Hashes, Points)>,
    /// The step whose tensors are all written to files.
    dump: Option<Dump>,
    /// Whether a batch without a target is an error. Files may have such batches, as where a window of a long conversation has no answer.
    needs_targets: bool,
    /// What this rank counts of the visible pairs of the last step: see [`MicroBatch::pairs`].
    pub(crate) pairs: u64,
    /// Steps finished.
    pub(crate) finished: u64,
    /// The step since which moments are accumulated.
    pub(crate) since: u64,
}

/// The numbers of a step, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Report {
    /// The step, from 1.
    pub(crate) step: u64,
    pub(crate) loss: f64,
    pub(crate) norm: f64,
    pub(crate) learning_rate: f64,
}

/// The results of a step's passes over all ranks, before the step is applied.
#[derive(Debug)]
struct Computed {
    step: u64,
    loss: Total,
    norm: f64,
    pairs: u64,
    slices: Weights,
    /// If the step is hashed: the hashes of its weights, and those of what was computed.
    watched: Option<(Hashes, PointHashes)>,
}

impl Trainer {
    pub(crate) fn new(
        rank: Rank,
        plan: &Plan,
        source: Arc<dyn Source>,
        start: &Start,
        store: &Arc<Store>,
    ) -> Result<Trainer> {
        let experiment = &plan.experiment;
        let rank = rank.offloading()?;
        let comm = rank.comm.clone();
        let offload = rank.offload_of(Class::Optimizer)?;
        let offloaded = offload.map(|offload| OffloadedMoments::new(offload, comm));
        let store = alive(rank.comm.as_ref(), || {
            RankParameters::take(store, &experiment.optimizer, offloaded, start, &rank.division)
        })?;
        let stages = by_stage(&rank.model.stages, &store.parameters.trained)?;
        let dropout = dropout(experiment, &rank);
        Ok(Trainer {
            rank,
            store,
            stages,
            is_between: false,
            source,
            schedule: experiment.schedule.clone(),
            phase: experiment.phase_start(),
            peak: experiment.optimizer.learning_rate,
            clip: experiment.optimizer.clip,
            dropout,
            seed: experiment.seed,
            hash: experiment.every.hash,
            messages: None,
            hashes: None,
            dump: None,
            needs_targets: false,
            pairs: 0,
            finished: start.step,
            since: start.since,
        })
    }

    /// Sets the step whose tensors are all written down.
    pub(crate) fn dumping(self, dump: Option<Dump>) -> Trainer {
        Trainer { dump, ..self }
    }

    /// Makes a batch without a target an error.
    pub(crate) fn needing_targets(self) -> Trainer {
        Trainer { needs_targets: true, ..self }
    }

    /// Sets the `messages` whose hashes are kept in steps that are hashed.
    pub(crate) fn hashing(self, messages: Option<Arc<Hashed>>) -> Trainer {
        Trainer { messages, ..self }
    }

    /// Takes the next step. On an error nothing has changed: parameters and moments are those of the last finished step, unless
    /// [`Trainer::is_between`] is set.
    pub(crate) fn step(&mut self) -> Result<Report> {
        let stepped = self.all_or_nothing();
        self.rank.comm.end_commit();
        stepped
    }

    /// Runs a step that all ranks apply, or none: with the step's last sum a commit begins (`Communicator::begin_commit`), which the
    /// caller ends.
    fn all_or_nothing(&mut self) -> Result<Report> {
        let step = self.finished + 1;
        self.hashes = None;
        let computed = self.compute(step);
        if computed.is_err() {
            self.store.leave();
        }
        let computed = computed?;
        self.meet()?;
        self.is_between = true;
        let updating = begin();
        let learning_rate = self.apply(&computed)?;
        // Slices that others updated may still be under way to a GPU: if the transfer fails, the state is between two steps.
        self.rank.setup.processes.settle()?;
        // Before this meeting, others may not have updated what the next step reads.
        self.meet()?;
        self.is_between = false;
        (self.finished, self.pairs) = (step, computed.pairs);
        self.rank.stage(updating, || String::from("optimizer"))?;
        self.hash(&computed)?;
        if let Some(dump) = self.dump.as_ref().filter(|dump| dump.step == step) {
            dump.write(self.finished(), &computed.slices)?;
        }
        let Computed { loss, norm, .. } = computed;
        Ok(Report { step, loss: loss.mean(), norm, learning_rate })
    }

    /// Begins to hash step `step`, if it is due: returns the hashes of its weights, and where those of what it computes go.
    fn watch(&self, step: u64) -> Result<Option<(Hashes, PointHashes)>> {
        if self.hash == 0 || !step.is_multiple_of(self.hash) {
            return Ok(None);
        }
        if let Some(messages) = &self.messages {
            messages.begin();
        }
        let all = Slices { only_trained: false, ..self.finished().slices };
        Ok(Some((hashes::of_weights(&all)?, PointHashes::default())))
    }

    /// Hashes the gradients and the new state of a step that is hashed.
    fn hash(&mut self, Computed { step, slices, watched, .. }: &Computed) -> Result<()> {
        let Some((weights, found)) = watched else { return Ok(()) };
        let (hashing, comm) = (begin(), self.rank.comm.as_ref());
        let messages = self.messages.as_ref().map(|messages| messages.take()).unwrap_or_default();
        let stages = self.stages.len();
        let points = Points::own(weights, found, comm.rank(), messages, stages);
        let own = self.finished().slices;
        let mut hashes = hashes::of_gradients(&own, slices)?;
        hashes.extend(hashes::of_weights(&own)?);
        hashes.extend(hashes::of_kept(&own)?);
        let hashes = hashes::gather(comm, *step, &hashes)?;
        self.hashes = Some((hashes, points.gather(comm, *step)?));
        self.rank.stage(hashing, || String::from("hashes"))
    }

    /// Loss and gradients over all ranks; the state does not change.
    fn compute(&self, step: u64) -> Result<Computed> {
        let watched = self.watch(step)?;
        let reading = begin();
        let (micros, sequences) = self.read(step, watched.as_ref().map(|(_, found)| found))?;
        self.rank.stage(reading, || String::from("batch"))?;
        let mut gradients = Gradients::default();
        let mut sums = self.sums(step);
        let mut loss = Partial::default();
        let mut sightings = Sightings::new();
        let mut weights = self.weights(step);
        let last = micros.len().saturating_sub(1);
        for (index, micro) in micros.iter().enumerate() {
            sums.next(&self.rank.backend, index == last)?;
            weights.prefetch_next_forward(index < last);
            let mut after = |stage: usize, gradients: &mut Gradients| {
                sums.post(&self.rank.backend, gradients, &self.stages[stage])
            };
            let found = self.rank.backward(&mut weights, micro, &mut gradients, &mut after)?;
            loss += found.loss;
            sightings.push(found.sighting);
        }
        drop(weights);
        let summing = begin();
        let loss = loss.total(&self.rank.mesh, sums.label())?;
        // A rank that has contributed to the last sum goes on if all have, even in a run that is to stop: all end after the same step.
        self.rank.comm.begin_commit();
        let Summed { slices, norm } = sums.end(&self.rank.backend)?;
        self.rank.stage(summing, || String::from("sum of gradients"))?;
        self.rank.room.keep();
        let norm = norm / loss.divisor();
        self.check_targets(step, loss)?;
        self.check_finite(step, loss, norm, &sightings, sequences)?;
        let pairs = micros.iter().map(|micro| micro.pairs).sum();
        Ok(Computed { step, loss, norm, pairs, slices, watched })
    }

    /// The sums of a step's gradients.
    fn sums(&self, step: u64) -> Sums<'_> {
        let Rank { division, backend, .. } = &self.rank;
        Sums::new(division, backend, &self.store.parameters, step)
    }

    /// Where the passes of step `step` get the weights.
    pub(crate) fn weights(&self, step: u64) -> WeightSource<'_> {
        if self.rank.division.shards_weights() {
            WeightSource::Sharded(Gathering::new(&self.rank, &self.store, step))
        } else {
            WeightSource::Whole(&self.store.parameters.weights)
        }
    }

    /// Updates this rank's slices and, where other holders update the rest, gathers theirs; returns the learning rate.
    fn apply(&self, computed: &Computed) -> Result<f64> {
        let Computed { step, loss, norm, slices, .. } = computed;
        let scheduled = self.finished - self.phase.schedule;
        let learning_rate = self.schedule.learning_rate(self.peak, scheduled);
        let factor = self.factor(*loss, *norm);
        let update = Update { step: step - self.since, learning_rate, factor };
        if let Some(optimizer) = self.store.optimizer() {
            optimizer.update(&self.rank.backend, slices, update)?;
        }
        let division = &self.rank.division;
        if division.shards_optimizer() && !division.shards_weights() {
            spread(&self.rank, &self.store, &self.stages, *step)?;
        }
        Ok(learning_rate)
    }

    /// Waits for the other ranks of this process.
    fn meet(&self) -> Result<()> {
        let label = Label { pass: "commit", ..self.label() };
        let ranks = self.rank.division.process_ranks();
        self.rank.meet(self.store.commit(), ranks, (), |_| (), label).map(drop)
    }

    /// The label of the next step's messages.
    fn label(&self) -> Label {
        Label { step: self.finished + 1, ..Label::default() }
    }

    /// This rank's micro-batches of step `step`, and how many sequences the step has on all ranks. It never reads rows of other replicas or
    /// tokens at other ranks' positions.
    fn read(&self, step: u64, found: Option<&PointHashes>) -> Result<(Vec<MicroBatch>, usize)> {
        let batch = self.finished - self.phase.steps.start + self.phase.batch;
        let sequences = self.source.rows();
        let micros = self.rank.micro_batches(sequences).map(|rows| {
            let first = rows.start;
            let micro = self.rank.micro_batch(step, rows.len(), |positions, into| {
                Ok(self.source.read(batch, rows, positions, into)?)
            })?;
            micro.dropping(self.dropout, self.seed, first)?.watched(found, first)
        });
        Ok((micros.collect::<Result<_>>()?, sequences))
    }

    fn factor(&self, loss: Total, norm: f64) -> f64 {
        let clipped = if self.clip > 0.0 { (self.clip / (norm + 1e-6)).min(1.0) } else { 1.0 };
        clipped / loss.divisor()
    }

    /// An error if a step that needs targets has none. The loss is a sum over all ranks, so all ranks decide alike.
    fn check_targets(&self, step: u64, loss: Total) -> Result<()> {
        if loss.count() > 0 || !self.needs_targets {
            return Ok(());
        }
        Err(without_targets(format!("no sequence of step {step} has a target")))
    }

    /// An error if a step's loss or norm is not finite. Both are sums over all ranks, so all ranks decide alike.
    fn check_finite(
        &self,
        step: u64,
        loss: Total,
        norm: f64,
        sightings: &Sightings,
        batch: usize,
    ) -> Result<()> {
        let (tag, value) = match (loss.mean().is_finite(), norm.is_finite()) {
            (true, true) => return Ok(()),
            (false, _) => (TRAIN_LOSS, loss.mean()),
            (true, false) => (TRAIN_GRAD_NORM, norm),
        };
        let rank = &self.rank;
        let label = Label { step, pass: "non-finite", hop: 0, layer: 0 };
        let found = earliest(rank.comm.as_ref(), label, sightings)?;
        let (origin, sequences) = match found {
            None => (None, 0..batch),
            Some((stage, micro, at)) => {
                let share = rank.share_of(rank.mesh.grid().coordinate(at, Axis::Data), batch);
                let first = share.start + micro * rank.setup.micro_batch;
                let last = (first + rank.setup.micro_batch).min(share.end);
                let stage = rank.model.stages[stage].parameters()[0].clone();
                (Some(Origin { rank: at, stage }), first..last)
            }
        };
        let found = NonFinite { step, tag, value, origin, sequences, run: None };
        Err(TrainError::NonFinite(Box::new(found)))
    }
}

/// The error for sequences without a target, of which a loss of 0 would look perfect.
pub(crate) fn without_targets(message: String) -> TrainError {
    let hint = format!("give targets that are not {IGNORED}, which stands for none");
    TrainError::configuration(message, hint)
}

/// The dropout of attention weights in a run. The weights to drop follow from step and layer, which are filled in later.
fn dropout(experiment: &Experiment, rank: &Rank) -> Option<Dropout> {
    let (seed, probability) = (experiment.seed, experiment.attention.dropout);
    let heads = rank.setup.config.shape.part_of(rank.setup.tensor).num_attention_heads;
    let head = heads * rank.mesh.group(&[Axis::Tensor]).rank();
    let none = Dropout { seed, probability, step: 0, layer: 0, sequence: 0, head };
    Some(none).filter(|_| probability > 0.0)
}
