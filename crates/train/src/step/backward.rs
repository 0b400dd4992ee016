//! Forward and backward over the stages of a model. Only this module runs stages on some rows at a time and collects gradients.
//!
//! The forward of a stage returns the tensors that it keeps and a pullback, its backward, which is called once: with these tensors, and with
//! the stage's weights, which may have been freed and gathered again since. So what a stage keeps is freed as soon as its backward has run,
//! and between two stages a rank can send gradients, gather weights and check whether the run is to stop.
//!
//! With `recompute: layer` only inputs and attention's results are kept; pullbacks compute the rest again. With `recompute: none` they keep
//! what would cost a matrix product.

use annulus_comm::Axis;
use annulus_experiment::Recompute;
use annulus_model::{Forward, Judged, Keep, Pullback, Shard, Stage, Weights};
use annulus_trace::{Begun, begin};
use candle_core::{DType, Device, Tensor};

use crate::Result;
use crate::step::finite::is_finite;
use crate::step::hashes::points::At;
use crate::step::kept::{Kept, prefetch};
use crate::step::measure::alive::computing;
use crate::step::measure::spans::name;
use crate::step::rank::{MicroBatch, Rank};
use crate::step::state::gathered::WeightSource;
use crate::step::state::gradients::Gradients;
use crate::step::sum::Partial;

/// What the forward pass of a stage leaves for backward: by piece of rows, the kept tensors and the pullback.
pub(crate) type Trace<'a> = Vec<(Kept, Pullback<'a>)>;

/// Loss and gradients of a micro-batch on one rank.
#[derive(Debug)]
pub(crate) struct Differentiated {
    /// The sum of losses on this rank.
    pub(crate) loss: Partial,
    /// The first stage whose output was not finite, if the loss is not.
    pub(crate) sighting: Option<usize>,
}

impl Rank {
    /// The loss of `micro`; the gradients of the sum of its losses are added to `gradients`. `after` is called with every stage that
    /// backward has finished.
    pub(crate) fn backward(
        &self,
        weights: &mut WeightSource<'_>,
        micro: &MicroBatch,
        gradients: &mut Gradients,
        after: &mut dyn FnMut(usize, &mut Gradients) -> Result<()>,
    ) -> Result<Differentiated> {
        let shard = Shard { keep: self.keep(), ..micro.shard.clone() };
        let stages = &self.model.stages;
        let mut traces = Vec::with_capacity(stages.len());
        let turn = stages.len().checked_sub(2);
        self.discard_offloaded();
        let x = self.forward(stages, turn, weights, &shard, |(stage, x), begun, trace| {
            micro.pass(|| At::output(traces.len()), x)?;
            let trace = self.offload_kept(traces.len(), trace)?;
            traces.push(trace);
            self.room.keep();
            self.stage(begun, || name(stage, "forward"))
        })?;
        // The last stage has waited for the device.
        let loss: f64 = x.to_scalar()?;
        let sighting = if loss.is_finite() { None } else { Some(self.first_sighting(&traces)?) };

        let mut dx = x.ones_like()?;
        for (index, stage) in stages.iter().enumerate().rev() {
            self.progress()?;
            let begun = begin();
            let Some(trace) = traces.pop() else { break };
            prefetch(&traces)?;
            let lent = weights.of_backward(self, index)?;
            dx = self.run_back(stage.as_ref(), &lent, trace, &dx, gradients)?;
            drop(lent);
            micro.pass(|| At::gradient(index, stages.len()), &dx)?;
            after(index, gradients)?;
            self.stage(begun, || name(stage.as_ref(), "backward"))?;
            self.room.keep();
        }
        Ok(Differentiated { loss: Partial::new(loss, micro.targets), sighting })
    }

    /// What stages keep for backward, by the experiment's `memory.recompute`.
    fn keep(&self) -> Keep {
        match self.setup.recompute {
            Recompute::None => Keep::Everything,
            // `Auto` does not occur: a plan has decided it.
            Recompute::Layer | Recompute::Auto => Keep::Attention,
        }
    }

    /// The loss of `micro`, without pullbacks.
    pub(crate) fn loss(
        &self,
        weights: &mut WeightSource<'_>,
        micro: &MicroBatch,
    ) -> Result<Partial> {
        let stages = &self.model.stages;
        let loss = self.forward(stages, None, weights, &micro.shard, |_, _, _| Ok(()))?;
        Ok(Partial::new(loss.to_scalar()?, micro.targets))
    }

    /// The hidden states [B, S, D] that the loss stage gets.
    pub(crate) fn before_loss(
        &self,
        weights: &mut WeightSource<'_>,
        shard: &Shard,
    ) -> Result<Tensor> {
        let stages = &self.model.stages;
        let last = stages.len() - 1;
        self.forward(&stages[..last], Some(last), weights, shard, |_, _, _| Ok(()))
    }

    /// The model's loss and prediction at every target of this rank's positions; with tensor parallelism, of the rows of all its
    /// tensor-parallel ranks.
    pub(crate) fn judged(
        &self,
        weights: &mut WeightSource<'_>,
        shard: &Shard,
    ) -> Result<Vec<Judged>> {
        let x = self.before_loss(weights, shard)?;
        let of_loss = weights.of(self.model.stages.len() - 1, None)?;
        Ok(self.computing(|| self.model.judge(&x, &of_loss, shard))?)
    }

