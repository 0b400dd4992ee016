//! A checkpoint of a state that no rank has whole: every rank writes its share into files that rank 0 has made.
//!
//! ```text
//! rank 0: folder, headers -> its name to all -> every rank: its elements to where they lie, to disk -> bytes to rank 0 -> commit
//! ```
//! If a rank does not see the folder, because its host has its own disk, all ranks send their shares to rank 0, which writes alone.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use annulus_comm::{Communicator, Error as CommError, Label, Reduce, all_gather_values};
use annulus_plan::Plan;
use candle_core::{Device, Tensor};

use crate::checkpoint::{Contents, Layouts, Piece, State, Texts, Unfinished, checkpoint_folder};
use crate::run::recorder::Recorder;
use crate::run::saving::noted;
use crate::run::writing::Writing;
use crate::sink::Notice;
use crate::step::finished::Finished;
use crate::step::measure::alive::{alive, calling};
use crate::step::slices::copied::CopiedSlices;
use crate::step::slices::gathered::GatheredSlices;
use crate::{Result, TrainError};

/// A rank's share of a checkpoint that is written while training goes on; dropped before its end, it leaves no checkpoint.
#[derive(Debug)]
pub(crate) struct PendingSave {
    /// The step that is saved.
    pub(crate) step: u64,
    writing: Writing<u64>,
    dropped: Arc<AtomicBool>,
    /// What completes the checkpoint, on rank 0.
    commit: Option<Commit>,
}

/// What rank 0 needs to complete a checkpoint when all ranks have written their shares.
#[derive(Debug)]
struct Commit {
    unfinished: Unfinished,
    texts: Texts,
    state: State,
}

/// Saves a step of `plan`; all ranks must call it, rank 0 with a recorder. If training goes on meanwhile, returns what is still to be
/// written.
pub(crate) fn save(
    Finished { step, since, comm, mut slices }: Finished<'_>,
    plan: &Plan,
    recorder: &mut Option<Recorder<'_>>,
) -> Result<Option<PendingSave>> {
    let layouts = Layouts::of(plan, &slices.weights(), &slices.optimizer())?;
    let begin = |recorder: &mut Recorder<'_>| Commit::begin(recorder, comm, step, since, &layouts);
    let commit = recorder.as_mut().map(begin).transpose()?;
    let output = &plan.experiment.output;
    let own = commit.as_ref().map(|commit| commit.unfinished.folder());
    let (folder, named) = (told(comm, step, output, own)?, checkpoint_folder(output, step));
    let blind = blind(comm, step, &folder)?;
    if plan.experiment.background_saves && blind.is_empty() {
        let copied = alive(comm, || CopiedSlices::of(slices, comm.rank()))?;
        let dropped = Arc::new(AtomicBool::new(false));
        let mut contents = DroppableCopy { copied, dropped: dropped.clone() };
        let write = move || layouts.fill(&folder, &named, &mut contents, &|_| ());
        let writing = Writing::begin(output, write)?;
        return Ok(Some(PendingSave { step, writing, dropped, commit }));
    }
    let note = |pass| noted(comm, step, pass);
    let written = if blind.is_empty() {
        alive(comm, || layouts.fill(&folder, &named, &mut slices, &note))?
    } else {
        let mut all = GatheredSlices::new(comm, step, slices);
        match &commit {
            Some(_) => alive(comm, || layouts.fill(&folder, &named, &mut all, &note))?,
            None => layouts.hand_over(&mut all)?,
        }
    };
    let written = total(comm, step, written)?;
    if let (Some(Commit { unfinished, texts, state }), Some(recorder)) = (commit, recorder) {
        let folder = alive(comm, || unfinished.end(&texts, &state, written, &note))?;
        calling(comm, || {
            warn(recorder, &blind);
            recorder.is_saved(step, folder)
        })?;
    }
    Ok(None)
}

impl Commit {
    /// Makes the files of an unfinished checkpoint.
    fn begin(
        recorder: &mut Recorder<'_>,
        comm: &dyn Communicator,
        step: u64,
        since: u64,
        layouts: &Layouts,
    ) -> Result<Commit> {
        let state = calling(comm, || recorder.state(step, since))?;
        let texts = recorder.texts.clone();
        let unfinished = alive(comm, || Unfinished::begin(&recorder.claim, step, layouts))?;
        Ok(Commit { unfinished, texts, state })
    }
}

