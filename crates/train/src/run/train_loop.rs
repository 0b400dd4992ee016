//! The training loop of one rank: steps, and what is due after them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use annulus_comm::{Communicator, Error as CommError, Label, all_gather_values};
use annulus_experiment::{DocumentBounds, Every, Trace, tags};
use annulus_plan::Plan;
use annulus_trace::Span;

use crate::Result;
use crate::ask::evaluate::Evaluation;
use crate::run::saving::RankRun;
use crate::setup::data::HeldOut;
use crate::sink::{Notice, Value};
use crate::step::measure::alive::calling;
use crate::step::measure::resident::OfProcess;
use crate::step::measure::spans::{gathered, recorded};
use crate::step::measure::statistics::{self, Costs, Lap};
use crate::step::rank::Rank;
use crate::step::trainer::{Report, Trainer};

/// The settings of a training loop.
pub(crate) struct TrainLoop<'a> {
    pub(crate) plan: &'a Plan,
    /// The step after which the loop ends.
    pub(crate) last: u64,
    pub(crate) every: Every,
    /// The steps that are traced.
    pub(crate) trace: &'a Trace,
    /// Tokens that are trained on per step.
    pub(crate) tokens: usize,
    /// The most operations per second that the machine can do, where that is known.
    pub(crate) peak: Option<f64>,
    pub(crate) held_out: Option<&'a HeldOut>,
    /// Whether the run begins with this attempt: a fork begins after a step of another run.
    pub(crate) begins: bool,
    /// Whether the step that the attempt begins after has not been evaluated; known only to process 0.
    pub(crate) owes: bool,
    /// Memory of this process before its ranks began.
    pub(crate) process: OfProcess,
    /// Whether this process was asked to stop.
    pub(crate) stop: &'a AtomicBool,
}

/// Whether something that is done every `every` steps (0: never) and at the end is due after step `step`.
fn due(every: u64, step: u64, last: u64) -> bool {
    step == last || (every > 0 && step.is_multiple_of(every))
}

impl<'a> TrainLoop<'a> {
    /// Trains to the end; rank 0 has a recorder. All ranks make the same calls: none depends on having one.
    pub(crate) fn run(&self, rank: &mut RankRun<'_>) -> Result<()> {
        let (mut lap, mut saved) = (Lap::default(), Instant::now());
        self.catch_up(rank)?;
        while rank.trainer.finished < self.last {
            self.check_stop(&rank.trainer)?;
            let RankRun { trainer, recorder, .. } = rank;
            statistics::begin(&trainer.rank);
            let traced = self.trace.contains(trainer.finished + 1);
            let (report, spans) = lap.time(|| recorded(traced, || trainer.step()));
            lap.handed(trainer.rank.meter.take());
            let report = report?;
            lap.saw(trainer.pairs);
            if let Some(recorder) = recorder {
                recorder.record.losses.push((report.step, report.loss));
            }
            if let (Some(recorder), Some(hashes)) = (recorder.as_mut(), trainer.hashes.take()) {
                let hash = || recorder.hash(report.step, &hashes, &trainer.rank.model.stages);
                calling(trainer.rank.comm.as_ref(), hash)?;
            }
            self.log(rank, &report, &mut lap)?;
            if let Some(spans) = spans {
                keep(rank, spans)?;
            }
            self.check_stop(&rank.trainer)?;
            rank.look_after_saving()?;
            let is_due = due(self.every.checkpoint, report.step, self.last);
            if is_due || self.is_long_since(saved, rank)? {
                rank.save(self.plan)?;
                saved = Instant::now();
            }
        }
        rank.end_saving()
    }

