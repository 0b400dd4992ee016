//! Ranks as threads, and what wraps them.

mod collectives;
mod support;
