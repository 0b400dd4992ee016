//! Checks code and pages against the glossary of `crates/README.md`, which has one word for each concept.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::{root, tool};

/// The page with the table `word | meaning | not`.
const GLOSSARY: &str = "crates/README.md";
/// Folders and files that are searched, with the extensions of files.
const PLACES: [(&str, &[&str]); 6] = [
    ("crates", &["rs"]),
    ("tests", &["rs"]),
    ("kernels", &["h", "cu", "cuh", "cpp", "md"]),
    ("experiments", &["yaml", "md"]),
    ("notebooks", &["ipynb", "md"]),
    ("README.md", &["md"]),
];
/// The log is history, and is not searched.
const HISTORY: &str = "LOG.md";

/// Fails with every occurrence of a word that the glossary refuses.
pub(crate) fn run() -> Result<()> {
    let page = fs::read_to_string(root().join(GLOSSARY)).context(GLOSSARY)?;
    let refused = refused(&page);
    let mut found = Vec::new();
    for (place, endings) in PLACES {
        for path in tool::files(&root().join(place))? {
            let shown = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
            let read = endings.contains(&tool::ending(&path));
            if read && !shown.ends_with(HISTORY) && shown != GLOSSARY {
                let text = fs::read_to_string(&path).with_context(|| shown.clone())?;
                found.extend(places(&shown, &text, &refused));
            }
        }
    }
    found.extend(places(GLOSSARY, &without_table(&page), &refused));
    if !found.is_empty() {
        bail!("words that the glossary of {GLOSSARY} replaces\n  {}", found.join("\n  "));
    }
    Ok(())
}

/// Words in backquotes in the last column of the glossary.
fn refused(page: &str) -> Vec<String> {
    let columns = table(page).filter_map(|row| row.split('|').nth(3));
    let quoted = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_lowercase).collect();
    columns.flat_map::<Vec<String>, _>(quoted).collect()
}

fn table(page: &str) -> impl Iterator<Item = &str> {
    let glossary = page.split("\n## ").find(|section| section.starts_with("Glossary"));
    glossary.unwrap_or_default().lines().filter(|line| line.starts_with('|'))
}

/// The page with the rows of its glossary emptied.
fn without_table(page: &str) -> String {
    let rows: Vec<&str> = table(page).collect();
    page.lines()
        .map(|line| if rows.contains(&line) { "\n" } else { line }.to_owned() + "\n")
        .collect()
}

/// `file:line: word` for every occurrence of one of `refused` as a whole word.
fn places(file: &str, text: &str, refused: &[String]) -> Vec<String> {
    let of_line = |(number, line): (usize, &str)| {
        let line = line.to_lowercase();
        let there = refused.iter().filter(move |word| has(&line, word)).cloned();
        there.map(move |word| format!("{}: `{word}`", number + 1)).collect::<Vec<_>>()
    };
    text.lines().enumerate().flat_map(of_line).map(|place| format!("{file}:{place}")).collect()
}

fn has(line: &str, word: &str) -> bool {
    let apart = |letter: Option<char>| letter.is_none_or(|letter| !letter.is_alphanumeric());
    line.match_indices(word).any(|(at, _)| {
        apart(line[..at].chars().next_back()) && apart(line[at + word.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_words_are_found_with_their_lines() {
        let page = "# A\n\n## Glossary\n\n| word | meaning | not |\n| --- | --- | --- |\n\
                    | rank | a `worker` | |\n| route | what | `old word`, `home` |\n\n## B\n";
        let refused = refused(page);
        assert_eq!(refused, ["old word", "home"]);
        let text = "an oldish word\nThe Old word, at home.\nhomely\n";
        assert_eq!(places("f.rs", text, &refused), ["f.rs:2: `old word`", "f.rs:2: `home`"]);
        assert_eq!(places("p.md", &without_table(page), &refused), [""; 0]);
    }
}
