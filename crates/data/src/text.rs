//! What can be said of a text without a model.

use std::collections::HashMap;

use crate::{Cache, DataError};

/// Tokens read at a time.
const BLOCK: u64 = 1 << 16;

/// The entropy of a token given the one before it, in nats, measured on tokens `start .. end` of the
/// cache itself: the loss of the best model that sees one token. 0 without a pair of tokens.
///
/// Memory grows with the number of different pairs.
///
/// # Errors
/// When the cache cannot be read.
pub fn bigram_entropy(cache: &Cache, start: u64, end: u64) -> Result<f64, DataError> {
    let pairs = count_pairs(cache, start, end.min(cache.tokens()))?;
    let mut firsts: HashMap<u32, u64> = HashMap::new();
    for &(first, _, count) in &pairs {
        *firsts.entry(first).or_default() += count;
    }
    let all: u64 = pairs.iter().map(|&(_, _, count)| count).sum();
    let surprise = |&(first, _, count): &(u32, u32, u64)| {
        count as f64 * (firsts[&first] as f64 / count as f64).ln()
    };
    Ok(pairs.iter().map(surprise).sum::<f64>() / all.max(1) as f64)
}

/// Every pair of neighbours with its count, sorted: sums over it do not depend on a hash's order.
fn count_pairs(cache: &Cache, start: u64, end: u64) -> Result<Vec<(u32, u32, u64)>, DataError> {
    let mut counts: HashMap<(u32, u32), u64> = HashMap::new();
    let mut ids = Vec::new();
    let mut at = start;
    while at + 1 < end {
        // Blocks overlap by one token, so that no pair is lost between them.
        let length = (end - at).min(BLOCK + 1);
        ids.resize(length as usize, 0);
        cache.read(at, &mut ids)?;
        for pair in ids.windows(2) {
            *counts.entry((pair[0], pair[1])).or_default() += 1;
        }
        at += length - 1;
    }
    let mut pairs: Vec<_> = counts.into_iter().map(|((a, b), count)| (a, b, count)).collect();
    pairs.sort_unstable();
    Ok(pairs)
}
