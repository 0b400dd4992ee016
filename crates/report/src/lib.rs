//! Runs as one page of HTML: what the file said, what was planned, what was measured.
//!
//! The one idea: a page is a list of panels, and a panel is a function from runs to markup. A panel whose data no run has
//! stays in the page and says which key of the experiment would log it. The page asks nothing of any network: styles and
//! pictures are in it, and it forbids everything else to a browser. Whatever comes from a run is escaped as it is written:
//! only pictures, which escape their own words, are put in as they are.

mod experiment;
mod hashes;
mod lengths;
mod loss;
mod manifest;
mod memory;
mod needle;
mod page;
mod parts;
mod plan;
mod ring;
mod run;

use std::path::PathBuf;

use annulus_plan::Plan;
use annulus_simulate::Cluster;
pub use annulus_train::MOST_RUNS;
use annulus_train::{Logged, Result, TrainError};

use crate::run::Run;

/// The panels of a page, in order, as they are anchored in it.
pub const PANELS: [&str; 9] = [
    "loss",
    "loss-by-length",
    "needle",
    "plan",
    "ring",
    "memory",
    "experiment",
    "manifest",
    "hashes",
];
/// The most bytes of a page.
pub const LARGEST: usize = 2_000_000;

/// The plan of a run, and the cluster that its times are estimated on.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The plan of the phase that the run is in.
    pub plan: Plan,
    /// The cluster that step times are estimated on; an error: why they are not.
    pub cluster: std::result::Result<Cluster, String>,
}

/// A function that makes the plan of a run's step, or says why there is none.
pub type Planner<'a> = &'a dyn Fn(&Logged, u64) -> std::result::Result<Planned, String>;

/// Reads the runs in `folders` and writes one page about them, of at most [`LARGEST`] bytes. `planner` makes their plans; where there is
/// none, the page says why.
///
/// # Errors
/// No folder, or more than [`MOST_RUNS`]; a folder that is not a run's; the first malformed file in one, with the line where it has lines.
pub fn report(folders: &[PathBuf], planner: Planner<'_>) -> Result<String> {
    if folders.is_empty() || folders.len() > MOST_RUNS {
        return Err(TrainError::configuration(
            format!("{} runs for a page, expected 1 to {MOST_RUNS}", folders.len()),
            "give the folders of the runs, or make several pages",
        ));
    }
    let read = |(place, folder): (usize, &PathBuf)| Run::read(place, folder, planner);
    let runs: Vec<Run> = folders.iter().enumerate().map(read).collect::<Result<_>>()?;
    Ok(page::page(&runs))
}
