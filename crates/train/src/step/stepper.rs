//! Training steps one by one, without a run's folder: for measurements.

use std::sync::Arc;

use annulus_comm::Communicator;
use annulus_data::Source;
use annulus_model::Weights;
use annulus_plan::Plan;
use candle_core::Device;

use crate::setup::start::Start;
use crate::setup::weights::InitialWeights;
use crate::step::state::parameters::Store;
use crate::step::trainer::Trainer;
use crate::{Result, Setup, TrainError};

/// One rank of a training run that logs, evaluates and saves nothing.
#[derive(Debug)]
pub struct Stepper {
    trainer: Trainer,
    device: Device,
    /// Whether a step has failed: then the ranks that share the state meet no more.
    has_failed: bool,
}

/// Loss and gradient norm of a step, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stepped {
    /// The mean loss of the step's batch, before the update.
    pub loss: f64,
    /// The norm of the step's gradient, before clipping.
    pub norm: f64,
}

impl Stepper {
    /// A rank of `plan`, on the thread that will run it, placed as its `setup` says, which all ranks share. `store` was made of `weights`,
    /// f32, and is for one `Stepper` of every rank; the rank reads its own part of `source`.
    ///
    /// # Errors
    /// Weights or a source that are not those of the plan, a store of other ranks than this process has or one that ranks have trained with
    /// before, and any failure of the rank.
    pub fn new(
        setup: &Arc<Setup>,
        comm: Arc<dyn Communicator>,
        plan: &Plan,
        source: Arc<dyn Source>,
        weights: &Weights,
        store: &Arc<Store>,
    ) -> Result<Stepper> {
        setup.check()?;
        store.check(setup)?;
        check_source(&*source, plan)?;
        let initial = InitialWeights::from(weights.clone());
        initial.check(&setup.config)?;
        let start = Start::fresh(&plan.experiment, initial);
        let rank = setup.rank(comm)?;
        let device = rank.backend.device();
        let trainer = Trainer::new(rank, plan, source, &start, store)?.needing_targets();
        Ok(Stepper { trainer, device, has_failed: false })
    }

    /// Takes the next step: forward, backward, the sum over ranks, the optimizer; returns when the device is done. All ranks must call it.
    ///
    /// # Errors
    /// A loss or gradient that is not finite, a batch without a target, and any failure of the rank. After an error every further step is
    /// one.
    pub fn step(&mut self) -> Result<Stepped> {
        if self.has_failed {
            return Err(TrainError::configuration(
                "a step after one that failed",
                "make a new `Store`, and with it a new `Stepper` on every rank",
            ));
        }
        self.has_failed = true;
        let report = self.trainer.step()?;
        self.device.synchronize()?;
        self.has_failed = false;
        Ok(Stepped { loss: report.loss, norm: report.norm })
    }
}

/// Checks that a source has the sequences that a plan is about, and only ids of its vocabulary.
fn check_source(source: &dyn Source, plan: &Plan) -> Result<()> {
    let (ids, rows) = (source.vocabulary(), plan.vocabulary());
    if ids > rows {
        return Err(TrainError::configuration(
            format!("a source of {ids} ids, but the model has {rows} tokens"),
            format!("set `model.vocab_size` to {ids} or more, or use another source"),
        ));
    }
    let [found, wanted] = {
        let data = &plan.experiment.data;
        [(source.rows(), source.tokens()), (data.batch, data.tokens)]
    };
    if found == wanted {
        return Ok(());
    }
    let said = |(rows, tokens)| format!("{rows} sequences of {tokens} tokens");
    Err(TrainError::configuration(
        format!("a source of {}, expected {}", said(found), said(wanted)),
        "`rows` and `tokens` of a source are the plan's `data.batch` and `data.tokens`",
    ))
}
