//! YAML (and with it JSON) as a tree whose every key and value knows where it was written.
//!
//! Anchors, aliases and tags are refused: an experiment is plain data, and a file without aliases
//! cannot explode.

use std::collections::BTreeMap;

use granit_parser::{ErrorKind, Event, Options, Parser, ScalarStyle, ScanError};

use crate::problem::Report;
use crate::source::{Span, printable};

/// A value and where it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Its place in a source.
    pub span: Span,
}

/// A value of any kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing was written, or `null`.
    Nothing,
    /// A mistake that is reported already.
    Wrong,
    /// Text between its quotes, or as it stands; what type it is, the key decides.
    Scalar {
        /// Without quotes.
        text: String,
        /// True where it was written in quotes.
        quoted: bool,
    },
    /// A list.
    Sequence(Vec<Node>),
    /// Keys and values in order.
    Mapping(Vec<Entry>),
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The place of the key.
    pub key_span: Span,
    /// The value of the key.
    pub value: Node,
}

impl Value {
    /// True for this word, with quotes or without.
    pub fn is_word(&self, word: &str) -> bool {
        matches!(self, Value::Scalar { text, .. } if text == word)
    }

    /// The value as a message shows it.
    pub fn found(&self) -> String {
        match self {
            Value::Nothing | Value::Wrong => String::from("nothing"),
            Value::Scalar { text, quoted: true } => format!("`\"{}\"`", printable(text)),
            Value::Scalar { text, quoted: false } => format!("`{}`", printable(text)),
            Value::Sequence(items) => format!("a list of {}", items.len()),
            Value::Mapping(_) => String::from("a mapping"),
        }
    }
}

impl Node {
    /// An empty mapping at the start of a source: a file in which nothing is written.
    pub(crate) fn empty(source: usize) -> Node {
        Node { value: Value::Mapping(Vec::new()), span: Span { source, start: 0, end: 0 } }
    }

    /// The entry of `key`, if this is a mapping that has it.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.value {
            Value::Mapping(entries) => entries.iter().find(|entry| entry.key == key),
            _ => None,
        }
    }

    /// The value at a dotted path below this node.
    pub fn find(&self, path: &str) -> Option<&Node> {
        path.split('.').try_fold(self, |node, key| Some(&node.entry(key)?.value))
    }

    /// Takes the key at `path` below this node out, with its value; false where there is none.
    pub(crate) fn remove(&mut self, path: &[&str]) -> bool {
        let (Some((&key, rest)), Value::Mapping(entries)) = (path.split_first(), &mut self.value)
        else {
            return false;
        };
        match entries.iter().position(|entry| entry.key == key) {
            Some(index) if rest.is_empty() => {
                entries.remove(index);
                true
            }
            Some(index) => entries[index].value.remove(rest),
            None => false,
        }
    }

    /// Puts `value` at `path` below this node, in place of another value.
    pub(crate) fn set(&mut self, path: &[&str], key_span: Span, value: Node) {
        let Some((&key, rest)) = path.split_first() else {
            *self = value;
            return;
        };
        if !matches!(self.value, Value::Mapping(_)) {
            *self = Node { value: Value::Mapping(Vec::new()), span: key_span };
        }
        if let Value::Mapping(entries) = &mut self.value {
            let index = entries.iter().position(|entry| entry.key == key).unwrap_or_else(|| {
                let value = Node { value: Value::Mapping(Vec::new()), span: key_span };
                entries.push(Entry { key: key.to_owned(), key_span, value });
                entries.len() - 1
            });
            if rest.is_empty() {
                entries[index].key_span = key_span;
            }
            entries[index].value.set(rest, key_span, value);
        }
    }
}

/// Values in one file; an experiment has some fifty.
const MOST_NODES: usize = 50_000;

/// Reads the source `source` of `report` from byte `from` on; mistakes go to `report`, and none
/// there means a tree.
pub(crate) fn read(report: &mut Report, source: usize, from: usize) -> Option<Node> {
    let text = report.sources.get(source)?.text().to_owned();
    // A mark of the byte order is not content; the parser knows it at the start of a text only.
    let from = from + if text[from..].starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    let mut options = Options::default();
    options.set_emit_comments(false);
    options.emit_unresolved_aliases = true;
    let parser = Parser::new_from_str_with_options(&text[from..], options);
    let mut reader = Reader { parser, report, source, from, nodes: 0 };
    reader.document().unwrap_or_else(|stop| {
        reader.explain(stop);
        None
    })
}

/// Where the first comment of a text begins, in bytes, as far as the text is YAML.
pub(crate) fn comment(text: &str) -> Option<usize> {
    let mut options = Options::default();
    options.set_emit_comments(true);
    options.emit_unresolved_aliases = true;
    let mut parser = Parser::new_from_str_with_options(text, options);
    while let Some(Ok((event, span))) = parser.next_event() {
        if let Event::Comment(..) = event {
            return Some(span.byte_range()?.start);
        }
    }
    None
}

struct Reader<'text, 'report> {
    parser: Parser<'text, granit_parser::StrInput<'text>>,
    report: &'report mut Report,
    source: usize,
    from: usize,
    nodes: usize,
}

/// Why reading ended early.
enum Stop {
    Invalid(ScanError),
    TooMany(Span),
}

