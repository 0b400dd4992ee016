//! From a tree to typed values by the table: unknown keys, missing keys and wrong types, all of
//! them.

use crate::elsewhere::{conversion, elsewhere};
use crate::keys::{Absent, Key, Kind, OneOf, Side, join};
use crate::kind::{Mismatch, nearest, whole};
use crate::problem::Report;
use crate::source::{Span, printable};
use crate::tree::{Entry, Node, Value};
use crate::values::Values;

/// The key of `names` that another program calls `key`, if it belongs to one of these sections.
fn renamed<'a>(key: &str, names: &[&'a str], is_home: impl Fn(&str) -> bool) -> Option<&'a str> {
    let own = elsewhere(key)?;
    let (section, name) = own.rsplit_once('.').unwrap_or(("", own));
    names.iter().copied().find(|own| *own == name && is_home(section))
}

/// The treatment of unknown keys and of keys without values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strictness {
    /// An unknown key is a mistake, and so is a key without a value.
    Ours,
    /// As other programs write it: more keys than we know, but not in its sections; `null` is as good as absent.
    Theirs,
}

/// Types a whole file of `keys`; `title` is what it is.
pub(crate) fn values(
    root: &Node,
    report: &mut Report,
    keys: &'static [&'static [Key]],
    title: &'static str,
    strictness: Strictness,
) -> Values {
    let mut typing = Typing { report, values: Values::default(), strictness, keys, title, root };
    typing.section("", root, keys);
    typing.values
}

struct Typing<'a> {
    report: &'a mut Report,
    values: Values,
    strictness: Strictness,
    /// The keys of the file.
    keys: &'static [&'static [Key]],
    /// The name of the file's kind in messages.
    title: &'static str,
    root: &'a Node,
}

