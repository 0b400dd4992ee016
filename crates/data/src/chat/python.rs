//! Values as Python's `str` and `repr` write them, which is what transformers puts into a text: `['a']`, `{'a': True}`, `1e+16`. The
//! library knows no tuples: these are lists.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use minijinja::value::{DynObject, Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, Value, escape_formatter};
use serde_json::Value as Json;

/// Lists in lists that are written; JSON has 128 at most.
const DEEPEST: usize = 200;

/// What a template is given: as the library has it, but written as Python writes it, also where `~` joins it to a text.
pub(super) fn given(json: &Json) -> Value {
    match json {
        Json::Array(items) => list(items),
        Json::Object(fields) => {
            shown(fields.iter().map(|(key, value)| (key.as_str(), given(value))).collect())
        }
        other => Value::from_serialize(other),
    }
}

/// A list of such.
pub(super) fn list(items: &[Json]) -> Value {
    shown(items.iter().map(given).collect())
}

/// A list or a mapping that is written as Python writes it.
fn shown(plain: Value) -> Value {
    match plain.as_object() {
        Some(object) => Value::from_object(Shown(object.clone())),
        None => plain,
    }
}

/// `{{ value }}`.
pub(super) fn write(out: &mut Output, state: &State, value: &Value) -> Result<(), Error> {
    if is_plain(value) {
        return escape_formatter(out, state, value);
    }
    Ok(write!(out, "{}", text(state, value)?)?)
}

/// The filter `string`.
pub(super) fn text(state: &State, value: &Value) -> Result<String, Error> {
    if value.is_undefined() {
        return state.format(value.clone());
    }
    let mut out = String::new();
    let written = if is_plain(value) {
        fmt::write(&mut out, format_args!("{value}"))
    } else {
        fmt::write(&mut out, format_args!("{}", Repr(value, 0)))
    };
    let message = format!("lists nest deeper than {DEEPEST}");
    written.map_err(|_| Error::new(ErrorKind::InvalidOperation, message))?;
    Ok(out)
}

/// Whether the library writes it as Python does.
fn is_plain(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => false,
        ValueKind::Number => value.is_integer(),
        _ => true,
    }
}

/// The same shortest digits as Rust writes; a power of ten of another form, and from other sizes on.
pub(super) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value < 0.0 { "-inf" } else { "inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, power) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match power.parse::<i32>().unwrap_or_default() {
        -4..16 if value.fract() == 0.0 => format!("{value}.0"),
        -4..16 => value.to_string(),
        power => format!("{digits}e{}{:02}", if power < 0 { '-' } else { '+' }, power.abs()),
    }
}

/// A value in a list, within so many others.
struct Repr<'a>(&'a Value, usize);

impl Display for Repr<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Repr(value, depth) = *self;
        match (value.kind(), value.as_str()) {
            (_, Some(text)) => quoted(text, f),
            (ValueKind::Number, _) if !value.is_integer() => match f64::try_from(value.clone()) {
                Ok(value) => f.write_str(&float(value)),
                Err(_) => Display::fmt(value, f),
            },
            (ValueKind::Seq | ValueKind::Iterable | ValueKind::Map, _) => {
                inside(value, depth + 1, f)
            }
            _ => Display::fmt(value, f),
        }
    }
}

/// A list or a mapping, the `depth`-th around each other.
fn inside(value: &Value, depth: usize, f: &mut Formatter<'_>) -> fmt::Result {
    if depth > DEEPEST {
        return Err(fmt::Error);
    }
    let is_map = value.kind() == ValueKind::Map;
    f.write_str(if is_map { "{" } else { "[" })?;
    for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
        f.write_str(if index == 0 { "" } else { ", " })?;
        Repr(&item, depth).fmt(f)?;
        if is_map {
            f.write_str(": ")?;
            Repr(&value.get_item(&item).unwrap_or_default(), depth).fmt(f)?;
        }
    }
    f.write_str(if is_map { "}" } else { "]" })
}

