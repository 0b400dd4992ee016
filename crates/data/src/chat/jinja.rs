//! Filters, tests and methods that say something else in the library than in Jinja and Python, as templates were written for them.

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::python::text;

/// More places behind the point than any number has.
const PLACES: i32 = 330;

/// Where Python ends a line, besides `\r\n`.
const BREAKS: [char; 10] =
    ['\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}'];

/// Has templates of `environment` see them as Jinja and Python have them.
pub(super) fn set(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(method);
    environment.add_test("sequence", is_sequence);
    environment.add_test("number", is_number);
    environment.add_test("lower", is_lower);
    environment.add_test("upper", is_upper);
    environment.add_filter("title", title);
    environment.add_filter("round", round);
    environment.add_filter("trim", trim);
    environment.add_filter("escape", escape);
    environment.add_filter("e", escape);
}

/// What has a length and items.
fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined
    )
}

/// A number, or true or false, which are numbers of Python's.
fn is_number(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
}

fn is_lower(value: &str) -> bool {
    is_cased(value, char::is_lowercase)
}

fn is_upper(value: &str) -> bool {
    is_cased(value, char::is_uppercase)
}

/// As `str.isspace` has it of a letter.
fn is_space(letter: char) -> bool {
    letter.is_whitespace() || matches!(letter, '\u{1c}'..='\u{1f}')
}

/// Whether letters are of the case that `is` tells, some at least, and none of the other.
fn is_cased(value: &str, is: fn(char) -> bool) -> bool {
    let is_other = |letter: char| (letter.is_lowercase() || letter.is_uppercase()) && !is(letter);
    value.chars().any(is) && !value.chars().any(is_other)
}

/// The filter `title`: words begin behind spaces, hyphens and opening brackets.
fn title(state: &State, value: &Value) -> Result<String, Error> {
    let begins = |letter: char| is_space(letter) || "-({[<".contains(letter);
    Ok(text(state, value)?.split_inclusive(begins).map(capitalized).collect())
}

/// The first letter in upper case, the others in lower.
fn capitalized(word: &str) -> String {
    let mut letters = word.chars();
    let first: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
    first + &letters.as_str().to_lowercase()
}

/// The method `title`: words begin behind everything that is no letter.
fn titled(value: &str) -> String {
    let mut is_within = false;
    let mut out = String::with_capacity(value.len());
    for letter in value.chars() {
        let is_letter = letter.is_lowercase() || letter.is_uppercase();
        if is_within {
            out.extend(letter.to_lowercase());
        } else {
            out.extend(letter.to_uppercase());
        }
        is_within = is_letter;
    }
    out
}

/// `value` without `letters` (`None`: white space) at its sides: begin, end.
fn strip<'v>(value: &'v str, letters: Option<&str>, [begin, end]: [bool; 2]) -> &'v str {
    let is = |letter: char| letters.map_or(is_space(letter), |letters| letters.contains(letter));
    let value = if begin { value.trim_start_matches(is) } else { value };
    if end { value.trim_end_matches(is) } else { value }
}

/// The filter `trim`.
fn trim(state: &State, value: &Value, letters: Option<&str>) -> Result<String, Error> {
    Ok(strip(&text(state, value)?, letters, [true, true]).to_owned())
}

/// The filter `round`: to the nearest, of two as near to the even one.
#[expect(clippy::needless_pass_by_value, reason = "a filter is given its arguments by value")]
fn round(
    value: Value,
    places: Option<i32>,
    how: Option<String>,
    named: Kwargs,
) -> Result<Value, Error> {
    let places = places.or(named.get("precision")?).unwrap_or(0).clamp(-PLACES, PLACES);
    let how = how.or(named.get("method")?);
    named.assert_all_used()?;
    let refused = |message: String| Err(Error::new(ErrorKind::InvalidOperation, message));
    let value = match value.kind() {
        ValueKind::Bool => Value::from(i64::from(value.is_true())),
        _ => value,
    };
    let is_whole = value.is_integer();
    if !is_number(&value) {
        return refused(format!("cannot round value ({})", value.kind()));
    }
    if is_whole && places >= 0 && how.as_deref().is_none_or(|how| how == "common") {
        return Ok(value);
    }
    let number = f64::try_from(value)?;
    let scale = 10_f64.powi(places);
    Ok(match how.as_deref() {
        None | Some("common") if places < 0 => {
            // A power of ten is exact, its inverse is not.
            let unit = 10_f64.powi(-places);
            let rounded = (number / unit).round_ties_even() * unit;
            if is_whole { Value::from(rounded as i64) } else { Value::from(rounded) }
        }
        // Of the exact value, as Python does: a product would be rounded once more.
        None | Some("common") => {
            let written = format!("{:.*}", places as usize, number);
            Value::from(written.parse().unwrap_or(number))
        }
        Some("ceil") => Value::from((number * scale).ceil() / scale),
        Some("floor") => Value::from((number * scale).floor() / scale),
        Some(_) => return refused("method must be common, ceil or floor".to_owned()),
    })
}

