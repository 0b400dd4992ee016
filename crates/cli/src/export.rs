//! `annulus export`: a run's model as a folder of its own.

use std::path::PathBuf;

use annulus_experiment::{ModelSource, Override, parse};
use annulus_text::wrapped;
use annulus_train::{Checkpoint, RESOLVED};
use clap::Args;

use crate::failure::Failure;
use crate::values::{bytes, replacement};
use crate::{Done, hub, print};

/// The key that names the base weights.
const BASE: &str = "model.path";

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
    /// With `--merge`: where the base weights are now, as `model.path=FOLDER`
    #[arg(value_name = "KEY=VALUE", value_parser = replacement)]
    replacements: Vec<Override>,
}

pub(crate) fn run(arguments: &Export) -> Done {
    let Export { run, out, shard, merge, replacements } = arguments;
    refuse_keys(replacements, *merge)?;
    let checkpoint = Checkpoint::open(run)?;
    checkpoint.warnings().iter().for_each(print::warn);
    checkpoint.unsaid().iter().for_each(print::warn);
    let trained = checkpoint.experiment().written().to_yaml();
    let weights = match parse(RESOLVED, &trained, replacements)?.model.source {
        ModelSource::Folder { path, hub, .. } if *merge => {
            let name = hub.map_or(path, PathBuf::from);
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

/// Refuses to replace anything but the folder of the base weights, which only a merge reads.
fn refuse_keys(replacements: &[Override], merge: bool) -> Result<(), Failure> {
    if let Some(Override { key, .. }) = replacements.iter().find(|one| one.key != BASE) {
        let message = format!("`{key}`: an export replaces no key but `{BASE}`, with `--merge`");
        return Err(Failure::usage(message, "leave it out"));
    }
    if merge || replacements.is_empty() {
        return Ok(());
    }
    let message = format!("`{BASE}` is the base of adapters, which only `--merge` reads");
    Err(Failure::usage(message, "add `--merge`, or leave it out"))
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
