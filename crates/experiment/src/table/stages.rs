//! The keys of each of `stages:`.

use super::Absent::{Means, Required};
use super::Kind::{Count, Real, Section, Tokens, Words};
use super::rope::EXTEND;
use super::{Interval, Key, MOST_STEPS, MOST_TOKENS, key};
use crate::Reset;

pub(super) const STAGE: &[Key] = &[
    key("tokens", Tokens(1, MOST_TOKENS), Required, "inputs per sequence"),
    key("steps", Count(1, MOST_STEPS), Required, "optimizer steps"),
    key(
        "batch",
        Count(1, 1 << 20),
        Means("as before; in the first `data.batch`"),
        "sequences per optimizer step",
    ),
    key(
        "learning_rate",
        Real(Interval::AboveZero),
        Means("as before; in the first `optimizer.learning_rate`"),
        "the peak",
    ),
    key(
        "extend",
        Section(&[EXTEND]),
        Means("as before; in the first that of the file"),
        "longer sequences than the model was trained for",
    ),
    key(
        "reset",
        Words(Reset::WORDS),
        Means("everything in the first; required in the others"),
        "what begins anew: the optimizer's moments, the learning rate's schedule, the data",
    ),
];
