//! Which files texts are read from, whatever they are called.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use annulus_data::{Records, list};
use annulus_experiment::Experiment;

use crate::setup::texts::{excluded, records_of, texts};

/// A file, however it is named: its device, and its number there.
pub type FileId = (u64, u64);

/// The identity of a file; `None`: it is not there.
pub fn file_id(file: &Path) -> Option<FileId> {
    fs::metadata(file).ok().map(|found| (found.dev(), found.ino()))
}

/// The files of `inputs` that are read for a run in `output`; `None`: they cannot be listed.
pub fn text_files(inputs: &[PathBuf], records: Records, output: &Path) -> Option<Vec<PathBuf>> {
    let excluded = excluded(inputs, output).ok()?;
    Some(list(inputs, records, &excluded).ok()?.files)
}

/// The files of an experiment with one source of text; none where they cannot be listed.
pub fn file_ids(source: &Experiment) -> HashSet<FileId> {
    let found = || {
        let records = records_of(source.data.format)?;
        text_files(&texts(source).ok()?, records, &source.output)
    };
    found().unwrap_or_default().iter().filter_map(|file| file_id(file)).collect()
}
