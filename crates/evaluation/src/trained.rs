//! What training read: whether the data are still that, and which files of another text are among it.

use std::collections::HashSet;
use std::iter::zip;
use std::path::{Path, PathBuf};

use annulus_data::{DataError, Progress as Reading, Records};
use annulus_experiment::Experiment;
use annulus_train::{
    Opening, Result, TrainError, TrainedBy, by_source, data_fingerprint, file_id, file_ids,
    records_of, text_files,
};

use crate::Subject;
use crate::texts::path_of;

/// Files of a text that training read, under whatever path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrainedFiles {
    /// The files, in order.
    pub files: Vec<PathBuf>,
    /// Whether the text has no others.
    pub is_all: bool,
}

impl Subject {
    /// The files of `evaluation.path` that training read; none where there is no such path, or the weights are not from a run. What cannot
    /// be read is not among them: of `evaluation.path` that is an error where it is evaluated, and texts that are gone have no file in it.
    pub fn trained_files(&self) -> TrainedFiles {
        let experiment = &self.plan.experiment;
        let (Some(by), Some(path)) = (&self.trained_by, &experiment.evaluation.path) else {
            return TrainedFiles::default();
        };
        let trained: HashSet<_> = by_source(&by.experiment).iter().flat_map(file_ids).collect();
        let records = records_of(experiment.evaluated_format()).unwrap_or(Records::Text);
        let own = text_files(std::slice::from_ref(path), records, &experiment.output);
        let own = own.unwrap_or_default();
        let is_trained = |file: &PathBuf| file_id(file).is_some_and(|id| trained.contains(&id));
        let found: Vec<_> = own.iter().filter(|file| is_trained(file)).cloned().collect();
        TrainedFiles { is_all: found.len() == own.len(), files: found }
    }

    /// An error if the data are not the texts that training held a part out of, be it under other paths: what it held out is not known then.
    pub(crate) fn check_data(
        &self,
        by: &TrainedBy,
        progress: &mut dyn FnMut(Reading),
    ) -> Result<()> {
        let now = &self.plan.experiment;
        let sources = by_source(now);
        let mut trained = by.experiment.clone();
        let mut moved = None;
        for (source, number) in zip(&sources, numbers_in_training(&sources, &by_source(&trained))) {
            let Some(number) = number else { return Err(self.other_text(source)) };
            if let (Some(path), Some(then)) = (path_of(source), trained.data.path.get_mut(number))
                && path != then.path
            {
                moved = moved.or(Some(source));
                path.clone_into(&mut then.path);
            }
        }
        // The run may have been moved, and its token caches with it; what is missing is named where it is written now.
        (trained.output, trained.places) = (now.output.clone(), now.places.clone());
        let opening = Opening { tokenizer: Some(self.tokenizer()?), ..Opening::default() };
        match data_fingerprint(&trained, opening, progress) {
            Ok(data) if data == by.data => Ok(()),
            Err(error) if !is_of_length(&error) => Err(error),
            _ => Err(moved.map_or_else(|| self.changed_text(), |source| self.other_text(source))),
        }
    }

    /// The error of data that have changed since training.
    fn changed_text(&self) -> TrainError {
        TrainError::checkpoint(
            format!(
                "`{}` was trained on other texts than `data.path` has now, or with another tokenizer, so its held-out part is unknown",
                self.folder.display()
            ),
            "restore them, or evaluate another text with `evaluation.path=TEXT`; mixtures of earlier versions of this program read their sources in another order",
        )
    }

    /// The error of a source that training did not read, under its path or another.
    fn other_text(&self, source: &Experiment) -> TrainError {
        let path = path_of(source).unwrap_or(Path::new("")).display();
        TrainError::checkpoint(
            format!(
                "`{}` was trained on other texts than `{path}` has (read as {}), or with another tokenizer, so its held-out part is unknown",
                self.folder.display(),
                source.data.format.word(),
            ),
            format!(
                "to evaluate this text, give `evaluation.path={path}` in place of `data.path`; a text that has only moved must be whole and unchanged"
            ),
        )
    }
}

/// The number of the source of training that each of `sources` is: by its path or, where texts have moved, by their order. `None`: training
/// had none that is read so.
pub(crate) fn numbers_in_training(
    sources: &[Experiment],
    trained: &[Experiment],
) -> Vec<Option<usize>> {
    let is_read_alike = |one: &Experiment, other: &Experiment| {
        (one.data.format, &one.data.column) == (other.data.format, &other.data.column)
    };
    let number = |(index, source): (usize, &Experiment)| {
        let is_same =
            |other: &Experiment| path_of(other) == path_of(source) && is_read_alike(other, source);
        // Texts that have moved are in their old order.
        let moved = trained.get(index).filter(|_| trained.len() == sources.len());
        let moved = moved.filter(|other| is_read_alike(other, source)).map(|_| index);
        trained.iter().position(is_same).or(moved)
    };
    sources.iter().enumerate().map(number).collect()
}

/// Whether a text is too short for what training made of it, or has a longer document: it is another one.
fn is_of_length(error: &TrainError) -> bool {
    let TrainError::Data(error) = error else { return false };
    let error = if let DataError::In { source, .. } = error { source } else { error };
    matches!(
        error,
        DataError::TooShort { .. } | DataError::FewSequences { .. } | DataError::TooLong { .. }
    )
}
