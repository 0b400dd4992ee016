//! Random numbers as a pure function of what they are for: the same on any number of ranks, nothing to save.
//!
//! The numbers of a key are the stream of a block cipher, ChaCha with 8 rounds, under the hash of the key; any place of
//! the stream is reached at once.

use std::f64::consts::TAU;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// What a draw is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'a> {
    /// The experiment's seed.
    pub seed: u64,
    /// `init`, `order`, `recall`, …
    pub purpose: &'a str,
    /// A parameter's name, or whatever else tells draws apart.
    pub name: &'a str,
}

impl Key<'_> {
    /// The stream of this key for one kind of number. Lengths are hashed too, so that no two keys run into one.
    fn stream(&self, kind: &str) -> ChaCha8Rng {
        let mut hash = blake3::Hasher::new();
        hash.update(&self.seed.to_le_bytes());
        for part in [kind, self.purpose, self.name] {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        ChaCha8Rng::from_seed(*hash.finalize().as_bytes())
    }
}

/// `len` standard normal numbers from index `start` on. Element `i` depends on the key and `i` alone.
///
/// Elements `2 j` and `2 j + 1` are the two that Box and Muller (1958) make of words `2 j` and `2 j + 1` of the stream.
pub fn normal(key: Key<'_>, start: u64, len: usize) -> Vec<f32> {
    let mut stream = key.stream("normal");
    stream.set_word_pos(u128::from(start / 2 * 2));
    let skipped = (start % 2) as usize;
    let pairs = (0..(skipped + len).div_ceil(2)).flat_map(|_| {
        // In the middle of 2^32 equal parts of (0, 1), so that the logarithm is finite.
        let part = |word: u32| (f64::from(word) + 0.5) / 4_294_967_296.0;
        let radius = (-2.0 * part(stream.next_u32()).ln()).sqrt();
        let (sin, cos) = (TAU * part(stream.next_u32())).sin_cos();
        [(radius * cos) as f32, (radius * sin) as f32]
    });
    pairs.skip(skipped).take(len).collect()
}

/// A uniform integer below `below` at `index`, without bias.
///
/// # Panics
/// When `below` is 0: there is no such number.
pub fn uniform(key: Key<'_>, index: u64, below: u64) -> u64 {
    assert!(below > 0, "there is no number below 0");
    let mut stream = key.stream("uniform");
    // A stream of its own per index: a draw may be rejected, and drawn again, any number of times.
    stream.set_stream(index);
    loop {
        // The upper half of a product is uniform but for lower halves under 2^64 mod `below` (Lemire, arXiv 1805.10941).
        let product = u128::from(stream.next_u64()) * u128::from(below);
        if product as u64 >= below.wrapping_neg() % below {
            return (product >> 64) as u64;
        }
    }
}
