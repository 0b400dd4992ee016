//! The beginning of a text, tokenised alone: to look at a few tokens, nobody waits for all.

use std::fs::File;
use std::io::{Read, Write};

use crate::parquet::is_of_rows;
use crate::unpack::unpacked_name;
use crate::{Cache, Texts};

/// The tokens at the beginning of a file, to look at a few without tokenising all.
#[derive(Debug)]
pub struct Preview {
    /// The cache that holds the tokens.
    pub cache: Cache,
    /// The number of bytes that were tokenised.
    pub read: u64,
    /// The number of bytes of the file.
    pub total: u64,
}

impl Preview {
    /// The first `bytes` bytes of a file up to the end of a line, where they are the smaller part of one plain file.
    /// `None` where they are not, or anything is wrong with them: who reads all of it is told what.
    pub fn of(texts: &Texts<'_>, bytes: u64) -> Option<Preview> {
        let [path] = texts.inputs else { return None };
        let metadata = path.metadata().ok().filter(std::fs::Metadata::is_file)?;
        let packed = unpacked_name(path) != path || is_of_rows(texts.records, path);
        let total = metadata.len();
        if packed || total <= 2 * bytes {
            return None;
        }
        let mut first = Vec::new();
        File::open(path).ok()?.take(bytes).read_to_end(&mut first).ok()?;
        let end = first.iter().rposition(|byte| *byte == b'\n')?;
        first.truncate(end + 1);
        let folder = tempfile::tempdir().ok()?;
        let part = folder.path().join(path.file_name()?);
        File::create(&part).and_then(|mut file| file.write_all(&first)).ok()?;
        let inputs = [part];
        let cache = Cache::temporary(&Texts { inputs: &inputs, ..*texts }, &mut |_| ()).ok()?;
        Some(Preview { cache, read: first.len() as u64, total })
    }
}
