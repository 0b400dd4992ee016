//! From a name to a folder.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use crate::hash::Hash;
use crate::listing::{Entry, Listing, listing};
use crate::request::{Client, text, unread};
use crate::store::{CONFIG, DESCRIPTION, INDEX, SINGLE, Store, shards};
use crate::{HubError, Name, Options};

/// Tries in a row that bring nothing.
const MOST_FAILURES: u32 = 5;

/// The pause after the first of them; it doubles.
const PAUSE: Duration = Duration::from_millis(100);

/// Bytes read at a time.
const BLOCK: usize = 1 << 17;

/// Is told (bytes that arrived, bytes in all as far as the hub says); false: stop.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64) -> bool;

/// What is fetched of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// config.json, and the tokenizer's files where it has them.
    Description,
    /// Also its safetensors.
    Weights,
}

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// With the commit that its revision was.
    pub name: Name,
    /// Its files.
    pub folder: PathBuf,
}

/// Brings what is not in the cache yet. A commit that is there is taken without asking; a branch or
/// a tag is asked for, unless `options` say offline.
///
/// # Errors
/// No such model, no right to it, no network, a file that is not what the hub says.
pub fn fetch(
    name: &Name,
    want: Want,
    options: &Options,
    progress: Progress<'_>,
) -> Result<Fetched, HubError> {
    let store = Store::new(options, name);
    let commit = store.commit(name);
    let fetched = |commit: &str| Fetched { name: name.at(commit), folder: store.snapshot(commit) };
    let missing = match &commit {
        Some(commit) if options.offline || name.is_commit() => {
            match store.lacks(commit, want, !options.offline) {
                Some(missing) => missing,
                None => return Ok(fetched(commit)),
            }
        }
        _ => "it was never fetched".to_owned(),
    };
    if options.offline {
        let (name, cache) = (name.to_string(), options.cache.clone());
        return Err(HubError::Offline { name, cache, missing });
    }
    let client = Client::new(options);
    let cached = commit.is_some_and(|commit| store.lacks(&commit, want, false).is_none());
    let listing = listing(&client, name, options).map_err(|error| match error {
        HubError::Network { url, message, .. } => HubError::Network { url, message, cached },
        error => error,
    })?;
    let fetching = Fetching { name, options, client, store: &store, listing: &listing };
    fetching.description(progress)?;
    if want == Want::Weights {
        fetching.weights(progress)?;
    }
    store.point(name, &listing.commit)?;
    Ok(fetched(&listing.commit))
}

struct Fetching<'a> {
    name: &'a Name,
    options: &'a Options,
    client: Client<'a>,
    store: &'a Store,
    listing: &'a Listing,
}

