//! The meaning of words in plans and pages, read from the tables of the pages themselves, so that each is defined once.

use std::fmt::Write as _;

/// The pages whose tables explain words, each with the headings of those tables.
const PAGES: [(&str, &[&str]); 2] = [
    (include_str!("../../README.md"), &["## Glossary"]),
    (include_str!("../../../experiments/STRATEGIES.md"), &["## Strategies", "## Backward routes"]),
];
/// The column of words to avoid, which is left out: it is for contributors.
const LEFT_OUT: &str = "not";

/// The meaning of a word, or of its plural; `None` if no page explains it.
pub(crate) fn meaning(word: &str) -> Option<String> {
    let either = [word, word.strip_suffix('s').unwrap_or(word)];
    let is_word = |name: &str| either.iter().any(|word| name.eq_ignore_ascii_case(word));
    let is_named = |names: &str| names.split(", ").any(is_word);
    let found: Vec<String> =
        entries().filter(|(names, _)| is_named(names)).map(|(_, text)| text).collect();
    (!found.is_empty()).then(|| found.join("\n\n"))
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

/// The rows of the first table below a heading.
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
    let word = row.first()?.trim_matches('`').to_owned();
    let mut text = match head.first()?.as_str() {
        "word" => word.clone(),
        kind => format!("{word}: one of {kind}"),
    };
    let further = head.iter().zip(row).skip(1);
    let said = |(title, cell): &(&String, &String)| {
        *title != LEFT_OUT && !["", "–"].contains(&cell.as_str())
    };
    for (title, cell) in further.filter(said) {
        let title = if title == "meaning" { "means" } else { title };
        let _ = write!(text, "\n  {title}  {cell}");
    }
    Some((word, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_routes_and_printed_words_are_explained() {
        for strategy in annulus_sequence::Strategy::ALL {
            assert!(meaning(strategy.name()).is_some(), "{}", strategy.name());
        }
        for route in annulus_sequence::Route::ALL {
            let word = annulus_experiment::route_word(route);
            assert!(meaning(word).is_some(), "{word}");
        }
        for word in [
            "hop",
            "tile",
            "exposed",
            "uneven",
            "balance",
            "bigram entropy",
            "replica",
            "key/value",
        ] {
            assert!(meaning(word).is_some(), "{word}");
        }
        assert_eq!(meaning("Hops").as_deref(), meaning("hop").as_deref());
        assert_eq!(meaning("hops, surely"), None);
    }
}
