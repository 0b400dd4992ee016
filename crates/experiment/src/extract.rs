//! From a tree to typed values by the table: unknown keys, missing keys and wrong types, all of
//! them.

use crate::problem::Report;
use crate::source::printable;
use crate::table::{Absent, CONFIG, EXPERIMENT, Key, Kind, MODEL, SHAPE};
use crate::tree::{Entry, Node, Value};
use crate::typed::nearest;
use crate::values::Values;

/// What a reader of a format does with what is not in the table.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Strictness {
    /// An experiment: an unknown key is a mistake, and so is a key without a value.
    Experiment,
    /// A config.json, as other programs write it: more keys than we know, but not in its sections;
    /// `null` is as good as absent.
    Config,
}

/// Types the whole experiment.
pub(crate) fn experiment(root: &Node, report: &mut Report) -> Values {
    file(root, report, EXPERIMENT, "an experiment")
}

/// Types a whole file of `keys`; `title` is what it is.
pub(crate) fn file(
    root: &Node,
    report: &mut Report,
    keys: &'static [Key],
    title: &'static str,
) -> Values {
    let (values, strictness) = (Values::default(), Strictness::Experiment);
    let mut extraction = Extraction { report, values, strictness, keys, title, root };
    extraction.section("", root, &[keys]);
    extraction.values
}

/// Types the keys of a config.json.
pub(crate) fn shape(root: &Node, report: &mut Report) -> Values {
    let (values, strictness) = (Values::default(), Strictness::Config);
    let title = "a config.json";
    let mut extraction = Extraction { report, values, strictness, keys: SHAPE, title, root };
    extraction.section("", root, &[SHAPE, CONFIG]);
    extraction.values
}

struct Extraction<'a> {
    report: &'a mut Report,
    values: Values,
    strictness: Strictness,
    /// The keys of the file.
    keys: &'static [Key],
    /// What the file is.
    title: &'static str,
    root: &'a Node,
}

