//! Which keys may differ between two starts of a run, and which of these change no bit of what it computes.

/// Sections and keys that may differ when a run is resumed.
const FREE: &[&str] = &[
    "name",
    "model.allow_longer",
    "device",
    "mesh",
    "attention.strategy",
    "attention.exchange",
    "attention.shape",
    "attention.groups",
    "attention.layout",
    "attention.stripe",
    "attention.backward",
    "attention.sliding.strategy",
    "attention.sliding.exchange",
    "attention.sliding.shape",
    "attention.sliding.groups",
    "attention.sliding.backward",
    "attention.deterministic",
    "parallel",
    "memory",
    "every",
    "evaluation",
    "trace",
    "sample",
    "keep",
    "keep_best",
    "background_saves",
    "output",
    "expect",
    "schedule.stop",
];

/// Beside `attention`, the keys of [`FREE`] that change the rounding, except with `reproducible: strict`.
pub(crate) const ROUNDING: &[&str] = &[
    "mesh.data",
    "mesh.sequence",
    "mesh.tensor",
    "mesh.weights",
    "memory.micro_batch",
    "memory.loss_chunk",
    "memory.mlp_chunk",
];

/// The keys of [`FREE`], and the sections, that do not change what is computed.
const NEUTRAL: &[&str] = &[
    "name",
    "every",
    "trace",
    "evaluation",
    "sample",
    "keep",
    "keep_best",
    "background_saves",
    "expect",
    "output",
    "parallel",
    "memory.recompute",
    "memory.offload",
    "memory.offload_folder",
    "mesh.order",
    "mesh.engine",
    "mesh.deadline",
    "mesh.checksum",
];

/// The sections of [`FREE`] that change no bit with `reproducible: strict`: how ranks share the work, and in which chunks.
const STRICTLY_NEUTRAL: &[&str] = &["mesh", "attention", "memory"];

/// Whether a key does not change what is computed, not even its rounding. `is_strict`: with `reproducible: strict`.
pub fn is_neutral(key: &str, is_strict: bool) -> bool {
    is_of(NEUTRAL, key) || is_strict && is_free(key) && is_of(STRICTLY_NEUTRAL, key)
}

/// The sections and keys that may differ when a run is resumed, in words for a message.
pub fn what_may_differ() -> String {
    let plain = |key: &&&str| !key.starts_with("attention.") || **key == "attention.deterministic";
    let keys: Vec<String> = FREE.iter().filter(plain).map(|key| format!("`{key}`")).collect();
    format!("{}, how attention is split", keys.join(", "))
}

/// Whether a key may differ when a run is resumed.
pub(crate) fn is_free(key: &str) -> bool {
    is_of(FREE, key)
}

/// Whether a key is one of `names`, or below one of them.
fn is_of(names: &[&str], key: &str) -> bool {
    names.iter().any(|name| {
        key.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_nothing_may_differ_and_does_not_round() {
        for key in NEUTRAL {
            assert!(is_free(key) && !is_of(ROUNDING, key), "{key}");
        }
        let neutral = |key: &str| [false, true].map(|is_strict| is_neutral(key, is_strict));
        for key in ["every.log", "memory.offload_folder", "parallel.state", "memory.recompute"] {
            assert_eq!(neutral(key), [true, true], "{key}");
        }
        for key in ["memory.loss_chunk", "mesh.sequence", "attention.strategy"] {
            assert_eq!(neutral(key), [false, true], "{key}");
        }
        for key in ["names", "device", "attention.window", "optimizer.clip", "schedule.stop"] {
            assert_eq!(neutral(key), [false, false], "{key}");
        }
    }
}
