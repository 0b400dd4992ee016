//! What plans hold, and what they are refused for.

mod common;
mod masks;
mod planning;
mod processes;
mod sliding;
#[path = "../../../experiment/tests/all/small.rs"]
mod small;
mod splits;
mod support;
mod wire;
