//! The attention kernels against dense attention in f64.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod bits;
mod carried;
mod dropped;
mod exact;
mod golden;
mod refused;
mod support;
