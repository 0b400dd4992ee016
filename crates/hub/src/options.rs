//! Where the hub is, where its cache is, and who asks: the variables of Hugging Face's own programs.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use hf_hub::Cache;

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
    /// How long nothing may arrive.
    pub patience: Duration,
}

impl Options {
    /// As `HF_ENDPOINT`, `HF_HUB_CACHE`, `HF_HOME`, `HF_TOKEN`, `HF_TOKEN_PATH` and
    /// `HF_HUB_OFFLINE` say.
    pub fn from_environment() -> Options {
        let set = |name| env::var(name).ok().filter(|value| !value.trim().is_empty());
        let from_home = Cache::from_env();
        let token_file = set("HF_TOKEN_PATH").map_or_else(|| from_home.token_path(), PathBuf::from);
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let written = || fs::read_to_string(token_file).ok();
        let token = set("HF_TOKEN").or_else(written).map(|token| token.trim().to_owned());
        let truth =
            |value: &str| ["1", "on", "yes", "true"].contains(&value.to_ascii_lowercase().as_str());
        Options {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            cache: set("HF_HUB_CACHE").map_or_else(|| from_home.path().clone(), PathBuf::from),
            token: token.filter(|token| !token.is_empty()),
            offline: set("HF_HUB_OFFLINE").is_some_and(|value| truth(value.trim())),
            patience: Duration::from_secs(60),
        }
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
