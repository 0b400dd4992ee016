//! The section `expect`: which metrics there are, and what can be asserted of them.

use annulus_yaml::{Problem, nearest, printable};

use crate::Experiment;

/// The tags of `metrics.jsonl` that are fixed.
const TAGS: [&str; 19] = [
    "train/loss",
    "train/grad_norm",
    "train/lr",
    "evaluate/loss",
    "evaluate/accuracy",
    "evaluate/bigram_entropy",
    "speed/tokens_per_second",
    "speed/tflops",
    "speed/mfu",
    "comm/bytes",
    "comm/overlap",
    "memory/peak",
    "memory/weights",
    "memory/gradients",
    "memory/optimizer",
    "memory/activations",
    "memory/key_value",
    "memory/workspace",
    "memory/data",
];

/// What the tags of processes, hosts and ranks begin with.
const BEGINNINGS: [&str; 7] = [
    "comm/within_host/",
    "comm/between_hosts/",
    "memory/resident/process-",
    "memory/resident/host-",
    "memory/base/process-",
    "stragglers/rank-",
    "stragglers/host-",
];

/// Broken rules of `expect`. A tag that no run logs would else be found when training is over.
pub(crate) fn rules(experiment: &Experiment) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (tag, bound) in &experiment.expect {
        let key = format!("expect.{tag}");
        let problem = |message: String| experiment.places.problem(&key, message);
        if !is_logged(tag) {
            problems.push(problem(format!("no run logs `{}`", printable(tag))).hint(instead(tag)));
            continue;
        }
        match (bound.min, bound.max, bound.of_first) {
            (None, None, None) => {
                let message = format!("`{tag}` is expected to be nothing in particular");
                problems.push(problem(message).hint("give `min`, `max` or `of_first`"));
            }
            (Some(min), Some(max), _) if min > max => {
                let message = format!("`{tag}` cannot be at least {min} and at most {max}");
                problems.push(problem(message));
            }
            _ => {}
        }
    }
    problems
}

/// Whether a run can log this tag.
fn is_logged(tag: &str) -> bool {
    TAGS.contains(&tag) || BEGINNINGS.iter().any(|beginning| tag.starts_with(beginning))
}

/// The tag that is probably meant, or where all are listed.
fn instead(tag: &str) -> String {
    match nearest(tag, &TAGS) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!(
            "there are `{}`; of processes also tags that begin with `{}`",
            TAGS.join("`, `"),
            BEGINNINGS.join("`, `")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::is_logged;

    #[test]
    fn the_memory_of_every_class_is_logged() {
        for class in annulus_memory::Class::ALL {
            assert!(is_logged(&format!("memory/{}", class.name())), "{}", class.name());
        }
    }

    #[test]
    fn a_tag_is_known_whole() {
        assert!(is_logged("stragglers/rank-3") && is_logged("comm/within_host/bytes/host-a"));
        assert!(!is_logged("stragglers") && !is_logged("train/loss/") && !is_logged("train/los"));
    }
}
