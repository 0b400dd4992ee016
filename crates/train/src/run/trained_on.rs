//! Text that a run would hold out although what it begins with was trained on it.

use std::path::{Path, PathBuf};

use annulus_experiment::{Experiment, ModelSource, WeightsFrom};
use annulus_text::count;

use crate::checkpoint::State;
use crate::folder::manifest::Manifest;
use crate::run::rerun::beginning;
use crate::setup::same_files::file_ids;
use crate::setup::texts::by_source;

/// How many runs are followed, each to that with whose weights it began.
const MOST: usize = 16;

/// A warning if a run whose weights `experiment` begins with may have been trained on text that is held out now: that of its model or of
/// `checkpoint`, or one that this began with.
pub(super) fn warning(experiment: &Experiment, checkpoint: Option<&Path>) -> Option<String> {
    let held_out: Vec<_> = by_source(experiment);
    let held_out: Vec<_> = held_out.iter().filter(|source| source.data.evaluate > 0).collect();
    let mut next = checkpoint.map(Path::to_owned).or_else(|| model_of(experiment));
    for _ in 0..MOST {
        let checkpoint = next.filter(|_| !held_out.is_empty())?;
        let trained = State::read(&checkpoint).ok()?.experiment().ok()?;
        let sources = by_source(&trained);
        let pairs =
            held_out.iter().flat_map(|now| sources.iter().map(move |before| (before, *now)));
        let mut pairs = pairs.filter(|(before, now)| holds_out_more(before, now));
        if let Some((before, now)) = pairs.next() {
            return Some(said(&checkpoint, before, now));
        }
        next = fork_of(&checkpoint).or_else(|| model_of(&trained));
    }
    None
}

/// The folder of pretrained weights that an experiment begins with.
fn model_of(experiment: &Experiment) -> Option<PathBuf> {
    match &experiment.model.source {
        ModelSource::Folder { path, weights: WeightsFrom::Pretrained, .. } => Some(path.clone()),
        _ => None,
    }
}

/// The checkpoint that the run of `checkpoint` began from by `--from`.
fn fork_of(checkpoint: &Path) -> Option<PathBuf> {
    let run = checkpoint.parent()?;
    Some(beginning(run, &Manifest::open(run).ok()??).ok()??.from)
}

fn said(checkpoint: &Path, before: &Experiment, now: &Experiment) -> String {
    let path = |of: &Experiment| of.data.path.first().map(|source| source.path.clone());
    let held_out = match before.data.evaluate {
        0 => "nothing".to_owned(),
        sequences => format!(
            "{} of {} tokens (`pack: {}`, `longer: {}`)",
            count(sequences, "sequence"),
            before.longest(),
            before.data.pack.word(),
            before.data.longer.word()
        ),
    };
    format!(
        "`{}` may have been trained on text of `{}` that is held out here, so validation losses may be too low: its run held out {held_out} \
         of it; hold out no more, or evaluate with other text by `annulus evaluate` and `evaluation.path`",
        checkpoint.display(),
        path(now).unwrap_or_default().display(),
    )
}

/// Whether `now` holds out text that `before` may have been trained on, both of one source: of the same files more tokens or, of whole
/// documents, more sequences. Of files that are only partly the same, and of documents that are packed otherwise or into sequences of another
/// length, it is not known.
fn holds_out_more(before: &Experiment, now: &Experiment) -> bool {
    let [old, new] = [before, now].map(file_ids);
    if old.is_disjoint(&new) {
        return false;
    }
    let is_whole = now.data.pack.is_whole();
    let is_alike = old == new
        && before.data.pack.is_whole() == is_whole
        && (!is_whole || before.data.longer == now.data.longer);
    let is_more = if is_whole {
        now.data.evaluate > before.data.evaluate || now.longest() != before.longest()
    } else {
        now.held_out() > before.held_out()
    };
    !is_alike || is_more
}
