//! One step of a run computed again: from which checkpoint, and whether its tensors have the hashes that the run wrote.

use std::fs;
use std::path::{Path, PathBuf};

use annulus_tensors::{Room, TensorFile};
use candle_core::DType;
use serde::Serialize;

use crate::Result;
use crate::checkpoint::{opened, steps};
use crate::error::failure;
use crate::finished::bisect::{Difference, kinds};
use crate::finished::logged::Logged;
use crate::finished::reproduced::{MOST_TENSORS, Unlike, unlike, unreadable};
use crate::run::hashes::{StepHashes, hashed};
use crate::step::hashes::dump::files;
use crate::step::hashes::{Hashes, of_run};

/// The checkpoint from which a step is computed again.
#[derive(Clone, Debug, Default)]
pub struct Nearest {
    /// The step of the last whole checkpoint before it; `None`: it is computed from the run's first step on.
    pub step: Option<u64>,
    /// What is wrong with later checkpoints.
    pub warnings: Vec<String>,
}

/// The result of computing a step again.
#[derive(Clone, Debug, Serialize)]
pub struct Replayed {
    /// The step, from 1.
    pub step: u64,
    /// The number of tensors written down, of all kinds.
    pub tensors: usize,
    /// Whether the run has hashes of the step, with which the tensors were compared.
    pub hashed: bool,
    /// The tensors whose hashes differ from those that the run wrote.
    pub first: Option<Difference>,
    /// Whether the run logged the step.
    pub logged: bool,
    /// The first logged value that differs from the run's.
    pub value: Option<Unlike>,
}

/// Finds the checkpoint from which step `step` of the run in `run` is computed again, and puts its files into `output`, where a run then
/// resumes from it. They are hard links where possible: a run never changes a file of a checkpoint.
///
/// # Errors
/// A folder that cannot be read or written.
pub fn nearest(run: &Path, step: u64, output: &Path) -> Result<Nearest> {
    let mut nearest = Nearest::default();
    let steps = steps(run).map_err(|error| failure("read", run, &error))?;
    for before in steps.into_iter().rev().filter(|before| *before < step) {
        let name = format!("step-{before}");
        match opened(&run.join(&name)) {
            Ok(found) => {
                let to = output.join(name);
                link(&found.folder, &to).map_err(|error| failure("write", &to, &error))?;
                return Ok(Nearest { step: Some(before), ..nearest });
            }
            Err(error) => nearest.warnings.push(error.to_string()),
        }
    }
    Ok(nearest)
}

/// Makes a folder with the same files, linked or copied, and with the same folders.
fn link(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            link(&from, &to)?;
            continue;
        }
        fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop))?;
    }
    Ok(())
}

/// Compares the tensors of step `step` in `folder`, and what `again` logged of it, with what the run in `run` wrote.
///
/// # Errors
/// A file that cannot be read.
pub fn replayed(run: &Path, again: &Path, step: u64, folder: &Path) -> Result<Replayed> {
    let own = StepHashes::new(step, &hashes(folder)?, Vec::new());
    let theirs = hashed(run)?.into_iter().find(|line| line.step == step);
    let first = theirs.as_ref().filter(|theirs| theirs.tensors != own.tensors);
    let line = |folder: &Path| -> Result<_> {
        Ok(Logged::lenient(folder)?.lines.into_iter().find(|line| line.step == step))
    };
    let both = line(run)?.zip(line(again)?);
    Ok(Replayed {
        step,
        tensors: own.tensors.len(),
        hashed: theirs.is_some(),
        first: first.map(|theirs| Difference {
            step,
            kinds: kinds(theirs, &own),
            divergence: None,
        }),
        logged: both.is_some(),
        value: both.and_then(|(then, now)| unlike(&then, &now)),
    })
}

/// The hashes of all tensors in the files of a folder.
fn hashes(folder: &Path) -> Result<Hashes> {
    let mut all = Hashes::new();
    for name in files() {
        let path: PathBuf = folder.join(name);
        if !path.is_file() {
            continue;
        }
        let file = TensorFile::open(&path, &path, &mut Room::of(MOST_TENSORS))
            .map_err(|error| unreadable(&error))?;
        for (name, entry) in file.tensors() {
            let runs = vec![(0, entry.shape.iter().product())];
            let values = annulus_model::elements(&file, name, entry, &runs)?;
            let values: Vec<f32> = values.to_dtype(DType::F32)?.to_vec1()?;
            all.insert(name.clone(), of_run(0, &values));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chat templates with names are in a folder of the checkpoint.
    #[test]
    fn folders_of_a_checkpoint_are_linked_with_what_is_in_them() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("step-1"), folder.path().join("again/step-1"));
        fs::create_dir_all(from.join("additional_chat_templates")).unwrap();
        let names = ["config.json", "additional_chat_templates/rag.jinja"];
        for name in names {
            fs::write(from.join(name), name).unwrap();
        }
        link(&from, &to).unwrap();
        for name in names {
            assert_eq!(fs::read_to_string(to.join(name)).unwrap(), name);
        }
    }
}
