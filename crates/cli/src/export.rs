//! `annulus export`: a run's model as a folder of its own.

use std::path::PathBuf;

use annulus_experiment::ModelSource;
use annulus_text::wrapped;
use annulus_train::Checkpoint;
use clap::Args;

use crate::values::bytes;
use crate::{Done, hub, print};

#[derive(Args, Debug)]
pub(crate) struct Export {
    /// A run's folder, or the `step-N` in it
    run: PathBuf,
    /// Folder to write; it must not exist
    #[arg(long, alias = "output")]
    out: PathBuf,
    /// Largest size of a file of weights, as in 5GB
    #[arg(long, value_parser = bytes, default_value = "5G")]
    shard: u64,
    /// Merge LoRA adapters into the base weights
    #[arg(long)]
    merge: bool,
}

pub(crate) fn run(arguments: &Export) -> Done {
    let Export { run, out, shard, merge } = arguments;
    let checkpoint = Checkpoint::open(run)?;
    checkpoint.warnings().iter().for_each(print::warn);
    checkpoint.unsaid().iter().for_each(print::warn);
    let weights = match &checkpoint.experiment().model.source {
        ModelSource::Folder { path, hub, .. } if *merge => {
            let name = hub.as_ref().map_or(path.clone(), PathBuf::from);
            checkpoint.merged(&hub::folder(&name)?)?
        }
        ModelSource::Inline(_) if *merge => checkpoint.merged(&PathBuf::new())?,
        _ => checkpoint.weights()?,
    };
    let files = checkpoint.export(&weights, out, *shard)?;
    let (from, to) = (checkpoint.folder().display(), out.display());
    print::say(&wrapped(&format!("{from} is in {to}: {}", listed(&files)), 2));
    Ok(0)
}

/// Names, of many shards the first and the last.
fn listed(files: &[String]) -> String {
    const MOST: usize = 4;
    let shard = |name: &&String| name.starts_with("model-");
    let (shards, others): (Vec<&String>, Vec<&String>) = files.iter().partition(shard);
    let others = others.iter().map(|name| (*name).clone());
    let shown = match shards[..] {
        [first, .., last] if shards.len() > MOST => {
            vec![format!("{first} to {last}")]
        }
        _ => shards.into_iter().cloned().collect(),
    };
    shown.into_iter().chain(others).collect::<Vec<_>>().join(", ")
}
