//! The texts that an experiment reads: files and folders, without what its own run and others write.

use std::fs;
use std::path::{Path, PathBuf};

use annulus_data::{Excluded, Records, left_out};
use annulus_experiment::{Experiment, Format};

use crate::{Result, TrainError};

/// What a run writes into its folder, besides checkpoints, traces and curves.
const MADE: [&str; 7] = [
    "run.lock",
    "LATEST",
    "experiment.yaml",
    "plan.yaml",
    "manifest.json",
    "metrics.jsonl",
    "evaluation",
];

/// How the names of its curves begin.
const CURVES: &str = "events.out.tfevents";

/// How many paths a note lists.
const LISTED: usize = 4;

/// The folder of token caches: beside the run folders.
pub fn cache_folder(output: &Path) -> PathBuf {
    output.parent().unwrap_or(Path::new("")).join("cache")
}

/// The texts that an experiment reads.
///
/// # Errors
/// When it names none, and the current folder is not the project's.
pub fn texts(experiment: &Experiment) -> Result<Vec<PathBuf>> {
    experiment.data.path.as_ref().map_or_else(own_documents, |path| Ok(vec![path.clone()]))
}

/// What in the folders of `inputs` is no data for a run with the folder `output`: that folder and its token caches. Where a text
/// lies in the run's folder itself, what the run writes there.
///
/// # Errors
/// When one of `inputs` is what the run writes.
pub fn excluded(inputs: &[PathBuf], output: &Path) -> Result<Excluded> {
    let caches = cache_folder(output);
    let own = output.canonicalize().ok();
    let (mut excluded, mut is_inside) = (Vec::new(), false);
    let mut in_caches = false;
    for input in inputs {
        let Ok(real) = input.canonicalize() else { continue };
        in_caches |= caches.canonicalize().is_ok_and(|caches| real.starts_with(caches));
        let Some(within) = own.as_ref().and_then(|own| real.strip_prefix(own).ok()) else {
            continue;
        };
        let first = within.components().next();
        if first.is_some_and(|first| is_made(&first.as_os_str().to_string_lossy())) {
            let (input, output) = (input.display(), output.display());
            return Err(TrainError::Configuration {
                message: format!(
                    "`{input}` is no data: the run writes it into its own folder, `{output}`"
                ),
                hint: Some("name another file or folder, or set another `output`".into()),
            });
        }
        is_inside = true;
    }
    if is_inside {
        excluded.extend(made_in(output));
    } else {
        excluded.push(output.to_owned());
    }
    if !in_caches {
        excluded.push(caches);
    }
    Ok(Excluded::new(excluded))
}

/// What is left out of the texts of an experiment, said; `None`: nothing.
///
/// # Errors
/// Those of [`texts`] and [`excluded`], and of folders that cannot be read.
pub fn left_out_of(experiment: &Experiment) -> Result<Option<String>> {
    let records = match experiment.data.format {
        Format::Text => Records::Text,
        Format::Jsonl => Records::Lines,
        Format::Chat => Records::Chats,
        Format::Batches | Format::Recall | Format::Needles => return Ok(None),
    };
    let inputs = texts(experiment)?;
    let paths = left_out(&inputs, records, &excluded(&inputs, &experiment.output)?)?;
    if paths.is_empty() {
        return Ok(None);
    }
    let shown = paths.iter().take(LISTED).map(|path| format!("`{}`", path.display()));
    let shown = shown.collect::<Vec<_>>().join(", ");
    let more = match paths.len().saturating_sub(LISTED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Ok(Some(format!("{shown}{more} left out of the data: what runs write is no text")))
}

fn made_in(output: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(output).into_iter().flatten().flatten();
    let made = entries.filter(|entry| is_made(&entry.file_name().to_string_lossy()));
    made.map(|entry| entry.path()).collect()
}

fn is_made(name: &str) -> bool {
    let of_step = |rest: &str| rest.bytes().all(|digit| digit.is_ascii_digit());
    let trace = name.strip_prefix("trace-").and_then(|rest| rest.strip_suffix(".json"));
    MADE.contains(&name)
        || name.starts_with(CURVES)
        || name.strip_prefix("step-").is_some_and(of_step)
        || trace.is_some_and(of_step)
}

/// The project's own documents and sources, where the current folder is the project's.
fn own_documents() -> Result<Vec<PathBuf>> {
    let inputs: Vec<PathBuf> = ["README.md", "crates", "experiments"]
        .into_iter()
        .map(PathBuf::from)
        .filter(|path| path.exists())
        .collect();
    if Path::new("crates").is_dir() {
        return Ok(inputs);
    }
    Err(TrainError::Configuration {
        message: "no `data.path` is given, and the current folder is not the project's".into(),
        hint: Some("set `data.path`, or start in the project's folder".into()),
    })
}
