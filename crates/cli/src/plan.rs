//! `annulus plan`: plans an experiment for this machine or a described cluster. `--compare`: a table of all ways to split attention.

mod no_room;
mod phases;

use std::path::PathBuf;

use annulus_experiment::{Override, Phase, Problems, Resolved};
use annulus_plan::Plan;
use annulus_simulate::{Choice, Cluster, Comparison, Grid, Meshes, Scale, longest};
use annulus_train::Opened;
use clap::Args;
use serde_json::{Value, json};

use self::no_room::Answer;
use self::phases::Phases;
use crate::experiment_file::ExperimentFile;
use crate::failure::Failure;
use crate::values::{bandwidth, elements, ranks, replacement, svg, tokens};
use crate::{Done, check, print};

/// The arguments that belong to `plan --compare`.
const OF_COMPARE: [&str; 9] = [
    "compare",
    "tokens",
    "hidden",
    "head_dim",
    "key_value_heads",
    "ranks",
    "bandwidth",
    "element",
    "window",
];

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// The experiment, or the folder of a run
    #[arg(required_unless_present = "compare")]
    file: Option<PathBuf>,
    /// Keys to replace, as in `data.tokens=64k`
    #[arg(value_name = "KEY=VALUE", value_parser = replacement)]
    replacements: Vec<Override>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Compare all strategies on this described cluster: step time, exposed communication, memory, and what `auto` takes
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_COMPARE)]
    cluster: Option<PathBuf>,
    /// Only with `--cluster`: print the best strategy for 64k to 1G tokens on 8 up to all devices instead
    #[arg(long, requires = "cluster", conflicts_with = "svg")]
    scale: bool,
    /// Only with `--cluster`: write a picture of efficiency by sequence length and devices
    #[arg(long, value_name = "PATH", value_parser = svg, requires = "cluster")]
    svg: Option<PathBuf>,
    /// Compare memory and communication of all ways to split one layer's attention; needs no experiment
    #[arg(long)]
    compare: bool,
    #[command(flatten)]
    sizes: Sizes,
}

/// The sizes of `plan --compare`.
#[derive(Args, Debug)]
struct Sizes {
    /// Only with `--compare`: tokens of the sequence
    #[arg(long, value_parser = tokens, default_value = "1M", requires = "compare")]
    tokens: usize,
    /// Only with `--compare`: hidden size of the queries
    #[arg(long, value_parser = elements(), default_value_t = 4096, requires = "compare")]
    hidden: usize,
    /// Only with `--compare`: head dimension
    #[arg(long, value_parser = elements(), default_value_t = 128, requires = "compare")]
    head_dim: usize,
    /// Only with `--compare`: KV heads [default: as many as query heads]
    #[arg(long, value_parser = elements(), requires = "compare")]
    key_value_heads: Option<usize>,
    /// Only with `--compare`: number of ranks
    #[arg(long, default_value_t = 8, value_parser = ranks(), requires = "compare")]
    ranks: usize,
    /// Only with `--compare`: bandwidth of a rank's link, in powers of 1024
    #[arg(long, value_parser = bandwidth, default_value = "200GB/s", requires = "compare")]
    bandwidth: f64,
    /// Only with `--compare`: bytes per element
    #[arg(long, value_parser = elements(), default_value_t = 2, requires = "compare")]
    element: usize,
    /// Only with `--compare`: sliding window in keys
    #[arg(long, value_parser = tokens, default_value = "4k", requires = "compare")]
    window: usize,
}

pub(crate) fn run(arguments: &Arguments) -> Done {
    let Some(file) = arguments.file.as_ref().filter(|_| !arguments.compare) else {
        return compare(arguments);
    };
    let file = ExperimentFile { file: file.clone(), replacements: arguments.replacements.clone() };
    let Some(cluster) = &arguments.cluster else {
        return here(&check::opened(&file)?, arguments.json);
    };
    let cluster = Cluster::load(cluster)?;
    let phases = Phases::of(&check::opened(&file)?.resolved);
    let longest = phases.longest();
    if let Some(stage) = longest.experiment.phase() {
        print::say(&format!("phase `{}`, the longest: strategies are chosen for it", stage.name));
    }
    if arguments.scale {
        let scale = Scale::of(longest, &cluster, |row| print::say(&row.in_short()));
        print::either(arguments.json, || scale.to_json(), || scale.to_text())?;
        return Ok(0);
    }
    on_cluster(arguments, &phases, &cluster)
}

/// Prints the plan on this machine, or on the cluster that its file names, and checks whether it fits there and `train` would accept it.
fn here(opened: &Opened, json: bool) -> Done {
    let plans = opened.plans(annulus_machine::cores())?;
    check::tell_left_out(&opened.resolved.experiment);
    print::line(&planned(&plans, json))?;
    let mut slow: Vec<String> = plans.iter().filter_map(annulus_train::slow_warning).collect();
    slow.dedup();
    slow.iter().for_each(print::warn);
    annulus_train::fits_here(&plans)?;
    let note = check::data_fits(opened, &plans, true)?;
    if let Some(note) = &note {
        print::say(note);
    }
    let [need, _] = check::fullest(&plans);
    if let Some(need) = need.filter(|_| !json) {
        print::line(&format!("\n{need}"))?;
    }
    Ok(0)
}

