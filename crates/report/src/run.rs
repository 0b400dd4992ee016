//! A run as panels see it: everything in its folder, read once.

use std::ops::Range;
use std::path::Path;

use annulus_evaluation::{Evaluated, FOLDER};
use annulus_experiment::Experiment;
use annulus_simulate::timeline;
use annulus_trace::Trace;
use annulus_train::{
    Logged, Result, StepHashes, hashed, read_trace, run_label, run_letter, trace_of, traced_steps,
};

use crate::{Planned, Planner};

/// A run on the page.
pub(crate) struct Run {
    /// The run's number on the page, from 0, which selects its color.
    pub(crate) place: usize,
    pub(crate) logged: Logged,
    /// The experiment of the phase that the run is in.
    pub(crate) phase: Experiment,
    pub(crate) evaluated: Evaluated,
    /// The last recorded step; an error: why it cannot be shown.
    pub(crate) traced: std::result::Result<Option<Traced>, String>,
    pub(crate) hashed: Vec<StepHashes>,
    /// The run's plan; an error: why there is none.
    pub(crate) planned: std::result::Result<Planned, String>,
}

/// The last recorded step of a run.
pub(crate) struct Traced {
    pub(crate) trace: Trace,
    /// The number of the run's recordings, of which this is the last.
    pub(crate) count: usize,
    /// The planned trace of the recorded step, where the plan has the same ranks and strategy.
    pub(crate) planned: Option<Trace>,
}

impl Run {
    pub(crate) fn read(place: usize, folder: &Path, planner: Planner<'_>) -> Result<Run> {
        let logged = Logged::read(folder)?;
        let last = logged.last_step().unwrap_or_default();
        let phase = logged.experiment.phase_at(last);
        let planned = planner(&logged, last);
        Ok(Run {
            place,
            phase,
            evaluated: Evaluated::read(&folder.join(FOLDER))?,
            traced: traced(&logged, planner, &planned).map_err(|error| error.to_string()),
            hashed: hashed(folder)?,
            planned,
            logged,
        })
    }

    /// The letter that names the run on the page.
    pub(crate) fn letter(&self) -> char {
        run_letter(self.place)
    }

    /// The run's name in a legend.
    pub(crate) fn titled(&self) -> String {
        run_label(self.place, &self.logged.folder)
    }

    /// The steps of the run's phase that may have been logged; only those that were computed as its plan says.
    fn steps(&self) -> Range<u64> {
        let Range { start, end } = self.phase.phase_start().steps;
        start.max(self.logged.alike_since()) + 1
            ..end.max(self.logged.last_step().unwrap_or(end)) + 1
    }

    /// The values of a tag in the run's phase; of values by rank, the largest.
    pub(crate) fn in_phase(&self, tag: &str) -> Vec<f64> {
        let (steps, numbers) = (self.steps(), self.logged.numbers(tag));
        numbers.into_iter().filter(|(step, _)| steps.contains(step)).map(|(_, v)| v).collect()
    }

    /// The values of a tag in the run's phase, by step and rank.
    pub(crate) fn ranks_in_phase(&self, tag: &str) -> Vec<Vec<f64>> {
        let (steps, values) = (self.steps(), self.logged.of_ranks(tag));
        values.into_iter().filter(|(step, _)| steps.contains(step)).map(|(_, v)| v).collect()
    }
}

/// The last recording of a run; `None` without any. `planned` is the plan of the run's last phase.
fn traced(
    logged: &Logged,
    planner: Planner<'_>,
    planned: &std::result::Result<Planned, String>,
) -> Result<Option<Traced>> {
    let steps = traced_steps(&logged.folder)?;
    let Some(&last) = steps.last() else { return Ok(None) };
    let trace = read_trace(&trace_of(&logged.folder, last))?;
    let phase = |step| logged.experiment.phase_index_at(step);
    let of_phase = if phase(last) == phase(logged.last_step().unwrap_or_default()) {
        planned.clone()
    } else {
        planner(logged, last)
    };
    let planned = of_phase.ok().and_then(|Planned { plan, cluster }| {
        let planned = timeline(&plan, &cluster.ok()?).ok()?;
        planned.is_of_same_plan(&trace).then_some(planned)
    });
    Ok(Some(Traced { trace, count: steps.len(), planned }))
}
