//! Ranks as threads, and what wraps them.

mod collectives;
mod ending;
mod faults;
mod flights;
mod groups;
mod holding;
mod metered;
mod support;
mod waiting;
mod watching;