impl Typing<'_> {
    /// Types the keys of one mapping, which is the section `path`, and fills in those that are absent.
    fn section(&mut self, path: &str, node: &Node, groups: &[&[Key]]) {
        if self.known(path, node, groups) {
            for key in groups.iter().copied().flatten() {
                self.absent(path, key, node);
            }
        }
    }

    /// Types the keys that are written in a mapping, if it is one.
    fn known(&mut self, path: &str, node: &Node, groups: &[&[Key]]) -> bool {
        let Value::Mapping(entries) = &node.value else {
            let (title, found) = (self.titled(path), node.value.found());
            self.report.at(node.span, || {
                let keys = key_names(groups).join("`, `");
                if path.is_empty() {
                    let what = format!("this is not {title}: expected keys, found {found}");
                    return (what, Some("give a YAML file of keys".to_owned()));
                }
                (
                    format!("{title} must be a mapping of keys, found {found}"),
                    Some(format!("its keys are `{keys}`")),
                )
            });
            self.values.refused.insert(path.to_owned());
            return false;
        };
        for entry in entries {
            match groups.iter().copied().flatten().find(|key| key.name == entry.key) {
                Some(key) => self.entry(path, key, entry),
                None if self.strictness == Strictness::Ours || !path.is_empty() => {
                    self.unknown(path, entry, groups);
                }
                None => {}
            }
        }
        true
    }

    /// Types a section whose keys stand for each other.
    fn one_of(&mut self, path: &str, node: &Node, one: &OneOf) {
        let at = self.values.spans.get(path).copied().unwrap_or(node.span);
        let side = (one.written)(node, at, self.report);
        if side == Side::Neither {
            self.values.refused.insert(join(path, one.keys[0].name));
        }
        let groups = one.groups();
        self.known(path, node, &groups);
        let required = if side == Side::Instead { &groups[..] } else { &groups[..1] };
        for key in required.iter().copied().flatten() {
            self.absent(path, key, node);
        }
    }

    fn entry(&mut self, path: &str, key: &Key, entry: &Entry) {
        let path = join(path, key.name);
        let nothing = matches!(entry.value.value, Value::Nothing);
        if nothing && self.strictness == Strictness::Theirs {
            return;
        }
        if matches!(entry.value.value, Value::Wrong) {
            self.values.refused.insert(path);
            return;
        }
        if nothing {
            return self.valueless(path, key, entry);
        }
        if matches!(key.kind, Kind::Section(_) | Kind::OneOf(_) | Kind::Each(_)) {
            self.values.spans.insert(path.clone(), entry.key_span);
        }
        match key.kind {
            Kind::Section(groups) => self.section(&path, &entry.value, groups),
            Kind::OneOf(one) => self.one_of(&path, &entry.value, one),
            Kind::Each(groups) => self.each(&path, &entry.value, groups),
            Kind::Listed(groups) => self.listed(&path, key.kind, &entry.value, groups),
            kind => {
                // What a file of others may leave out is theirs to say.
                let default = Some(key.default).filter(|_| self.strictness == Strictness::Ours);
                self.value(path, kind, default, &entry.value);
            }
        }
    }

    /// Types a value; `default` is the meaning of its key's absence, if that is a way out.
    fn value(&mut self, path: String, kind: Kind, default: Option<Absent>, node: &Node) {
        match kind.read(node) {
            Ok(typed) => {
                self.values.spans.insert(path.clone(), node.span);
                self.values.typed.insert(path, typed);
            }
            Err(Mismatch { wanted, hint, item }) => {
                let (span, found) = item.unwrap_or_else(|| (node.span, node.value.found()));
                let key = self.as_written(&path, node.span);
                let hint = hint.or_else(|| without(kind, default?, &found));
                let message = || format!("`{key}` must be {wanted}, found {found}");
                self.report.at(span, || (message(), hint));
                self.values.refused.insert(path);
            }
        }
    }

    /// The key that a value at `span` is written for: a list of one may be written as its item, and that as the value of its first key.
    fn as_written<'p>(&self, path: &'p str, span: Span) -> &'p str {
        let mut key = path;
        while let Some((above, _)) = key.rsplit_once('.')
            && self.values.spans.get(above) == Some(&span)
        {
            key = above;
        }
        key
    }

    fn valueless(&mut self, path: String, key: &Key, entry: &Entry) {
        self.report.at(entry.key_span, || {
            let hint = match key.default {
                Absent::Required | Absent::RequiredWithout(_) => {
                    format!("it takes {}: {}", key.kind.wanted(), key.about)
                }
                Absent::Is(_) | Absent::Means(_) => "leave the key out for its default".to_owned(),
            };
            (format!("`{path}` has no value"), Some(hint))
        });
        self.values.refused.insert(path);
    }

    /// A section for every word.
    fn each(&mut self, path: &str, node: &Node, groups: &[&[Key]]) {
        let Value::Mapping(entries) = &node.value else {
            return self.section(path, node, groups);
        };
        for entry in entries {
            let below = join(path, &entry.key);
            self.values.spans.insert(below.clone(), entry.key_span);
            self.values.free.entry(path.to_owned()).or_default().push(entry.key.clone());
            self.section(&below, &entry.value, groups);
        }
    }

    /// A section for every item of a list, under its number.
    fn listed(&mut self, path: &str, kind: Kind, node: &Node, groups: &[&[Key]]) {
        let items = match &node.value {
            Value::Sequence(items) if items.is_empty() => {
                return self.value(path.to_owned(), kind, None, node);
            }
            Value::Sequence(items) => items.as_slice(),
            _ => std::slice::from_ref(node),
        };
        self.values.spans.insert(path.to_owned(), node.span);
        for (number, item) in items.iter().enumerate() {
            let number = number.to_string();
            let below = join(path, &number);
            self.values.spans.insert(below.clone(), item.span);
            self.values.free.entry(path.to_owned()).or_default().push(number);
            self.section(&below, &in_full(item, groups), groups);
        }
    }

    fn unknown(&mut self, path: &str, entry: &Entry, groups: &[&[Key]]) {
        let (names, keys) = (key_names(groups), self.keys);
        // What one chose a name for, as a phase, has keys of several sections; a section within another may have those of that one.
        let is_home = |section: &str| {
            let (above, _) = path.rsplit_once('.').unwrap_or_default();
            path == section
                || !above.is_empty() && (above == section || self.values.free.contains_key(above))
        };
        let meant = || nearest(&entry.key, &names).or_else(|| renamed(&entry.key, &names, is_home));
        let meant = if self.report.is_full() { None } else { meant() };
        // A key that is there under a wrong name is not missing besides.
        self.values.refused.extend(meant.map(|name| join(path, name)));
        self.report.at(entry.key_span, || {
            let place = if path.is_empty() { String::new() } else { format!(" in `{path}`") };
            let own = elsewhere(&entry.key).filter(|own| is_key(keys, own));
            let home = || home_of(keys, &entry.key);
            let guess = match (meant, own) {
                (Some(name), _) => format!("did you mean `{name}`? "),
                (None, Some(own)) => match conversion(&entry.key) {
                    Some(how) => format!("it is `{own}` here: {how}; "),
                    None => format!("it is `{own}` here; "),
                },
                (None, None) => home().map_or_else(
                    || comma(&entry.key),
                    |section| format!("`{}` is a key of `{section}`; ", entry.key),
                ),
            };
            let hint = format!("{guess}the keys here are `{}`", names.join("`, `"));
            (format!("unknown key `{}`{place}", printable(&entry.key)), Some(hint))
        });
    }

    /// Fills in a default, or says that a key is missing.
    fn absent(&mut self, path: &str, key: &Key, section: &Node) {
        let below = join(path, key.name);
        let written = section.entry(key.name).is_some_and(|entry| {
            self.strictness == Strictness::Ours || !matches!(entry.value.value, Value::Nothing)
        });
        if written || self.values.refused.contains(&below) {
            return;
        }
        let empty = Node { value: Value::Mapping(Vec::new()), span: section.span };
        match (key.default, key.kind) {
            (Absent::Is(text), kind) => {
                if let Some(typed) = kind.default(text) {
                    self.values.typed.insert(below, typed);
                }
            }
            // Sections that are left out have their keys' defaults; those that need some are not there.
            (Absent::Means(_), Kind::Section(groups)) if !needs(groups) => {
                self.section(&below, &empty, groups);
            }
            (Absent::Means(_), _) => {}
            (Absent::RequiredWithout(other), kind) if self.says(other) => {
                if let Kind::Section(groups) = kind {
                    self.section(&below, &empty, groups);
                }
            }
            (Absent::Required | Absent::RequiredWithout(_), _) => {
                let at = self.values.spans.get(path).copied().unwrap_or(section.span);
                self.report.at(at, || missing(path, key, &below));
                self.values.refused.insert(below);
            }
        }
    }

    /// True where the file has a section of this name, in which something is written.
    fn says(&self, section: &str) -> bool {
        let entry = self.root.entry(section);
        entry.is_some_and(|entry| match &entry.value.value {
            Value::Mapping(entries) => !entries.is_empty(),
            Value::Nothing => false,
            _ => true,
        })
    }

    /// The name of a section in messages.
    fn titled(&self, path: &str) -> String {
        if path.is_empty() { self.title.to_owned() } else { format!("`{}`", printable(path)) }
    }
}

