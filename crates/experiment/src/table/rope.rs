//! The keys of `rope_parameters:`, and those of `extend:`, which are the same but for what the new
//! length says.

use super::Absent::{Means, Required};
use super::Kind::{Real, Reals, Tokens, Truth, Word};
use super::{Interval, Key, MOST_POSITIONS, key};
use crate::extend::Stretch;
use crate::rope;

/// The least and the most of one key, which two sections have.
macro_rules! rope_keys {
    ($($first:expr),+ $(,)?) => {
        &[
            $($first,)+
            key("factor", Real(Interval::AboveZero), Means("what the lengths say"), "how much longer"),
            key(
                "original_max_position_embeddings",
                Tokens(2, MOST_POSITIONS),
                Means("max_position_embeddings"),
                "the length before it was stretched",
            ),
            key(
                "attention_factor",
                Real(Interval::AboveZero),
                Means("what the factor says"),
                "what cosines and sines are multiplied by: yarn, longrope",
            ),
            key(
                "beta_fast",
                Real(Interval::AboveZero),
                Means("32"),
                "turns within the original length from which on a pair stays: yarn",
            ),
            key(
                "beta_slow",
                Real(Interval::AboveZero),
                Means("1"),
                "turns up to which it is stretched wholly: yarn",
            ),
            key("mscale", Real(Interval::AtLeastZero), Means("none"), "in attention_factor: yarn"),
            key(
                "mscale_all_dim",
                Real(Interval::AtLeastZero),
                Means("none"),
                "what mscale is relative to: yarn",
            ),
            key("truncate", Truth, Means("true"), "whether the ramp begins and ends at a pair: yarn"),
            key(
                "low_freq_factor",
                Real(Interval::AboveZero),
                Means("1 in `extend`"),
                "turns up to which a pair is stretched wholly: llama3",
            ),
            key(
                "high_freq_factor",
                Real(Interval::AboveZero),
                Means("4 in `extend`"),
                "turns from which on it stays: llama3",
            ),
            key(
                "short_factor",
                Reals(Interval::AboveZero),
                Means("1 everywhere in `extend`"),
                "a factor for each pair, up to the original length: longrope",
            ),
            key(
                "long_factor",
                Reals(Interval::AboveZero),
                Means("required by longrope"),
                "a factor for each pair, beyond it: longrope",
            ),
        ]
    };
}

/// `rope_parameters` (transformers 5) and `rope_scaling` (4).
pub(crate) const ROPE: &[Key] = rope_keys![
    key("rope_type", Word(rope::WORDS), Means("default"), "how frequencies are stretched"),
    key("type", Word(rope::WORDS), Means("rope_type"), "its older name"),
    key("rope_theta", Real(Interval::AboveZero), Means("10000"), "base of the frequencies"),
    key(
        "partial_rotary_factor",
        Real(Interval::AboveZero),
        Means("1"),
        "the part of a head that turns",
    ),
];

pub(super) const EXTEND: &[Key] = rope_keys![
    key("rope", Word(Stretch::WORDS), Required, "how frequencies are stretched"),
    key("tokens", Tokens(2, MOST_POSITIONS), Required, "the longest sequence from now on"),
    key("theta", Real(Interval::AboveZero), Means("the model's"), "base of the frequencies: abf"),
];
