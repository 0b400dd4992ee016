//! Writing checkpoints.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use annulus_files::PendingFolder;
use annulus_files::hugging_face::TEMPLATES;
use annulus_model::{Described, Layout, WeightsError, adapter_layout};
use annulus_plan::Plan;

use super::best::best_of;
use super::hashes::{FileHashes, is_read};
use super::needed::kept_for;
use super::read::named;
use super::{Contents, LATEST, OPTIMIZER, Piece, STATE, State, Texts, checkpoint_folder, steps};
use crate::error::{failure, failure_in};
use crate::folder::claim::Claim;
use crate::folder::write_atomically;
use crate::{Result, TrainError};

/// The most bytes of a weights file; larger models are cut into several.
const SHARD_BYTES: u64 = 5 << 30;
/// Where the tensors of a checkpoint lie in its files, the same on all ranks.
#[derive(Clone, Debug)]
pub(crate) struct Layouts {
    weights: (Layout, Vec<String>),
    optimizer: (Layout, Vec<String>),
}

/// An unfinished checkpoint, on the rank that commits it; its files have their full length. Dropped before [`Unfinished::end`], it leaves
/// nothing behind.
#[derive(Debug)]
pub(crate) struct Unfinished {
    folder: PendingFolder,
    named: PathBuf,
    claim: Claim,
    /// How many bytes all ranks together must write.
    bytes: u64,
}