/// The filter `escape`.
fn escape(state: &State, value: &Value) -> Result<Value, Error> {
    if value.is_safe() {
        return Ok(value.clone());
    }
    let mut out = String::new();
    for letter in text(state, value)?.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            letter => out.push(letter),
        }
    }
    Ok(Value::from_safe_string(out))
}

/// A method that the library lacks: those of texts as Python has them, and others as `pycompat` does.
fn method(state: &State, value: &Value, name: &str, given: &[Value]) -> Result<Value, Error> {
    let own = value.as_str().map(|value| of_text(value, name, given));
    match own.transpose()?.flatten() {
        Some(said) => Ok(said),
        None => unknown_method_callback(state, value, name, given),
    }
}

/// What a text's method gives; `None`: it is as `pycompat` has it.
fn of_text(value: &str, name: &str, given: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "strip" | "lstrip" | "rstrip" => {
            let (letters,): (Option<&str>,) = from_args(given)?;
            Value::from(strip(value, letters, [name != "rstrip", name != "lstrip"]))
        }
        "split" if given.first().is_none_or(Value::is_none) => {
            let (_, most): (Option<&str>, Option<i64>) = from_args(given)?;
            // A negative number is no limit.
            let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
            words(value, most).into_iter().map(Value::from).collect()
        }
        "splitlines" => {
            let (keeps,): (Option<bool>,) = from_args(given)?;
            lines(value, keeps == Some(true)).into_iter().map(Value::from).collect()
        }
        "title" => {
            let () = from_args(given)?;
            Value::from(titled(value))
        }
        "islower" | "isupper" => {
            let () = from_args(given)?;
            Value::from(if name == "islower" { is_lower(value) } else { is_upper(value) })
        }
        "isspace" => {
            let () = from_args(given)?;
            Value::from(!value.is_empty() && value.chars().all(is_space))
        }
        "isalnum" | "isalpha" | "isdigit" | "isnumeric" if value.is_empty() => Value::from(false),
        "find" | "rfind" => {
            let (what,): (&str,) = from_args(given)?;
            let place = if name == "find" { value.find(what) } else { value.rfind(what) };
            Value::from(place.map_or(-1, |place| value[..place].chars().count() as i64))
        }
        "count" if given.first().and_then(Value::as_str) == Some("") => {
            Value::from(value.chars().count() + 1)
        }
        _ => return Ok(None),
    }))
}

/// What stands between white space, cut `most` times at most: the rest comes last, as it is.
fn words(value: &str, most: usize) -> Vec<&str> {
    let (mut found, mut rest) = (Vec::new(), value.trim_start_matches(is_space));
    while !rest.is_empty() {
        let end = if found.len() < most { rest.find(is_space) } else { None };
        let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
        found.push(word);
        rest = after.trim_start_matches(is_space);
    }
    found
}

