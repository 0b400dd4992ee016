//! One GET: redirects followed by hand, so that the token goes to the hub alone and what the hub
//! itself says of a file is not lost on the way to where the file is.

use std::io;
use std::time::Duration;

use ureq::http::{HeaderMap, Response};
use ureq::{Agent, Body, BodyReader};

use crate::hash::Hash;
use crate::watch::{Paced, Watch};
use crate::{HubError, Name, Options};

/// More are a circle.
const MOST_REDIRECTS: usize = 8;

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(30);

/// Asks the hub.
pub(crate) struct Client<'a> {
    agent: Agent,
    options: &'a Options,
    watch: &'a Watch,
}

/// What was answered in the end.
pub(crate) struct Answer {
    /// From where the file is.
    pub(crate) response: Response<Body>,
    /// The file's hash, as the hub itself says it.
    pub(crate) hash: Option<Hash>,
}

impl<'a> Client<'a> {
    pub(crate) fn new(options: &'a Options, watch: &'a Watch) -> Client<'a> {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(options.patience))
            .timeout_per_read(Some(options.patience))
            // What is hashed is the file, not a packed one.
            .accept_encoding("identity")
            .user_agent(concat!("annulus/", env!("CARGO_PKG_VERSION")))
            .build();
        Client { agent: config.into(), options, watch }
    }

    /// `url` from byte `from` on. The status is 200, 206 or 416; anything else is an error about
    /// `name`.
    pub(crate) fn get(&self, name: &Name, url: &str, from: u64) -> Result<Answer, HubError> {
        let mut at = url.to_owned();
        let mut hash = None;
        for _ in 0..MOST_REDIRECTS {
            self.watch.check()?;
            let mut request = self.agent.get(&at);
            if from > 0 {
                request = request.header("Range", format!("bytes={from}-"));
            }
            let hub = origin(&at) == origin(&self.options.endpoint);
            if let Some(token) = self.options.token.as_ref().filter(|_| hub) {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            let response = request.call().map_err(|error| unread(&at, &error))?;
            if hub {
                hash = hash_of(response.headers()).or(hash);
            }
            if !response.status().is_redirection() {
                self.check(name, &at, &response)?;
                return Ok(Answer { response, hash });
            }
            at = redirected(&at, response.headers())?;
        }
        let message = format!("more than {MOST_REDIRECTS} redirects");
        Err(HubError::Answer { url: url.to_owned(), message })
    }

    fn check(&self, name: &Name, url: &str, response: &Response<Body>) -> Result<(), HubError> {
        let status = response.status().as_u16();
        match status {
            200 | 206 | 416 => Ok(()),
            401 | 403 => Err(HubError::Refused {
                name: name.to_string(),
                status,
                token: self.options.token.is_some(),
            }),
            404 => {
                let code = text(response.headers(), "x-error-code").unwrap_or_default();
                let what = match code {
                    "RevisionNotFound" => format!("the revision of `{name}`"),
                    "EntryNotFound" => format!("`{url}`"),
                    _ => format!("`{name}`"),
                };
                Err(HubError::NotFound { what, repository: name.repository.clone() })
            }
            _ => Err(HubError::Status { url: url.to_owned(), status }),
        }
    }
}

/// The body of an answer, which must not trickle.
pub(crate) fn body(response: Response<Body>, options: &Options) -> Paced<BodyReader<'static>> {
    Paced::new(response.into_body().into_reader(), options.patience)
}

/// What happened while the body of `url` was read.
pub(crate) fn broken(url: &str, error: &io::Error) -> HubError {
    if error.kind() == io::ErrorKind::TimedOut {
        return HubError::Slow { url: url.to_owned(), message: error.to_string() };
    }
    unread(url, error)
}

/// What happened on the way to `url`.
pub(crate) fn unread(url: &str, error: &dyn std::fmt::Display) -> HubError {
    HubError::Network { url: url.to_owned(), message: error.to_string(), cached: false }
}

pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Of large files the hub says the hash before it sends one elsewhere.
fn hash_of(headers: &HeaderMap) -> Option<Hash> {
    let tag = text(headers, "x-linked-etag").or_else(|| text(headers, "etag"))?;
    Hash::read(tag.trim_start_matches("W/").trim_matches('"'))
}

/// Scheme, host and port.
fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url[host..].find(['/', '?', '#']).map_or(url.len(), |at| host + at);
    &url[..end]
}

/// The address that `url` sends to.
fn redirected(url: &str, headers: &HeaderMap) -> Result<String, HubError> {
    let wrong = |message: String| HubError::Answer { url: url.to_owned(), message };
    let location = text(headers, "location").unwrap_or_default();
    let to = if location.starts_with('/') && !location.starts_with("//") {
        format!("{}{location}", origin(url))
    } else {
        location.to_owned()
    };
    let secure = to.starts_with("https://");
    if secure || (to.starts_with("http://") && !url.starts_with("https://")) {
        return Ok(to);
    }
    Err(wrong(format!("a redirect to `{}`", location.escape_debug())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        assert_eq!(origin("https://hub.example:8443/a/b?c"), "https://hub.example:8443");
        assert_eq!(origin("http://hub"), "http://hub");
        // Nobody is taken for the hub because his name begins like its.
        assert_ne!(origin("https://hub.example.evil/a"), origin("https://hub.example"));
        assert_ne!(origin("https://hub.example@evil/a"), origin("https://hub.example"));
    }

    #[test]
    fn redirects_stay_on_the_web_and_secure() {
        let to = |from: &str, location: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("location", location.parse().unwrap());
            redirected(from, &headers)
        };
        assert_eq!(to("https://a/b", "/c").unwrap(), "https://a/c");
        assert_eq!(to("http://a/b", "https://c/d").unwrap(), "https://c/d");
        for location in ["http://c/d", "//c/d", "file:///etc/passwd", "c", ""] {
            assert!(to("https://a/b", location).is_err(), "{location}");
        }
    }
}
