//! Tokenised once: a file of ids, named by the hash of everything it depends on, and read where it is needed.
//!
//! ```text
//! header      HEADER bytes: magic, version, width of an id, counts, hash of what follows, key, hash
//!             of the header
//! ids         `tokens` numbers of 2 bytes (vocabularies up to 65536) or 4, little endian
//! padding     to a multiple of 8
//! documents   `documents` numbers of 8 bytes: where each begins, in tokens
//! learned     `learned` pairs of such numbers: stretches of tokens that are learned, where not all are
//! ```
//!
//! A cache's name says what it was made of, so the contents of the texts are known before it is looked for. What is read
//! again, and when, is in `stamps.rs`.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::mem;
use std::ops::Range;
use std::path::{Path, PathBuf};

use annulus_files::Identity;
use parking_lot::Mutex;

use crate::build::build;
use crate::files::{MARK, identity, open, read_error, read_exact};
use crate::header::{HEADER, Header};
use crate::list::list;
use crate::locks::{hold, wait_for};
use crate::stamps::{Stamps, hash_from};
use crate::texts::COLUMN;
use crate::unpack::beginning;
use crate::{Chat, DataError, Progress, Records, Texts, Tokenizer};

/// Ids that are read at a time, in bytes.
const BLOCK: usize = 1 << 14;

/// The tokens of a text or a folder of texts, on disk. 64-bit offsets; in memory are only the documents' beginnings and ends.
#[derive(Debug)]
pub struct Cache {
    file: File,
    /// What the file was when it was last held to its hash.
    identity: Mutex<Identity>,
    header: Header,
    path: PathBuf,
    fingerprint: String,
    documents: Vec<u64>,
    /// Where what is learned begins and ends, in turn.
    learned: Vec<u64>,
}

/// What makes tokens of files.
#[derive(Debug)]
pub(crate) struct Maker<'a> {
    pub(crate) records: Records,
    /// The field of lines and rows that is the text.
    pub(crate) column: &'a str,
    pub(crate) tokenizer: &'a Tokenizer,
    /// Of conversations.
    pub(crate) chat: Option<&'a Chat>,
}

/// A cache's inputs, as they were when their hashes were taken.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) path: PathBuf,
    pub(crate) size: u64,
    pub(crate) hash: blake3::Hash,
    /// Whether it is a text that begins with a [`MARK`].
    pub(crate) has_mark: bool,
}