    /// Measures, evaluates and logs a step, where that is due. If interrupted, the step is still logged, with what is known of it: it is
    /// finished.
    fn log(&self, rank: &mut RankRun<'_>, report: &Report, lap: &mut Lap) -> Result<()> {
        let step = report.step;
        let evaluate = self.held_out.filter(|_| due(self.every.evaluate, step, self.last));
        if evaluate.is_none() && !due(self.every.log, step, self.last) {
            return Ok(());
        }
        let lap = std::mem::take(lap);
        let costs = statistics::costs(&rank.trainer.rank, step, &lap, self.process);
        let evaluate = evaluate.filter(|_| costs.is_ok());
        let evaluation = evaluate.map(|held_out| evaluate_all(rank, held_out));
        let found = evaluation.as_ref().and_then(|found| found.as_ref().ok());
        if let Some(recorder) = &mut rank.recorder {
            let costs = costs.as_ref().ok();
            let mut values: Vec<(&str, Value<'_>)> =
                self.values(report, recorder.tokens_after(step), &lap, costs);
            values.extend(costs.into_iter().flat_map(Costs::values));
            values.extend(self.found(found));
            calling(rank.trainer.rank.comm.as_ref(), || recorder.log(step, &values))?;
        }
        costs?;
        evaluation.transpose()?;
        Ok(())
    }

    /// The values of a step: loss, norm and learning rate, and its speed in tokens, in the model's operations, and as a share of the peak.
    fn values(
        &self,
        report: &Report,
        tokens: u64,
        lap: &Lap,
        costs: Option<&Costs>,
    ) -> Vec<(&'static str, Value<'static>)> {
        let flops = self.flops(lap, costs).map(|flops| lap.per_second(flops));
        let values = [
            (tags::TRAIN_LOSS, Some(report.loss)),
            (tags::TRAIN_GRAD_NORM, Some(report.norm)),
            (tags::TRAIN_LR, Some(report.learning_rate)),
            (tags::TRAIN_TOKENS, Some(tokens as f64)),
            (tags::SPEED_SECONDS_PER_STEP, Some(lap.per_second(1.0).recip())),
            (tags::SPEED_TOKENS_PER_SECOND, Some(lap.per_second(self.tokens as f64))),
            (tags::SPEED_TFLOPS, flops.map(|flops| flops / 1e12)),
            (tags::SPEED_MFU, flops.zip(self.peak).and_then(|(flops, peak)| mfu(flops, peak))),
        ];
        values.into_iter().filter_map(|(tag, value)| Some((tag, Value::Number(value?)))).collect()
    }

    /// The model's floating-point operations of a mean step of `lap`. A plan does not know the documents of the data: the ranks count what
    /// these leave visible, which is known only with their `costs`.
    fn flops(&self, lap: &Lap, costs: Option<&Costs>) -> Option<f64> {
        if self.plan.experiment.attention.masking.documents != Some(DocumentBounds::ByData) {
            return Some(self.plan.flops());
        }
        Some(self.plan.flops_of(costs?.pairs() as f64 / lap.steps() as f64))
    }

    /// Whether `every.checkpoint_after` has passed since a checkpoint was `saved`, by the clock of the rank that has the recorder.
    fn is_long_since(&self, saved: Instant, rank: &RankRun<'_>) -> Result<bool> {
        let Some(after) = self.every.checkpoint_after else { return Ok(false) };
        let is_past = saved.elapsed() >= after && rank.recorder.is_some();
        let step = rank.trainer.finished;
        let label = Label { step, pass: "whether it is time to save", ..Label::default() };
        any_rank_says(rank.trainer.rank.comm.as_ref(), label, is_past)
    }

    /// Makes the evaluation before the first step, or the one that an earlier attempt missed. All ranks take part, though only the process
    /// that reads the log knows whether it is there.
    fn catch_up(&self, rank: &mut RankRun<'_>) -> Result<()> {
        let step = rank.trainer.finished;
        let begins = step == 0 || self.begins;
        let is_due = begins && self.every.evaluate_on_start
            || step > 0 && due(self.every.evaluate, step, self.last);
        let Some(held_out) = self.held_out.filter(|_| is_due) else { return Ok(()) };
        let label = Label { step, pass: "whether it is evaluated", ..Label::default() };
        if !any_rank_says(rank.trainer.rank.comm.as_ref(), label, self.owes)? {
            return Ok(());
        }
        let evaluation = evaluate_all(rank, held_out)?;
        let Some(recorder) = &mut rank.recorder else { return Ok(()) };
        let values = found(held_out, &evaluation);
        calling(rank.trainer.rank.comm.as_ref(), || recorder.log(step, &values))
    }

    /// An error if the run is to stop, or has ended. Over NCCL all ranks decide together: one that stopped alone would leave transfers on
    /// the other GPUs without their other end.
    fn check_stop(&self, trainer: &Trainer) -> Result<()> {
        let Rank { comm, setup, .. } = &trainer.rank;
        if setup.processes.nccl().is_some() {
            let label = Label { step: trainer.finished + 1, pass: "stop", ..Label::default() };
            if any_rank_says(comm.as_ref(), label, self.stop.load(Ordering::Relaxed))? {
                self.stop.store(true, Ordering::Relaxed);
                setup.processes.asked();
                return Err(CommError::Stopped.into());
            }
        }
        Ok(comm.progress()?)
    }

    fn found(&self, evaluation: Option<&Evaluation>) -> Vec<(&'a str, Value<'static>)> {
        let both = self.held_out.zip(evaluation);
        both.map_or_else(Vec::new, |(held_out, evaluation)| found(held_out, evaluation))
    }
}

/// Whether any rank passes `own` as true.
fn any_rank_says(comm: &dyn Communicator, label: Label, own: bool) -> Result<bool> {
    let said = all_gather_values(comm, label, &[u8::from(own)])?;
    Ok(said.iter().any(|one| *one != [0]))
}

/// Writes the trace of the last step, of all ranks, to the run's folder.
fn keep(RankRun { trainer, recorder, .. }: &mut RankRun<'_>, spans: Vec<Span>) -> Result<()> {
    let ranks = gathered(&trainer.rank, trainer.finished, spans)?;
    match (recorder, ranks) {
        (Some(recorder), Some(ranks)) => recorder.trace(trainer, ranks),
        _ => Ok(()),
    }
}

fn evaluate_all(rank: &mut RankRun<'_>, held_out: &HeldOut) -> Result<Evaluation> {
    let RankRun { trainer, recorder, .. } = rank;
    trainer.evaluate(held_out, &mut |done, total| {
        if let Some(recorder) = recorder {
            let notice = Notice::Evaluating { done, total };
            calling(trainer.rank.comm.as_ref(), || recorder.console.notice(&notice));
        }
    })
}

fn found<'a>(held_out: &'a HeldOut, evaluation: &Evaluation) -> Vec<(&'a str, Value<'static>)> {
    let mut values = vec![(tags::EVALUATE_LOSS, Value::Number(evaluation.loss))];
    let by_source = held_out.sources.iter().zip(&evaluation.by_source);
    values.extend(by_source.map(|(source, loss)| (source.tag.as_str(), Value::Number(*loss))));
    let more = [
        (tags::EVALUATE_ACCURACY, evaluation.accuracy),
        (tags::EVALUATE_BIGRAM_ENTROPY, held_out.bigram_entropy),
    ];
    values.extend(more.into_iter().filter_map(|(tag, v)| Some((tag, Value::Number(v?)))));
    values
}

/// The share of the `peak` that `flops` are, both in operations per second. `None`: they are more than the peak. It was
/// measured while other programs ran, or positions without a target were counted that the loss leaves out.
fn mfu(flops: f64, peak: f64) -> Option<f64> {
    (flops <= peak).then(|| flops / peak)
}

#[cfg(test)]
mod tests {
    use super::mfu;

    #[test]
    fn no_step_takes_more_than_the_whole_peak() {
        let shares = [50.0, 254.0, 100.0].map(|flops| mfu(flops, 100.0));
        assert_eq!(shares, [Some(0.5), None, Some(1.0)]);
    }
}
