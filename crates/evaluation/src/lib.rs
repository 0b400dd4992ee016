//! What a model can do with long sequences, asked over the ranks and with the strategy that train it.
//!
//! [`perplexity`] reads the same targets with more and more of what comes before them; what is found is a table with errors, in
//! JSON, and pictures of it ([`Files`]).

mod files;
mod perplexity;
mod statistics;
mod subject;
mod windows;

pub use files::Files;
pub use perplexity::{Bucket, Difference, Length, Perplexity, perplexity};
pub use statistics::Mean;
pub use subject::{Progress, Subject};
