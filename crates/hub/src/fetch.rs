//! From a name to a folder.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use annulus_files::hugging_face::{
    CONFIG, LARGEST, MOST_TEMPLATES, TEMPLATES, WEIGHTS, WEIGHTS_INDEX, is_template,
};

use crate::hash::Hash;
use crate::listing::{Entry, Listing, listing};
use crate::request::{Client, body, broken, text, unread};
use crate::store::{LONGEST_INDEX, Store, description, length, part_of, shards};
use crate::watch::{Event, Progress, Watch, watched};
use crate::{HubError, Name, Options};

/// Tries in a row that bring nothing.
const MOST_FAILURES: u32 = 5;

/// The pause after a try that brought something; it doubles with each that does not.
const PAUSE: Duration = Duration::from_millis(100);

/// Bytes read at a time, and so many more than ever before that a try has brought something.
const BLOCK: usize = 1 << 17;

/// The files of a model to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// config.json, and the tokenizer's files and chat templates where it has them.
    Description,
    /// The description, and the weights as safetensors.
    Weights,
}

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The model's name, with the commit of its revision.
    pub name: Name,
    /// The folder of its files.
    pub folder: PathBuf,
}

/// Brings what is not in the cache yet. A commit that is there is taken without asking, or, if other
/// programs fetched it, where the hub cannot be asked what else it has; a branch or a tag is asked
/// for, unless `options` say offline.
///
/// # Errors
/// No such model, no right to it, no network, a file that is not what the hub says.
pub fn fetch(
    name: &Name,
    want: Want,
    options: &Options,
    progress: Progress<'_>,
) -> Result<Fetched, HubError> {
    let (name, options) = (name.clone(), options.clone());
    watched(progress, move |watch| fetch_watched(&name, want, &options, watch))
}

fn fetch_watched(
    name: &Name,
    want: Want,
    options: &Options,
    watch: &Watch,
) -> Result<Fetched, HubError> {
    let store = Store::new(options, name);
    let commit = store.commit(name);
    let fetched = |commit: &str| Fetched { name: name.at(commit), folder: store.snapshot(commit) };
    let mut missing = "it was never fetched".to_owned();
    if let Some(commit) = commit.as_ref().filter(|_| options.offline || name.is_commit()) {
        match store.lacks(commit, want, !options.offline)? {
            Some(lacking) => missing = lacking,
            None => return Ok(fetched(commit)),
        }
    }
    if options.offline {
        return Err(offline(name, options, missing));
    }
    let client = Client::new(options, watch);
    let is_whole = |commit: &String| matches!(store.lacks(commit, want, false), Ok(None));
    let listing = match listing(&client, name, options) {
        Err(HubError::Network { url, message, .. }) => match commit.filter(is_whole) {
            // It never changes: nothing newer is missed.
            Some(commit) if name.is_commit() => {
                watch.tell(Event::Unasked(message))?;
                return Ok(fetched(&commit));
            }
            whole => return Err(HubError::Network { url, message, cached: whole.is_some() }),
        },
        answered => answered?,
    };
    let fetching = Fetching { name, options, client, store: &store, listing: &listing, watch };
    fetching.description()?;
    if want == Want::Weights {
        fetching.weights()?;
    }
    store.point(name, &listing.commit)?;
    Ok(fetched(&listing.commit))
}

fn offline(name: &Name, options: &Options, missing: String) -> HubError {
    HubError::Offline { name: name.to_string(), cache: options.cache.clone(), missing }
}

struct Fetching<'a> {
    name: &'a Name,
    options: &'a Options,
    client: Client<'a>,
    store: &'a Store,
    listing: &'a Listing,
    watch: &'a Watch,
}

