//! Tokens from disk, in an order that is a pure function of (seed, step) and can be resumed anywhere.
#![allow(clippy::todo, reason = "skeleton")]

mod batches;
mod cache;
mod error;
mod recall;
mod shard;
mod source;
mod text;
mod tokenizer;

pub use batches::Batches;
pub use cache::Cache;
pub use error::DataError;
pub use recall::Recall;
pub use shard::{Sequence, deal};
pub use source::{Source, Window, Windows};
pub use text::bigram_entropy;
pub use tokenizer::Tokenizer;
