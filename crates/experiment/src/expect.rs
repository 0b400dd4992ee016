//! The section `expect`: what can be asserted of metrics.

use annulus_yaml::{Problem, nearest, printable};

use crate::Experiment;
use crate::tags::{BEGINNINGS, fixed};

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
    fixed().contains(&tag) || BEGINNINGS.iter().any(|beginning| tag.starts_with(beginning))
}

/// The tag that is probably meant, or where all are listed.
fn instead(tag: &str) -> String {
    let fixed = fixed();
    match nearest(tag, &fixed) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!(
            "there are `{}`; of processes also tags that begin with `{}`",
            fixed.join("`, `"),
            BEGINNINGS.join("`, `")
        ),
    }
}

#[cfg(test)]
mod tests {
    use annulus_memory::Class;

    use super::is_logged;
    use crate::tags::{MEMORY_OF_CLASSES, memory_of};

    #[test]
    fn the_memory_of_every_class_is_logged() {
        assert_eq!(Class::ALL.map(|class| memory_of(class.name())), MEMORY_OF_CLASSES);
        assert!(MEMORY_OF_CLASSES.into_iter().all(is_logged));
    }

    #[test]
    fn a_tag_is_known_whole() {
        assert!(is_logged("stragglers/rank-3") && is_logged("comm/within_host/bytes/host-a"));
        assert!(!is_logged("stragglers") && !is_logged("train/loss/") && !is_logged("train/los"));
    }
}
