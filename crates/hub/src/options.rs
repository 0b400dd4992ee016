//! Where the hub is, where its cache is, and who asks: the variables of Hugging Face's own programs.

use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::HubError;

/// Bytes of a file that holds a token.
const LONGEST_TOKEN: u64 = 1 << 12;

/// Where the hub is, where its cache is, and who asks.
#[derive(Clone)]
pub struct Options {
    /// The hub's address, without a slash at the end.
    pub endpoint: String,
    /// The folder of `models--owner--name`.
    pub cache: PathBuf,
    /// Sent to the endpoint alone, never to where it redirects.
    pub token: Option<String>,
    /// Only the cache is used: a file that is not cached is an error.
    pub offline: bool,
    /// A transfer that brings nothing, or too little, for this long is given up.
    pub patience: Duration,
    /// Cached files are hashed even if nothing says that they have changed.
    pub verify: bool,
}

impl Options {
    /// As `HF_ENDPOINT`, `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_HUB_DISABLE_IMPLICIT_TOKEN` and
    /// `HF_HUB_OFFLINE` say, and older names of these.
    ///
    /// # Errors
    /// Where no variable says where the cache is, and the user has no home; a `~` that is not the user's.
    pub fn from_environment() -> Result<Options, HubError> {
        let home = env::home_dir().filter(|home| !home.as_os_str().is_empty());
        Options::of(&|name| env::var(name).ok(), home.as_deref())
    }

    fn of(
        variable: &dyn Fn(&str) -> Option<String>,
        below: Option<&Path>,
    ) -> Result<Options, HubError> {
        let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let path = |name: &'static str| {
            set(name).map(|text| expanded(name, &text, variable, below)).transpose()
        };
        let caches = path("XDG_CACHE_HOME")?.or_else(|| Some(below?.join(".cache")));
        let home = path("HF_HOME")?.or_else(|| Some(caches?.join("huggingface")));
        let cache = match path("HF_HUB_CACHE")? {
            None => path("HUGGINGFACE_HUB_CACHE")?,
            named => named,
        };
        let cache = cache.or_else(|| Some(home.as_ref()?.join("hub")));
        let cache = cache.ok_or(HubError::NoHome)?;
        let token_file = path("HF_TOKEN_PATH")?.or_else(|| Some(home?.join("token")));
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let written = || annulus_files::read_to_string(&token_file?, LONGEST_TOKEN).ok();
        let is_true = |value: String| {
            ["1", "on", "yes", "true"].contains(&value.trim().to_ascii_lowercase().as_str())
        };
        let token = set("HF_TOKEN").or_else(|| set("HUGGING_FACE_HUB_TOKEN")).or_else(written);
        // Here nobody names a token for a single download: all are implicit.
        let is_sent = !set("HF_HUB_DISABLE_IMPLICIT_TOKEN").is_some_and(is_true);
        let token = token.filter(|_| is_sent).map(|token| token.trim().to_owned());
        let offline = set("HF_HUB_OFFLINE").or_else(|| set("TRANSFORMERS_OFFLINE"));
        Ok(Options {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            cache,
            token: token.filter(|token| !token.is_empty()),
            offline: offline.is_some_and(is_true),
            patience: Duration::from_secs(60),
            verify: false,
        })
    }

    /// What somebody should know before anything is asked for.
    pub fn warning(&self) -> Option<String> {
        let seen = self.token.is_some() && !self.offline && self.endpoint.starts_with("http://");
        let endpoint = &self.endpoint;
        seen.then(|| {
            format!("the token is sent to `{endpoint}` over plain http, where others can read it")
        })
    }
}

/// The path in the variable `name`, as Hugging Face's programs read it: with the home folder for `~`, and the values of
/// variables; one that is not set is left as it stands.
fn expanded(
    name: &'static str,
    text: &str,
    variable: &dyn Fn(&str) -> Option<String>,
    below: Option<&Path>,
) -> Result<PathBuf, HubError> {
    let (mut path, mut rest) = (String::new(), text);
    let unknown = || HubError::NoSuchHome { name, text: text.to_owned() };
    if let Some(after) = text.strip_prefix('~') {
        // `~name` is the home of another user, whom the system's library knows and we do not.
        let home = below.filter(|_| after.is_empty() || after.starts_with('/'));
        path.push_str(home.and_then(Path::to_str).ok_or_else(unknown)?);
        rest = after;
    }
    while let Some((before, after)) = rest.split_once('$') {
        path.push_str(before);
        let braced = after.strip_prefix('{').and_then(|inside| inside.split_once('}'));
        let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let (word, behind) = braced.unwrap_or_else(|| {
            after.split_at(after.find(|letter| !is_word(letter)).unwrap_or(after.len()))
        });
        let length = rest.len() - before.len() - behind.len();
        path.push_str(&variable(word).unwrap_or_else(|| rest[before.len()..][..length].to_owned()));
        rest = behind;
    }
    Ok(PathBuf::from(path + rest))
}

