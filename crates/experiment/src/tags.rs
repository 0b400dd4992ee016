//! Tags: the names of the values in `metrics.jsonl`.

use std::path::Path;

/// The beginning of tags of a training step's own values.
pub const TRAIN: &str = "train/";
/// The beginning of tags of values of the held-out text.
pub const EVALUATE: &str = "evaluate/";

/// The loss of a step, nats per token.
pub const TRAIN_LOSS: &str = "train/loss";
/// The norm of a step's gradient, before it is clipped.
pub const TRAIN_GRAD_NORM: &str = "train/grad_norm";
/// The learning rate of a step.
pub const TRAIN_LR: &str = "train/lr";
/// Tokens that were trained on so far, padding included.
pub const TRAIN_TOKENS: &str = "train/tokens";
/// The loss on held-out text, nats per token.
pub const EVALUATE_LOSS: &str = "evaluate/loss";
/// The beginning of the tag of a source of a mixture, before its name: the loss on its held-out text, nats per token.
pub const EVALUATE_LOSS_OF: &str = "evaluate/loss/";
/// The share of recalled tokens that are right.
pub const EVALUATE_ACCURACY: &str = "evaluate/accuracy";
/// The bigram entropy of the held-out text, nats per token.
pub const EVALUATE_BIGRAM_ENTROPY: &str = "evaluate/bigram_entropy";
/// Tokens per second of the steps since the last logged one.
pub const SPEED_TOKENS_PER_SECOND: &str = "speed/tokens_per_second";
/// Seconds of a mean one of these steps.
pub const SPEED_SECONDS_PER_STEP: &str = "speed/seconds_per_step";
/// The model's floating-point operations per second of these steps, in units of 10¹².
pub const SPEED_TFLOPS: &str = "speed/tflops";
/// Model FLOPs utilisation of these steps, as a share of the peak.
pub const SPEED_MFU: &str = "speed/mfu";
/// By rank, bytes sent in a step.
pub const COMM_BYTES: &str = "comm/bytes";
/// The share of a recorded step's communication that is hidden behind compute.
pub const COMM_OVERLAP: &str = "comm/overlap";
/// By rank, bytes sent to ranks of the same host.
pub const WITHIN_HOST_BYTES: &str = "comm/within_host/bytes";
/// By rank, seconds of waiting for ranks of the same host.
pub const WITHIN_HOST_WAITING: &str = "comm/within_host/waiting";
/// By rank, bytes sent to ranks of other hosts.
pub const BETWEEN_HOSTS_BYTES: &str = "comm/between_hosts/bytes";
/// By rank, seconds of waiting for ranks of other hosts.
pub const BETWEEN_HOSTS_WAITING: &str = "comm/between_hosts/waiting";
/// By rank, peak bytes of all classes at once.
pub const MEMORY_PEAK: &str = "memory/peak";
/// By rank, peak bytes of what layers compute and keep.
pub const MEMORY_ACTIVATIONS: &str = "memory/activations";
/// By rank, peak bytes of keys and values that are exchanged.
pub const MEMORY_KEY_VALUE: &str = "memory/key_value";

/// By rank, peak bytes of each class of memory: `memory/` and the class's name, in the order of the classes.
pub const MEMORY_OF_CLASSES: [&str; 7] = [
    "memory/weights",
    "memory/gradients",
    "memory/optimizer",
    MEMORY_ACTIVATIONS,
    MEMORY_KEY_VALUE,
    "memory/workspace",
    "memory/data",
];

/// The beginning of a process's tag, before its number: the peak of its resident bytes.
pub const RESIDENT_OF_PROCESS: &str = "memory/resident/process-";
/// The beginning of a host's tag, before its name: the peak of its processes' resident bytes.
pub const RESIDENT_OF_HOST: &str = "memory/resident/host-";
/// The beginning of a process's tag, before its number: the bytes that it took before its ranks began.
pub const BASE_OF_PROCESS: &str = "memory/base/process-";
/// The beginning of a rank's tag, before its number: by how many standard deviations it is slower than the mean rank.
pub const STRAGGLER_RANK: &str = "stragglers/rank-";
/// The beginning of a host's tag, before its name: the mean of its ranks' deviations.
pub const STRAGGLER_HOST: &str = "stragglers/host-";

