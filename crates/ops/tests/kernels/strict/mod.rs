//! `reproducible: strict` by kernels: the same bits however blocks of tokens are shared out, and as near to f64 as the others.

mod attention;
mod parameters;
#[path = "../../all/attention/split.rs"]
mod split;
#[path = "../../all/attention/support.rs"]
#[allow(dead_code, reason = "the CPU's tests ask for more")]
mod support;
