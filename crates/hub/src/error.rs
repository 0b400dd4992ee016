//! Errors on the way from the name of a model to its files, with hints.

use std::io;
use std::path::PathBuf;

/// An error on the way from the name of a model to its files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// 401 or 403.
    #[error("the hub does not let {who} read `{name}` ({status})", who = if *token { "this token" } else { "everybody" })]
    Refused {
        /// The name of the model.
        name: String,
        /// The status of HTTP.
        status: u16,
        /// Whether a token was sent.
        token: bool,
    },
    /// 404, or a file that a listing has not.
    #[error("{what} is not on the hub")]
    NotFound {
        /// The model, or the file of a model.
        what: String,
        /// The repository: `owner/name`.
        repository: String,
    },
    /// Any other status.
    #[error("`{url}` answered {status}")]
    Status {
        /// The address.
        url: String,
        /// The status of HTTP.
        status: u16,
    },
    /// Nobody answered, or stopped answering.
    #[error("cannot read `{url}`: {message}")]
    Network {
        /// The address.
        url: String,
        /// The error of the connection.
        message: String,
        /// Whether the cache has an earlier state of what was asked for.
        cached: bool,
    },
    /// An answer that is not what a hub says.
    #[error("`{url}` answered what a hub does not: {message}")]
    Answer {
        /// The address.
        url: String,
        /// What is wrong with the answer.
        message: String,
    },
    /// The cache lacks something and nobody may be asked.
    #[error("`HF_HUB_OFFLINE` or `TRANSFORMERS_OFFLINE` is set, and `{name}` is not whole in `{}`: {missing}", cache.display())]
    Offline {
        /// The name of the model.
        name: String,
        /// The folder of the cache.
        cache: PathBuf,
        /// What the cache lacks.
        missing: String,
    },
    /// A repository without safetensors.
    #[error("`{name}` holds neither `model.safetensors` nor `model.safetensors.index.json`")]
    NoWeights {
        /// The name of the model.
        name: String,
    },
    /// What arrived is not what the hub has.
    #[error("`{file}` of `{name}` arrived as {found}, but the hub says {wanted}")]
    Damaged {
        /// The name of the model.
        name: String,
        /// The file.
        file: String,
        /// The hash or length of what arrived.
        found: String,
        /// The hash or length that the hub states.
        wanted: String,
    },
    /// The cache cannot be written or read.
    #[error("cannot use `{}` in the cache: {source}", path.display())]
    Store {
        /// The file or folder of the cache.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Less arrives than anybody can wait for.
    #[error("`{url}` is too slow: {message}")]
    Slow {
        /// The address.
        url: String,
        /// How many bytes arrived in which time.
        message: String,
    },
    /// Nobody knows where the cache is.
    #[error("there is no home folder, so nobody knows where the hub's cache is")]
    NoHome,
    /// A variable with a `~` for a folder that is not known.
    #[error("`{name}` is `{text}`: no such home folder is known")]
    NoSuchHome {
        /// The variable.
        name: &'static str,
        /// The value of the variable.
        text: String,
    },
    /// The system has no thread to fetch with.
    #[error("the system has no thread to fetch with: {0}")]
    Thread(#[source] io::Error),
    /// It was asked to stop; what has arrived is kept.
    #[error("stopped; what has arrived is kept, and the same command resumes from there")]
    Stopped,
}

impl HubError {
    /// The hint: what to do about the error, where something can be done.
    pub fn hint(&self) -> Option<String> {
        if let HubError::NotFound { repository, .. } = self {
            let page = format!("huggingface.co/{repository}");
            return Some(format!("check owner, name and revision at {page}"));
        }
        self.plain_hint().map(str::to_owned)
    }

    /// The way out, where it is the same for all names.
    fn plain_hint(&self) -> Option<&'static str> {
        Some(match self {
            HubError::Refused { token: false, .. } => {
                "check the name; for a private or gated model set `HF_TOKEN`, or log in with \
                 `hf auth login`, and do not set `HF_HUB_DISABLE_IMPLICIT_TOKEN`"
            }
            HubError::Refused { token: true, .. } => {
                "check the name, and that the token's owner may read it: gated models ask for \
                 consent on their page"
            }
            HubError::Status { status: 429 | 503, .. } => {
                "the hub is busy: try later; `HF_TOKEN` raises the limit. The same command resumes from what has arrived"
            }
            HubError::Network { cached: true, .. } => {
                "an earlier state is in the cache: `HF_HUB_OFFLINE=1` takes it without asking"
            }
            HubError::Network { cached: false, .. } | HubError::Status { .. } => {
                "check the network and `HF_ENDPOINT`; the same command resumes from what has arrived"
            }
            HubError::Answer { .. } => "check `HF_ENDPOINT`",
            HubError::Offline { .. } => "unset it and run once with a network, or give a folder",
            HubError::NoWeights { .. } => {
                "save them as safetensors with transformers' `save_pretrained`, and give the folder"
            }
            HubError::Damaged { .. } => {
                "nothing of it was kept: try again; if it stays so, something between here and the \
                 hub changes files"
            }
            HubError::Store { .. } => "`HF_HOME` or `HF_HUB_CACHE` puts the cache elsewhere",
            HubError::Slow { .. } => {
                "check the network; the same command resumes from what has arrived"
            }
            HubError::NoSuchHome { .. } => "write the folder out: `~` is only the user's own",
            HubError::NoHome => "set `HF_HOME` to a folder",
            HubError::NotFound { .. } | HubError::Thread(_) | HubError::Stopped => return None,
        })
    }

    /// Whether asking again may help.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            HubError::Network { .. } => true,
            HubError::Status { status, .. } => *status >= 500 || [408, 429].contains(status),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_hub_is_no_broken_network() {
        let hint = |status| HubError::Status { url: String::from("a"), status }.hint().unwrap();
        assert!([429, 503].into_iter().all(|status| hint(status).contains("`HF_TOKEN`")));
        assert!(hint(500).contains("check the network"));
    }
}
