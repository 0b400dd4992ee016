//! Tests of plans, and of what they refuse.

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
