//! The trace of a step: what every rank did and when, gathered on rank 0.

use annulus_comm::{Label, RankHosts};
use annulus_model::Stage;
use annulus_plan::{Plan, label};
use annulus_trace::{Activity, Begun, RankLocation, Span, Trace, start, stop};
use candle_core::{Device, Tensor};

use crate::step::measure::clocks;
use crate::step::rank::Rank;
use crate::{Result, TrainError};

/// Runs `step`; if it is `traced`, also returns the spans of this thread.
pub(crate) fn recorded<T>(traced: bool, step: impl FnOnce() -> T) -> (T, Option<Vec<Span>>) {
    if traced {
        start();
    }
    let result = step();
    (result, traced.then(stop))
}

/// The spans of all ranks, by rank and on one clock, on rank 0; `None` elsewhere. The messages for it do not count as the step's traffic.
pub(crate) fn gathered(rank: &Rank, step: u64, spans: Vec<Span>) -> Result<Option<Vec<Vec<Span>>>> {
    let (comm, label) = (&rank.comm, Label { step, pass: "trace", hop: 0, layer: 0 });
    let hosts = rank.setup.rank_hosts();
    let ahead = clocks::ahead(comm.as_ref(), &hosts, step)?;
    // Those of rank 0 stay as they are.
    let sent: &[Span] = if comm.rank() > 0 { &spans } else { &[] };
    let text = serde_json::to_vec(sent).map_err(|error| unreadable(&error))?;
    let text = Tensor::from_slice(&text, text.len(), &Device::Cpu)?;
    let Some(texts) = comm.gather(label, &text, 0)? else { return Ok(None) };
    let mut ranks = vec![spans];
    for text in texts.iter().skip(1) {
        ranks.push(
            serde_json::from_slice(&text.to_vec1::<u8>()?).map_err(|error| unreadable(&error))?,
        );
    }
    Ok(Some(clocks::aligned(ranks, &ahead, &hosts)))
}

/// The trace of ranks that run on `hosts`, titled with the experiment's name and its strategies.
pub(crate) fn trace(plan: &Plan, step: u64, ranks: Vec<Vec<Span>>, hosts: &RankHosts) -> Trace {
    let title = format!("{}, {}", plan.experiment.name, plan.strategies(label));
    let location = |rank| {
        Some(RankLocation {
            process: hosts.process_of(rank),
            host: hosts.host_of(rank)?.to_owned(),
        })
    };
    let locations = (0..hosts.ranks()).filter_map(location).collect();
    Trace { title, step: Some(step), planned: None, locations, ranks }
}

/// The name of a stage's span, with the stage's first parameter as in errors: `forward layers.0.input_layernorm`.
pub(crate) fn name(stage: &dyn Stage, pass: &str) -> String {
    let parameter = stage.parameters().first().map_or("", String::as_str);
    let short = parameter.strip_prefix("model.").unwrap_or(parameter);
    format!("{pass} {}", short.strip_suffix(".weight").unwrap_or(short))
}

impl Rank {
    /// Ends the span of a stage. On a GPU a recorded span waits for the device.
    pub(crate) fn stage(&self, begun: Begun, name: impl FnOnce() -> String) -> Result<()> {
        if begun.is_recorded() {
            self.computing(|| self.backend.device().synchronize())?;
            begun.end(|| Activity::Stage { name: name() });
        }
        Ok(())
    }
}

fn unreadable(error: &serde_json::Error) -> TrainError {
    TrainError::Internal(format!("spans that are not JSON: {error}"))
}
