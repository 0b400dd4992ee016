//! One key of the table, for somebody who asks for it by name.

use crate::elsewhere::elsewhere;
use crate::keys::{Absent, Key, Kind, join};
use crate::kind::nearest;

/// The longest path of names that is looked for, in characters.
const LONGEST: usize = 256;

/// What `name` means: a key by its path (`data.tokens`, and any name below what has names of one's own), or every
/// key of that last name; else those that are spelt nearly so.
///
/// # Errors
/// The nearest names, where there is no such key.
pub fn explain(keys: &[&[Key]], name: &str) -> Result<String, Vec<String>> {
    let mut all = Vec::new();
    gather("", keys, &mut all);
    let plain = |path: &str| path.replace(".NAME.", ".");
    let wanted = |(path, _): &&(String, &Key)| {
        path == name || plain(path) == name || is_below_a_name(path, name)
    };
    let exact: Vec<_> = all.iter().filter(wanted).collect();
    let last = |(path, _): &&(String, &Key)| path.rsplit('.').next() == Some(name);
    let found = if exact.is_empty() { all.iter().filter(last).collect() } else { exact };
    if !found.is_empty() {
        let texts: Vec<String> = found.iter().map(|(path, key)| about(path, key)).collect();
        return Ok(texts.join("\n\n"));
    }
    let names: Vec<&str> = all.iter().map(|(path, _)| path.as_str()).collect();
    let lasts: Vec<&str> = names.iter().filter_map(|path| path.rsplit('.').next()).collect();
    let lower = name.to_lowercase();
    if let Some(own) = elsewhere(&lower) {
        return Err(vec![own.to_owned()]);
    }
    let short = name.len() <= LONGEST;
    let near = short.then(|| nearest(name, &names).or_else(|| nearest(name, &lasts))).flatten();
    Err(near.into_iter().map(str::to_owned).collect())
}

/// The keys that take the word `value`, each with what it means; `None`: no key does.
pub fn explain_value(keys: &[&[Key]], value: &str) -> Option<String> {
    let mut all = Vec::new();
    gather("", keys, &mut all);
    let takes = |key: &Key| match key.kind {
        Kind::Word(words) | Kind::WordOr(words, _) | Kind::Words(words) => words.contains(&value),
        Kind::CountOr(_, _, word) | Kind::SizesOr(_, word) => word.contains(&value),
        _ => false,
    };
    let found = all.iter().filter(|(_, key)| takes(key));
    let texts: Vec<String> = found.map(|(path, key)| about(path, key)).collect();
    (!texts.is_empty()).then(|| format!("`{value}` is a value of\n\n{}", texts.join("\n\n")))
}

/// What the absence of the key at a path means, names of one's own included: `stages.short.tokens`; `None`: there is no
/// such key.
pub fn absent(keys: &[&[Key]], path: &str) -> Option<Absent> {
    let mut all = Vec::new();
    gather("", keys, &mut all);
    let found = all.iter().find(|(key, _)| key == path || is_below_a_name(key, path));
    found.map(|(_, key)| key.default)
}

/// `stages.short.tokens` is the key `stages.NAME.tokens`.
fn is_below_a_name(path: &str, name: &str) -> bool {
    let (path, name): (Vec<_>, Vec<_>) = (path.split('.').collect(), name.split('.').collect());
    path.len() == name.len() && path.iter().zip(&name).all(|(a, b)| *a == "NAME" || a == b)
}

fn gather<'a>(path: &str, groups: &[&'a [Key]], all: &mut Vec<(String, &'a Key)>) {
    for key in groups.iter().copied().flatten() {
        let path = join(path, key.name);
        all.push((path.clone(), key));
        let path = match key.kind {
            Kind::Each(_) | Kind::Listed(_) => join(&path, "NAME"),
            _ => path,
        };
        gather(&path, &key.kind.below(), all);
    }
}

fn about(path: &str, key: &Key) -> String {
    let default = match key.default {
        Absent::Required => String::from("none: it must be there"),
        Absent::RequiredWithout(other) => format!("none: it must be there without `{other}`"),
        Absent::Is(text) => text.to_owned(),
        Absent::Means(meaning) => meaning.to_owned(),
    };
    let mut text = format!(
        "{path}\n  meaning  {}\n  takes    {}\n  default  {default}",
        key.about,
        key.kind.wanted()
    );
    let line = |key: &Key| format!("\n    {:<22} {}", key.name, key.about);
    text.extend(key.kind.below().into_iter().flatten().map(line));
    text
}
