//! Which files a run reads, in which order, and what is left out of them.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, DirEntry};
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
    /// What would have been read, or looked into, but for [`Excluded`], folders of runs, and those marked as caches.
    pub(crate) left_out: Vec<PathBuf>,
    /// Files and folders, by names under which they are not read, since they are under another.
    pub(crate) repeated: Vec<PathBuf>,
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

/// What of `inputs` and in their folders is named more than once, but read once: by names under which it is not read.
///
/// # Errors
/// As those of [`left_out`].
pub fn repeated(
    inputs: &[PathBuf],
    records: Records,
    excluded: &Excluded,
) -> Result<Vec<PathBuf>, DataError> {
    Ok(list(inputs, records, excluded)?.repeated)
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

/// The files of `inputs`, each once: files as they are, folders walked in name order, also where links lead to them. Passed over
/// are hidden entries, and in the folders those marked as caches, those of runs, and what is `excluded`.
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
    let listed = Listed { files: Vec::new(), left_out: Vec::new(), repeated: Vec::new() };
    let mut walk = Walk { endings, excluded, seen: HashSet::new(), listed };
    for input in inputs {
        let failed = |source| read_error(input, source);
        let kind = input.metadata().map_err(failed)?;
        let found = if kind.is_file() {
            walk.file(input.clone(), input.canonicalize().map_err(failed)?);
            true
        } else if kind.is_dir() {
            walk.folder(input)?
        } else {
            return Err(DataError::NotAFile { path: input.clone() });
        };
        if !found {
            let endings = format!("`.{}`", endings.join("`, `."));
            return Err(DataError::NoFiles { path: input.clone(), endings });
        }
    }
    let is_packed = |file: &&PathBuf| records != Records::Text && parquet::is_packed(file);
    if let Some(packed) = walk.listed.files.iter().find(is_packed) {
        return Err(DataError::PackedRows { path: packed.clone() });
    }
    walk.listed.left_out.sort();
    walk.listed.repeated.sort();
    Ok(walk.listed)
}

struct Walk<'a> {
    endings: &'a [&'a str],
    excluded: &'a Excluded,
    /// Files and folders by where they really are: a link may lead back, and a pattern names folders and what is in them.
    seen: HashSet<PathBuf>,
    listed: Listed,
}

/// A path, and where it really is.
type Found = (PathBuf, PathBuf);

/// What is in a folder, as far as it is not looked into.
#[derive(Default)]
struct Inside {
    folders: Vec<Found>,
    /// Links to folders, in order.
    links: BTreeMap<PathBuf, PathBuf>,
    files: Vec<Found>,
}

impl Walk<'_> {
    /// Lists a file, which is really at `real`, unless it is listed.
    fn file(&mut self, path: PathBuf, real: PathBuf) {
        let is_new = self.seen.insert(real);
        if is_new { &mut self.listed.files } else { &mut self.listed.repeated }.push(path);
    }

    /// Lists the files in a folder; whether it has some, here or elsewhere in the list.
    fn folder(&mut self, folder: &Path) -> Result<bool, DataError> {
        let real = folder.canonicalize().map_err(|source| read_error(folder, source))?;
        let before = self.listed.repeated.len();
        let mut inside = Inside { folders: vec![(folder.to_owned(), real)], ..Inside::default() };
        // Links last, and in order: which of several names a folder is read under is the same on all machines.
        while let Some((folder, real)) = inside.folders.pop().or_else(|| inside.links.pop_first()) {
            if !self.seen.insert(real.clone()) {
                self.listed.repeated.push(folder);
                continue;
            }
            let failed = |source| read_error(&folder, source);
            for entry in fs::read_dir(&folder).map_err(failed)? {
                self.entry(&entry.map_err(failed)?, &real, &mut inside)?;
            }
        }
        let found = !inside.files.is_empty() || self.listed.repeated.len() > before;
        inside.files.sort();
        for (path, real) in inside.files {
            self.file(path, real);
        }
        Ok(found)
    }

    /// Adds an entry of the folder that is really at `within` to what is inside, or left out.
    fn entry(
        &mut self,
        entry: &DirEntry,
        within: &Path,
        inside: &mut Inside,
    ) -> Result<(), DataError> {
        let path = entry.path();
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            return Ok(());
        }
        let kind = entry.file_type().map_err(|source| read_error(&path, source))?;
        let (real, is_link) = (within.join(entry.file_name()), kind.is_symlink());
        let real = if is_link { path.canonicalize().ok() } else { Some(real) };
        // Else it is a link to nowhere.
        let Some(real) = real else { return Ok(()) };
        let is_folder = kind.is_dir() || is_link && real.is_dir();
        if !is_folder && !self.is_text(&path) {
            return Ok(());
        }
        if self.excluded.holds(&real) || is_folder && is_no_text(&path) {
            self.listed.left_out.push(path);
        } else if is_folder && is_link {
            inside.links.insert(path, real);
        } else if is_folder {
            inside.folders.push((path, real));
        } else {
            inside.files.push((path, real));
        }
        Ok(())
    }

    fn is_text(&self, path: &Path) -> bool {
        let ending = unpacked_name(path).extension().and_then(|ending| ending.to_str());
        let is_known = |known: &&str| ending.is_some_and(|own| own.eq_ignore_ascii_case(known));
        self.endings.iter().any(is_known) && path.is_file()
    }
}

/// Whether a folder is marked as a cache, or is a run's. One that is named itself is read.
fn is_no_text(folder: &Path) -> bool {
    folder.join(CACHE_MARK).exists() || RUN_MARKS.iter().all(|mark| folder.join(mark).is_file())
}