/// A text in quotes: in double ones where it has single ones alone.
fn quoted(text: &str, f: &mut Formatter<'_>) -> fmt::Result {
    use fmt::Write as _;
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    f.write_char(quote)?;
    for letter in text.chars() {
        match letter {
            '\n' => f.write_str("\\n")?,
            '\r' => f.write_str("\\r")?,
            '\t' => f.write_str("\\t")?,
            '\\' => f.write_str("\\\\")?,
            letter if letter == quote => write!(f, "\\{letter}")?,
            letter if is_printable(letter) => f.write_char(letter)?,
            letter => match u32::from(letter) {
                code @ ..0x100 => write!(f, "\\x{code:02x}")?,
                code @ ..0x10000 => write!(f, "\\u{code:04x}")?,
                code => write!(f, "\\U{code:08x}")?,
            },
        }
    }
    f.write_char(quote)
}

/// As Python and Rust's `Debug` have it: neither a control character nor a space of a width of its own.
fn is_printable(letter: char) -> bool {
    if letter.is_ascii() {
        return !letter.is_ascii_control();
    }
    // Behind a letter, since `Debug` does not want to see an accent alone.
    ['a', letter].iter().collect::<String>().escape_debug().count() == 2
}

/// A list or a mapping of the library's, written as Python writes it.
#[derive(Debug)]
struct Shown(DynObject);

impl Object for Shown {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        self.0.repr()
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get_value(key)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.0.get_value_by_str(key)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.0.enumerate()
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.0.enumerator_len()
    }

    fn render(self: &Arc<Self>, f: &mut Formatter<'_>) -> fmt::Result {
        inside(&Value::from_dyn_object(self.0.clone()), 1, f)
    }
}

#[cfg(test)]
mod tests {
    use minijinja::{Environment, context};
    use serde_json::json;

    use super::*;

    /// What `str` of Python 3.11 says.
    #[test]
    fn values_are_written_as_python_writes_them() {
        let mut environment = Environment::new();
        environment.set_formatter(write);
        environment.add_filter("string", text);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        let value = json!({
            "a": true, "b": null, "c": 1.0, "d": "x'y", "e": [1, "z\n\u{7f}\u{a0}é\u{301}\u{1f600}\u{e000}"], "f": {},
            "g": 1e16, "h": 1e-5, "i": "both ' and \"", "j": u64::MAX, "k": "a\\b",
        });
        let wanted = "{'a': True, 'b': None, 'c': 1.0, 'd': \"x'y\", 'e': [1, 'z\\n\\x7f\\xa0é\u{301}\u{1f600}\\ue000'], 'f': {}, \
                      'g': 1e+16, 'h': 1e-05, 'i': 'both \\' and \"', 'j': 18446744073709551615, 'k': 'a\\\\b'}";
        let value = given(&value);
        for (template, wanted) in [
            ("{{ value }}", wanted),
            ("{{ value | string }}", wanted),
            ("{{ value ~ '' }}", wanted),
            ("{{ value.e[:1] }}{{ value.g }}{{ value.g | string }}", "[1]1e+161e+16"),
            ("{{ ['a', true] }}{{ value.d }}{{ value.d | string }}", "['a', True]x'yx'y"),
            ("{{ value.f }}{{ value.b }}{{ value.nothing }}{{ 1e-5 }}", "{}None1e-05"),
            (
                "{{ value.keys() | list }}",
                "['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k']",
            ),
            (
                "{{ value.e is sequence }}{{ value is mapping }}{{ value.e + [2] == value.e }}",
                "TrueTrueFalse",
            ),
            ("{{ value.e | length }}{{ value.get('x', 7) }}{{ 'a' in value }}", "27True"),
        ] {
            let found = environment.render_str(template, context! { value }).unwrap();
            assert_eq!(found, wanted, "{template}");
        }
        let deep = "{% set n = namespace(x=[]) %}{% for i in range(999) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x }}";
        let error = environment.render_str(deep, ()).unwrap_err();
        assert!(error.to_string().contains("nest deeper than 200"), "{error}");
    }
}
