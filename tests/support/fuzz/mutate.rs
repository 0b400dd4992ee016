//! Inputs that are almost right: seeds with bits, numbers and pieces changed.

use crate::runs::Random;

/// What formats break at.
const WORDS: [&[u8]; 24] = [
    b"\0",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\x80",
    b"{",
    b"[",
    b"\"",
    b"}",
    b"]",
    b"null",
    b"-1",
    b"18446744073709551616",
    b"1e999",
    b"NaN",
    b"\\u0000",
    b"\xe2\x80\xae",
    b"\x1b[31m",
    b"../",
    b"\n",
    b"[[[[[[[[[[[[[[[[",
    b"{{ ",
    b"{% ",
    b"&a *a",
    b"!!binary",
    b"\t",
];
/// Changes of one input, at most.
const CHANGES: u64 = 6;

/// The input of this number.
pub(super) fn changed(seeds: &[Vec<u8>], number: u64) -> Vec<u8> {
    let mut random = Random(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    // The first numbers of neighbouring seeds are alike.
    for _ in 0..4 {
        random.unit();
    }
    let mut below = |end: usize| random.below(end.max(1) as u64) as usize;
    let mut input = seeds[below(seeds.len())].clone();
    for _ in 0..=below(CHANGES as usize) {
        let at = below(input.len());
        let end = at + below((input.len() - at).min(64));
        match below(8) {
            0 if !input.is_empty() => input[at] ^= 1 << below(8),
            1 if !input.is_empty() => input[at] = below(256) as u8,
            2 => drop(input.drain(at..end)),
            3 => {
                let piece = input[at..end].to_vec();
                let to = below(input.len());
                input.splice(to..to, piece);
            }
            4 => {
                let piece = input[at..end].repeat(1 + below(40));
                input.splice(at..at, piece);
            }
            5 => input.truncate(at),
            6 => {
                let other = &seeds[below(seeds.len())];
                let from = below(other.len());
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            _ => {
                let word = WORDS[below(WORDS.len())];
                input.splice(at..end, word.iter().copied());
            }
        }
        input.truncate(super::LONGEST);
    }
    input
}
