//! The attention kernels against dense attention in f64.

mod bits;
mod carried;
mod dropped;
mod exact;
mod golden;
mod large;
mod refused;
mod split;
mod strict;
mod support;
