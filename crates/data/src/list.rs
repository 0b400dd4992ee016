//! Which files a run reads, in which order, and what is left out of them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::files::read_error;
use crate::unpack::unpacked_name;
use crate::{DataError, Records, parquet};

/// What files of text end in; a file that is named itself may end in anything.
const TEXT: [&str; 8] = ["txt", "md", "rs", "py", "cu", "cuh", "yaml", "toml"];

/// What files of lines end in, and of rows that are read as such.
const LINES: [&str; 2] = ["jsonl", parquet::ENDING];

/// A file that marks a folder of things that can be made again (bford.info/cachedir).
const CACHE_MARK: &str = "CACHEDIR.TAG";

/// Files that only a run's folder has together: what a run writes is no text.
const RUN_MARKS: [&str; 2] = ["run.lock", "experiment.yaml"];

/// Files and folders that are no data, though they lie in a folder of data: by where they really are, whatever they are called.
#[derive(Clone, Debug, Default)]
pub struct Excluded(Vec<PathBuf>);

/// The files of some inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    /// In order.
    pub(crate) files: Vec<PathBuf>,
    /// What would have been read, or looked into, but for [`Excluded`] and folders of runs.
    pub(crate) left_out: Vec<PathBuf>,
}

impl Excluded {
    /// Of none.
    pub const NOTHING: &'static Excluded = &Excluded(Vec::new());

    /// Those of `paths` that there are.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Excluded {
        Excluded(paths.into_iter().filter_map(|path| path.canonicalize().ok()).collect())
    }

    fn holds(&self, real: &Path) -> bool {
        self.0.iter().any(|excluded| real.starts_with(excluded))
    }
}

/// The files and folders in the folders of `inputs` that are not read, since they are of `excluded` or a run's folder.
///
/// # Errors
/// When an input cannot be read, or has no file of `records`.
pub fn left_out(
    inputs: &[PathBuf],
    records: Records,
    excluded: &Excluded,
) -> Result<Vec<PathBuf>, DataError> {
    Ok(list(inputs, records, excluded)?.left_out)
}

/// Bytes of the files of `inputs`.
///
/// # Errors
/// As those of [`left_out`].
pub fn bytes_of(
    inputs: &[PathBuf],
    records: Records,
    excluded: &Excluded,
) -> Result<u64, DataError> {
    let files = list(inputs, records, excluded)?.files;
    let size = |path: &PathBuf| path.metadata().map(|found| found.len());
    let sizes = files.iter().map(|path| size(path).map_err(|source| read_error(path, source)));
    sizes.sum()
}

/// The files of `inputs`: files as they are, folders walked in name order. Passed over are hidden entries, links to
/// folders, folders marked as caches, folders of runs, and what is `excluded`.
pub(crate) fn list(
    inputs: &[PathBuf],
    records: Records,
    excluded: &Excluded,
) -> Result<Listed, DataError> {
    let endings: &[&str] = match records {
        Records::Text => &TEXT,
        Records::Rows => &[parquet::ENDING],
        Records::Lines | Records::Chats => &LINES,
    };
    let mut listed = Listed { files: Vec::new(), left_out: Vec::new() };
    for input in inputs {
        let kind = input.metadata().map_err(|source| read_error(input, source))?;
        if kind.is_file() {
            listed.files.push(input.clone());
        } else if kind.is_dir() {
            let before = listed.files.len();
            let mut walk = Walk { endings, excluded, listed: &mut listed };
            walk.folder(input)?;
            if listed.files.len() == before {
                let endings = format!("`.{}`", endings.join("`, `."));
                return Err(DataError::NoFiles { path: input.clone(), endings });
            }
        } else {
            return Err(DataError::NotAFile { path: input.clone() });
        }
    }
    Ok(listed)
}

struct Walk<'a> {
    endings: &'a [&'a str],
    excluded: &'a Excluded,
    listed: &'a mut Listed,
}

impl Walk<'_> {
    fn folder(&mut self, folder: &Path) -> Result<(), DataError> {
        let real = folder.canonicalize().map_err(|source| read_error(folder, source))?;
        let mut folders = vec![(folder.to_owned(), real)];
        let mut found = Vec::new();
        while let Some((folder, real)) = folders.pop() {
            if folder.join(CACHE_MARK).exists() {
                continue;
            }
            for entry in fs::read_dir(&folder).map_err(|source| read_error(&folder, source))? {
                let entry = entry.map_err(|source| read_error(&folder, source))?;
                let path = entry.path();
                let kind = entry.file_type().map_err(|source| read_error(&path, source))?;
                if entry.file_name().as_encoded_bytes().starts_with(b".") {
                    continue;
                }
                let real = real.join(entry.file_name());
                if kind.is_dir() {
                    if self.excluded.holds(&real) || is_of_run(&path) {
                        self.listed.left_out.push(path);
                    } else {
                        folders.push((path, real));
                    }
                } else if self.is_text(&path) {
                    // Only the last part can be a link: links to folders are passed over.
                    let real =
                        if kind.is_symlink() { path.canonicalize().ok() } else { Some(real) };
                    if real.is_some_and(|real| self.excluded.holds(&real)) {
                        self.listed.left_out.push(path);
                    } else {
                        found.push(path);
                    }
                }
            }
        }
        found.sort();
        self.listed.files.append(&mut found);
        self.listed.left_out.sort();
        Ok(())
    }

    fn is_text(&self, path: &Path) -> bool {
        let ending = unpacked_name(path).extension().and_then(|ending| ending.to_str());
        ending.is_some_and(|ending| self.endings.contains(&ending)) && path.is_file()
    }
}

fn is_of_run(folder: &Path) -> bool {
    RUN_MARKS.iter().all(|mark| folder.join(mark).is_file())
}