impl PendingSave {
    /// Returns itself while some rank still writes; after that rank 0 begins to commit. All ranks must call it, after step `now`.
    pub(crate) fn look(
        self,
        comm: &dyn Communicator,
        now: u64,
        recorder: &mut Option<Recorder<'_>>,
    ) -> Result<Option<PendingSave>> {
        let done = Tensor::new(&[f64::from(u8::from(self.writing.is_done()))], &Device::Cpu)?;
        let all = comm.all_reduce(label(now, "checkpoint, who is done"), &done, Reduce::Sum)?;
        if all.to_vec1::<f64>()?.iter().sum::<f64>() < comm.world_size() as f64 {
            return Ok(Some(self));
        }
        self.end(comm, recorder).map(|()| None)
    }

    /// Waits until all ranks have written their shares; then rank 0 begins to commit. All ranks must call it.
    pub(crate) fn end(
        mut self,
        comm: &dyn Communicator,
        recorder: &mut Option<Recorder<'_>>,
    ) -> Result<()> {
        let written = alive(comm, || self.writing.wait())?;
        let (step, written) = (self.step, total(comm, self.step, written)?);
        if let (Some(commit), Some(recorder)) = (self.commit.take(), recorder) {
            let Commit { unfinished, texts, state } = commit;
            let end = move || unfinished.end(&texts, &state, written, &|_| ());
            recorder.writing = Some((step, Writing::begin(&recorder.output, end)?));
        }
        Ok(())
    }
}

impl Drop for PendingSave {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::Relaxed);
        // Other ranks wait to hear why this one ends: it does not wait for a disk.
        self.writing.leave();
    }
}

/// A copy of a rank's share that gives nothing more once the save is dropped.
struct DroppableCopy {
    copied: CopiedSlices,
    dropped: Arc<AtomicBool>,
}

impl DroppableCopy {
    fn still(&mut self) -> Result<&mut CopiedSlices> {
        let is_dropped = self.dropped.load(Ordering::Relaxed);
        if is_dropped { Err(CommError::Stopped.into()) } else { Ok(&mut self.copied) }
    }
}

impl Contents for DroppableCopy {
    fn of_weight(&mut self, name: &str) -> Result<Vec<Piece>> {
        self.still()?.of_weight(name)
    }
    fn of_optimizer(&mut self, name: &str) -> Result<Vec<Piece>> {
        self.still()?.of_optimizer(name)
    }
}

fn label(step: u64, pass: &'static str) -> Label {
    Label { step, pass, ..Label::default() }
}

/// The unfinished folder in `output`, whose name rank 0 sends to all.
fn told(comm: &dyn Communicator, step: u64, output: &Path, own: Option<&Path>) -> Result<PathBuf> {
    let name = own.and_then(Path::file_name).map(OsStr::as_encoded_bytes);
    let name = name.map(|name| Tensor::new(name, &Device::Cpu)).transpose()?;
    let name = comm.broadcast(label(step, "checkpoint, its folder"), name.as_ref(), 0)?;
    let name = String::from_utf8(name.to_vec1()?);
    let name = name.map_err(|error| TrainError::Internal(error.to_string()))?;
    Ok(output.join(name))
}

/// The ranks that do not see `folder`.
fn blind(comm: &dyn Communicator, step: u64, folder: &Path) -> Result<Vec<usize>> {
    let label = label(step, "checkpoint, who sees it");
    let all = all_gather_values(comm, label, &[u8::from(folder.is_dir())])?;
    Ok((0..all.len()).filter(|&rank| all[rank] == [0]).collect())
}

/// Warns, once, that rank 0 writes for all others.
fn warn(recorder: &mut Recorder<'_>, blind: &[usize]) {
    let Some(first) = blind.first().filter(|_| !recorder.warned) else { return };
    recorder.warned = true;
    let (count, output) = (blind.len(), recorder.output.display());
    let message = format!(
        "{count} ranks do not see `{output}`, rank {first} the first of them: rank 0 writes checkpoints alone, \
         and training waits; set an `output` on a disk that all hosts share"
    );
    recorder.console.notice(&Notice::Warning(&message));
}

/// How many bytes all ranks have written, on rank 0.
fn total(comm: &dyn Communicator, step: u64, written: u64) -> Result<u64> {
    let own = Tensor::new(&[written as i64], &Device::Cpu)?;
    let all = comm.gather(label(step, "checkpoint, what is written"), &own, 0)?;
    let all = all.unwrap_or_default();
    let all = all.iter().map(Tensor::to_vec1).collect::<candle_core::Result<Vec<Vec<i64>>>>()?;
    Ok(all.into_iter().flatten().map(|bytes| bytes as u64).sum())
}
