//! What texts are made of.

use crate::random::Draws;

/// Sentences about other things.
pub(super) const FILLER: [&str; 5] = [
    "The river runs past the old mill. ",
    "Rain fell on the roofs all night. ",
    "A boat lay at the quay with its sails down. ",
    "Lamps were lit along the empty road. ",
    "Nobody had come by since the harvest. ",
];

const THINGS: [&str; 32] = [
    "anchor", "basket", "candle", "drum", "engine", "feather", "garden", "hammer", "island",
    "jacket", "kettle", "ladder", "mirror", "needle", "orchard", "pencil", "quarry", "ribbon",
    "saddle", "teapot", "umbrella", "violin", "wagon", "yard", "almond", "bridge", "cellar",
    "desert", "elbow", "forest", "goblet", "helmet",
];

const KINDS: [&str; 16] = [
    "amber", "bitter", "clever", "distant", "early", "faded", "gentle", "hollow", "icy", "jolly",
    "keen", "lonely", "muddy", "narrow", "orange", "plain",
];

const CONSONANTS: &[u8; 16] = b"bdfghjklmnprstvz";
const VOWELS: &[u8; 4] = b"aeio";

/// So many things, all different.
pub(super) fn things(draws: &mut Draws, count: usize) -> Vec<&'static str> {
    let mut all = THINGS;
    draws.shuffle(&mut all);
    all[..count].to_vec()
}

/// The `index`-th of very many names, all different.
pub(super) fn name(index: usize) -> String {
    let (kind, rest) = (KINDS[index % KINDS.len()], index / KINDS.len());
    let (thing, rest) = (THINGS[rest % THINGS.len()], rest / THINGS.len());
    if rest == 0 { format!("{kind}-{thing}") } else { format!("{kind}-{thing}-{rest}") }
}

/// A number of so many digits.
pub(super) fn number(draws: &mut Draws, digits: u32) -> String {
    let least = 10_u64.pow(digits - 1);
    (least + draws.below(9 * least)).to_string()
}

/// So many numbers, all different.
pub(super) fn numbers(draws: &mut Draws, digits: u32, count: usize) -> Vec<String> {
    let mut all: Vec<String> = Vec::with_capacity(count);
    while all.len() < count {
        let next = number(draws, digits);
        if !all.contains(&next) {
            all.push(next);
        }
    }
    all
}

/// The `index`-th of 262,144 words that nobody knows, all different.
pub(super) fn word(index: usize) -> String {
    let mut rest = index;
    let mut letters = String::new();
    for _ in 0..3 {
        for alphabet in [&CONSONANTS[..], &VOWELS[..]] {
            letters.push(char::from(alphabet[rest % alphabet.len()]));
            rest /= alphabet.len();
        }
    }
    letters
}

/// How many words [`word`] knows.
pub(super) const WORDS: usize = 64 * 64 * 64;