    /// All logits f32 [B, S, V] of this rank's positions.
    pub(crate) fn logits(&self, weights: &mut WeightSource<'_>, shard: &Shard) -> Result<Tensor> {
        let x = self.before_loss(weights, shard)?;
        let of_loss = weights.of(self.model.stages.len() - 1, None)?;
        Ok(self.model.logits(&x, &of_loss, shard)?)
    }

    /// Runs `stages` one after the other and returns the last output; the weights of stage `next` are wanted after them. `done` is called
    /// after each with the stage, its output, the time at which it began, and its trace.
    fn forward<'a>(
        &self,
        stages: &'a [Box<dyn Stage>],
        next: Option<usize>,
        weights: &mut WeightSource<'_>,
        shard: &'a Shard,
        mut done: impl FnMut((&dyn Stage, &Tensor), Begun, Trace<'a>) -> Result<()>,
    ) -> Result<Tensor> {
        // Never read: the first stage reads tokens.
        let mut x = Tensor::zeros((), DType::F32, &Device::Cpu)?;
        for (index, stage) in stages.iter().enumerate() {
            self.progress()?;
            let begun = begin();
            let trace;
            let next = if index + 1 < stages.len() { Some(index + 1) } else { next };
            let lent = weights.of(index, next)?;
            let run = || self.run(stage.as_ref(), &x, &lent, shard);
            // The loss is a number of the host: a device is waited for until it has computed everything before it.
            let is_loss = index + 1 == self.model.stages.len();
            (x, trace) = if is_loss { self.computing(run) } else { run() }?;
            drop(lent);
            done((stage.as_ref(), &x), begun, trace)?;
        }
        Ok(x)
    }

    /// Runs a stage forward: its output and its pullback.
    fn run<'a>(
        &self,
        stage: &'a dyn Stage,
        x: &Tensor,
        weights: &Weights,
        shard: &'a Shard,
    ) -> Result<(Tensor, Trace<'a>)> {
        let mut outputs = Vec::new();
        let mut trace = Trace::new();
        let rows = self.rows(stage).unwrap_or_default();
        for (index, piece) in self.pieces(stage, x)?.into_iter().enumerate() {
            let Forward { output, kept, back } =
                stage.forward_from(index * rows, &piece, weights, shard)?;
            outputs.push(output);
            trace.push((Kept::InMemory(kept), back));
        }
        Ok((self.joined(stage, outputs, x)?, trace))
    }

    /// The gradient of a stage's input, given that of its output; the gradients of the stage's parameters are added to `gradients`.
    fn run_back(
        &self,
        stage: &dyn Stage,
        weights: &Weights,
        trace: Trace<'_>,
        dy: &Tensor,
        gradients: &mut Gradients,
    ) -> Result<Tensor> {
        let mut inputs = Vec::with_capacity(trace.len());
        for ((kept, pullback), dy) in trace.into_iter().zip(self.pieces(stage, dy)?) {
            let kept = self.restored(kept)?;
            let mut sink = gradients.sink(&self.backend);
            inputs.push(pullback(kept, &dy, weights, &mut sink)?);
        }
        self.joined(stage, inputs, dy)
    }

    /// How many of this rank's rows `stage` runs at a time (`None`: all); each of its tensor-parallel ranks gathers as many.
    fn rows(&self, stage: &dyn Stage) -> Option<usize> {
        let chunk = self.setup.mlp_chunk.filter(|_| stage.rowwise())?;
        Some((chunk / self.setup.tensor).max(1))
    }

    /// `x` itself or, where a stage computes every row by itself, pieces of its rows.
    fn pieces(&self, stage: &dyn Stage, x: &Tensor) -> Result<Vec<Tensor>> {
        let Some(rows) = self.rows(stage) else {
            return Ok(vec![x.clone()]);
        };
        let x = x.flatten_to(x.rank() - 2)?;
        let all = x.dim(0)?;
        // No rows still make one empty piece: every rank calls the stage equally often, and it has an output.
        let starts = (0..all.max(1)).step_by(rows);
        Ok(starts
            .map(|start| x.narrow(0, start, rows.min(all - start)))
            .collect::<candle_core::Result<_>>()?)
    }

    /// The inverse of [`Rank::pieces`]: joins pieces into a tensor in the shape of `like`.
    fn joined(&self, stage: &dyn Stage, mut pieces: Vec<Tensor>, like: &Tensor) -> Result<Tensor> {
        if self.rows(stage).is_none() {
            return Ok(pieces.remove(0));
        }
        Ok(Tensor::cat(&pieces, 0)?.reshape(like.shape())?)
    }

    /// Says that this rank is alive; an error where the run is to stop.
    pub(crate) fn progress(&self) -> Result<()> {
        Ok(self.mesh.group(&[Axis::Data, Axis::Sequence]).progress()?)
    }

    /// Runs `work`, in which the host waits for the device.
    pub(super) fn computing<T>(&self, work: impl FnOnce() -> T) -> T {
        computing(self.comm.as_ref(), &self.backend, work)
    }

    /// The first stage whose output is not finite, by the inputs that stages kept; the last stage where all inputs are finite.
    fn first_sighting(&self, traces: &[Trace<'_>]) -> Result<usize> {
        for (index, trace) in traces.iter().enumerate().skip(1) {
            for (kept, _) in trace {
                // The input comes first among the kept tensors.
                if let Some(input) = self.peek(kept)?.first()
                    && !is_finite(input)?
                {
                    return Ok(index - 1);
                }
            }
        }
        Ok(traces.len() - 1)
    }
}
