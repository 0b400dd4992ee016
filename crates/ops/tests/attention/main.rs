//! The attention kernels against dense attention in f64.

mod bits;
mod exact;
mod golden;
mod support;
