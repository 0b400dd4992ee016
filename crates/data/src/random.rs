//! Random numbers without state: every draw is a hash of what it is for.

/// A purpose and what it depends on, as a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key([u8; 32]);

impl Key {
    /// The key of `purpose`, a fixed phrase, and `numbers`.
    pub(crate) fn new(purpose: &str, numbers: &[u64]) -> Key {
        let mut hasher = blake3::Hasher::new_derive_key(purpose);
        for number in numbers {
            hasher.update(&number.to_le_bytes());
        }
        Key(*hasher.finalize().as_bytes())
    }

    /// As many draws as wanted, always the same.
    pub(crate) fn draws(&self) -> Draws {
        Draws(blake3::Hasher::new_keyed(&self.0).finalize_xof())
    }

    /// Where `index` goes in a random permutation of `0 .. count`; `index < count`.
    ///
    /// A Feistel network permutes the next power of four; whoever lands outside is sent on until it
    /// lands inside, after fewer than four rounds on average (cycle walking; Black and Rogaway,
    /// "Ciphers with Arbitrary Finite Domains", 2002).
    pub(crate) fn permute(&self, index: u64, count: u64) -> u64 {
        const ROUNDS: u8 = 6;
        let half = (u64::BITS - (count - 1).leading_zeros()).div_ceil(2).max(1);
        let mask = u64::MAX >> (u64::BITS - half);
        let mut at = index;
        loop {
            let (mut left, mut right) = (at >> half, at & mask);
            for round in 0..ROUNDS {
                (left, right) = (right, left ^ (self.mix(round, right) & mask));
            }
            at = left << half | right;
            if at < count {
                return at;
            }
        }
    }

    fn mix(&self, round: u8, half: u64) -> u64 {
        let mut input = [round; 9];
        input[1..].copy_from_slice(&half.to_le_bytes());
        let hash = blake3::keyed_hash(&self.0, &input);
        hash.as_bytes()[..8].iter().fold(0, |bits, &byte| bits << 8 | u64::from(byte))
    }
}

/// A stream of draws.
#[derive(Debug)]
pub(crate) struct Draws(blake3::OutputReader);

impl Draws {
    /// A number below `count`, which is at least 1; the bias is below `count` / 2^64.
    pub(crate) fn below(&mut self, count: u64) -> u64 {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes);
        ((u128::from(u64::from_le_bytes(bytes)) * u128::from(count)) >> 64) as u64
    }

    /// Puts `items` in random order (Fisher and Yates).
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            items.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutations_are_permutations_and_differ_by_key() {
        for count in (1..70).chain([255, 256, 257, 1000]) {
            let order = |seed| -> Vec<u64> {
                let key = Key::new("test", &[seed, count]);
                (0..count).map(|index| key.permute(index, count)).collect()
            };
            let mut sorted = order(1);
            sorted.sort_unstable();
            assert!(sorted.iter().copied().eq(0..count), "{count}");
            assert!(count < 8 || order(1) != order(2), "{count}");
        }
        let count = u64::MAX;
        assert!(Key::new("test", &[]).permute(count - 1, count) < count);
    }

    #[test]
    fn places_of_a_permutation_are_spread_evenly() {
        let mean =
            (0..400u64).map(|seed| Key::new("test", &[seed]).permute(0, 1000) as f64).sum::<f64>()
                / 400.0;
        assert!((mean - 499.5).abs() < 60.0, "{mean}");
    }

    #[test]
    fn draws_stay_below_and_reach_all() {
        let mut draws = Key::new("test", &[3]).draws();
        let mut seen = [0; 7];
        (0..7000).for_each(|_| seen[draws.below(7) as usize] += 1);
        assert!(seen.iter().all(|&count: &u32| count.abs_diff(1000) < 150), "{seen:?}");
    }
}
