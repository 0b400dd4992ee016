//! One step of a run computed again: from which checkpoint, and whether its tensors are those that the run hashed.

use std::fs;
use std::path::{Path, PathBuf};

use annulus_tensors::{Room, TensorFile};
use candle_core::DType;
use serde::Serialize;

use crate::Result;
use crate::checkpoint::{opened, steps};
use crate::run::bisect::{Difference, kinds};
use crate::run::folder::failure;
use crate::run::hashes::{Line, hashed};
use crate::run::logged::Logged;
use crate::run::reproduced::{Unlike, unlike, unreadable};
use crate::step::dump::FILES;
use crate::step::hashes::{Hashes, of_run};

/// Tensors of a file at most: headers have their own limit in bytes.
const MOST: usize = 1 << 20;

/// Where a step is computed from.
#[derive(Clone, Debug, Default)]
pub struct Nearest {
    /// The last checkpoint before it that is whole; none: it is computed from the run's first step on.
    pub step: Option<u64>,
    /// What is wrong with later ones.
    pub warnings: Vec<String>,
}

/// What came of a step that was computed again.
#[derive(Clone, Debug, Serialize)]
pub struct Replayed {
    /// The step, from 1.
    pub step: u64,
    /// The tensors that were written, of all kinds.
    pub tensors: usize,
    /// Whether the run has hashes of the step, to which they were held.
    pub hashed: bool,
    /// Those that do not have the hashes that the run wrote.
    pub first: Option<Difference>,
    /// Whether the run logged the step.
    pub logged: bool,
    /// The first value that was logged otherwise.
    pub value: Option<Unlike>,
}

/// The checkpoint from which step `step` of the run in `run` is computed again; its files become those of a run in `output`, where that
/// run goes on from it. They are linked where the file system can, and nothing that a run does changes a file of a checkpoint.
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

/// Makes a folder with the same files.
fn link(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop))?;
    }
    Ok(())
}

/// Holds the tensors of step `step` in `folder`, and what was logged of it in `again`, to what the run in `run` wrote.
///
/// # Errors
/// A file that cannot be read.
pub fn replayed(run: &Path, again: &Path, (step, folder): (u64, &Path)) -> Result<Replayed> {
    let own = Line::new(step, &hashes(folder)?, Vec::new());
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

/// The hashes of all tensors in a folder, as they lie there.
fn hashes(folder: &Path) -> Result<Hashes> {
    let mut all = Hashes::new();
    for name in FILES {
        let path: PathBuf = folder.join(name);
        if !path.is_file() {
            continue;
        }
        let file = TensorFile::open(&path, &path, &mut Room::of(MOST))
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
