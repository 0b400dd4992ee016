//! The section `expect`: what can be asserted of metrics.

use annulus_yaml::{Problem, nearest, printable};

use crate::tags::{BEGINNINGS, EVALUATE, EVALUATE_LOSS_OF, evaluate_loss_of, fixed};
use crate::{Experiment, Format, TextSource};

/// Broken rules of `expect`. A tag that no run logs would else be found when training is over.
pub(crate) fn rules(experiment: &Experiment) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (tag, bound) in &experiment.expect {
        let key = format!("expect.{tag}");
        let problem = |message: String| experiment.places.problem(&key, message);
        if let Some(unmet) = of_no_evaluation(experiment, tag) {
            problems.push(unmet);
            continue;
        }
        if let Some((message, hint)) = of_no_source(experiment, tag) {
            problems.push(problem(message).hint(hint));
            continue;
        }
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

/// The problem of a tag of evaluations where nothing is held out to evaluate on; `None`: something is, or it is another tag.
fn of_no_evaluation(experiment: &Experiment, tag: &str) -> Option<Problem> {
    let Experiment { data, places, .. } = experiment;
    if data.evaluate > 0 || !tag.starts_with(EVALUATE) || !is_logged(tag) {
        return None;
    }
    let (held_out, key) = ("data.evaluate", format!("expect.{tag}"));
    let message =
        format!("`{}` is not logged: `{held_out}` holds out no sequences", printable(tag));
    let to_blame = places.to_blame(&[key.as_str(), held_out]);
    let key = printable(&key);
    let hint = if to_blame == held_out {
        format!("set `{held_out}`, or add `{key}=null` to the command")
    } else if data.format == Format::Batches {
        // Nothing can be held out of them.
        format!("remove `{key}`")
    } else {
        format!("set `{held_out}`, or remove `{key}`")
    };
    Some(places.problem(to_blame, message).hint(hint))
}

/// What is wrong with a tag of the loss of a source of the data, and the way out; `None`: a source has it, it is another tag, or it is not
/// known here.
fn of_no_source(experiment: &Experiment, tag: &str) -> Option<(String, String)> {
    tag.strip_prefix(EVALUATE_LOSS_OF)?;
    let sources = &experiment.data.path;
    let all: f64 = sources.iter().map(TextSource::share).sum();
    let held_out = |source: &TextSource| experiment.data.evaluate as f64 * source.share() / all;
    // Sources of which nothing is held out have no tag, nor a number in those of others.
    let is_known = sources.len() < 2 || sources.iter().all(|source| held_out(source) >= 1.0);
    // Data that the command line names may be others than those that the file expects something of.
    let key = format!("expect.{tag}");
    let is_replaced = experiment.places.to_blame(&[key.as_str(), "data.path"]) == "data.path";
    if is_replaced || !is_known {
        return None;
    }
    if sources.len() < 2 {
        let message =
            format!("`{}` is logged only where `data.path` has several sources", printable(tag));
        return Some((message, "write `evaluate/loss`".to_owned()));
    }
    let tags = evaluate_loss_of(sources.iter().map(|source| source.path.as_path()));
    let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
    if tags.contains(&tag) {
        return None;
    }
    let hint = match nearest(tag, &tags) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("there are `{}`", tags.join("`, `")),
    };
    Some((format!("no source of `data.path` has the tag `{}`", printable(tag)), hint))
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
            "there are `{}`; of sources of a mixture, processes, hosts and ranks also tags that begin with `{}`",
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
    use crate::{Override, parse};

    #[test]
    fn the_memory_of_every_class_is_logged() {
        assert_eq!(Class::ALL.map(|class| memory_of(class.name())), MEMORY_OF_CLASSES);
        assert!(MEMORY_OF_CLASSES.into_iter().all(is_logged));
    }

    /// What is wrong with an experiment on `data` that expects something of `tag`.
    fn refused(data: &str, tag: &str, given: &[&str]) -> Option<String> {
        let text = format!(
            "name: x\nmodel: {{ hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 1 }}\n\
             data: {{ tokens: 8, {data} }}\noptimizer: {{ learning_rate: 0.1 }}\nschedule: {{ steps: 2 }}\n\
             expect: {{ {tag}: {{ max: 3 }} }}\n"
        );
        let given: Vec<Override> = given.iter().filter_map(|one| Override::split(one)).collect();
        parse("x.yaml", &text, &given).err().map(|problems| problems.to_string())
    }

    #[test]
    fn the_loss_of_a_source_is_that_of_one_of_the_data() {
        let said = |data: &str, tag: &str, given: &[&str]| {
            refused(data, &format!("evaluate/loss/{tag}"), given)
        };
        let (two, one) = ("path: [books.txt, code]", "path: books.txt");
        assert_eq!(said(two, "books", &[]), None);
        let near = said(two, "bookz", &[]).expect("no such source");
        let no_such = "no source of `data.path` has the tag `evaluate/loss/bookz`";
        assert!(
            near.contains(no_such) && near.contains("did you mean `evaluate/loss/books`?"),
            "{near}"
        );
        let far = said(two, "images-of-cats", &[]).expect("no such source");
        assert!(far.contains("there are `evaluate/loss/books`, `evaluate/loss/code`"), "{far}");
        let alone = said(one, "books", &[]).expect("there is one source");
        assert!(
            alone.contains("several sources") && alone.contains("write `evaluate/loss`"),
            "{alone}"
        );
        // A run may be evaluated on other data; and where little is held out, some sources have none.
        assert_eq!(said(two, "books", &["data.path=other.txt"]), None);
        assert_eq!(said(&format!("{two}, evaluate: 1"), "source-1", &[]), None);
    }

    #[test]
    fn nothing_is_expected_of_evaluations_where_nothing_is_held_out() {
        let none = "path: books.txt, evaluate: 0";
        for tag in ["evaluate/loss", "evaluate/accuracy", "evaluate/loss/books"] {
            let said = refused(none, tag, &[]).expect("nothing is evaluated");
            let why = format!("`{tag}` is not logged: `data.evaluate` holds out no sequences");
            assert!(said.contains(&why) && said.contains("set `data.evaluate`, or"), "{said}");
        }
        assert_eq!(refused(none, "train/loss", &[]), None);
        assert_eq!(refused(none, "evaluate/loss", &["data.evaluate=1"]), None);
        let one = "path: books.txt";
        let said = refused(one, "evaluate/loss", &["data.evaluate=0"]).expect("as in the file");
        assert!(said.contains("or add `expect.evaluate/loss=null` to the command"), "{said}");
        let dropped = ["data.evaluate=0", "expect.evaluate/loss=null"];
        assert_eq!(refused(one, "evaluate/loss", &dropped), None);
        // Of batches nothing can be held out, and that is not advised.
        let batches = "path: a, format: batches";
        let said = refused(batches, "evaluate/loss", &[]).expect("nothing is evaluated");
        assert!(said.contains("is not logged") && !said.contains("set `data.evaluate`"), "{said}");
    }

    #[test]
    fn a_tag_is_known_whole() {
        assert!(is_logged("stragglers/rank-3") && is_logged("comm/within_host/bytes/host-a"));
        assert!(!is_logged("stragglers") && !is_logged("train/loss/") && !is_logged("train/los"));
    }
}
