//! The keys of `lora:`.

use super::Absent::{Is, Means, Required};
use super::Kind::{Count, Real, Text, Truth, Words};
use super::{Interval, Key, key};
use crate::{Besides, Target};

pub(super) const LORA: &[Key] = &[
    key("rank", Count(1, 1 << 12), Required, "the width of an adapter"),
    key(
        "alpha",
        Real(Interval::AboveZero),
        Means("rank"),
        "adapters count alpha / rank, or alpha / √rank with rslora",
    ),
    key("rslora", Truth, Is("false"), "whether alpha is divided by the root of rank"),
    key(
        "dropout",
        Real(Interval::ZeroToBelowOne),
        Is("0"),
        "share of an adapter's inputs that are left out in training",
    ),
    key(
        "targets",
        Words(Target::WORDS),
        Means("q_proj, k_proj, v_proj, o_proj"),
        "projections that get an adapter",
    ),
    key(
        "train",
        Words(Besides::WORDS),
        Means("nothing"),
        "what is trained itself besides, as in LongLoRA",
    ),
    key(
        "path",
        Text,
        Means("fresh adapters"),
        "a folder of PEFT's to go on from: adapter_config.json, adapter_model.safetensors",
    ),
];
