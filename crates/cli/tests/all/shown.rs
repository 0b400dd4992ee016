//! Text as a terminal may have it.

use std::borrow::Cow;

use annulus_cli::shown::message;
use annulus_text::escaped;

#[test]
fn control_characters_and_turned_writing_are_escaped() {
    let hostile = "a\u{1b}[31mb\rc\u{9b}d\u{202e}e\u{7f}\u{e0041}\n\té";
    let shown = "a\\u001b[31mb\\u000dc\\u009bd\\u202ee\\u007f\\udb40\\udc41\n\té";
    assert_eq!(escaped(hostile), shown);
    assert!(matches!(escaped("plain é\n"), Cow::Borrowed(_)));
}

#[test]
fn escaped_json_means_the_same() {
    let value = serde_json::json!({ "role": "\u{202e}\u{1b}\u{e0041}é" });
    let read: serde_json::Value = serde_json::from_str(&escaped(&value.to_string())).unwrap();
    assert_eq!(read, value);
}

#[test]
fn long_messages_are_cut_and_say_so() {
    let shown = message(&format!("`{}`: no such file", "x".repeat(1_000_000)));
    assert!(shown.chars().count() < 2000, "{}", shown.len());
    assert!(shown.starts_with("`xxx") && shown.ends_with("no such file"), "{shown}");
    assert!(shown.contains("998516 characters left out"), "{shown}");
    let shown = message(&"line\n".repeat(100_000));
    assert_eq!(shown.lines().count(), 401);
    assert!(shown.ends_with("… and 99601 more lines"));
}
