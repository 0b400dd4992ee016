//! From files to sequences of tokens: caches, tokenizers, conversations, tables, windows, tasks.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod batches;
mod cache;
mod chats;
mod packed;
mod parquet;
mod tasks;
mod tokenizer;
mod training;
mod windows;
