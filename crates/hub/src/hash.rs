//! The two hashes that the hub gives, and what a file really is.

use std::fmt;
use std::io::{self, BufReader};
use std::path::Path;

use sha1::Digest as _;

use crate::name::is_hexadecimal;

/// A file by its contents: what git, or git's large file storage, calls it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hash {
    /// git's SHA-1 of a blob, hexadecimal: of small files.
    Blob(String),
    /// SHA-256, hexadecimal: of large ones.
    Sha256(String),
}

impl Hash {
    /// By its length; `None`: it is neither.
    pub(crate) fn read(text: &str) -> Option<Hash> {
        match (is_hexadecimal(text), text.len()) {
            (true, 40) => Some(Hash::Blob(text.to_owned())),
            (true, 64) => Some(Hash::Sha256(text.to_owned())),
            _ => None,
        }
    }

    /// What the cache calls a file of this hash.
    pub(crate) fn text(&self) -> &str {
        let (Hash::Blob(text) | Hash::Sha256(text)) = self;
        text
    }

    /// The hash of the same kind of the file at `path`.
    pub(crate) fn of(&self, path: &Path) -> io::Result<Hash> {
        let file = annulus_files::open(path)?;
        let size = file.metadata()?.len();
        let mut file = BufReader::with_capacity(1 << 20, file);
        match self {
            Hash::Blob(_) => {
                let mut hasher = sha1::Sha1::new();
                hasher.update(format!("blob {size}\0"));
                io::copy(&mut file, &mut hasher)?;
                Ok(Hash::Blob(format!("{:x}", hasher.finalize())))
            }
            Hash::Sha256(_) => {
                let mut hasher = sha2::Sha256::new();
                io::copy(&mut file, &mut hasher)?;
                Ok(Hash::Sha256(format!("{:x}", hasher.finalize())))
            }
        }
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if matches!(self, Hash::Blob(_)) { "git blob" } else { "SHA-256" };
        write!(f, "{kind} {}", self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of `git hash-object` and `sha256sum`.
    #[test]
    fn hashes_are_those_of_git_and_sha256() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "what is up, doc?").unwrap();
        for known in [
            "bd9dbf5aae1a3862dd1526723246b20206e5fc37",
            "af4e812d13b4eae6da91024f15f7679dae49d40aee3fb4c7216b56d04193f46c",
        ] {
            let hash = Hash::read(known).unwrap();
            let found = hash.of(file.path()).unwrap();
            assert_eq!(found, hash);
        }
        assert_eq!(Hash::read("../x"), None);
    }
}