/// The lines of a text, with what ends them if it `keeps` it.
fn lines(value: &str, keeps: bool) -> Vec<&str> {
    let (mut found, mut rest) = (Vec::new(), value);
    while !rest.is_empty() {
        let end = rest.find(BREAKS).unwrap_or(rest.len());
        let is_pair = rest[end..].starts_with("\r\n");
        let next = rest[end..].chars().next().map_or(0, char::len_utf8) + usize::from(is_pair);
        let (line, after) = rest.split_at(end + next);
        found.push(if keeps { line } else { &line[..end] });
        rest = after;
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::chat::template::environment;

    /// Checks what templates say against Jinja 3.1, as transformers sets it.
    #[track_caller]
    fn check(cases: &[(&str, &str)]) {
        for (template, wanted) in cases {
            let found = environment().render_str(template, ()).unwrap();
            assert_eq!(found, *wanted, "{template}");
        }
    }

    #[test]
    fn tests_and_filters_are_those_of_jinja() {
        check(&[
            (
                "{{ 'a' is sequence }}{{ {} is sequence }}{{ [] is sequence }}{{ 1 is sequence }}{{ none is sequence }}{{ nothing is sequence }}",
                "TrueTrueTrueFalseFalseTrue",
            ),
            (
                "{{ true is number }}{{ 1.5 is number }}{{ 'a' is number }}{{ none is number }}",
                "TrueTrueFalseFalse",
            ),
            (
                "{{ \"it's o'neil-smith (a) [b] {c} <d> a/b a.b éa\" | title }}",
                "It's O'neil-Smith (A) [B] {C} <D> A/b A.b Éa",
            ),
            ("{{ \"they're a1b\".title() }}", "They'Re A1B"),
            (
                "{{ 2.5 | round }} {{ 3.5 | round }} {{ -0.5 | round }} {{ 2.675 | round(2) }} {{ 0.125 | round(2) }} {{ 7 | round }} {{ 7 | round(1) }} {{ 1250.0 | round(-2) }} {{ 1350 | round(-2) }} {{ 123456 | round(-5) }} {{ 123456.0 | round(-5) }} {{ true | round }}",
                "2.0 4.0 -0.0 2.67 0.12 7 7 1200.0 1400 100000 100000.0 1",
            ),
            (
                "{{ 2.1 | round(method='ceil') }} {{ 2.19 | round(1, 'floor') }} {{ 7 | round(0, 'ceil') }} {{ 1e300 | round(5) }}",
                "3.0 2.1 7.0 1e+300",
            ),
            (
                "{{ '\u{1c} a \u{85}\u{1f}' | trim }}|{{ 'xax' | trim('x') }}|{{ 5 | trim }}|{{ nothing | trim }}",
                "a|a|5|",
            ),
        ]);
        for template in ["{{ 'a' | round }}", "{{ 1.5 | round(method='up') }}"] {
            assert!(environment().render_str(template, ()).is_err(), "{template}");
        }
    }

    #[test]
    fn methods_of_texts_are_those_of_python() {
        check(&[
            (
                "{{ '\u{1c} a \u{85}'.strip() }}|{{ '\u{1c}a\u{1c}'.lstrip() | length }}|{{ '\u{1c}a\u{1c}'.rstrip() | length }}|{{ 'xax'.strip('x') }}|{{ ' a '.strip(none) }}",
                "a|2|2|a|a",
            ),
            (
                "{{ ' a\u{1c}b  c '.split() }}{{ ' a b  c '.split(none, 1) }}{{ ' a '.split(none, 0) }}{{ 'a b'.split(none, -1) }}{{ 'a,b'.split(',') }}{{ ' '.split() }}",
                "['a', 'b', 'c']['a', 'b  c ']['a ']['a', 'b']['a', 'b'][]",
            ),
            (
                "{{ 'a\\r\\nb\\rc\u{1c}d\u{2028}e\\n\\nf\\n'.splitlines() }}{{ 'a\\r\\nb\u{2028}'.splitlines(true) }}{{ ''.splitlines() }}",
                "['a', 'b', 'c', 'd', 'e', '', 'f']['a\\r\\n', 'b\\u2028'][]",
            ),
            (
                "{{ '<a href=\"/x\">it\\'s & &amp;</a>' | escape }}{{ 1.5 | e }}{{ '<' | e | e }}{{ '<' | safe | e }}{{ ['<'] | e }}",
                "&lt;a href=&#34;/x&#34;&gt;it&#39;s &amp; &amp;amp;&lt;/a&gt;1.5&lt;<[&#39;&lt;&#39;]",
            ),
            (
                "{{ ''.isspace() }}{{ ' '.isspace() }}{{ ''.isalpha() }}{{ ''.isdigit() }}{{ 'a1'.islower() }}{{ 'A 1'.isupper() }}{{ '1'.islower() }}{{ 'a1' is lower }}{{ 'Ab' is upper }}",
                "FalseTrueFalseFalseTrueTrueFalseTrueFalse",
            ),
            (
                "{{ 'éab'.find('b') }}{{ 'éab'.rfind('a') }}{{ 'a'.find('b') }}{{ 'abc'.count('') }}{{ 'aba'.count('a') }}",
                "21-142",
            ),
        ]);
    }
}