/// A token is nobody else's business.
impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("endpoint", &self.endpoint)
            .field("cache", &self.cache)
            .field("token", &self.token.as_ref().map(|_| "…"))
            .field("offline", &self.offline)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(variables: &[(&str, &str)], home: Option<&str>) -> Result<Options, HubError> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Options::of(&variable, home.map(Path::new))
    }

    fn cache(variables: &[(&str, &str)], home: Option<&str>) -> Result<PathBuf, HubError> {
        Ok(options(variables, home)?.cache)
    }

    /// What `huggingface_hub.constants` makes of the same variables.
    #[test]
    fn paths_are_those_of_hugging_faces_programs() {
        let other = ("DATA", "/data");
        for (variables, wanted) in [
            (&[][..], "/home/me/.cache/huggingface/hub"),
            (&[("XDG_CACHE_HOME", "/fast")], "/fast/huggingface/hub"),
            (&[("XDG_CACHE_HOME", "~/fast")], "/home/me/fast/huggingface/hub"),
            (&[("XDG_CACHE_HOME", "/fast"), ("HF_HOME", "/hf")], "/hf/hub"),
            (&[("HF_HOME", "~/hf")], "/home/me/hf/hub"),
            (&[("HF_HOME", "~")], "/home/me/hub"),
            (&[("HF_HOME", "a~/hf")], "a~/hf/hub"),
            (&[("HF_HOME", "$DATA/hf"), other], "/data/hf/hub"),
            (&[("HF_HOME", "/x${DATA}y$DATA"), other], "/x/datay/data/hub"),
            (&[("HF_HOME", "/$NONE/${NONE}$")], "/$NONE/${NONE}$/hub"),
            (&[("HF_HOME", "/${DATA"), other], "/${DATA/hub"),
            (&[("HF_HOME", "/hf"), ("HF_HUB_CACHE", "~/models")], "/home/me/models"),
            (&[("HF_HOME", "/hf"), ("HUGGINGFACE_HUB_CACHE", "~/old")], "/home/me/old"),
            (&[("HF_HUB_CACHE", "/new"), ("HUGGINGFACE_HUB_CACHE", "~/old")], "/new"),
            (&[("HF_HOME", " ")], "/home/me/.cache/huggingface/hub"),
        ] {
            let found = cache(variables, Some("/home/me")).unwrap();
            assert_eq!(found, Path::new(wanted), "{variables:?}");
        }
    }

    /// As `get_token` and `constants` of `huggingface_hub` have it, also by older names.
    #[test]
    fn who_asks_and_whether_is_as_in_hugging_faces_programs() {
        let (new, old) = (("HF_TOKEN", "new"), ("HUGGING_FACE_HUB_TOKEN", "old"));
        let hidden = |value| ("HF_HUB_DISABLE_IMPLICIT_TOKEN", value);
        for (variables, token) in [
            (&[][..], None),
            (&[old], Some("old")),
            (&[old, new], Some("new")),
            (&[new, hidden("1")], None),
            (&[new, hidden("0")], Some("new")),
        ] {
            let found = options(variables, Some("/nowhere")).unwrap().token;
            assert_eq!(found.as_deref(), token, "{variables:?}");
        }
        let (hub, older) = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE");
        for (variables, offline) in [
            (&[(older, "1")][..], true),
            (&[(older, "yes"), (hub, "0")], false),
            (&[(older, "0"), (hub, "ON")], true),
            (&[(older, "0")], false),
        ] {
            let found = options(variables, Some("/nowhere")).unwrap().offline;
            assert_eq!(found, offline, "{variables:?}");
        }
    }

    #[test]
    fn what_is_in_nobodys_home_is_said() {
        assert!(matches!(cache(&[], None), Err(HubError::NoHome)));
        for (value, home) in [("~/hf", None), ("~other/hf", Some("/home/me"))] {
            let error = cache(&[("HF_HOME", value)], home).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("`HF_HOME` is `{value}`: no such home folder is known")
            );
            assert!(error.hint().unwrap().contains("write the folder out"));
        }
    }
}
