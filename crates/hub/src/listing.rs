//! What a repository holds at a revision.

use std::collections::BTreeMap;
use std::io::Read;

use serde::Deserialize;

use crate::hash::Hash;
use crate::name::is_commit;
use crate::request::{Client, body, broken};
use crate::{HubError, Name, Options};

/// The longest answer that is read, in bytes: a hundred thousand files.
const LONGEST: u64 = 1 << 26;

/// A commit and its files.
pub(crate) struct Listing {
    pub(crate) commit: String,
    pub(crate) files: BTreeMap<String, Entry>,
}

/// What the hub says of a file, as far as it does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    pub(crate) bytes: Option<u64>,
    pub(crate) hash: Option<Hash>,
}

#[derive(Deserialize)]
struct Said {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob: Option<String>,
    lfs: Option<Large>,
}

#[derive(Deserialize)]
struct Large {
    sha256: Option<String>,
    size: Option<u64>,
}

/// Asks the hub for `name`'s commit and files.
pub(crate) fn listing(
    client: &Client<'_>,
    name: &Name,
    options: &Options,
) -> Result<Listing, HubError> {
    let revision = name.revision.replace('/', "%2F");
    let Name { repository, .. } = name;
    let url =
        format!("{}/api/models/{repository}/revision/{revision}?blobs=true", options.endpoint);
    let mut bytes = Vec::new();
    let body = body(client.get(name, &url, 0)?.response, options);
    body.take(LONGEST).read_to_end(&mut bytes).map_err(|error| broken(&url, &error))?;
    let wrong = |message: String| HubError::Answer { url: url.clone(), message };
    let said: Said = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
    if !is_commit(&said.sha) {
        return Err(wrong(format!("`{}` is not a commit", said.sha.escape_debug())));
    }
    let files = said.siblings.into_iter().map(|file| (file.rfilename.clone(), entry(file)));
    Ok(Listing { commit: said.sha, files: files.collect() })
}

fn entry(file: Sibling) -> Entry {
    let (large, bytes) = match file.lfs {
        Some(Large { sha256, size }) => (sha256, size.or(file.size)),
        // Large ones are known by another hash than git's, which is of a pointer.
        None => (None, file.size),
    };
    Entry { bytes, hash: large.or(file.blob).and_then(|hash| Hash::read(&hash)) }
}
