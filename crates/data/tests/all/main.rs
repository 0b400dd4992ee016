//! From files to sequences of tokens: caches, tokenizers, conversations, tables, windows, tasks.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod arrays;
mod batches;
mod best_fit;
mod cache;
mod chats;
mod forms;
mod hostile;
mod listed;
mod marks;
mod origins;
mod packed;
mod parquet;
mod shards;
mod tasks;
mod tokenizer;
mod training;
mod windows;

/// What a template of somebody else may take is bounded by the allocator.
#[global_allocator]
static ALLOCATOR: annulus_memory::Counting<std::alloc::System> =
    annulus_memory::Counting::new(std::alloc::System);
