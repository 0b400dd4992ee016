//! `annulus trace`: shows what is computed and sent when, as planned or as measured.

use std::path::{Path, PathBuf};

use annulus_experiment::Override;
use annulus_plan::Plan;
use annulus_simulate::{Cluster, timeline};
use annulus_trace::{Sums, Trace};
use annulus_train::{Exit, Manifest, RESOLVED, read_trace, trace_of, traced_step, traced_steps};
use clap::Args;
use serde_json::json;

use crate::experiment_file::{ExperimentFile, replaced_path};
use crate::failure::Failure;
use crate::values::{replacement, svg};
use crate::{Done, check, output, print, processes};

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// An experiment, a run's folder, or a `trace-STEP.json` in one
    path: PathBuf,
    /// Keys to replace, as in `data.tokens=64k`
    #[arg(value_name = "KEY=VALUE", value_parser = replacement)]
    replacements: Vec<Override>,
    /// The cluster to plan for [default: the one that the experiment names, or this machine, measured]
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// The layer whose hops are shown and drawn
    #[arg(long, default_value_t = 0)]
    layer: usize,
    /// Write a picture of the layer's hops
    #[arg(long, value_name = "PATH", value_parser = svg)]
    svg: Option<PathBuf>,
    /// Also write the planned schedule as a trace; open it in Perfetto beside the run's `trace-STEP.json`
    #[arg(long, alias = "output", value_name = "PATH")]
    out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Done {
    let path = &arguments.path;
    if let Some(out) = &arguments.out {
        let inputs: Vec<&Path> =
            [Some(path.as_path()), arguments.cluster.as_deref()].into_iter().flatten().collect();
        output::check(out, &inputs)?;
    }
    if path.is_dir() {
        return measured(arguments, &latest(path)?);
    }
    if path.extension().is_some_and(|extension| extension == "json") {
        return measured(arguments, path);
    }
    // A strategy `auto` is chosen for the given cluster.
    let cluster = arguments.cluster.as_deref().map(|path| replaced_path("mesh.cluster", path));
    let replacements = arguments.replacements.iter().cloned().chain(cluster).collect();
    let file = ExperimentFile { file: path.clone(), replacements };
    let trace = planned(arguments, &check::opened(&file)?.plan(annulus_machine::cores())?)?;
    draw(arguments, &trace)?;
    let sums = Sums::of(&trace);
    let value = || {
        let moves = trace.moves_json(arguments.layer);
        json!({"title": trace.title, "planned": sums.to_json(), "moves": moves})
    };
    let moves = || trace.moves(arguments.layer);
    let text = || format!("{}\n\n{}{}", trace.heading(), moves(), sums.to_text(None));
    print::either(arguments.json, value, text)?;
    Ok(0)
}

/// Shows a measured trace, next to the planned one of its run.
fn measured(arguments: &Arguments, path: &Path) -> Done {
    if let Some(given) = arguments.replacements.first() {
        let message = format!("`{}` replaces a value of an experiment", given.key);
        let hint = format!("remove it: `{}` was measured", path.display());
        return Err(Failure::usage(message, hint));
    }
    let trace = read_trace(path)?;
    draw(arguments, &trace)?;
    let planned = beside(arguments, path, &trace)?;
    let (sums, planned) = (Sums::of(&trace), planned.as_ref().map(Sums::of));
    let value = || {
        let planned = planned.as_ref().map(Sums::to_json);
        let (title, step, moves) = (&trace.title, trace.step, trace.moves_json(arguments.layer));
        json!({
            "title": title, "step": step, "measured": sums.to_json(), "planned": planned, "moves": moves
        })
    };
    let moves = || trace.moves(arguments.layer);
    let text = || format!("{}\n\n{}{}", trace.heading(), moves(), sums.to_text(planned.as_ref()));
    print::either(arguments.json, value, text)?;
    Ok(0)
}

/// The planned trace of the run that a measured one belongs to, if the run's folder still has the same plan.
fn beside(arguments: &Arguments, path: &Path, trace: &Trace) -> Result<Option<Trace>, Failure> {
    let file = path.with_file_name(RESOLVED);
    if !file.is_file() {
        if let Some(out) = &arguments.out {
            let message = format!("`{}` is not written: there is no plan", out.display());
            let hint = format!("put the trace beside the run's `{RESOLVED}`, or remove `--out`");
            return Err(Failure::usage(message, hint));
        }
        print::say(&format!("no planned trace is shown: there is no `{}`", file.display()));
        return Ok(None);
    }
    let mut opened = check::opened(&ExperimentFile { file, replacements: Vec::new() })?;
    let manifest = Manifest::open(path.parent().unwrap_or(Path::new("")))?;
    processes::place_as(manifest.as_ref(), &mut opened.resolved.experiment);
    let plans = opened.plans(annulus_machine::cores())?;
    let plan = check::phase_at(plans, traced_step(path).unwrap_or(u64::MAX));
    let timeline = planned(arguments, &plan)?;
    if timeline.is_of_same_plan(trace) {
        return Ok(Some(timeline));
    }
    let now = format!("{} on {} ranks", timeline.title, timeline.ranks.len());
    print::say(&format!("no planned trace is shown: the run's folder now has {now}"));
    Ok(None)
}

/// The planned trace on the given cluster, on the experiment's, or on this machine.
fn planned(arguments: &Arguments, plan: &Plan) -> Result<Trace, Failure> {
    let named = arguments.cluster.as_ref().or(plan.experiment.mesh.cluster.as_ref());
    let cluster = match named {
        Some(path) => Cluster::load(path)?,
        None => annulus_train::rates(plan, annulus_machine::cores())?,
    };
    let trace = timeline(plan, &cluster)?;
    if let Some(path) = &arguments.out {
        print::file(path, trace.to_json().as_bytes())?;
    }
    Ok(trace)
}

fn draw(arguments: &Arguments, trace: &Trace) -> Result<(), Failure> {
    let layer = arguments.layer;
    let spans = || trace.ranks.iter().flatten().filter_map(|span| span.activity.place());
    if let Some(last) = spans().map(|place| place.layer).max().filter(|last| layer > *last) {
        let message = format!("there is no layer {layer}");
        return Err(Failure::usage(message, format!("use one of 0 to {last}")));
    }
    let svg = arguments.svg.as_ref();
    svg.map_or(Ok(()), |path| print::file(path, trace.to_svg(layer).as_bytes()))
}

/// The trace of the last step in a run's folder.
fn latest(folder: &Path) -> Result<PathBuf, Failure> {
    let steps = traced_steps(folder)?;
    let Some((last, others)) = steps.split_last() else {
        let message = format!("`{}` holds no `trace-STEP.json`", folder.display());
        let hint = "a run writes one for every step of `trace.steps`, as in `annulus train FILE \
                    'trace.steps=[2]'`; or give the experiment itself";
        return Err(Failure::new(Exit::Data, message, Some(hint.to_owned())));
    };
    if !others.is_empty() {
        print::say(&format!("the last of {} traces; name a file to see another", steps.len()));
    }
    Ok(trace_of(folder, *last))
}