impl Cache {
    /// Opens the cache of `texts` under `folder`, or builds it first: whole or not at all, in linear time and
    /// bounded memory, so that a second process or a crash never sees half of one. `progress` is called only
    /// while the cache is built, by this process or by another that is waited for.
    ///
    /// A cache that is truncated or altered is built anew: texts and cache are held to their hashes, unless nothing that the
    /// system knows of a file has changed since it was (size, times, inode, device); with `verify` always.
    ///
    /// Where nobody may write into `folder`, a cache that is there is read, and else one is built as by [`Cache::temporary`].
    ///
    /// # Errors
    /// What is wrong with the texts or the folder.
    pub fn open(
        texts: &Texts<'_>,
        folder: &Path,
        verify: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Cache, DataError> {
        let files = list(texts.inputs, texts.records, texts.excluded)?.files;
        let write = |path: &Path, source| DataError::Write { path: path.to_owned(), source };
        let held = fs::create_dir_all(folder).map_err(|source| write(folder, source));
        let held = match held.and_then(|()| hold(folder)) {
            Err(DataError::Write { source, .. }) if is_forbidden(&source) => None,
            held => Some(held?),
        };
        let stamps = folder.join(format!("{}.stamps", name(&files)));
        let mut stamps = Stamps::open(stamps, verify)?;
        let made = Made::new(files, texts, &mut stamps)?;
        let path = folder.join(format!("{}.tokens", made.key.to_hex()));
        let mut cache = Cache::load(&path, Some(made.key), &mut stamps)?;
        if held.is_none() {
            return cache.map_or_else(|| made.unnamed(texts, progress), Ok);
        }
        if cache.is_none() {
            let lock = folder.join(format!("{}.lock", made.key.to_hex()));
            let _lock = wait_for(&lock, progress)?;
            cache = Cache::load(&path, Some(made.key), &mut stamps)?;
            if cache.is_none() {
                let failed = |source| write(&path, source);
                let mut file = annulus_files::Pending::create(&path).map_err(failed)?;
                made.build(texts, &path, file.file_mut(), progress)?;
                file.commit().map_err(failed)?;
                cache = Cache::load(&path, Some(made.key), &mut stamps)?;
            }
        }
        stamps.save()?;
        cache.ok_or(DataError::Changed { path })
    }

    /// Builds the cache of `texts` in a file without a name, which is gone with the process.
    ///
    /// # Errors
    /// What is wrong with the texts or the system's folder of temporary files.
    pub fn temporary(
        texts: &Texts<'_>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Cache, DataError> {
        let files = list(texts.inputs, texts.records, texts.excluded)?.files;
        Made::new(files, texts, &mut Stamps::none())?.unnamed(texts, progress)
    }

    /// Opens a cache's file by its path, whatever it was made of.
    ///
    /// # Errors
    /// When it is no whole cache, or cannot be read.
    pub fn open_file(path: &Path) -> Result<Cache, DataError> {
        let file = open(path)?;
        let cache = Cache::of(file, path, None, &mut Stamps::none())?;
        cache.ok_or_else(|| DataError::NoCache { path: path.to_owned() })
    }

    /// How many tokens there are.
    pub fn tokens(&self) -> u64 {
        self.header.tokens
    }

    /// One past the largest id there is.
    pub fn vocabulary(&self) -> usize {
        self.header.vocabulary as usize
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tokens `start .. start + into.len()`.
    ///
    /// # Errors
    /// When the file is not any more what it was when it was opened, or holds an id that its header rules out.
    ///
    /// # Panics
    /// When there are fewer tokens.
    pub fn read(&self, start: u64, into: &mut [u32]) -> Result<(), DataError> {
        let end = start.checked_add(into.len() as u64);
        assert!(end.is_some_and(|end| end <= self.header.tokens), "tokens past the end");
        self.hold()?;
        let width = self.header.width as usize;
        let mut bytes = [0; BLOCK];
        let mut at = HEADER as u64 + start * width as u64;
        for ids in into.chunks_mut(BLOCK / width) {
            let bytes = &mut bytes[..ids.len() * width];
            read_exact(&self.file, &self.path, bytes, at)?;
            at += bytes.len() as u64;
            if width == 2 {
                let (numbers, _) = bytes.as_chunks::<2>();
                let numbers = numbers.iter().map(|number| u16::from_le_bytes(*number).into());
                ids.iter_mut().zip(numbers).for_each(|(id, number)| *id = number);
            } else {
                let (numbers, _) = bytes.as_chunks::<4>();
                let numbers = numbers.iter().map(|number| u32::from_le_bytes(*number));
                ids.iter_mut().zip(numbers).for_each(|(id, number)| *id = number);
            }
        }
        match into.iter().find(|&&id| u64::from(id) >= self.header.vocabulary) {
            None => Ok(()),
            Some(&id) => {
                let (path, tokens) = (self.path.clone(), self.header.vocabulary);
                Err(DataError::Foreign { path, id, tokens })
            }
        }
    }

    /// A hash of the inputs' contents and the tokenizer: what a checkpoint compares on resume.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Where documents start, in order.
    pub fn documents(&self) -> &[u64] {
        &self.documents
    }

    /// The lengths of the documents, or parts of them, in the tokens of `range`.
    pub fn documents_in(&self, range: Range<u64>) -> Vec<usize> {
        let Range { start, end } = range;
        let behind = |place: u64| self.documents.partition_point(|at| *at < place);
        let mut before = start;
        let ends = self.documents[behind(start + 1)..behind(end)].iter().copied().chain([end]);
        ends.map(|end| (end - mem::replace(&mut before, end)) as usize).collect()
    }

    /// Whether only some tokens are to be learned.
    pub fn is_marked(&self) -> bool {
        self.header.learned > 0
    }

    /// Whether token `place` is to be learned.
    pub fn learns(&self, place: u64) -> bool {
        // Behind an odd number of ends: within a stretch.
        self.learned.is_empty() || self.learned.partition_point(|end| *end <= place) % 2 == 1
    }

    /// The file is the one that was opened, or has the same contents.
    fn hold(&self) -> Result<(), DataError> {
        let now = identity(&self.file, &self.path)?;
        let mut known = self.identity.lock();
        if now == *known {
            return Ok(());
        }
        // A link or a name more changes a time, too.
        let same = now.size == known.size
            && hash_from(&self.file, &self.path, HEADER as u64, now)? == self.header.content;
        if !same {
            return Err(DataError::Changed { path: self.path.clone() });
        }
        *known = now;
        Ok(())
    }

    /// The cache in `path`, if it is there, whole and unaltered.
    fn load(
        path: &Path,
        key: Option<blake3::Hash>,
        stamps: &mut Stamps,
    ) -> Result<Option<Cache>, DataError> {
        match annulus_files::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(read_error(path, error)),
            Ok(file) => Cache::of(file, path, key, stamps),
        }
    }

    /// The cache in `file`, if it is one of `key`, whole and unaltered.
    fn of(
        file: File,
        path: &Path,
        key: Option<blake3::Hash>,
        stamps: &mut Stamps,
    ) -> Result<Option<Cache>, DataError> {
        let identity = identity(&file, path)?;
        let header = Header::read(&file, identity.size).map_err(|error| read_error(path, error))?;
        let Some(header) = header.filter(|header| key.is_none_or(|key| key == header.key)) else {
            return Ok(None);
        };
        let (hash, _) = stamps.of(&file, path, HEADER as u64)?;
        if hash != header.content {
            return Ok(None);
        }
        let documents = numbers(&file, path, header.documents_at(), header.documents)?;
        let at = header.documents_at() + 8 * header.documents;
        let learned = numbers(&file, path, at, 2 * header.learned)?;
        let fingerprint = header.key.to_hex().to_string();
        let (path, identity) = (path.to_owned(), Mutex::new(identity));
        let cache = Cache { file, identity, header, path, fingerprint, documents, learned };
        Ok(cache.is_possible().then_some(cache))
    }

    /// Whether documents and what is learned lie among the tokens, in order: a file with the right hashes can be anybody's.
    fn is_possible(&self) -> bool {
        let (documents, learned) = (&self.documents, &self.learned);
        let tokens = self.header.tokens;
        let (stretches, _) = learned.as_chunks::<2>();
        documents.first().is_none_or(|first| *first == 0)
            && documents.is_sorted_by(|before, after| before < after)
            && documents.last().is_none_or(|last| *last < tokens)
            && learned.is_sorted()
            && stretches.iter().all(|[start, end]| start < end)
            && learned.last().is_none_or(|last| *last <= tokens)
    }
}

/// What a cache will be made of, and its key.
struct Made {
    inputs: Vec<Input>,
    chat: Option<Chat>,
    key: blake3::Hash,
}

impl Made {
    fn new(files: Vec<PathBuf>, texts: &Texts<'_>, stamps: &mut Stamps) -> Result<Made, DataError> {
        let hash = |path: PathBuf| {
            let (hash, size) = stamps.of_path(&path)?;
            let mut mark = [0; MARK.len_utf8()];
            let mark = MARK.encode_utf8(&mut mark).as_bytes();
            let has_mark = texts.records == Records::Text && beginning(&path, mark.len())? == mark;
            Ok(Input { path, size, hash, has_mark })
        };
        let inputs = files.into_iter().map(hash).collect::<Result<Vec<_>, _>>()?;
        let chats = texts.records == Records::Chats;
        let chat = chats.then(|| Chat::open(texts.tokenizer)).transpose()?;
        let key = key(&inputs, texts, chat.as_ref());
        Ok(Made { inputs, chat, key })
    }

