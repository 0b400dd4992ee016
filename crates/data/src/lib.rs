//! Tokens from disk, in an order that is a pure function of (seed, step) and can be resumed anywhere.

mod batches;
mod build;
mod bytes;
mod cache;
mod chat;
mod encode;
mod error;
mod files;
mod header;
mod packed;
mod parquet;
mod random;
mod recall;
mod shard;
mod show;
mod source;
mod stamps;
mod text;
mod tokenizer;
mod train;
mod windows;

pub use batches::Batches;
pub use bytes::{ByteTokenizer, byte_tokenizer};
pub use cache::{Cache, Records};
pub use chat::{Chat, Rendered};
pub use error::DataError;
pub use packed::{Fit, Longer, Packed, Packing};
pub use recall::Recall;
pub use shard::{Sequence, deal};
pub use show::{counted, show};
pub use source::Source;
pub use text::bigram_entropy;
pub use tokenizer::{Json, Tokenizer};
pub use train::{Trained, train_tokenizer};
pub use windows::{Window, Windows};
