//! What can be said of a text without a model.

use crate::Cache;

/// The entropy of a token given the one before it, in nats, measured on tokens `start .. end` of the cache itself.
pub fn bigram_entropy(_cache: &Cache, _start: u64, _end: u64) -> f64 {
    todo!()
}
