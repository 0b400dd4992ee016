//! What one writes for a model of the hub.

use std::fmt;
use std::str::FromStr;

/// How such a name begins; any other text is a path.
pub const PREFIX: &str = "hf://";

/// The longest part of a name, in bytes, as on the hub.
const LONGEST: usize = 96;

/// The revision where none is written.
const MAIN: &str = "main";

/// `hf://owner/name@revision`: safe to be part of an address and of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// `owner/name`
    pub repository: String,
    /// A branch, a tag or a commit; `main` where it is left out.
    pub revision: String,
}

impl Name {
    /// Whether the revision is a commit, which never changes.
    pub fn is_commit(&self) -> bool {
        is_commit(&self.revision)
    }

    /// The same model at another revision.
    #[must_use]
    pub fn at(&self, revision: &str) -> Name {
        Name { revision: revision.to_owned(), ..self.clone() }
    }
}

impl FromStr for Name {
    type Err = String;

    /// What is wrong with it is said in words.
    fn from_str(text: &str) -> Result<Name, String> {
        let rest = text.strip_prefix(PREFIX).ok_or_else(|| format!("`{PREFIX}` is missing"))?;
        let (repository, revision) = rest.split_once('@').unwrap_or((rest, MAIN));
        let parts: Vec<&str> = repository.split('/').collect();
        let &[owner, name] = &parts[..] else {
            return Err("expected `owner/name`".to_owned());
        };
        for (part, what) in [(owner, "owner"), (name, "name")] {
            if !is_word(part) {
                return Err(format!("the {what} must be letters, digits, `-`, `_` and `.`"));
            }
        }
        if !revision.split('/').all(is_word) {
            return Err("the revision must be a branch, a tag or a commit".to_owned());
        }
        Ok(Name { repository: repository.to_owned(), revision: revision.to_owned() })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}@{}", self.repository, self.revision)
    }
}

/// Whether `text` is the hash of a commit, written out.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && is_hexadecimal(text)
}

pub(crate) fn is_hexadecimal(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Nothing that climbs, hides or needs to be escaped.
fn is_word(part: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=LONGEST).contains(&part.len())
        && part.bytes().all(plain)
        && !part.starts_with('.')
        && !part.contains("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_and_written() {
        let name: Name = "hf://meta-llama/Llama-3.2-1B".parse().unwrap();
        assert_eq!(name.to_string(), "hf://meta-llama/Llama-3.2-1B@main");
        assert!(!name.is_commit() && name.at(&"a1".repeat(20)).is_commit());
        let name: Name = "hf://a/b@refs/pr/1".parse().unwrap();
        assert_eq!((name.repository.as_str(), name.revision.as_str()), ("a/b", "refs/pr/1"));
    }

    #[test]
    fn what_would_leave_an_address_or_a_folder_is_refused() {
        for wrong in [
            "a/b",
            "hf://",
            "hf://a",
            "hf://a/b/c",
            "hf://a/..",
            "hf://../b",
            "hf://a/b@",
            "hf://a/b@../x",
            "hf://a/b@/x",
            "hf://a/b?c",
            "hf://a b/c",
            "hf://a/b@x y",
            "hf://a/.b",
            "hf://a/b@x@y",
            "hf://a/b%2e",
        ] {
            assert!(wrong.parse::<Name>().is_err(), "{wrong}");
        }
    }
}
