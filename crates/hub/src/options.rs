//! Where the hub is, where its cache is, and who asks: the variables of Hugging Face's own programs.

use std::env;
use std::path::PathBuf;
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
    /// Nobody is asked: what is not in the cache is not there.
    pub offline: bool,
    /// How long nothing may arrive, or too little.
    pub patience: Duration,
    /// Files of the cache are hashed though nothing says that they have changed.
    pub verify: bool,
}

impl Options {
    /// As `HF_ENDPOINT`, `HF_HUB_CACHE`, `HF_HOME`, `HF_TOKEN`, `HF_TOKEN_PATH` and
    /// `HF_HUB_OFFLINE` say.
    ///
    /// # Errors
    /// Where no variable says where the cache is, and the user has no home.
    pub fn from_environment() -> Result<Options, HubError> {
        let set = |name| env::var(name).ok().filter(|value| !value.trim().is_empty());
        let below = || env::home_dir().filter(|home| !home.as_os_str().is_empty());
        let home = set("HF_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(below()?.join(".cache/huggingface")));
        let cache = set("HF_HUB_CACHE").map(PathBuf::from);
        let cache = cache.or_else(|| Some(home.as_ref()?.join("hub"))).ok_or(HubError::NoHome)?;
        let token_file = set("HF_TOKEN_PATH").map(PathBuf::from);
        let token_file = token_file.or_else(|| Some(home?.join("token")));
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let written = || annulus_files::read_to_string(&token_file?, LONGEST_TOKEN).ok();
        let token = set("HF_TOKEN").or_else(written).map(|token| token.trim().to_owned());
        let truth =
            |value: &str| ["1", "on", "yes", "true"].contains(&value.to_ascii_lowercase().as_str());
        Ok(Options {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            cache,
            token: token.filter(|token| !token.is_empty()),
            offline: set("HF_HUB_OFFLINE").is_some_and(|value| truth(value.trim())),
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