/// The way out of a value that asks for nothing, as 0 and -1 do in other programs, or for something else than the only word.
fn without(kind: Kind, default: Absent, found: &str) -> Option<String> {
    let (Absent::Is(meaning) | Absent::Means(meaning)) = default else { return None };
    let number = found.trim_matches('`');
    let is_none = number == "0" || number.strip_prefix('-').and_then(whole).is_some();
    match kind {
        Kind::Word([_]) => Some(String::from("there is no other: leave the key out")),
        Kind::Count(1.., _) | Kind::CountOr(1.., ..) | Kind::Tokens(1.., _) if is_none => {
            Some(format!("leave the key out for its default: {meaning}"))
        }
        _ => None,
    }
}

/// An item that is the value of its first key alone, as a mapping.
fn in_full(item: &Node, groups: &[&[Key]]) -> Node {
    let first = groups.iter().copied().flatten().next();
    match (&item.value, first) {
        (Value::Scalar { .. } | Value::Nothing, Some(first)) => {
            let (key, value) = (first.name.to_owned(), item.clone());
            let entry = Entry { key, key_span: item.span, value };
            Node { value: Value::Mapping(vec![entry]), span: item.span }
        }
        _ => item.clone(),
    }
}

/// True for a section that must have one of these keys.
fn needs(groups: &[&[Key]]) -> bool {
    groups.iter().copied().flatten().any(|key| matches!(key.default, Absent::Required))
}

fn missing(path: &str, key: &Key, below: &str) -> (String, Option<String>) {
    let under = if path.is_empty() { String::new() } else { format!(" under `{path}:`") };
    let takes = match key.kind {
        Kind::Section(groups) => format!("its keys are `{}`", key_names(groups).join("`, `")),
        Kind::OneOf(one) => format!("its keys are `{}`", key_names(&[one.keys]).join("`, `")),
        kind => kind.wanted(),
    };
    (
        format!("`{below}` is missing"),
        Some(format!("add `{}:`{under}, {}: {takes}", key.name, key.about)),
    )
}

fn key_names(groups: &[&[Key]]) -> Vec<&'static str> {
    groups.iter().copied().flatten().map(|key| key.name).collect()
}

/// The section of a file that has a key of this name.
fn home_of(keys: &[&[Key]], name: &str) -> Option<&'static str> {
    let mut sections = keys.iter().copied().flatten();
    sections.find(|section| names_below(section.kind).contains(&name)).map(|section| section.name)
}

/// The names of the keys of a section; none of other kinds.
fn names_below(kind: Kind) -> Vec<&'static str> {
    match kind {
        Kind::Each(_) | Kind::Listed(_) => Vec::new(),
        kind => key_names(&kind.below()),
    }
}

/// Whether a file has the key `path`: `output`, or `data.tokens`.
fn is_key(keys: &[&[Key]], path: &str) -> bool {
    let (section, name) = path.split_once('.').unwrap_or((path, ""));
    let found = keys.iter().copied().flatten().find(|key| key.name == section);
    found.is_some_and(|key| name.is_empty() || names_below(key.kind).contains(&name))
}

/// The guess at a key of three digits, such as `20,000` makes in braces.
fn comma(key: &str) -> String {
    let digits = key.len() == 3 && key.bytes().all(|byte| byte.is_ascii_digit());
    let guess = "a comma begins another key: write numbers without commas; ";
    if digits { guess.to_owned() } else { String::new() }
}
