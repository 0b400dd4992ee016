//! The meaning of words in plans and pages, read from the tables of the pages themselves, so that each is defined once.

use std::fmt::Write as _;

use annulus_sequence::{Exchange, Strategy};

/// The pages whose tables explain words, each with the headings of those tables, or the line before one.
const PAGES: [(&str, &[&str]); 3] = [
    (include_str!("../../README.md"), &["## Glossary"]),
    (include_str!("../../../experiments/STRATEGIES.md"), &["## Strategies", "## Backward routes"]),
    (include_str!("../../../experiments/README.md"), &["### Metrics", SEVERAL]),
];
/// The line before the table of what several processes log.
const SEVERAL: &str = "A run over several processes also logs:";
/// The column of words to avoid, which is left out: it is for contributors.
const LEFT_OUT: &str = "not";

/// The meaning of a word, of its plural, or of the strategy in a label of plans; `None` if no page explains it.
pub(crate) fn meaning(word: &str) -> Option<String> {
    let word = strategy_of(word).unwrap_or(word);
    let either = [word, word.strip_suffix('s').unwrap_or(word)];
    let is_word = |name: &str| {
        either.iter().any(|word| name.eq_ignore_ascii_case(word)) || is_filled(name, word)
    };
    let is_named = |names: &str| names.split(", ").any(is_word);
    let found: Vec<String> =
        entries().filter(|(names, _)| is_named(names)).map(|(_, text)| text).collect();
    (!found.is_empty()).then(|| found.join("\n\n"))
}

/// Whether `tag` is what pages call `name`, which ends in capitals that stand for a number or a name: `stragglers/rank-R`.
fn is_filled(name: &str, tag: &str) -> bool {
    let beginning = name.trim_end_matches(|letter: char| letter.is_ascii_uppercase());
    let is_open = beginning.len() < name.len() && beginning.contains('/');
    is_open && tag.len() > beginning.len() && tag.starts_with(beginning)
}

/// The strategy of a label that says more than its name, such as `usp 2 x 4` or `megatron a2a+p2p 2 x 2`.
fn strategy_of(label: &str) -> Option<&str> {
    const WORDS: [&str; 4] = ["x", "of", "in", "groups"];
    let (name, rest) = label.split_once(' ')?;
    let says_how = |word: &str| {
        let is_exchange = || Exchange::from_name(word).is_some();
        WORDS.contains(&word) || word.parse::<usize>().is_ok() || is_exchange()
    };
    let is_strategy = Strategy::ALL.iter().any(|strategy| strategy.name() == name);
    (is_strategy && rest.split(' ').all(says_how)).then_some(name)
}

/// All words that are explained.
pub(crate) fn words() -> Vec<String> {
    let names = entries().map(|(names, _)| names);
    names.flat_map(|names| names.split(", ").map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Every word with its synonyms, and its explanation.
fn entries() -> impl Iterator<Item = (String, String)> {
    PAGES
        .into_iter()
        .flat_map(|(page, headings)| headings.iter().flat_map(move |heading| table(page, heading)))
}

/// The rows of the tables below a heading, or a line, up to the next `##` heading; all have the columns of the first.
fn table(page: &str, heading: &str) -> Vec<(String, String)> {
    let below = page.lines().skip_while(|line| *line != heading).skip(1);
    let below = below.take_while(|line| !line.starts_with("## "));
    let mut rows = below.filter(|line| line.starts_with('|')).map(cells);
    let head = rows.next().unwrap_or_default();
    rows.skip(1).filter_map(|row| entry(&head, &row)).collect()
}

fn cells(line: &str) -> Vec<String> {
    let inside = line.trim().trim_matches('|');
    inside.split('|').map(|cell| cell.trim().to_owned()).collect()
}

/// A word, and its explanation with a line for each further column of its row.
fn entry(head: &[String], row: &[String]) -> Option<(String, String)> {
    let word = row.first()?.replace('`', "");
    let mut text = match head.first()?.as_str() {
        "word" => word.clone(),
        "tag" => format!("{word}: a tag of metrics.jsonl"),
        kind => format!("{word}: one of {kind}"),
    };
    let further = head.iter().zip(row).skip(1);
    let said = |(title, cell): &(&String, &String)| {
        *title != LEFT_OUT && !["", "–"].contains(&cell.as_str())
    };
    for (title, cell) in further.filter(said) {
        let title = if ["meaning", "is"].contains(&title.as_str()) { "means" } else { title };
        let _ = write!(text, "\n  {title}  {cell}");
    }
    Some((word, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of tables and of lines of progress.
    const PRINTED: &str = "hop, tile, exposed, uneven, balance, bigram entropy, replica, key/value, micro-batch, overlap, computes, \
        waits, waiting, minus best, beyond seeds, grad, lr, tok/s, back, moves, lse, seen, params, ZeRO";

    #[test]
    fn strategies_routes_and_printed_words_are_explained() {
        for strategy in Strategy::ALL {
            assert!(meaning(strategy.name()).is_some(), "{}", strategy.name());
            let label = annulus_plan::label(strategy);
            assert_eq!(meaning(&label), meaning(strategy.name()), "{label}");
        }
        for label in ["megatron a2a", "megatron a2a+p2p 2 x 4", "usp 2 x 4", "striped of 2"] {
            let (name, _) = label.split_once(' ').expect("more than a name");
            assert_eq!(meaning(label), meaning(name), "{label}");
        }
        for route in annulus_sequence::Route::ALL {
            let word = annulus_experiment::route_word(route);
            assert!(meaning(word).is_some(), "{word}");
        }
        let tags = annulus_experiment::tags::fixed();
        for word in PRINTED.split(", ").chain(tags) {
            assert!(meaning(word).is_some(), "{word}");
        }
        let filled = "evaluate/loss/books, memory/base/process-12, memory/resident/process-0, memory/resident/host-a, \
            comm/within_host/bytes, comm/between_hosts/waiting/host-b, stragglers/rank-0, stragglers/host-NAME";
        for tag in filled.split(", ") {
            let text = meaning(tag).unwrap_or_else(|| panic!("{tag}"));
            assert!(
                text.contains(": a tag of metrics.jsonl\n") && !text.contains("\n\n"),
                "{text}"
            );
        }
        assert_eq!(
            ["stragglers/rank-", "evaluate/loss/", "evaluate/losses"].map(meaning),
            [None, None, None]
        );
        assert_eq!(meaning("Hops").as_deref(), meaning("hop").as_deref());
        assert_eq!([meaning("hops, surely"), meaning("ring of fire")], [None, None]);
    }
}
