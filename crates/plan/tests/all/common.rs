//! Plans of what tests write.

use annulus_experiment::{Experiment, Problems, Resolved, parse};
use annulus_plan::Plan;

/// The plan of an experiment's text.
pub(crate) fn plan_of(text: &str) -> Plan {
    let experiment = parse("small.yaml", text, &[]).unwrap_or_else(|p| panic!("{p}\n{text}"));
    planned(experiment).unwrap_or_else(|p| panic!("{p}\n{text}"))
}

/// The plan of an experiment, with a vocabulary of bytes.
pub(crate) fn planned(experiment: Experiment) -> Result<Plan, Problems> {
    Resolved::read(experiment, Some(256)).and_then(|resolved| Plan::new(&resolved))
}
