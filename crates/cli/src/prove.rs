//! `annulus prove`: proves the schedules of an experiment.

use annulus_plan::{Plan, Proving, wrapped};
use annulus_simulate::plans;

use crate::experiment_file::Inspection;
use crate::failure::EXPECT;
use crate::{Done, check, print};

pub(crate) fn run(arguments: &Inspection) -> Done {
    let resolved = check::opened(&arguments.file)?.resolved;
    let mut holds = true;
    // A strategy `auto` is chosen once for all phases.
    let phases = if resolved.experiment.attention.is_open() {
        plans(&resolved)?.iter().map(Plan::resolved).collect()
    } else {
        resolved.phases()
    };
    for phase in phases {
        let proving = Proving::of(&phase)?;
        print::either(arguments.json, || proving.to_json(), || wrapped(&proving.to_text(), 4))?;
        holds &= proving.holds();
    }
    Ok(if holds { 0 } else { EXPECT })
}
