//! `annulus prove`: proves the schedules of an experiment.

use annulus_plan::{Plan, Proving};
use annulus_simulate::plans;
use annulus_text::wrapped;
use serde_json::Value;

use crate::experiment_file::Inspection;
use crate::{Done, check, judged, print};

pub(crate) fn run(arguments: &Inspection) -> Done {
    let resolved = check::opened(&arguments.file)?.resolved;
    let mut holds = true;
    // A strategy `auto` is chosen once for all phases.
    let phases = if resolved.experiment.attention.is_open() {
        plans(&resolved)?.iter().map(Plan::resolved).collect()
    } else {
        resolved.phases()
    };
    let mut found = Vec::new();
    for phase in phases {
        let proving = Proving::of(&phase)?;
        holds &= proving.holds();
        if arguments.json {
            found.push(proving.to_json());
        } else {
            print::line(&wrapped(&proving.to_text(), 4))?;
        }
    }
    if let [one] = &*found {
        print::line(&one.to_string())?;
    } else if arguments.json {
        print::line(&Value::from(found).to_string())?;
    }
    Ok(judged(holds))
}
