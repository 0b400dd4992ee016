//! The JSON Schema of the experiment file, for editors: the table in another notation.

use serde_json::{Map, Value, json};

use crate::keys::{Absent, Interval, Key, Kind, OneOf};
use crate::values::Typed;

/// Digits with `_` between them, and what `k`, `M` and `G` make of them.
const COUNT: &str = "^[0-9][0-9_]*$";
const TOKENS: &str = "^[0-9][0-9_]*(\\.[0-9]+)? *[kKMmGg]?$";
const BYTES: &str = "^[0-9][0-9_]*(\\.[0-9]+)? *([kKMmGgTt]([iI]?[bB])?|[bB])?$";
const RANGE: &str = "^[0-9][0-9_]*(-[0-9][0-9_]*)?$";
/// Readers of YAML 1.1 take `3e-4` for text.
const REAL: &str = "^[-+]?[0-9_]*\\.?[0-9_]*([eE][-+]?[0-9]+)?$";
const SECONDS: &str = "^[0-9][0-9_.]* *(ns|us|ms|s|m|min|h|d)?$";

/// The JSON Schema of a file of these keys.
pub fn schema(title: &str, keys: &[&[Key]]) -> Value {
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
    });
    merge(&mut schema, section(keys));
    schema
}

fn section(groups: &[&[Key]]) -> Value {
    let keys = || groups.iter().copied().flatten();
    let properties: Map<String, Value> =
        keys().map(|key| (key.name.to_owned(), property(key))).collect();
    let mut section = json!({ "type": "object", "additionalProperties": false });
    if !required(groups).is_empty() {
        section["required"] = json!(required(groups));
    }
    section["properties"] = Value::Object(properties);
    section
}

fn one_of(one: &OneOf) -> Value {
    let Value::Object(mut both) = section(&one.groups()) else { return Value::Null };
    both.remove("required");
    let properties = both.remove("properties");
    let other = json!({ "required": required(one.instead) });
    both.insert("oneOf".into(), json!([{ "required": [one.keys[0].name] }, other]));
    both.insert("properties".into(), properties.unwrap_or_default());
    Value::Object(both)
}

fn required(groups: &[&[Key]]) -> Vec<&'static str> {
    let keys = groups.iter().copied().flatten();
    keys.filter(|key| matches!(key.default, Absent::Required)).map(|key| key.name).collect()
}

fn property(key: &Key) -> Value {
    let description = match key.default {
        Absent::Means(meaning) => format!("{} (default: {meaning})", key.about),
        Absent::RequiredWithout(other) => format!("{} (required without `{other}`)", key.about),
        Absent::Is(_) | Absent::Required => key.about.to_owned(),
    };
    let mut property = json!({ "description": description });
    if let Absent::Is(text) = key.default {
        property["default"] = default(key.kind, text);
    }
    merge(&mut property, kind(key.kind));
    property
}

fn default(kind: Kind, text: &str) -> Value {
    match kind.default(text) {
        Some(Typed::Count(count)) => json!(count),
        Some(Typed::Real(real)) => json!(real),
        Some(Typed::Truth(truth)) => json!(truth),
        Some(Typed::Pair(first, second)) => json!([first, second]),
        Some(Typed::Counts(counts)) => json!(counts),
        Some(Typed::Reals(reals)) => json!(reals),
        Some(Typed::Words(words)) => json!(words),
        _ => json!(text),
    }
}

fn kind(kind: Kind) -> Value {
    let text = |pattern: &str| json!({ "type": "string", "pattern": pattern });
    let whole = |least: u64, most: u64, pattern: &str| {
        let number = json!({ "type": "integer", "minimum": least, "maximum": most });
        json!({ "anyOf": [number, text(pattern)] })
    };
    match kind {
        Kind::Text | Kind::Path => json!({ "type": "string", "minLength": 1 }),
        Kind::Form(form) => text(form.pattern),
        Kind::Word(words) | Kind::WordOr(words, _) => json!({ "enum": words }),
        Kind::Truth => json!({ "type": "boolean" }),
        Kind::Count(least, most) => whole(least, most, COUNT),
        Kind::Tokens(least, most) => whole(least, most, TOKENS),
        Kind::Bytes(least) => {
            let number = json!({ "type": "integer", "minimum": least });
            json!({ "anyOf": [number, text(BYTES)] })
        }
        Kind::Real(interval) => json!({ "anyOf": [number(interval), text(REAL)] }),
        Kind::Pair(interval) => {
            let item = json!({ "anyOf": [number(interval), text(REAL)] });
            json!({ "type": "array", "items": item, "minItems": 2, "maxItems": 2 })
        }
        Kind::Reals(interval) => list(&self::kind(Kind::Real(interval))),
        Kind::Words(words) => list(&json!({ "enum": words })),
        Kind::Counts(least, most) => list(&whole(least, most, COUNT)),
        Kind::Sizes(most) => list(&whole(1, most, TOKENS)),
        Kind::CountOr(least, most, [word]) => or_word(&self::kind(Kind::Count(least, most)), word),
        Kind::SizesOr(most, [word]) => or_word(&self::kind(Kind::Sizes(most)), word),
        Kind::Ranges(most) => list(&whole(0, most, RANGE)),
        Kind::Seconds => json!({ "anyOf": [number(Interval::AboveZero), text(SECONDS)] }),
        Kind::Quantity(_) => json!({ "type": ["number", "string"] }),
        Kind::Section(groups) => section(groups),
        Kind::OneOf(one) => one_of(one),
        Kind::Each(groups) => each(&section(groups)),
        Kind::Listed(groups) => listed(groups),
        Kind::Lists => lists(),
        Kind::Rows => rows(),
    }
}

/// A mapping of any names to what `section` describes.
fn each(section: &Value) -> Value {
    json!({ "type": "object", "additionalProperties": section })
}

/// Lists of values for other keys.
fn lists() -> Value {
    let values = json!({ "type": "array", "minItems": 1 });
    json!({ "type": "object", "minProperties": 1, "additionalProperties": values })
}

/// Rows of values for other keys.
fn rows() -> Value {
    let row = json!({ "type": "object", "minProperties": 1 });
    json!({ "type": "array", "minItems": 1, "items": row })
}

fn or_word(values: &Value, word: &str) -> Value {
    json!({ "anyOf": [values, { "const": word }] })
}

/// An item in short or in full, or a list of such.
fn listed(groups: &[&[Key]]) -> Value {
    let first = groups.iter().copied().flatten().next().map(|key| kind(key.kind));
    let (short, full) = (first.unwrap_or_default(), section(groups));
    let items = json!({ "anyOf": [short, full] });
    json!({ "anyOf": [short, full, { "type": "array", "minItems": 1, "items": items }] })
}

fn list(item: &Value) -> Value {
    json!({ "type": "array", "items": item })
}

fn number(interval: Interval) -> Value {
    match interval {
        Interval::Any => json!({ "type": "number" }),
        Interval::AboveZero => json!({ "type": "number", "exclusiveMinimum": 0 }),
        Interval::AtLeastZero => json!({ "type": "number", "minimum": 0 }),
        Interval::ZeroToOne => json!({ "type": "number", "minimum": 0, "maximum": 1 }),
        Interval::ZeroToBelowOne => {
            json!({ "type": "number", "minimum": 0, "exclusiveMaximum": 1 })
        }
    }
}

/// Adds the entries of `more` to `object`.
fn merge(object: &mut Value, more: Value) {
    if let (Value::Object(object), Value::Object(more)) = (object, more) {
        object.extend(more);
    }
}
