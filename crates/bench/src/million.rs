//! One step over a million tokens of a text, as its experiment says: `million`.

use std::time::Instant;

use annulus_data::Tokenizer;
use annulus_experiment::{Override, load};
use anyhow::Result;
use serde_json::json;

use crate::arguments;
use crate::llama::Step;
use crate::record::Record;
use crate::resident::Watch;
use crate::session::Verdict;
use crate::step::{found, root};
use crate::subject::{Fields, fields};

/// The path of the experiment's file.
const FILE: &str = "experiments/million-tokens.yaml";

/// Takes the step once: nothing warms up, as nothing does in a run.
pub(crate) fn run(arguments: &arguments::Million) -> Result<Verdict> {
    let mut record = Record::open(arguments.record.as_deref())?;
    let experiment = load(&root().join(FILE), &replacements(arguments))?;
    let vocabulary = Tokenizer::open(experiment.data.tokenizer())?.vocabulary();
    let watch = Watch::start();
    let step = Step::on_its_data(experiment, vocabulary)?;
    let mut crew = step.crew(&step.setup(arguments.threads)?)?;
    let start = Instant::now();
    let steps = crew.go()?;
    let seconds = start.elapsed().as_secs_f64();
    let mut line = describe(arguments, &step);
    let speed = arguments.tokens as f64 / seconds;
    line.extend(fields(json!({ "time_s": seconds, "tokens_per_second": speed })));
    line.extend(found(steps[0], watch));
    record.conclude(&line)?;
    Ok(Verdict::Fine)
}

/// Values that replace those of the file.
fn replacements(arguments: &arguments::Million) -> Vec<Override> {
    let mut all = vec![
        ("data.path", arguments.text.display().to_string()),
        ("data.tokens", arguments.tokens.to_string()),
    ];
    all.extend(arguments.ranks.map(|ranks| ("mesh.sequence", ranks.to_string())));
    all.into_iter().map(|(key, value)| Override { key: key.to_owned(), value }).collect()
}

fn describe(arguments: &arguments::Million, step: &Step) -> Fields {
    let experiment = &step.plan.experiment;
    fields(json!({
        "bench": "million", "tokens": experiment.data.tokens,
        "parameters": step.plan.shape.elements(), "ranks": step.plan.ranks.len(),
        "strategy": experiment.attention.strategy.name(),
        "recompute": experiment.memory.recompute.word(), "threads": arguments.threads,
    }))
}