impl Extraction<'_> {
    /// Types the keys of one mapping, which is the section `path`.
    fn section(&mut self, path: &str, node: &Node, groups: &[&[Key]]) {
        let Value::Mapping(entries) = &node.value else {
            let (title, found) = (self.titled(path), node.value.found());
            self.report.at(node.span, || {
                let keys = key_names(groups).join("`, `");
                (
                    format!("{title} must be a mapping of keys, found {found}"),
                    Some(format!("its keys are `{keys}`")),
                )
            });
            self.values.refused.insert(path.to_owned());
            return;
        };
        for entry in entries {
            match groups.iter().copied().flatten().find(|key| key.name == entry.key) {
                Some(key) => self.entry(path, key, entry),
                None if self.strictness == Strictness::Experiment || !path.is_empty() => {
                    self.unknown(path, entry, groups);
                }
                None => {}
            }
        }
        let required = if path == "model" { self.model_groups(node) } else { groups };
        for key in required.iter().copied().flatten() {
            self.absent(path, key, node);
        }
    }

    fn entry(&mut self, path: &str, key: &Key, entry: &Entry) {
        let path = join(path, key.name);
        let nothing = matches!(entry.value.value, Value::Nothing);
        if nothing && self.strictness == Strictness::Config {
            return;
        }
        match key.kind {
            _ if matches!(entry.value.value, Value::Wrong) => {
                self.values.refused.insert(path);
            }
            _ if nothing => self.valueless(path, key, entry),
            Kind::Section(groups) => {
                self.values.spans.insert(path.clone(), entry.key_span);
                self.section(&path, &entry.value, groups);
            }
            Kind::Each(keys) => {
                self.values.spans.insert(path.clone(), entry.key_span);
                self.each(&path, &entry.value, keys);
            }
            kind => match kind.read(&entry.value) {
                Ok(typed) => {
                    self.values.spans.insert(path.clone(), entry.value.span);
                    self.values.typed.insert(path, typed);
                }
                Err(mismatch) => {
                    let whole = || (entry.value.span, entry.value.value.found());
                    let (span, found) = mismatch.item.unwrap_or_else(whole);
                    self.report.at(span, || {
                        (
                            format!("`{path}` must be {}, found {found}", mismatch.wanted),
                            mismatch.hint,
                        )
                    });
                    self.values.refused.insert(path);
                }
            },
        }
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
    fn each(&mut self, path: &str, node: &Node, keys: &'static [Key]) {
        let Value::Mapping(entries) = &node.value else {
            return self.section(path, node, &[keys]);
        };
        for entry in entries {
            let below = join(path, &entry.key);
            self.values.spans.insert(below.clone(), entry.key_span);
            self.values.free.entry(path.to_owned()).or_default().push(entry.key.clone());
            self.section(&below, &entry.value, &[keys]);
        }
    }

    fn unknown(&mut self, path: &str, entry: &Entry, groups: &[&[Key]]) {
        let (names, keys) = (key_names(groups), self.keys);
        let meant = if self.report.is_full() { None } else { nearest(&entry.key, &names) };
        // A key that is there under a wrong name is not missing besides.
        self.values.refused.extend(meant.map(|name| join(path, name)));
        self.report.at(entry.key_span, || {
            let place = if path.is_empty() { String::new() } else { format!(" in `{path}`") };
            let guess = match (meant, home_of(keys, &entry.key)) {
                (Some(name), _) => format!("did you mean `{name}`? "),
                (None, Some(section)) => format!("`{}` is a key of `{section}`; ", entry.key),
                (None, None) => String::new(),
            };
            let hint = format!("{guess}the keys here are `{}`", names.join("`, `"));
            (format!("unknown key `{}`{place}", printable(&entry.key)), Some(hint))
        });
    }

    /// Fills in a default, or says that a key is missing.
    fn absent(&mut self, path: &str, key: &Key, section: &Node) {
        let below = join(path, key.name);
        let written = section.entry(key.name).is_some_and(|entry| {
            self.strictness == Strictness::Experiment
                || !matches!(entry.value.value, Value::Nothing)
        });
        if written || self.values.refused.contains(&below) {
            return;
        }
        match (key.default, key.kind) {
            (Absent::Is(text), kind) => {
                if let Some(typed) = kind.default(text) {
                    self.values.typed.insert(below, typed);
                }
            }
            // Sections that are left out have their keys' defaults; those that need some are not there.
            (Absent::Means(_), Kind::Section(groups)) if !needs(groups) => {
                let empty = Node { value: Value::Mapping(Vec::new()), span: section.span };
                self.section(&below, &empty, groups);
            }
            (Absent::Means(_), _) => {}
            (Absent::RequiredWithout(other), kind) if self.says(other) => {
                if let Kind::Section(groups) = kind {
                    let empty = Node { value: Value::Mapping(Vec::new()), span: section.span };
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

    /// Whether the file has a section of this name, in which something is written.
    fn says(&self, section: &str) -> bool {
        let entry = self.root.entry(section);
        entry.is_some_and(|entry| match &entry.value.value {
            Value::Mapping(entries) => !entries.is_empty(),
            Value::Nothing => false,
            _ => true,
        })
    }

    /// What a section is called.
    fn titled(&self, path: &str) -> String {
        if path.is_empty() { self.title.to_owned() } else { format!("`{}`", printable(path)) }
    }

    /// Which keys a `model:` section must have: a folder's, or a shape's.
    fn model_groups(&mut self, node: &Node) -> &'static [&'static [Key]] {
        let shape = SHAPE.iter().find_map(|key| node.entry(key.name));
        match (node.entry("path"), shape) {
            (Some(_), None) => {}
            (Some(_), Some(inline)) => self.report.at(inline.key_span, || {
                let message = format!("`model.{}` is given beside `model.path`", inline.key);
                (message, Some("the folder's config.json has it: drop one of them".to_owned()))
            }),
            (None, None) => {
                let at = self.values.spans.get("model").copied().unwrap_or(node.span);
                self.report.at(at, || {
                    let hint = "give `path`, a Hugging Face folder, or config.json's keys, \
                                from `hidden_size` on";
                    ("`model` says neither `path` nor a shape".to_owned(), Some(hint.to_owned()))
                });
                self.values.refused.insert(String::from("model.path"));
            }
            (None, Some(_)) => {
                self.weights_without_folder(node);
                return &[MODEL, SHAPE];
            }
        }
        &[MODEL]
    }

    fn weights_without_folder(&mut self, node: &Node) {
        if let Some(weights) = node.entry("weights")
            && !weights.value.value.is_word("random")
        {
            self.report.at(weights.key_span, || {
                let hint = "without a folder weights are random: drop the key, or give `path`";
                let message = "`model.weights` is given without `model.path`";
                (message.to_owned(), Some(hint.to_owned()))
            });
        }
    }
}

/// Whether a section of these keys must have one of them.
fn needs(groups: &[&[Key]]) -> bool {
    groups.iter().copied().flatten().any(|key| matches!(key.default, Absent::Required))
}

fn missing(path: &str, key: &Key, below: &str) -> (String, Option<String>) {
    let under = if path.is_empty() { String::new() } else { format!(" under `{path}:`") };
    let takes = match key.kind {
        Kind::Section(groups) => {
            format!("its keys are `{}`", key_names(&groups[..1]).join("`, `"))
        }
        kind => kind.wanted(),
    };
    (
        format!("`{below}` is missing"),
        Some(format!("add `{}:`{under}, {}: {takes}", key.name, key.about)),
    )
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn key_names(groups: &[&[Key]]) -> Vec<&'static str> {
    groups.iter().copied().flatten().map(|key| key.name).collect()
}

/// The section of a file that has a key of this name.
fn home_of(keys: &[Key], name: &str) -> Option<&'static str> {
    keys.iter().find_map(|section| match section.kind {
        Kind::Section(groups) => key_names(groups).contains(&name).then_some(section.name),
        _ => None,
    })
}