/// The tags that are fixed, but for those of [`MEMORY_OF_CLASSES`].
const PLAIN: [&str; 14] = [
    TRAIN_LOSS,
    TRAIN_GRAD_NORM,
    TRAIN_LR,
    TRAIN_TOKENS,
    EVALUATE_LOSS,
    EVALUATE_ACCURACY,
    EVALUATE_BIGRAM_ENTROPY,
    SPEED_TOKENS_PER_SECOND,
    SPEED_SECONDS_PER_STEP,
    SPEED_TFLOPS,
    SPEED_MFU,
    COMM_BYTES,
    COMM_OVERLAP,
    MEMORY_PEAK,
];

/// What the tags of processes, hosts and ranks begin with.
pub(crate) const BEGINNINGS: [&str; 8] = [
    EVALUATE_LOSS_OF,
    "comm/within_host/",
    "comm/between_hosts/",
    RESIDENT_OF_PROCESS,
    RESIDENT_OF_HOST,
    BASE_OF_PROCESS,
    STRAGGLER_RANK,
    STRAGGLER_HOST,
];

/// The values that say how a training ended: tags, with what they are in words.
pub const RESULTS: [(&str, &str); 4] = [
    (TRAIN_LOSS, "training loss"),
    (EVALUATE_LOSS, "validation loss"),
    (EVALUATE_BIGRAM_ENTROPY, "bigram entropy of the same text"),
    (EVALUATE_ACCURACY, "recall accuracy"),
];

/// All tags that are fixed.
pub fn fixed() -> Vec<&'static str> {
    [&PLAIN[..], &MEMORY_OF_CLASSES].concat()
}

/// The tags of the losses of a mixture's sources: each has the last name in its path that is no pattern, without its ending, and a number
/// where there is none, or an earlier source has the same.
pub fn evaluate_loss_of<'a>(paths: impl Iterator<Item = &'a Path>) -> Vec<String> {
    let mut tags: Vec<String> = Vec::new();
    for (path, number) in paths.zip(1..) {
        let mut tag = match name(path) {
            Some(name) => format!("{EVALUATE_LOSS_OF}{name}"),
            None => format!("{EVALUATE_LOSS_OF}source-{number}"),
        };
        while tags.contains(&tag) {
            tag = format!("{tag}-{number}");
        }
        tags.push(tag);
    }
    tags
}

/// The last name in a path that is no pattern, as one word.
fn name(path: &Path) -> Option<String> {
    let is_plain = |part: &Path| !part.to_string_lossy().contains(['*', '?', '[']);
    let named = path.ancestors().filter(|part| is_plain(part)).find_map(Path::file_stem)?;
    Some(named.to_string_lossy().replace(char::is_whitespace, "-"))
}

/// The tag of the memory class called `class`.
pub fn memory_of(class: &str) -> String {
    format!("memory/{class}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_of_a_mixture_have_names_of_their_own() {
        let paths = ["a/books.txt", "books/*.jsonl", "*.txt", "my chats.jsonl", "/x/[ab]/*", "."];
        let tags = evaluate_loss_of(paths.iter().map(Path::new));
        let same = ["a-3.txt", "a.txt", "x/a.txt"].map(Path::new);
        let distinct = ["a-3", "a", "a-3-3"].map(|name| format!("evaluate/loss/{name}"));
        assert_eq!(evaluate_loss_of(same.into_iter()), distinct);
        let names = ["books", "books-2", "source-3", "my-chats", "x", "source-6"];
        assert_eq!(tags, names.map(|name| format!("evaluate/loss/{name}")));
    }
}
