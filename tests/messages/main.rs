//! What the whole program answers to wrong inputs: the tests of the messages are the messages.
//!
//! Every case starts from a folder in which everything is right (`scene.rs`), breaks one thing, and
//! runs one command. What it answers, an error or how it goes on without, comes within a second and
//! 200 MB, and is never a panic. Alone in its process, because answers are timed.

#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(
    clippy::semicolon_if_nothing_returned,
    reason = "a table of what is broken, one call each"
)]

mod checkpoints;
mod data;
mod models;
mod scene;
mod tensors;
mod usage;
