//! Operators and attention on a CPU, each against what is slow and obvious.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod attention;
mod by_hand;
mod cases;
mod operators;
mod rope;