impl<'text> Reader<'text, '_> {
    fn next(&mut self) -> Result<(Event<'text>, Span), Stop> {
        let (event, span) = match self.parser.next_event() {
            Some(Ok(next)) => next,
            Some(Err(error)) => return Err(Stop::Invalid(error)),
            None => (Event::StreamEnd, granit_parser::Span::default()),
        };
        let bytes = span.byte_range().unwrap_or_default();
        let (start, end) = (self.from + bytes.start, self.from + bytes.end);
        Ok((event, Span { source: self.source, start, end }))
    }

    fn document(&mut self) -> Result<Option<Node>, Stop> {
        let mut root = None;
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(root),
                (Event::DocumentStart(..), span) if root.is_some() => {
                    self.report.at(span, || {
                        let hint = "keep one experiment per file".into();
                        ("a second document starts here".into(), Some(hint))
                    });
                    return Ok(None);
                }
                (Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd, _) => {}
                (event, span) => root = Some(self.node(event, span)?),
            }
        }
    }

    fn node(&mut self, event: Event<'text>, span: Span) -> Result<Node, Stop> {
        self.nodes += 1;
        if self.nodes > MOST_NODES {
            return Err(Stop::TooMany(span));
        }
        self.refuse_extras(&event, span);
        let mut span = span;
        let value = match event {
            Event::Scalar(text, style, ..) => scalar(&text, style),
            Event::SequenceStart(..) => {
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, last) => {
                            span.end = last.end;
                            break Value::Sequence(items);
                        }
                        (event, span) => items.push(self.node(event, span)?),
                    }
                }
            }
            Event::MappingStart(..) => {
                let (entries, end) = self.entries()?;
                span.end = end;
                Value::Mapping(entries)
            }
            _ => Value::Wrong,
        };
        Ok(Node { value, span })
    }

    /// The entries of a mapping, and where it ends. A key's second value is reported and dropped.
    fn entries(&mut self) -> Result<(Vec<Entry>, usize), Stop> {
        let mut entries = Vec::new();
        let mut first_at: BTreeMap<String, Span> = BTreeMap::new();
        loop {
            let (event, key_span) = self.next()?;
            if let Event::MappingEnd = event {
                return Ok((entries, key_span.end));
            }
            let key = self.node(event, key_span)?;
            let (event, span) = self.next()?;
            let value = self.node(event, span)?;
            let Value::Scalar { text: key, .. } = key.value else {
                let found = key.value.found();
                self.report.at(key_span, || (format!("a key must be a word, found {found}"), None));
                continue;
            };
            if let Some(first) = first_at.get(&key).copied() {
                let line = self.report.sources[self.source].line_of(first.start);
                self.report.at(key_span, || {
                    let message = format!("`{}` is given twice", printable(&key));
                    (message, Some(format!("it is first given on line {line}: keep one")))
                });
                continue;
            }
            first_at.insert(key.clone(), key_span);
            entries.push(Entry { key, key_span, value });
        }
    }

    /// Anchors, aliases and tags.
    fn refuse_extras(&mut self, event: &Event<'_>, span: Span) {
        let extra = match event {
            Event::Alias(_) | Event::UnresolvedAlias(_) => "an alias (`*name`)",
            Event::Scalar(_, _, anchor, _)
            | Event::SequenceStart(_, anchor, _)
            | Event::MappingStart(_, anchor, _)
                if *anchor > 0 =>
            {
                "an anchor (`&name`)"
            }
            Event::Scalar(.., Some(_))
            | Event::SequenceStart(.., Some(_))
            | Event::MappingStart(.., Some(_)) => "a tag (`!name`)",
            _ => return,
        };
        let starred = matches!(event, Event::Alias(_) | Event::UnresolvedAlias(_));
        let hint = if starred {
            "write the value itself; a path that begins with `*` stands in quotes: `\"*.txt\"`"
        } else {
            "write the value itself, wherever it is needed"
        };
        self.report.at(span, || (format!("{extra} is not supported"), Some(hint.to_owned())));
    }

    fn explain(&mut self, stop: Stop) {
        let is_json = self.report.sources[self.source].is_json();
        match stop {
            Stop::TooMany(span) => self.report.at(span, || {
                let what = if is_json { "a configuration" } else { "an experiment" };
                (format!("more than {MOST_NODES} values: this is not {what}"), None)
            }),
            Stop::Invalid(error) => {
                let start = self.from + error.marker().byte_offset().unwrap_or_default();
                let span = Span { source: self.source, start, end: start };
                let (message, hint) = match error.kind() {
                    ErrorKind::RecursionLimitExceeded => (
                        "lists and keys are nested too deep".to_owned(),
                        "no key takes more than a few levels: remove what lies deeper",
                    ),
                    kind if is_json => (
                        format!("JSON that cannot be read: {kind}"),
                        "write it as `json.dump` of Python does, or fetch the file again",
                    ),
                    kind => (format!("invalid YAML: {kind}"), self.hint_at(start)),
                };
                self.report.at(span, || (message, Some(hint.to_owned())));
            }
        }
    }

    /// The way out of what is no YAML from byte `start` on.
    fn hint_at(&self, start: usize) -> &'static str {
        let text = self.report.sources[self.source].text();
        let line = text.get(..=start).and_then(|before| before.rsplit('\n').next());
        let tab = line.is_some_and(|line| line.contains('\t'));
        let sign = text.get(start..).is_some_and(|after| after.starts_with(['@', '`', '%']));
        match (tab, sign) {
            (true, _) => "indent with spaces: YAML allows no tabs here",
            (_, true) => "a text that begins with such a sign stands in quotes",
            _ => "keys of a section are indented alike, by spaces, and a space follows each `:`",
        }
    }
}

/// The words that YAML reads as nothing.
fn scalar(text: &str, style: ScalarStyle) -> Value {
    let quoted = style != ScalarStyle::Plain;
    match text {
        "" | "~" | "null" | "Null" | "NULL" if !quoted => Value::Nothing,
        _ => Value::Scalar { text: text.to_owned(), quoted },
    }
}
