//! The program `annulus`.
fn main() {}
