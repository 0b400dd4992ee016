//! Which files a run reads, in which order, and what is left out of them.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, DirEntry};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::files::read_error;
use crate::unpack::unpacked_name;
use crate::{DataError, Records, parquet};

/// What files of text end in; a file that is named itself may end in anything.
const TEXT: [&str; 8] = ["txt", "md", "rs", "py", "cu", "cuh", EXPERIMENT, "toml"];

/// What files of lines end in, and of rows that are read as such.
const LINES: [&str; 2] = ["jsonl", parquet::ENDING];

/// What files of JSON end in: an array of records, or lines that are called so.
const JSON: &str = "json";

/// A file that marks a folder of things that can be made again (bford.info/cachedir).
const CACHE_MARK: &str = "CACHEDIR.TAG";

/// Files that only a run's folder has together: what a run writes is no text.
const RUN_MARKS: [&str; 2] = ["run.lock", "experiment.yaml"];

/// What experiments end in.
const EXPERIMENT: &str = "yaml";

/// Sections that only an experiment has together. An experiment says what to train on, and is changed between two runs of the same texts.
const EXPERIMENT_MARKS: [&str; 3] = ["model:", "data:", "schedule:"];

/// The largest experiment that is looked for, in bytes.
const LARGEST_EXPERIMENT: u64 = 1 << 16;

/// Files and folders that are no data, though they lie in a folder of data: by where they really are, whatever they are called.
#[derive(Clone, Debug, Default)]
pub struct Excluded(Vec<PathBuf>);

/// The files of some inputs, and what in them is not read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// The files, in the order in which they are read.
    pub files: Vec<PathBuf>,
    /// Files and folders that are not read because of [`Excluded`], or because they are of a run or a cache, or an experiment.
    pub left_out: Vec<PathBuf>,
    /// Second names of files and folders that are read under another name.
    pub repeated: Vec<PathBuf>,
    /// Files with other endings than those that are read.
    pub others: Vec<PathBuf>,
    /// Links to what is not there.
    pub dangling: Vec<PathBuf>,
}

impl Excluded {
    /// Excludes nothing.
    pub const NOTHING: &'static Excluded = &Excluded(Vec::new());

    /// Excludes those of `paths` that exist.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Excluded {
        Excluded(paths.into_iter().filter_map(|path| path.canonicalize().ok()).collect())
    }

    fn holds(&self, real: &Path) -> bool {
        self.0.iter().any(|excluded| real.starts_with(excluded))
    }
}

impl Listed {
    /// Bytes of the files.
    ///
    /// # Errors
    /// A file that is gone.
    pub fn bytes(&self) -> Result<u64, DataError> {
        let size = |path: &PathBuf| path.metadata().map(|found| found.len());
        let size = |path| size(path).map_err(|source| read_error(path, source));
        self.files.iter().map(size).sum()
    }
}

/// The files of `inputs`, each once: files as they are, folders walked in name order, also where links lead to them. Passed over
/// are hidden entries, and in the folders those marked as caches, those of runs, experiments, and what is `excluded`.
///
/// # Errors
/// When an input cannot be read, or has no file of `records`.
pub fn list(
    inputs: &[PathBuf],
    records: Records,
    excluded: &Excluded,
) -> Result<Listed, DataError> {
    let endings: &[&str] = match records {
        Records::Text => &TEXT,
        Records::Rows => &[parquet::ENDING],
        Records::Lines | Records::Chats => &LINES,
    };
    let has_lines = matches!(records, Records::Lines | Records::Chats);
    let listed = Listed::default();
    let mut walk = Walk { endings, excluded, seen: HashSet::new(), listed };
    for input in inputs {
        let failed = |source| read_error(input, source);
        let kind = input.metadata().map_err(|source| unread(input, source))?;
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
            let json = walk.json_in(input).filter(|_| has_lines);
            return Err(DataError::NoFiles { path: input.clone(), endings, json });
        }
    }
    let is_packed = |file: &&PathBuf| records != Records::Text && parquet::is_packed(file);
    if let Some(packed) = walk.listed.files.iter().find(is_packed) {
        return Err(DataError::PackedRows { path: packed.clone() });
    }
    let Listed { left_out, repeated, others, dangling, .. } = &mut walk.listed;
    for paths in [left_out, repeated, others, dangling] {
        paths.sort();
    }
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
        let Some(real) = real else {
            self.listed.dangling.push(path);
            return Ok(());
        };
        let is_folder = kind.is_dir() || is_link && real.is_dir();
        // Pipes and devices are neither.
        if !is_folder && !path.is_file() {
            return Ok(());
        }
        let is_no_text = if is_folder { is_made } else { is_experiment };
        if !is_folder && !self.is_text(&path) {
            self.listed.others.push(path);
        } else if self.excluded.holds(&real) || is_no_text(&path) {
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

    /// The first file of JSON in a folder, which is read by no format.
    fn json_in(&self, folder: &Path) -> Option<PathBuf> {
        let is_json = |path: &&PathBuf| ends_in(unpacked_name(path), JSON);
        let others = self.listed.others.iter().filter(|path| path.starts_with(folder));
        others.filter(is_json).min().cloned()
    }

    fn is_text(&self, path: &Path) -> bool {
        let path = unpacked_name(path);
        self.endings.iter().any(|known| ends_in(path, known))
    }
}

fn ends_in(path: &Path, known: &str) -> bool {
    path.extension().is_some_and(|own| own.eq_ignore_ascii_case(known))
}

/// Whether a folder is marked as a cache, or is a run's. One that is named itself is read.
fn is_made(folder: &Path) -> bool {
    folder.join(CACHE_MARK).exists() || RUN_MARKS.iter().all(|mark| folder.join(mark).is_file())
}

/// Whether a file is an experiment: no text, unless it is named itself.
pub fn is_experiment(file: &Path) -> bool {
    if !ends_in(file, EXPERIMENT) {
        return false;
    }
    let text = annulus_files::read_to_string(file, LARGEST_EXPERIMENT).unwrap_or_default();
    EXPERIMENT_MARKS.iter().all(|mark| text.lines().any(|line| line.starts_with(mark)))
}

/// The error that an input cannot be read; of a link to what is not there, where it leads.
fn unread(input: &Path, source: io::Error) -> DataError {
    match fs::read_link(input) {
        Ok(target) if source.kind() == ErrorKind::NotFound => {
            DataError::Dangling { path: input.to_owned(), target }
        }
        _ => read_error(input, source),
    }
}
