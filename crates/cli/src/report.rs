//! `annulus report`: writes a page of HTML about runs.

use std::path::{Path, PathBuf};

use annulus_experiment::Override;
use annulus_plan::Plan;
use annulus_report::{MOST_RUNS, Planned, report};
use annulus_simulate::Cluster;
use annulus_text::size;
use annulus_train::{Logged, rates};
use clap::Args;

use crate::experiment_file::ExperimentFile;
use crate::failure::Failure;
use crate::{Done, check, output, print, processes};

/// The default file of the page.
const PAGE: &str = "report.html";

#[derive(Args, Debug)]
pub(crate) struct Report {
    /// Run folders, 1 to 16, finished or not
    #[arg(required = true, num_args = 1..=MOST_RUNS, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// The page to write
    #[arg(long, alias = "output", value_name = "PATH", default_value = PAGE)]
    out: PathBuf,
    /// The cluster to plan step times for [default: the one that the experiment names, or this machine, measured, if the run was on it]
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Report) -> Done {
    let inputs: Vec<&Path> = arguments.cluster.as_deref().into_iter().collect();
    output::check(&arguments.out, &inputs)?;
    let cluster = arguments.cluster.as_deref().map(Cluster::load).transpose()?;
    let page = report(&arguments.runs, &|logged, step| planned(logged, step, cluster.as_ref()))?;
    print::file(&arguments.out, page.as_bytes())?;
    let runs = match arguments.runs.len() {
        1 => "a run".to_owned(),
        count => format!("{count} runs"),
    };
    let written = arguments.out.display();
    print::line(&format!("{written}: {runs}, {}", size(page.len() as u64)))?;
    Ok(0)
}

/// The plan of the phase in which a run computed `step`, with the cluster that times are planned on; or why there is none.
fn planned(logged: &Logged, step: u64, given: Option<&Cluster>) -> Result<Planned, String> {
    let said = |failure: Failure| failure.problems.to_string();
    let file = ExperimentFile { file: logged.folder.clone(), replacements: Vec::<Override>::new() };
    let mut opened = check::opened(&file).map_err(said)?;
    processes::place_as(logged.manifest.as_ref(), &mut opened.resolved.experiment);
    let plans = opened.plans(annulus_machine::cores()).map_err(|error| error.to_string())?;
    let plan = check::phase_at(plans, step);
    let cluster = match (given, &plan.experiment.mesh.cluster) {
        (Some(given), _) => Ok(given.clone()),
        (None, Some(path)) => named(path),
        (None, None) => here(logged, &plan),
    };
    Ok(Planned { plan, cluster })
}

fn named(path: &Path) -> Result<Cluster, String> {
    Cluster::load(path).map_err(|problems| problems.to_string())
}

/// This machine, measured; an error if the run was on another one.
fn here(logged: &Logged, plan: &Plan) -> Result<Cluster, String> {
    let cores = annulus_machine::cores();
    if let Some(then) = logged.manifest.as_ref().map(|manifest| &manifest.machine) {
        let cpu = annulus_machine::processor().unwrap_or_else(|| "unknown".to_owned());
        if (&then.cpu, then.cores) != (&cpu, cores) {
            let (was, had) = (&then.cpu, then.cores);
            return Err(format!(
                "it was on another machine ({was}, {had} cores): describe that one, and give it as `--cluster FILE`"
            ));
        }
    }
    rates(plan, cores).map_err(|error| error.to_string())
}
