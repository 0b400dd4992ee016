//! JSON as Python reads and writes it: the filter `tojson` as transformers has it, which is what models have read (`json.dumps`).

use std::io::{self, Write};

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::Value as Json;
use serde_json::ser::{Formatter, Serializer};

use super::python::float;

/// Refuses whole numbers of more than 64 bits in a text of JSON: Python has them, and they would be rounded here.
pub(super) fn exact(json: &str) -> Result<(), String> {
    let (mut is_text, mut is_escaped) = (false, false);
    let words = json.split(|letter: char| {
        let ends = is_text || !(letter.is_ascii_digit() || "+-.eE".contains(letter));
        is_text ^= letter == '"' && !is_escaped;
        is_escaped = letter == '\\' && !is_escaped;
        ends
    });
    let is_wide = |word: &&str| {
        let digits = word.strip_prefix('-').unwrap_or(word);
        let is_whole = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
        is_whole && word.parse::<i64>().is_err() && word.parse::<u64>().is_err()
    };
    match words.into_iter().find(is_wide) {
        Some(number) => Err(format!("the number {number} does not fit into 64 bits")),
        None => Ok(()),
    }
}

/// `value | tojson(indent=…, separators=…, sort_keys=…, ensure_ascii=…)`.
///
/// # Errors
/// Another option, and a value that JSON has no word for.
#[expect(clippy::needless_pass_by_value, reason = "the form of a filter")]
pub(super) fn to_json(value: Value, options: Kwargs) -> Result<String, Error> {
    let refused =
        |error: serde_json::Error| Error::new(ErrorKind::InvalidOperation, error.to_string());
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let sorted: Option<bool> = options.get("sort_keys")?;
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let between = if indent.is_some() { "," } else { ", " };
    let [item, key] = match separators.as_deref() {
        None => [between, ": "].map(str::to_owned),
        Some([item, key]) => [item, key].map(String::clone),
        Some(_) => {
            let message = "`separators` are two: between items, and behind a key";
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
    };
    let mut value = serde_json::to_value(&value).map_err(refused)?;
    if sorted == Some(true) {
        sort(&mut value);
    }
    let mut text = Vec::new();
    let python = Python { item, key, indent, ascii: ascii == Some(true), depth: 0, is_empty: true };
    value.serialize(&mut Serializer::with_formatter(&mut text, python)).map_err(refused)?;
    // What serde_json writes is UTF-8.
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn sort(value: &mut Json) {
    match value {
        Json::Array(items) => items.iter_mut().for_each(sort),
        Json::Object(fields) => {
            let mut pairs: Vec<_> = std::mem::take(fields).into_iter().collect();
            pairs.sort_by(|(one, _), (other, _)| one.cmp(other));
            for (_, value) in &mut pairs {
                sort(value);
            }
            fields.extend(pairs);
        }
        _ => {}
    }
}

/// How Python writes it.
struct Python {
    item: String,
    key: String,
    indent: Option<usize>,
    ascii: bool,
    depth: usize,
    is_empty: bool,
}

impl Python {
    fn begin<W: ?Sized + Write>(&mut self, to: &mut W, bracket: &[u8]) -> io::Result<()> {
        (self.depth, self.is_empty) = (self.depth + 1, true);
        to.write_all(bracket)
    }

    fn end<W: ?Sized + Write>(&mut self, to: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.is_empty {
            self.line(to)?;
        }
        self.is_empty = false;
        to.write_all(bracket)
    }

    fn next<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.is_empty = false;
        if !first {
            to.write_all(self.item.as_bytes())?;
        }
        self.line(to)
    }

    fn line<W: ?Sized + Write>(&self, to: &mut W) -> io::Result<()> {
        let Some(indent) = self.indent else { return Ok(()) };
        write!(to, "\n{:1$}", "", indent * self.depth)
    }
}

impl Formatter for Python {
    fn begin_array<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.begin(to, b"[")
    }
    fn end_array<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.end(to, b"]")
    }
    fn begin_array_value<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.next(to, first)
    }
    fn begin_object<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.begin(to, b"{")
    }
    fn end_object<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.end(to, b"}")
    }
    fn begin_object_key<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.next(to, first)
    }
    fn begin_object_value<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        to.write_all(self.key.as_bytes())
    }
    fn write_f64<W: ?Sized + Write>(&mut self, to: &mut W, value: f64) -> io::Result<()> {
        to.write_all(float(value).as_bytes())
    }
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        to: &mut W,
        text: &str,
    ) -> io::Result<()> {
        if !self.ascii {
            return to.write_all(text.as_bytes());
        }
        for unit in text.encode_utf16() {
            match u8::try_from(unit).ok().filter(|byte| (b' '..=b'~').contains(byte)) {
                Some(byte) => to.write_all(&[byte])?,
                None => write!(to, "\\u{unit:04x}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use minijinja::{Environment, context};
    use serde_json::json;

    use super::*;

    /// What `json.dumps` of Python 3.11 says.
    #[test]
    fn values_are_written_as_python_writes_them() {
        let mut environment = Environment::new();
        environment.add_filter("tojson", to_json);
        let value = json!({
            "b": 1, "a": "é\"\n\u{1f600}\u{7f}", "l": [1, 2.5, [], {}], "n": null, "t": true,
            "f": [1.0, 0.0001, 0.00001, 1e16, 123_456_789_012_345.0, -1.5e-7, 1e100]
        });
        for (options, wanted) in [
            (
                "",
                r#"{"b": 1, "a": "é\"\nEMOJIDEL", "l": [1, 2.5, [], {}], "n": null, "t": true, "f": [1.0, 0.0001, 1e-05, 1e+16, 123456789012345.0, -1.5e-07, 1e+100]}"#,
            ),
            (
                "separators=(',', ':'), sort_keys=true",
                r#"{"a":"é\"\nEMOJIDEL","b":1,"f":[1.0,0.0001,1e-05,1e+16,123456789012345.0,-1.5e-07,1e+100],"l":[1,2.5,[],{}],"n":null,"t":true}"#,
            ),
            (
                "ensure_ascii=true",
                r#"{"b": 1, "a": "\u00e9\"\n\ud83d\ude00\u007f", "l": [1, 2.5, [], {}], "n": null, "t": true, "f": [1.0, 0.0001, 1e-05, 1e+16, 123456789012345.0, -1.5e-07, 1e+100]}"#,
            ),
            (
                "indent=2",
                "{\n  \"b\": 1,\n  \"a\": \"é\\\"\\nEMOJIDEL\",\n  \"l\": [\n    1,\n    2.5,\n    [],\n    {}\n  ],\n  \"n\": null,\n  \"t\": true,\n  \"f\": [\n    1.0,\n    0.0001,\n    1e-05,\n    1e+16,\n    123456789012345.0,\n    -1.5e-07,\n    1e+100\n  ]\n}",
            ),
        ] {
            let wanted = wanted.replace("EMOJI", "\u{1f600}").replace("DEL", "\u{7f}");
            let template = format!("{{{{ value | tojson({options}) }}}}");
            let found = environment.render_str(&template, context! { value }).unwrap();
            assert_eq!(found, wanted, "{options}");
        }
        let other = environment.render_str("{{ 1 | tojson(cls=2) }}", ()).unwrap_err();
        assert!(other.to_string().contains("cls"), "{other}");
    }

    #[test]
    fn numbers_that_would_be_rounded_are_told_from_others() {
        let wide = "18446744073709551616";
        for json in [
            r#"{"a": [18446744073709551615, -9223372036854775808, 1e30, 123456789012345678901.5, true]}"#,
            &format!(r#"{{"{wide}": "\"{wide}\\", "b": 1}}"#),
        ] {
            assert_eq!(exact(json), Ok(()), "{json}");
        }
        for json in [wide.to_owned(), format!("-{wide}"), format!(r#"{{"\"": [1,{wide}]}}"#)] {
            assert!(exact(&json).unwrap_err().contains(wide), "{json}");
        }
    }
}
