//! Forward and backward over the stages of a model: the one place for recompute, for pieces of rows
//! and for the harvest of gradients.
//!
//! Every stage is a graph of its own: its input is a leaf, its output is seeded with the gradient
//! that the next stage found for its input. So nothing outlives its stage, and between two stages
//! one may do whatever one likes: ask whether to stop, later gather weights and send gradients off.
//!
//! With `recompute: layer` the forward pass runs off the tape and keeps inputs (and attention its
//! output); backward runs the stage once more, on the tape. With `recompute: none` the forward pass
//! runs on the tape. The last stage, the loss, is always on it: nothing lies between its two
//! passes.

use annulus_attention::Kept;
use annulus_comm::Axis;
use annulus_experiment::Recompute;
use annulus_model::{Shard, Stage};
use annulus_ops::vjp;
use candle_core::{DType, Device, Tensor, Var};

use crate::Result;
use crate::finite::is_finite;
use crate::gradients::Gradients;
use crate::parameters::Parameters;
use crate::rank::{Micro, Rank};
use crate::sum::Partial;

/// What a forward pass leaves of a stage: some of its rows at a time.
struct Trace {
    shard: Shard,
    pieces: Vec<Piece>,
}

/// Some rows of a stage's input, and what became of them.
enum Piece {
    /// Off the tape: it will be run again.
    Input(Tensor),
    /// On the tape, from a leaf to an output.
    Taped(Var, Tensor),
}

/// The result of a micro-batch.
#[derive(Debug)]
pub(crate) struct Differentiated {
    /// The sum of losses on this rank.
    pub(crate) loss: Partial,
    /// The first stage whose output was no number, if the loss is none.
    pub(crate) sighting: Option<usize>,
}

impl Rank {
    /// The loss of `micro` and, added to `gradients`, those of its sum.
    pub(crate) fn backward(
        &self,
        parameters: &Parameters,
        micro: &Micro,
        gradients: &mut Gradients,
    ) -> Result<Differentiated> {
        let stages = &self.model.stages;
        let mut traces = Vec::with_capacity(stages.len());
        let mut x = nothing()?;
        for (index, stage) in stages.iter().enumerate() {
            self.progress()?;
            let taped = index + 1 == stages.len() || self.setup.recompute == Recompute::None;
            let trace;
            (x, trace) = self.run(stage.as_ref(), &x, parameters, &micro.shard, taped)?;
            traces.push(trace);
        }
        let loss = f64::from(x.to_scalar::<f32>()?);
        let sighting = if loss.is_finite() { None } else { Some(first_sighting(&traces)?) };

        let mut seed = x.ones_like()?;
        for (stage, trace) in stages.iter().zip(traces).rev() {
            self.progress()?;
            seed = self.run_back(stage.as_ref(), trace, &seed, parameters, gradients)?;
        }
        Ok(Differentiated { loss: Partial::new(loss, micro.targets), sighting })
    }

    /// The loss of `micro`, off the tape.
    pub(crate) fn loss(&self, parameters: &Parameters, micro: &Micro) -> Result<Partial> {
        let mut x = nothing()?;
        for stage in &self.model.stages {
            self.progress()?;
            let mut outputs = Vec::new();
            for piece in self.pieces(stage.as_ref(), &x)? {
                outputs.push(stage.forward(&piece, &parameters.off_tape, &micro.shard)?);
            }
            x = self.joined(stage.as_ref(), outputs, &x)?;
        }
        Ok(Partial::new(f64::from(x.to_scalar::<f32>()?), micro.targets))
    }

    /// A stage's output, off the tape, and what backward needs.
    fn run(
        &self,
        stage: &dyn Stage,
        x: &Tensor,
        parameters: &Parameters,
        shard: &Shard,
        taped: bool,
    ) -> Result<(Tensor, Trace)> {
        let kept = (!taped).then(Kept::default);
        let shard = Shard { kept, ..shard.clone() };
        let mut outputs = Vec::new();
        let mut pieces = Vec::new();
        for piece in self.pieces(stage, x)? {
            if taped {
                let (leaf, y) = record(stage, &piece, parameters, &shard)?;
                outputs.push(y.detach());
                pieces.push(Piece::Taped(leaf, y));
            } else {
                outputs.push(stage.forward(&piece, &parameters.off_tape, &shard)?);
                pieces.push(Piece::Input(piece));
            }
        }
        Ok((self.joined(stage, outputs, x)?, Trace { shard, pieces }))
    }

