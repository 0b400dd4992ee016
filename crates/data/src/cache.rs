//! Tokenised once: a memory-mapped file of ids, named by the hash of everything it depends on.
//!
//! ```text
//! header      HEADER bytes: magic, version, width of an id, counts, hash of what follows, key, hash
//!             of the header
//! ids         `tokens` numbers of 2 bytes (vocabularies up to 65536) or 4, little endian
//! padding     to a multiple of 8
//! documents   `documents` numbers of 8 bytes: where each begins, in tokens
//! learned     `learned` pairs of such numbers: stretches of tokens that are learned, where not all are
//! ```

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::build::build;
use crate::files::{list, read_error};
use crate::header::{HEADER, Header};
use crate::stamps::Stamps;
use crate::{Chat, DataError, Tokenizer};

/// The tokens of a text or a folder of texts, on disk and mapped. 64-bit offsets; nothing is loaded whole.
#[derive(Debug)]
pub struct Cache {
    map: Mmap,
    header: Header,
    path: PathBuf,
    fingerprint: String,
}

/// What a file is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Records {
    /// One text: a document.
    Text,
    /// Lines of JSON; a line's `text` is a document.
    Lines,
    /// Lines of JSON; a line's `messages` are a conversation, of which what the assistant says is learned.
    Chats,
}

/// What makes tokens of files.
#[derive(Debug)]
pub(crate) struct Maker<'a> {
    pub(crate) records: Records,
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
}

impl Cache {
    /// Opens the cache of `inputs` under `folder`, or builds it first: atomically, in linear time and
    /// bounded memory, so that a second process or a crash never sees half of one. Folders are walked
    /// in name order. `progress(done, total)` counts
    /// bytes and is called only while the cache is built.
    ///
    /// A cache that is truncated or altered is built anew. A process that finds another building
    /// waits for it and opens what it built.
    pub fn open(
        inputs: &[PathBuf],
        records: Records,
        tokenizer: &Tokenizer,
        folder: &Path,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Cache, DataError> {
        let files = list(inputs, records)?;
        let write = |path: &Path, source| DataError::Write { path: path.to_owned(), source };
        fs::create_dir_all(folder).map_err(|source| write(folder, source))?;
        let mut stamps = Stamps::open(folder.join(format!("{}.stamps", name(&files))));
        let inputs = hash_all(files, &mut stamps)?;
        let chat = (records == Records::Chats).then(|| Chat::open(tokenizer)).transpose()?;
        let maker = Maker { records, tokenizer, chat: chat.as_ref() };
        let key = key(&inputs, &maker);
        let path = folder.join(format!("{}.tokens", key.to_hex()));
        let mut cache = Cache::load(&path, key, &mut stamps)?;
        if cache.is_none() {
            let lock = folder.join(format!("{}.lock", key.to_hex()));
            let lock_file = File::create(&lock).map_err(|source| write(&lock, source))?;
            lock_file.lock().map_err(|source| write(&lock, source))?;
            cache = Cache::load(&path, key, &mut stamps)?;
            if cache.is_none() {
                build(&inputs, &maker, &path, key, progress)?;
                cache = Cache::load(&path, key, &mut stamps)?;
            }
        }
        stamps.save()?;
        cache.ok_or(DataError::Changed { path })
    }

    /// Opens a cache's file by its path, whatever it was made of.
    pub fn open_file(path: &Path) -> Result<Cache, DataError> {
        let broken = || DataError::NoCache { path: path.to_owned() };
        let about = path.metadata().map_err(|source| read_error(path, source))?;
        if !about.is_file() {
            return Err(DataError::NotAFile { path: path.to_owned() });
        }
        let key = Header::key_of(path)?.ok_or_else(broken)?;
        let mut stamps = Stamps::open(PathBuf::new());
        Cache::load(path, key, &mut stamps)?.ok_or_else(broken)
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
    /// # Panics
    /// When there are fewer.
    pub fn read(&self, start: u64, into: &mut [u32]) {
        let width = self.header.width as usize;
        let start = start as usize * width + HEADER;
        let bytes = &self.map[start..start + into.len() * width];
        assert!(bytes.len() + start <= self.header.documents_at(), "tokens past the end");
        if width == 2 {
            let (ids, _) = bytes.as_chunks::<2>();
            into.iter_mut()
                .zip(ids)
                .for_each(|(id, &bytes)| *id = u16::from_le_bytes(bytes).into());
        } else {
            let (ids, _) = bytes.as_chunks::<4>();
            into.iter_mut().zip(ids).for_each(|(id, &bytes)| *id = u32::from_le_bytes(bytes));
        }
    }

    /// A hash of the inputs' contents and the tokenizer: what a checkpoint compares on resume.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Where documents start, in order.
    pub fn documents(&self) -> &[u64] {
        &self.numbers()[..self.header.documents as usize]
    }

    /// Whether only some tokens are to be learned.
    pub fn is_marked(&self) -> bool {
        self.header.learned > 0
    }

    /// Whether token `place` is to be learned.
    pub fn learns(&self, place: u64) -> bool {
        let ends = &self.numbers()[self.header.documents as usize..];
        // Behind an odd number of ends: within a stretch.
        ends.is_empty() || ends.partition_point(|end| *end <= place) % 2 == 1
    }

    /// The numbers behind the ids.
    fn numbers(&self) -> &[u64] {
        const { assert!(cfg!(target_endian = "little"), "numbers are mapped as they lie") };
        let bytes = &self.map[self.header.documents_at()..];
        // SAFETY: every value of the 8 bytes of a u64 is valid, and `align_to` minds alignment.
        let (before, numbers, _) = unsafe { bytes.align_to::<u64>() };
        assert!(before.is_empty(), "maps begin at pages, documents at multiples of 8");
        numbers
    }

    /// The cache in `path`, if it is there, whole and unaltered.
    fn load(
        path: &Path,
        key: blake3::Hash,
        stamps: &mut Stamps,
    ) -> Result<Option<Cache>, DataError> {
        let file = match File::open(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|source| read_error(path, source))?,
        };
        // SAFETY: a cache is complete before it gets its name and is never written to afterwards; it
        // is read as plain numbers, any value of which is valid.
        let map = unsafe { Mmap::map(&file) }.map_err(|source| read_error(path, source))?;
        let Some(header) = Header::read(&map, key) else { return Ok(None) };
        let (hash, _) = stamps.hash(path, HEADER)?;
        let fingerprint = key.to_hex().to_string();
        let cache = Cache { map, header, path: path.to_owned(), fingerprint };
        Ok((hash == cache.header.content).then_some(cache))
    }
}

fn hash_all(files: Vec<PathBuf>, stamps: &mut Stamps) -> Result<Vec<Input>, DataError> {
    let hash = |path: PathBuf| {
        let (hash, size) = stamps.hash(&path, 0)?;
        Ok(Input { path, size, hash })
    };
    files.into_iter().map(hash).collect()
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
fn key(inputs: &[Input], maker: &Maker<'_>) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_derive_key("annulus tokens of a text");
    hasher.update(&Header::VERSION.to_le_bytes());
    hasher.update(&maker.tokenizer.fingerprint());
    hasher.update(match maker.records {
        Records::Text => b"texts",
        Records::Lines => b"lines",
        Records::Chats => b"chats",
    });
    if let Some(chat) = maker.chat {
        hasher.update(chat.hash().as_bytes());
    }
    for input in inputs {
        hasher.update(input.hash.as_bytes());
    }
    hasher.finalize()
}