/// The plan as text or JSON; with several stages, each under its name.
fn planned(plans: &[Plan], json: bool) -> String {
    if let [plan] = plans {
        return if json { plan.to_json() } else { plan.to_text() };
    }
    let titled = plans.iter().filter_map(|plan| Some((plan, plan.experiment.phase()?)));
    if json {
        let parsed = |plan: &Plan| serde_json::from_str::<Value>(&plan.to_json());
        let stage = |(plan, stage): (&Plan, &Phase)| {
            let steps = plan.experiment.phase_start().steps;
            let steps = [steps.start + 1, steps.end];
            json!({ "stage": stage.name, "steps": steps, "plan": parsed(plan).ok() })
        };
        return json!(titled.map(stage).collect::<Vec<_>>()).to_string();
    }
    let text = |(plan, stage): (&Plan, &Phase)| {
        let steps = plan.experiment.phase_start().steps;
        let (name, first, last) = (&stage.name, steps.start + 1, steps.end);
        format!("phase {name}, steps {first} to {last}\n\n{}", plan.to_text())
    };
    titled.map(text).collect::<Vec<_>>().join("\n\n")
}

/// Compares all strategies on a cluster, prints the comparison, and checks that every phase fits.
fn on_cluster(arguments: &Arguments, phases: &Phases, cluster: &Cluster) -> Done {
    let resolved = phases.longest();
    let choice = Choice::among(resolved, cluster)?;
    let (Some(phases), Some((strategies, _, estimate))) =
        (phases.settled(&choice), choice.answered())
    else {
        let reasons = if arguments.json { choice.to_json().to_string() } else { choice.to_text() };
        print::line(&reasons)?;
        return Err(Problems::from(choice.none(&resolved.experiment)).into());
    };
    let meshes = Meshes::of(resolved, cluster, &choice);
    tell(arguments, &choice, &meshes, phases.longest())?;
    let answer = Answer { choice: &choice, meshes: &meshes, phases: &phases, strategies };
    if let Some(remark) = answer.check(&estimate)? {
        print::say(&remark);
    }
    Ok(0)
}

/// Prints a comparison, with the sweet spot of `split`, the experiment with the written or chosen strategies.
fn tell(
    arguments: &Arguments,
    choice: &Choice,
    meshes: &Meshes,
    split: &Resolved,
) -> Result<(), Failure> {
    let (experiment, cluster) = (&split.experiment, &choice.cluster);
    let longest = longest(split, cluster);
    let grid = Grid::of(split, experiment.attention.strategy, cluster);
    if let Some(path) = &arguments.svg {
        print::file(path, grid.to_svg(&experiment.name).as_bytes())?;
    }
    if arguments.json {
        let mut shown = choice.to_json();
        shown["meshes"] = meshes.to_json();
        shown["longest"] = json!(longest.tokens());
        shown["sweet_spot"] = grid.to_json();
        return print::line(&shown.to_string());
    }
    print::line(&choice.to_text())?;
    if let Some(text) = longest.to_text() {
        print::line(&format!("{text}\n"))?;
    }
    if let Some(text) = meshes.to_text() {
        print::line(&text)?;
    }
    print::line(&grid.to_text())
}

fn compare(arguments: &Arguments) -> Done {
    if let Some(file) = &arguments.file {
        let message =
            format!("`--compare` is about no experiment, but `{}` is given", file.display());
        return Err(Failure::usage(message, "drop one of them"));
    }
    let given = &arguments.sizes;
    let heads = (given.hidden / given.head_dim).max(1);
    if given.hidden > given.head_dim && !given.hidden.is_multiple_of(given.head_dim) {
        let (hidden, dim) = (given.hidden, given.head_dim);
        let message = format!("`--hidden {hidden}` is not a multiple of `--head-dim {dim}`");
        return Err(Failure::usage(message, "give heads of equal size"));
    }
    if let Some(few) = given.key_value_heads.filter(|&few| few == 0 || !heads.is_multiple_of(few)) {
        let message = format!("{heads} query heads cannot share {few} KV heads evenly");
        return Err(Failure::usage(message, format!("give a divisor of {heads}")));
    }
    let comparison = Comparison {
        tokens: given.tokens,
        hidden: given.hidden,
        head_dim: given.head_dim.min(given.hidden),
        key_value_heads: given.key_value_heads.unwrap_or(heads),
        ranks: given.ranks,
        bandwidth: given.bandwidth,
        element: given.element,
        window: given.window,
    };
    print::either(arguments.json, || comparison.to_json(), || comparison.to_text())?;
    Ok(0)
}
