//! Random bits as a pure function of a counter and a key: Philox 4x32 with 10 rounds (Salmon, Moraes,
//! Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011), the same bits as
//! `kernels/attention/philox.h`.

const FACTORS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
/// Weyl constants: the golden ratio, and the square root of 3 less 1.
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const ROUNDS: usize = 10;

/// Philox of `N` counters of four words at a time, word by word.
#[inline(always)]
pub(crate) fn philox<const N: usize>(mut counters: [[u32; N]; 4], key: [u32; 2]) -> [[u32; N]; 4] {
    let mut key = key;
    for _ in 0..ROUNDS {
        let mut next = [[0; N]; 4];
        for lane in 0..N {
            let c = [0, 1, 2, 3].map(|word: usize| counters[word][lane]);
            let first = u64::from(c[0]) * u64::from(FACTORS[0]);
            let second = u64::from(c[2]) * u64::from(FACTORS[1]);
            next[0][lane] = (second >> 32) as u32 ^ c[1] ^ key[0];
            next[1][lane] = second as u32;
            next[2][lane] = (first >> 32) as u32 ^ c[3] ^ key[1];
            next[3][lane] = first as u32;
        }
        counters = next;
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counters
}

/// How dropout draws, computed once: which of 2^32 equally likely words drop an element, and the factor of the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drops {
    pub(crate) key: [u32; 2],
    pub(crate) threshold: u32,
    pub(crate) scale: f32,
}

impl Drops {
    /// Draws of a step of the experiment with this seed, independent of those for any other `purpose`.
    pub(crate) fn new(seed: u64, step: u64, purpose: u32, probability: f64) -> Drops {
        let counter = [step as u32, (step >> 32) as u32, purpose, 0];
        let seed = [seed as u32, (seed >> 32) as u32];
        let [[first], [second], ..] = philox(counter.map(|word| [word]), seed);
        Drops {
            key: [first, second],
            threshold: (probability * 4_294_967_296.0) as u32,
            scale: (1.0 / (1.0 - probability)) as f32,
        }
    }

    /// The factor of an element with these bits.
    #[inline(always)]
    pub(crate) fn factor(&self, word: u32) -> f32 {
        if word < self.threshold { 0.0 } else { self.scale }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers of Random123, <https://github.com/DEShawResearch/random123> (`kat_vectors`).
    #[test]
    fn bits_are_those_of_the_authors() {
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, wanted) in cases {
            assert_eq!(philox(counter.map(|word| [word]), key), wanted.map(|word| [word]));
            assert_eq!(philox(counter.map(|word| [word; 5]), key), wanted.map(|word| [word; 5]));
        }
    }
}
