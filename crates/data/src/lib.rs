//! Tokens from disk, in an order that is a pure function of (seed, step) and can be resumed anywhere.

mod batches;
mod build;
mod cache;
mod encode;
mod error;
mod files;
mod header;
mod random;
mod recall;
mod shard;
mod source;
mod stamps;
mod text;
mod tokenizer;
mod windows;

pub use batches::Batches;
pub use cache::Cache;
pub use error::DataError;
pub use recall::Recall;
pub use shard::{Sequence, deal};
pub use source::Source;
pub use text::bigram_entropy;
pub use tokenizer::{Json, Tokenizer};
pub use windows::{Window, Windows};
