//! Random numbers as a pure function of their purpose: equal on any number of ranks, with no state to save.
//!
//! The numbers of a key are the stream of a block cipher, ChaCha with 8 rounds, under the hash of
//! the key; any place of the stream is reached at once.

use std::f64::consts::TAU;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// The purpose of a draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'a> {
    /// The seed of the experiment.
    pub seed: u64,
    /// The purpose: `init`, `generate`, `verify`, …
    pub purpose: &'a str,
    /// The name of a parameter, or whatever else tells draws apart.
    pub name: &'a str,
}

impl Key<'_> {
    /// The stream of this key for one kind of number. Lengths are hashed too, so that no two keys give equal bytes.
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

/// `len` standard normal numbers from index `start` on. Element `i` depends on the key and `i`
/// alone.
///
/// Elements `2 j` and `2 j + 1` are the two that Box and Muller (1958) make of words `2 j` and `2 j
/// + 1` of the stream.
pub fn normal(key: Key<'_>, start: u64, len: usize) -> Vec<f32> {
    let mut numbers = vec![0.0; len];
    fill_normal(key, start, &mut numbers);
    numbers
}

/// Writes the numbers of [`normal`] from index `start` on.
pub fn fill_normal(key: Key<'_>, start: u64, into: &mut [f32]) {
    let mut stream = key.stream("normal");
    stream.set_word_pos(u128::from(start / 2 * 2));
    let skipped = (start % 2) as usize;
    let pairs = (0..(skipped + into.len()).div_ceil(2)).flat_map(|_| {
        // In the middle of 2^32 equal parts of (0, 1), so that the logarithm is finite.
        let part = |word: u32| (f64::from(word) + 0.5) / 4_294_967_296.0;
        let radius = (-2.0 * part(stream.next_u32()).ln()).sqrt();
        let (sin, cos) = (TAU * part(stream.next_u32())).sin_cos();
        [(radius * cos) as f32, (radius * sin) as f32]
    });
    into.iter_mut().zip(pairs.skip(skipped)).for_each(|(number, drawn)| *number = drawn);
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
        // The upper half of a product is uniform but for lower halves under 2^64 mod `below`
        // (Lemire, arXiv 1805.10941).
        let product = u128::from(stream.next_u64()) * u128::from(below);
        if product as u64 >= below.wrapping_neg() % below {
            return (product >> 64) as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key<'_> = Key { seed: 7, purpose: "init", name: "a" };

    #[test]
    fn any_slices_agree() {
        let all = normal(KEY, 0, 300);
        for (start, len) in [(0, 1), (1, 1), (1, 4), (2, 3), (63, 70), (299, 1), (17, 0)] {
            assert_eq!(normal(KEY, start as u64, len), all[start..start + len], "{start}, {len}");
        }
        let far = 1 << 62;
        assert_eq!(normal(KEY, far + 1, 2), normal(KEY, far, 3)[1..]);
    }

    #[test]
    fn moments_are_those_of_the_normal_distribution() {
        let values = normal(KEY, 0, 200_000);
        let moment = |power| {
            values.iter().map(|x| f64::from(*x).powi(power)).sum::<f64>() / values.len() as f64
        };
        // Within five standard errors of each moment.
        for (power, wanted, error) in [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)]
        {
            let allowed = 5.0 * f64::sqrt(error / values.len() as f64);
            assert!((moment(power) - wanted).abs() < allowed, "{power}: {}", moment(power));
        }
        let neighbours: f64 = values.windows(2).map(|pair| f64::from(pair[0] * pair[1])).sum();
        assert!(neighbours.abs() < 5.0 * (values.len() as f64).sqrt());
    }

    #[test]
    fn every_part_of_a_key_tells_draws_apart() {
        let others = [
            Key { seed: 8, ..KEY },
            Key { purpose: "order", ..KEY },
            Key { name: "b", ..KEY },
            Key { purpose: "inita", name: "", ..KEY },
            Key { purpose: "", name: "inita", ..KEY },
        ];
        for other in others {
            assert_ne!(normal(KEY, 0, 4), normal(other, 0, 4), "{other:?}");
            assert_ne!(uniform(KEY, 0, u64::MAX), uniform(other, 0, u64::MAX), "{other:?}");
        }
    }

    #[test]
    fn uniform_numbers_are_uniform() {
        let mut counts = [0_u32; 6];
        for index in 0..6000 {
            counts[uniform(KEY, index, 6) as usize] += 1;
        }
        // Within five standard deviations of a binomial count.
        assert!(counts.iter().all(|count| count.abs_diff(1000) < 145), "{counts:?}");
        assert_eq!(uniform(KEY, 5, 1), 0);
        // Half of all draws are rejected here.
        let below = (1 << 63) + 1;
        let upper = (0..1000).filter(|index| uniform(KEY, *index, below) >= below / 2).count();
        assert!(upper.abs_diff(500) < 80, "{upper}");
    }

    #[test]
    fn the_numbers_are_these() {
        assert_eq!(normal(KEY, 0, 4), [0.767_919_2, 2.135_689, -2.181_038_4, 0.908_817_9]);
        let draws: Vec<_> = (0..4).map(|index| uniform(KEY, index, 1_000_000)).collect();
        assert_eq!(draws, [778_869, 783_234, 704_447, 125_896]);
    }
}