    /// The gradient of a stage's input, given that of its output; those of its parameters are added
    /// to `gradients`.
    fn run_back(
        &self,
        stage: &dyn Stage,
        trace: Trace,
        seed: &Tensor,
        parameters: &Parameters,
        gradients: &mut Gradients,
    ) -> Result<Tensor> {
        let seeds = self.pieces(stage, seed)?;
        let mut inputs = Vec::with_capacity(seeds.len());
        for (piece, seed) in trace.pieces.into_iter().zip(seeds) {
            let (leaf, y) = match piece {
                Piece::Taped(leaf, y) => (leaf, y),
                Piece::Input(x) => record(stage, &x, parameters, &trace.shard)?,
            };
            let mut found = vjp(&y, &seed)?;
            for name in stage.parameters() {
                if let Some(gradient) = found.remove(&parameters.on_tape[name]) {
                    gradients.add(name, &gradient)?;
                }
            }
            // The first stage reads tokens, not its input.
            inputs.extend(found.remove(&leaf).map(|gradient| gradient.detach()));
        }
        if inputs.is_empty() { nothing() } else { self.joined(stage, inputs, seed) }
    }

    /// How many rows of `stage` are run at a time; `None`: all.
    fn rows(&self, stage: &dyn Stage) -> Option<usize> {
        self.setup.mlp_chunk.filter(|_| stage.rowwise())
    }

    /// `x` itself, or some of its rows at a time where every row is computed by itself.
    fn pieces(&self, stage: &dyn Stage, x: &Tensor) -> Result<Vec<Tensor>> {
        let Some(rows) = self.rows(stage) else {
            return Ok(vec![x.clone()]);
        };
        let x = x.flatten_to(x.rank() - 2)?;
        let all = x.dim(0)?;
        let starts = (0..all).step_by(rows);
        Ok(starts
            .map(|start| x.narrow(0, start, rows.min(all - start)))
            .collect::<candle_core::Result<_>>()?)
    }

    /// The inverse of [`Rank::pieces`]: a whole in the shape of `like`.
    fn joined(&self, stage: &dyn Stage, mut pieces: Vec<Tensor>, like: &Tensor) -> Result<Tensor> {
        if self.rows(stage).is_none() {
            return Ok(pieces.remove(0));
        }
        Ok(Tensor::cat(&pieces, 0)?.reshape(like.shape())?)
    }

    /// Says that this rank is alive, and ends where the run is to stop.
    fn progress(&self) -> Result<()> {
        Ok(self.mesh.group(&[Axis::Data, Axis::Sequence]).progress()?)
    }
}

/// A stage on the tape: the leaf for its input, its output.
fn record(
    stage: &dyn Stage,
    x: &Tensor,
    parameters: &Parameters,
    shard: &Shard,
) -> Result<(Var, Tensor)> {
    let leaf = Var::from_tensor(x)?;
    let y = stage.forward(leaf.as_tensor(), &parameters.on_tape, shard)?;
    Ok((leaf, y))
}

/// What the first stage gets for an input: it reads tokens.
fn nothing() -> Result<Tensor> {
    Ok(Tensor::zeros((), DType::F32, &Device::Cpu)?)
}

/// The stage before the first whose input is no number; the last where all inputs are finite.
fn first_sighting(traces: &[Trace]) -> Result<usize> {
    for (index, trace) in traces.iter().enumerate().skip(1) {
        for piece in &trace.pieces {
            let input = match piece {
                Piece::Input(x) => x,
                Piece::Taped(leaf, _) => &leaf.as_detached_tensor(),
            };
            if !is_finite(input)? {
                return Ok(index - 1);
            }
        }
    }
    Ok(traces.len() - 1)
}
