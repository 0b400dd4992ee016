//! Arbitrary bytes as an experiment: no panic, no hang, no memory explosion.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use annulus_experiment::{Override, parse, parse_config};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use crate::small::SMALL;

/// Reads `text` in every role; it may be refused, but quickly.
fn survive(text: &str) {
    let start = Instant::now();
    let answers = [
        parse("x.yaml", text, &[]).map(drop),
        parse_config("config.json", text).map(drop),
        parse("x.yaml", SMALL, &[Override { key: "data".into(), value: text.into() }]).map(drop),
        parse("x.yaml", SMALL, &[Override { key: text.into(), value: "1".into() }]).map(drop),
    ];
    for problems in answers.into_iter().filter_map(Result::err) {
        assert!(!problems.0.is_empty(), "refused for no reason");
        assert!(problems.to_string().len() < 100_000, "the answer is longer than the question");
    }
    assert!(start.elapsed() < Duration::from_secs(20), "took {:?}", start.elapsed());
}

#[test]
fn bombs_are_refused_soon() {
    let mut laughs = String::from("a0: &a0 [x, x]\n");
    for level in 1..30 {
        writeln!(laughs, "a{level}: &a{level} [*a{0}, *a{0}, *a{0}]", level - 1).expect("text");
    }
    let many = |piece: &str| piece.repeat((1 << 20) / piece.len());
    let mut keys = String::new();
    for index in 0..50_000 {
        writeln!(keys, "k{index}: 1").expect("text");
    }
    let steps: Vec<String> = (0..1000).map(|depth| " ".repeat(depth) + "a:\n").collect();
    let bombs = [
        laughs,
        many("["),
        many("{a: "),
        many("- "),
        many("? "),
        many("a: "),
        many("a:\n"),
        many("- a\n"),
        many("&a "),
        many("!a "),
        many("'"),
        many("\""),
        many("#\n"),
        many("\n"),
        many("\t"),
        many(" "),
        many("%a\n"),
        many("---\n"),
        many("\\u0041"),
        many("\0"),
        many("|\n"),
        many("é"),
        many("\r"),
        format!("name: |\n{}", many(" x\n")),
        format!("name: \"{}\"", many("\\n").get(..1_000_000).unwrap_or_default()),
        format!("? {}", many("x")),
        format!("[{}]", many("1,").get(..1_000_000).unwrap_or_default()),
        keys,
        steps.concat(),
        "x".repeat(2 << 20),
    ];
    for bomb in &bombs {
        survive(bomb);
    }
}

/// Fragments that YAML treats specially.
const PIECES: &[&str] = &[
    ":",
    ": ",
    "- ",
    "? ",
    "[",
    "]",
    "{",
    "}",
    ",",
    "&a ",
    "*a",
    "!t ",
    "!!int ",
    "|",
    ">",
    "'",
    "\"",
    "#",
    " #",
    "\n",
    "\r\n",
    "\t",
    "  ",
    "---",
    "...",
    "%YAML 1.2",
    "~",
    "null",
    "\0",
    "\u{feff}",
    "\u{2028}",
    "\u{85}",
    "é",
    "🦀",
    "0x10",
    ".inf",
    "1e999",
    "64k",
    "<<",
    "=",
    "@",
    "`",
];

proptest! {
    #![proptest_config(ProptestConfig {
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::with_cases(300)
    })]

    #[test]
    fn random_text_is_survived(text in any::<Vec<u8>>()) {
        survive(&String::from_utf8_lossy(&text));
    }

    #[test]
    fn random_pieces_are_survived(pieces in prop::collection::vec(0..PIECES.len(), 0..40)) {
        survive(&pieces.iter().map(|&piece| PIECES[piece]).collect::<String>());
    }

    #[test]
    fn mutations_are_survived(
        changes in prop::collection::vec(
            (any::<prop::sample::Index>(), 0..3_usize, 0..PIECES.len()), 1..6),
    ) {
        let mut letters: Vec<char> = SMALL.chars().collect();
        for (at, kind, piece) in changes {
            let at = at.index(letters.len());
            let end = if kind == 0 { at } else { (at + kind * 3).min(letters.len()) };
            letters.splice(at..end, PIECES[piece].chars());
        }
        survive(&letters.into_iter().collect::<String>());
    }
}
