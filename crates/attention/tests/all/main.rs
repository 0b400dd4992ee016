//! Attention on any number of ranks equals dense attention in f64, forward and backward.
//!
//! `case` runs one case and measures it; `table` is the product of everything that a case can be; `fuzz` draws cases that nobody
//! thought of.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod case;
mod checked;
mod columns;
mod dropout;
#[cfg(feature = "emulator")]
mod emulated;
mod fuzz;
#[cfg(feature = "emulator")]
mod launches;
mod refused;
mod shapes;
mod strict;
mod table;
mod tape;
mod wire;
