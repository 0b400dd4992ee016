//! The keys under `evaluation`.

use super::Absent::{Is, Means};
use super::Kind::{Count, Sizes, Text, Tokens, Words};
use super::{Key, MOST_TOKENS, key};
use crate::Asked;

pub(crate) const EVALUATION: &[Key] = &[
    key("path", Text, Means("`data.path`"), "a file or folder of texts that were not trained on"),
    key(
        "tasks",
        Words(Asked::WORDS),
        Means("[perplexity], or [needle] where `data.format` is needles"),
        "what is asked: the loss of texts, or questions behind made-up texts and their answers",
    ),
    key(
        "depths",
        Count(1, 1 << 10),
        Is("11"),
        "depths that a needle, a pass key or a line is asked for at, from the first token to the last",
    ),
    key("samples", Count(1, 1 << 20), Is("8"), "questions of every task, length and depth"),
    key("lengths", Sizes(MOST_TOKENS), Means("`data.tokens` alone"), "inputs per sequence"),
    key(
        "windows",
        Count(2, 1 << 20),
        Means("32, or as many as the text has targets for"),
        "stretches of the text that are read at every length, each to the same end",
    ),
    key(
        "targets",
        Tokens(1, MOST_TOKENS),
        Means("512, or half of the shortest length"),
        "tokens at the end of a window that are asked for, the same at every length",
    ),
    key(
        "against",
        Tokens(1, MOST_TOKENS),
        Means("the shortest length"),
        "the length that others are compared with, window by window",
    ),
];