/// Notes in the flight record what is being written.
pub(crate) type Note<'a> = &'a (dyn Fn(&'static str) + Sync);

impl Layouts {
    /// The layouts of the files with these weights and optimizer's tensors.
    pub(crate) fn of(
        plan: &Plan,
        weights: &[Described],
        optimizer: &[Described],
    ) -> Result<Layouts> {
        let names = |all: &[Described]| all.iter().map(|one| one.name.clone()).collect();
        let layout = match plan.experiment.lora {
            None => Layout::of_weights(weights, SHARD_BYTES)?,
            Some(_) => adapter_layout(weights, plan.shape.tie_word_embeddings)?,
        };
        let kept = optimizer.iter().map(|one| (one.name.as_str(), one.clone()));
        Ok(Layouts {
            weights: (layout, names(weights)),
            optimizer: (Layout::of_file(OPTIMIZER, kept)?, names(optimizer)),
        })
    }

    /// Reads `contents` in the order of [`Layouts::fill`] but writes nothing, where rank 0 writes for all ranks; returns 0 bytes.
    pub(crate) fn hand_over(&self, contents: &mut dyn Contents) -> Result<u64> {
        self.weights.1.iter().try_for_each(|name| contents.of_weight(name).map(drop))?;
        self.optimizer.1.iter().try_for_each(|name| contents.of_optimizer(name).map(drop))?;
        Ok(0)
    }

    fn bytes(&self) -> u64 {
        self.weights.0.bytes() + self.optimizer.0.bytes()
    }

    /// Writes `contents` into the files in `folder`, which will be renamed to `named`: errors use that name. Returns how many bytes are
    /// written and synced to disk.
    pub(crate) fn fill(
        &self,
        folder: &Path,
        named: &Path,
        contents: &mut dyn Contents,
        note: Note<'_>,
    ) -> Result<u64> {
        note("checkpoint, weights");
        let weights = filled(&self.weights, folder, named, |name| contents.of_weight(name))?;
        note("checkpoint, optimizer");
        let optimizer = filled(&self.optimizer, folder, named, |name| contents.of_optimizer(name))?;
        Ok(weights + optimizer)
    }
}

/// Writes the pieces that `read` returns; returns how many bytes they are.
fn filled(
    (layout, names): &(Layout, Vec<String>),
    folder: &Path,
    named: &Path,
    mut read: impl FnMut(&str) -> Result<Vec<Piece>>,
) -> Result<u64> {
    let failed = |error| unwritten(error, named);
    let mut files = layout.open(folder).map_err(failed)?;
    for name in names {
        for Piece { elements, runs } in read(name)? {
            files.write(name, &elements, &runs).map_err(failed)?;
        }
    }
    files.end().map_err(failed)
}

impl Unfinished {
    /// Begins the checkpoint `step-N` in the run's folder.
    pub(crate) fn begin(claim: &Claim, step: u64, layouts: &Layouts) -> Result<Unfinished> {
        claim.check()?;
        let named = checkpoint_folder(claim.path(), step);
        let folder =
            PendingFolder::create(&named).map_err(|error| failure("write", &named, &error))?;
        for (layout, _) in [&layouts.weights, &layouts.optimizer] {
            layout.create(folder.path()).map_err(|error| unwritten(error, &named))?;
        }
        Ok(Unfinished { folder, named, claim: claim.clone(), bytes: layouts.bytes() })
    }

    /// The folder to be filled.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Commits the folder, after all ranks together have written `written` bytes to disk, and points `LATEST` at it.
    pub(crate) fn end(
        self,
        texts: &Texts,
        state: &State,
        written: u64,
        note: Note<'_>,
    ) -> Result<PathBuf> {
        let Unfinished { folder, named, claim, bytes } = self;
        // Nothing is written where the folder was before it was moved.
        claim.check()?;
        if written != bytes {
            // Bytes that nobody wrote would be zeros.
            return Err(TrainError::Internal(format!("ranks wrote {written} bytes of {bytes}")));
        }
        let failed = |error| failure("write", &named, &error);
        note("checkpoint, texts and hashes");
        let write = || {
            texts.write(folder.path())?;
            fs::write(folder.path().join(STATE), serde_json::to_vec_pretty(state)?)
        };
        write().map_err(failed)?;
        FileHashes::of(folder.path())
            .and_then(|hashes| hashes.write(folder.path()))
            .map_err(failed)?;
        note("checkpoint, commit");
        let commit = || {
            if !named.is_dir() {
                return folder.commit();
            }
            // A folder of this name was found damaged at the start: otherwise the run would have resumed from it.
            let aside = PendingFolder::create(&named)?;
            let damaged = aside.path().join("damaged");
            fs::rename(&named, &damaged)?;
            folder.commit()?;
            keep_foreign(&damaged, &named)
        };
        claim.check().and_then(|()| commit().map_err(failed))?;
        claim.check().and_then(|()| point(claim.path(), state.step))?;
        Ok(named)
    }
}

/// Writes `step-N` in the run's folder, all of which `contents` has, whole or not at all, and points `LATEST` at it.
pub(crate) fn save(
    claim: &Claim,
    texts: &Texts,
    state: &State,
    layouts: &Layouts,
    contents: &mut dyn Contents,
    note: Note<'_>,
) -> Result<PathBuf> {
    let mut written = || {
        let unfinished = Unfinished::begin(claim, state.step, layouts)?;
        let written = layouts.fill(unfinished.folder(), &unfinished.named, contents, note)?;
        unfinished.end(texts, state, written, note)
    };
    written().map_err(|error| claim.blamed(error))
}

/// Moves what others have laid into a damaged checkpoint to the one that took its place; under another name what would be read there.
fn keep_foreign(old: &Path, new: &Path) -> io::Result<()> {
    for entry in fs::read_dir(old)? {
        let name = entry?.file_name();
        let called = name.to_string_lossy();
        if !new.join(&name).exists() {
            let is_read = is_read(&called) || called == TEMPLATES;
            let kept = if is_read { format!("{called}.foreign").into() } else { name.clone() };
            fs::rename(old.join(&name), new.join(kept))?;
        }
    }
    Ok(())
}

/// Points `LATEST` at `output/step-N`. If a run is killed just before, the next start does it.
pub(crate) fn point(output: &Path, step: u64) -> Result<()> {
    if named(output) == Some(step) {
        return Ok(());
    }
    let path = output.join(LATEST);
    write_atomically(&path, format!("step-{step}\n").as_bytes())
        .map_err(|error| failure("write", &path, &error))
}

/// The error that weights could not be saved in `folder`, which is not the weights' fault.
fn unwritten(error: WeightsError, folder: &Path) -> TrainError {
    unwritten_in("output", error, folder)
}

/// [`unwritten`] in the folder that `key` names.
pub(crate) fn unwritten_in(key: &str, error: WeightsError, folder: &Path) -> TrainError {
    match error {
        WeightsError::Write { file, source } => {
            let file = folder.join(file.file_name().unwrap_or_default());
            failure_in(key, "write", &file, &source)
        }
        error => TrainError::Checkpoint { message: error.to_string(), hint: error.hint() },
    }
}

/// What [`prune`] leaves.
#[derive(Debug, Default)]
pub(crate) struct Pruned {
    /// An error for every checkpoint that could not be deleted.
    pub(crate) failed: Vec<TrainError>,
    /// Why checkpoints are kept that would be deleted if no other run needed them, by step.
    pub(crate) needed: BTreeMap<u64, String>,
}

/// Which checkpoints [`prune`] keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retention {
    /// How many of the newest.
    pub(crate) newest: usize,
    /// Whether that with the lowest validation loss, too.
    pub(crate) best: bool,
    /// The step of one that is known to be good.
    pub(crate) verified: u64,
}

/// Deletes the oldest checkpoints but for those that `retention` keeps. Those of the steps `refused`, which this start found damaged, neither
/// count nor are deleted, nor those that another run needs.
///
/// # Errors
/// The folder is no longer this run's.
pub(crate) fn prune(claim: &Claim, retention: Retention, refused: &[u64]) -> Result<Pruned> {
    claim.check()?;
    let Retention { newest, best, verified } = retention;
    let (output, keep) = (claim.path(), newest.max(1));
    let nothing = |error: &io::Error| {
        Ok(Pruned { failed: vec![failure("read", output, error)], ..Pruned::default() })
    };
    let mut steps = match steps(output) {
        Ok(steps) => steps,
        Err(error) => return nothing(&error),
    };
    // Later ones are damaged, too, or of a run that has been begun anew.
    steps.retain(|step| *step <= verified && !refused.contains(step));
    let best = match best.then(|| best_of(output, &steps)).transpose() {
        Ok(best) => best.flatten().map(|(step, _)| step),
        // The best might be among those that would be deleted.
        Err(error) => return nothing(&error),
    };
    let needs = |step: &u64| Some((*step, kept_for(&checkpoint_folder(output, *step))?));
    let mut needed: BTreeMap<u64, String> = steps.iter().filter_map(needs).collect();
    steps.retain(|step| !needed.contains_key(step));
    let surplus = steps.len().saturating_sub(keep);
    let newer_than = |old: u64| steps.iter().filter(|step| **step > old).count();
    needed.retain(|step, _| *step != verified && newer_than(*step) >= keep);
    let is_kept = |step: &u64| *step == verified || Some(*step) == best;
    let surplus = steps.into_iter().take(surplus).filter(|step| !is_kept(step));
    let delete = |step| {
        let folder = checkpoint_folder(output, step);
        annulus_files::remove(&folder).map_err(|error| failure("delete", &folder, &error)).err()
    };
    Ok(Pruned { failed: surplus.filter_map(delete).collect(), needed })
}