impl Fetching<'_> {
    fn description(&self) -> Result<(), HubError> {
        if !self.listing.files.contains_key(CONFIG) {
            return Err(self.not_found(CONFIG));
        }
        let has = |file: &&str| self.listing.files.contains_key(*file);
        for file in description().filter(|file| !has(file)) {
            self.store.leave_out(&self.listing.commit, file)?;
        }
        let templates: Vec<&str> = self
            .listing
            .files
            .keys()
            .map(String::as_str)
            .filter(|file| is_template(file))
            .collect();
        if templates.len() > MOST_TEMPLATES {
            let message =
                format!("{} chat templates, expected at most {MOST_TEMPLATES}", templates.len());
            return Err(HubError::Answer { url: self.url(TEMPLATES), message });
        }
        // Templates first: whether all are there cannot be seen later, without the listing.
        self.files(templates.into_iter().chain(description().filter(has)))
    }

    fn weights(&self) -> Result<(), HubError> {
        if self.listing.files.contains_key(WEIGHTS) {
            return self.files([WEIGHTS]);
        }
        if !self.listing.files.contains_key(WEIGHTS_INDEX) {
            return Err(HubError::NoWeights { name: self.name.to_string() });
        }
        self.files([WEIGHTS_INDEX])?;
        let index = self.store.snapshot(&self.listing.commit).join(WEIGHTS_INDEX);
        let wrong = |message| HubError::Answer { url: self.url(WEIGHTS_INDEX), message };
        let shards = shards(&index).map_err(wrong)?;
        self.files(shards.iter().map(String::as_str))
    }

    fn not_found(&self, file: &str) -> HubError {
        let what = format!("`{file}` of `{}`", self.name);
        HubError::NotFound { what, repository: self.name.repository.clone() }
    }

    /// Brings those of these files that the commit's folder has not.
    fn files<'f>(&self, files: impl IntoIterator<Item = &'f str>) -> Result<(), HubError> {
        let mut entries = Vec::new();
        for file in files {
            if self.store.has(&self.listing.commit, file)? {
                continue;
            }
            let entry = self.listing.files.get(file).ok_or_else(|| self.not_found(file))?;
            let hash = entry.hash.as_ref();
            let to_come = entry.bytes.map_or(0, |bytes| self.store.to_come(hash, bytes));
            entries.push((file, entry, self.most(file, entry)?, to_come));
        }
        let total = entries.iter().map(|(.., to_come)| to_come).sum();
        self.store.has_room(total)?;
        let mut before = 0;
        for (file, entry, most, to_come) in entries {
            let held = entry.bytes.unwrap_or(0) - to_come;
            let told = |bytes: u64| {
                let bytes = before + bytes.saturating_sub(held);
                self.watch.tell(Event::Arrived { bytes, total })
            };
            self.file(file, entry, most, &told)?;
            before += to_come;
        }
        Ok(())
    }

    /// The most bytes that a file may have: as many as the hub says, and of what is no weights no more than anybody's.
    fn most(&self, file: &str, entry: &Entry) -> Result<u64, HubError> {
        let wrong = |message| Err(HubError::Answer { url: self.url(file), message });
        let limit = if file == WEIGHTS_INDEX { LONGEST_INDEX } else { LARGEST };
        let is_weights =
            file != WEIGHTS_INDEX && !is_template(file) && description().all(|known| known != file);
        match entry.bytes {
            Some(bytes) if is_weights || bytes <= limit => Ok(bytes),
            Some(bytes) => wrong(format!("`{file}` has {bytes} bytes, expected at most {limit}")),
            // A mirror that says no sizes may fill the disk, but not to the brim.
            None if is_weights => Ok(self.store.free() / 8 * 7),
            None => Ok(limit),
        }
    }

    fn url(&self, file: &str) -> String {
        let (Name { repository, .. }, file) = (self.name, encoded(file));
        format!("{}/{repository}/resolve/{}/{file}", self.options.endpoint, self.listing.commit)
    }

    /// Brings a file into the cache, once its hash is right.
    fn file(
        &self,
        file: &str,
        entry: &Entry,
        most: u64,
        told: &dyn Fn(u64) -> Result<(), HubError>,
    ) -> Result<(), HubError> {
        let hash = match &entry.hash {
            Some(hash) => hash.clone(),
            None => self.said(file)?,
        };
        let _ours = self.store.lock(&hash, self.watch)?;
        if !self.store.holds(&hash)? {
            let part = part_of(&self.store.blob(&hash));
            let resumed = length(&part) > 0;
            let mut arrived = self.arrive(file, entry, &hash, &part, most, told);
            // What had been left by another program, or of another day, may be what is wrong.
            if resumed && matches!(arrived, Err(HubError::Damaged { .. })) {
                arrived = self.arrive(file, entry, &hash, &part, most, told);
            }
            arrived?;
            self.store.keep(&part, &hash)?;
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

    /// Fills `part`, with at most so many bytes, and holds it to `hash`; what is wrong is not kept.
    fn arrive(
        &self,
        file: &str,
        entry: &Entry,
        hash: &Hash,
        part: &Path,
        most: u64,
        told: &dyn Fn(u64) -> Result<(), HubError>,
    ) -> Result<(), HubError> {
        let folder = part.parent().unwrap_or(Path::new(""));
        fs::create_dir_all(folder).map_err(|source| store(folder, source))?;
        let url = self.url(file);
        self.transfer(&Transfer { url: &url, bytes: entry.bytes, most, part, told })?;
        let length = length(part);
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

    /// Appends until the end of the file, however often the connection breaks, as long as more arrives than ever before.
    fn transfer(&self, transfer: &Transfer<'_>) -> Result<(), HubError> {
        let (mut failures, mut furthest) = (0, length(transfer.part));
        loop {
            match self.attempt(transfer) {
                Err(error) if error.is_passing() => {
                    let here = length(transfer.part);
                    if here >= furthest + BLOCK as u64 {
                        (failures, furthest) = (0, here);
                    } else {
                        failures += 1;
                    }
                    if failures == MOST_FAILURES {
                        return Err(error);
                    }
                    self.watch.sleep(PAUSE * 2_u32.pow(failures))?;
                }
                ended => return ended,
            }
        }
    }

    /// One connection's worth.
    fn attempt(&self, transfer: &Transfer<'_>) -> Result<(), HubError> {
        let &Transfer { url, bytes, most, part, told } = transfer;
        let failed = |source| store(part, source);
        let mut held = length(part);
        if bytes.is_some_and(|bytes| bytes == held) && held > 0 {
            return Ok(());
        }
        let response = self.client.get(self.name, url, held)?.response;
        let range = text(response.headers(), "content-range").unwrap_or_default();
        let goes_on = response.status() == 206 && range.starts_with(&format!("bytes {held}-"));
        let mut out = annulus_files::append(part).map_err(failed)?;
        if response.status() != 200 && !goes_on {
            // It has none that is as long as what is here, or sends what nobody asked for.
            out.set_len(0).map_err(failed)?;
            return Err(unread(url, &format!("it does not continue at byte {held}")));
        }
        if !goes_on {
            out.set_len(0).map_err(failed)?;
            held = 0;
        }
        let mut body = body(response, self.options);
        let mut block = vec![0; BLOCK];
        // More than there should be is enough to know.
        while held <= most {
            let length = body.read(&mut block).map_err(|error| broken(url, &error))?;
            if length == 0 {
                break;
            }
            out.write_all(&block[..length]).map_err(failed)?;
            held += length as u64;
            told(held)?;
        }
        out.sync_all().map_err(failed)?;
        transfer.check(held, &out)
    }
}

/// A file on its way.
struct Transfer<'a> {
    url: &'a str,
    /// How many there are, as far as the hub says.
    bytes: Option<u64>,
    /// More are not taken.
    most: u64,
    /// Where they lie until all of them are here.
    part: &'a Path,
    told: &'a dyn Fn(u64) -> Result<(), HubError>,
}

impl Transfer<'_> {
    /// Whether so many bytes are all there are, and not too many: those are dropped.
    fn check(&self, held: u64, out: &File) -> Result<(), HubError> {
        let &Transfer { url, most, part, .. } = self;
        match self.bytes {
            Some(bytes) if held < bytes => Err(unread(url, &format!("it ends after {held} bytes"))),
            None if held > most => {
                out.set_len(0).map_err(|source| store(part, source))?;
                let message = format!("more than {most} bytes, and no word how many");
                Err(HubError::Answer { url: url.to_owned(), message })
            }
            _ => Ok(()),
        }
    }
}

/// A file's name in an address.
fn encoded(file: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let letter = |byte: u8| {
        if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    file.bytes().map(letter).collect()
}

fn store(path: &Path, source: io::Error) -> HubError {
    HubError::Store { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_written_as_addresses_have_them() {
        assert_eq!(super::encoded("a/model-1.safetensors"), "a/model-1.safetensors");
        assert_eq!(super::encoded("a b#?%é"), "a%20b%23%3F%25%C3%A9");
    }
}
