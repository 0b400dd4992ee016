//! Models from Hugging Face's hub, in the cache that Hugging Face's own programs use.
//!
//! One idea: what arrives lies beside the cache until its hash is the one that the hub gives, so
//! that whatever is in the cache can be believed. A revision is resolved once, to a commit.

mod error;
mod fetch;
mod hash;
mod listing;
mod name;
mod options;
mod request;
mod store;
mod watch;

pub use error::HubError;
pub use fetch::{Fetched, Want, fetch};
pub use name::{Name, PREFIX};
pub use options::Options;
pub use watch::{Event, Progress};