impl Fetching<'_> {
    fn description(&self, progress: Progress<'_>) -> Result<(), HubError> {
        if !self.listing.files.contains_key(CONFIG) {
            let what = format!("`{CONFIG}` of `{}`", self.name);
            return Err(HubError::NotFound { what });
        }
        let has = |file: &&&str| self.listing.files.contains_key(**file);
        for file in DESCRIPTION.iter().filter(|file| !has(file)) {
            self.store.leave_out(&self.listing.commit, file)?;
        }
        self.files(DESCRIPTION.iter().filter(has).copied(), progress)
    }

    fn weights(&self, progress: Progress<'_>) -> Result<(), HubError> {
        if self.listing.files.contains_key(SINGLE) {
            return self.files([SINGLE], progress);
        }
        if !self.listing.files.contains_key(INDEX) {
            return Err(HubError::NoWeights { name: self.name.to_string() });
        }
        self.files([INDEX], progress)?;
        let index = self.store.snapshot(&self.listing.commit).join(INDEX);
        let wrong = |message| HubError::Answer { url: self.url(INDEX), message };
        let shards = shards(&index).map_err(wrong)?;
        self.files(shards.iter().map(String::as_str), progress)
    }

    /// Brings those of these files that the commit's folder has not.
    fn files<'f>(
        &self,
        files: impl IntoIterator<Item = &'f str>,
        progress: Progress<'_>,
    ) -> Result<(), HubError> {
        let folder = self.store.snapshot(&self.listing.commit);
        let mut entries = Vec::new();
        for file in files.into_iter().filter(|file| !folder.join(file).exists()) {
            let what = || format!("`{file}` of `{}`", self.name);
            let entry = self.listing.files.get(file);
            entries.push((file, entry.ok_or_else(|| HubError::NotFound { what: what() })?));
        }
        let total = entries.iter().filter_map(|(_, entry)| entry.bytes).sum();
        let mut before = 0;
        for (file, entry) in entries {
            self.file(file, entry, &mut |bytes| progress(before + bytes, total))?;
            before += entry.bytes.unwrap_or(0);
        }
        Ok(())
    }

    fn url(&self, file: &str) -> String {
        let Name { repository, .. } = self.name;
        format!("{}/{repository}/resolve/{}/{file}", self.options.endpoint, self.listing.commit)
    }

    /// Brings a file into the cache, once its hash is right.
    fn file(
        &self,
        file: &str,
        entry: &Entry,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(), HubError> {
        let hash = match &entry.hash {
            Some(hash) => hash.clone(),
            None => self.said(file)?,
        };
        let _ours = self.store.lock(&hash)?;
        let blob = self.store.blob(&hash);
        if !blob.exists() {
            let part = blob.with_extension("incomplete");
            let resumed = part.exists();
            let mut arrived = self.arrive(file, entry, &hash, &part, progress);
            // What had been left by another program, or of another day, may be what is wrong.
            if resumed && matches!(arrived, Err(HubError::Damaged { .. })) {
                arrived = self.arrive(file, entry, &hash, &part, progress);
            }
            arrived?;
            fs::rename(&part, &blob).map_err(|source| store(&blob, source))?;
        }
        self.store.link(&hash, &self.listing.commit, file)
    }

    /// The hash that the hub says beside the file, where its listing had none.
    fn said(&self, file: &str) -> Result<Hash, HubError> {
        let url = self.url(file);
        let said = self.client.get(self.name, &url, 0)?.hash;
        let message = format!("no hash of `{file}`");
        said.ok_or(HubError::Answer { url, message })
    }

    /// Fills `part` and holds it to `hash`; what is wrong is not kept.
    fn arrive(
        &self,
        file: &str,
        entry: &Entry,
        hash: &Hash,
        part: &Path,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(), HubError> {
        let folder = part.parent().unwrap_or(Path::new(""));
        fs::create_dir_all(folder).map_err(|source| store(folder, source))?;
        self.transfer(&self.url(file), entry.bytes, part, progress)?;
        let length = fs::metadata(part).map_err(|source| store(part, source))?.len();
        let found = match entry.bytes {
            Some(bytes) if bytes != length => {
                Some((format!("{length} bytes"), format!("{bytes} bytes")))
            }
            _ => {
                let found = hash.of(part).map_err(|source| store(part, source))?;
                (found != *hash).then(|| (found.to_string(), hash.to_string()))
            }
        };
        let Some((found, wanted)) = found else { return Ok(()) };
        fs::remove_file(part).map_err(|source| store(part, source))?;
        let (name, file) = (self.name.to_string(), file.to_owned());
        Err(HubError::Damaged { name, file, found, wanted })
    }

    /// Appends to `part` until the end of the file, however often the connection breaks, as long as
    /// something arrives.
    fn transfer(
        &self,
        url: &str,
        bytes: Option<u64>,
        part: &Path,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(), HubError> {
        let mut failures = 0;
        loop {
            let before = length(part);
            match self.attempt(url, bytes, part, progress) {
                Err(error) if error.is_passing() => {
                    failures = if length(part) > before { 0 } else { failures + 1 };
                    if failures == MOST_FAILURES {
                        return Err(error);
                    }
                    sleep(PAUSE * 2_u32.pow(failures));
                }
                ended => return ended,
            }
        }
    }

    /// One connection's worth.
    fn attempt(
        &self,
        url: &str,
        bytes: Option<u64>,
        part: &Path,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(), HubError> {
        let failed = |source| store(part, source);
        let mut held = length(part);
        if bytes.is_some_and(|bytes| bytes == held) && held > 0 {
            return Ok(());
        }
        let response = self.client.get(self.name, url, held)?.response;
        let range = text(response.headers(), "content-range").map(str::to_owned);
        let goes_on = response.status() == 206
            && range.is_some_and(|range| range.starts_with(&format!("bytes {held}-")));
        let mut out = File::options().create(true).append(true).open(part).map_err(failed)?;
        if held > 0 && !goes_on {
            // It sends the whole file, or has none that is as long as what is here.
            out.set_len(0).map_err(failed)?;
            held = 0;
            if response.status() != 200 {
                return Err(unread(url, &"it does not go on where it stopped"));
            }
        }
        let mut body = response.into_body().into_reader();
        let mut block = vec![0; BLOCK];
        // More than there should be is enough to know.
        while bytes.is_none_or(|bytes| held <= bytes) {
            let length = body.read(&mut block).map_err(|error| unread(url, &error))?;
            if length == 0 {
                break;
            }
            out.write_all(&block[..length]).map_err(failed)?;
            held += length as u64;
            if !progress(held) {
                return Err(HubError::Stopped);
            }
        }
        out.sync_all().map_err(failed)?;
        match bytes {
            Some(bytes) if held < bytes => Err(unread(url, &format!("it ends after {held} bytes"))),
            _ => Ok(()),
        }
    }
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |file| file.len())
}

fn store(path: &Path, source: std::io::Error) -> HubError {
    HubError::Store { path: path.to_owned(), source }
}