    /// Builds the cache in a file without a name.
    fn unnamed(
        &self,
        texts: &Texts<'_>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Cache, DataError> {
        let path = std::env::temp_dir();
        let failed = |source| DataError::Write { path: path.clone(), source };
        let mut file = io::BufWriter::new(tempfile::tempfile().map_err(failed)?);
        self.build(texts, &path, &mut file, progress)?;
        let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        let cache = Cache::of(file, &path, Some(self.key), &mut Stamps::none())?;
        cache.ok_or(DataError::Changed { path })
    }

    fn build<W: Write + io::Seek>(
        &self,
        texts: &Texts<'_>,
        path: &Path,
        file: &mut W,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), DataError> {
        let Texts { records, column, tokenizer, .. } = *texts;
        let maker = Maker { records, column, tokenizer, chat: self.chat.as_ref() };
        build(&self.inputs, &maker, path, file, self.key, progress)
    }
}

/// Whether nobody, or not this user, may write there.
fn is_forbidden(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
}

/// `count` numbers of 8 bytes at byte `at`.
fn numbers(file: &File, path: &Path, at: u64, count: u64) -> Result<Vec<u64>, DataError> {
    let mut numbers = Vec::with_capacity(count as usize);
    let mut block = [0; BLOCK];
    let mut left = count as usize;
    while left > 0 {
        let bytes = &mut block[..BLOCK.min(8 * left)];
        read_exact(file, path, bytes, at + 8 * numbers.len() as u64)?;
        let (some, _) = bytes.as_chunks::<8>();
        numbers.extend(some.iter().map(|number| u64::from_le_bytes(*number)));
        left -= some.len();
    }
    Ok(numbers)
}

/// What the stamps of a list of files are kept under.
fn name(files: &[PathBuf]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for file in files {
        hasher.update(file.as_os_str().as_encoded_bytes());
        hasher.update(b"\0");
    }
    hasher.finalize()
}

/// The hash of all that the tokens are a function of. Names of files are not: a folder may move.
fn key(inputs: &[Input], texts: &Texts<'_>, chat: Option<&Chat>) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_derive_key("annulus tokens of a text");
    hasher.update(&Header::VERSION.to_le_bytes());
    hasher.update(&texts.tokenizer.fingerprint());
    hasher.update(match texts.records {
        Records::Text => b"texts",
        Records::Lines | Records::Rows => b"lines",
        Records::Chats => b"chats",
    });
    if texts.column != COLUMN {
        hasher.update(texts.column.as_bytes());
    }
    if let Some(chat) = chat {
        hasher.update(chat.hash().as_bytes());
    }
    hasher.update(texts.joint(inputs.len()));
    for input in inputs {
        hasher.update(input.hash.as_bytes());
        // Older caches have it among the tokens; lines that begin with one were refused.
        if input.has_mark {
            hasher.update(b"without its mark");
        }
    }
    hasher.finalize()
}
