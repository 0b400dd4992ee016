//! Tokenizers of others: a library that panics is an error that names the file, and texts do not grow without bound.

use serde_json::json;

use super::parts::change_tokenizer as change;
use super::scene::Scene;
use super::{Case, case};

pub(super) const CASES: &[Case] = &[
    broken("C2 a merge to a missing token", |s| change(s, "/model/merges", json!([["a", "b"]])))
        .short(),
    broken("C2 an empty precompiled map", |s| change(s, "/normalizer", precompiled(""))).short(),
    broken("C2 a precompiled map of garbage", |s| {
        change(s, "/normalizer", precompiled("AAECAwQFBgc="));
    }),
    broken("C2 a precompiled map of a huge size", |s| {
        change(s, "/normalizer", precompiled("/////wAAAAA="));
    }),
    broken("C2 a precompiled map that is no base64", |s| {
        change(s, "/normalizer", precompiled("%%%"));
    }),
    broken("C2 a trie that points beyond its end", |s| {
        change(s, "/normalizer", precompiled("BAAAAP///38A"));
    }),
    broken("C2 a template with an unknown token", |s| {
        let piece = |id: &str| json!([{"SpecialToken": {"id": id, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]);
        change(
            s,
            "/post_processor",
            json!({"type": "TemplateProcessing", "single": piece("<s>"), "pair": piece("<s>"), "special_tokens": {}}),
        );
    }),
    broken("C2 pieces of no length", |s| {
        change(s, "/pre_tokenizer", json!({"type": "FixedLength", "length": 0}));
    }),
    broken("C2 an empty pattern", |s| change(s, "/normalizer", replace("", "b"))),
    broken("C2 a pattern of 5 MB", |s| {
        change(s, "/normalizer", replace(&"ab".repeat(2_500_000), "b"));
    }),
    slow("C2 a regular expression that backtracks", |s| {
        change(
            s,
            "/pre_tokenizer",
            json!({"type": "Split", "pattern": {"Regex": "(a*)*(?!x)b\\1"}, "behavior": "Isolated", "invert": false}),
        );
    }),
    broken("C2 every letter becomes a megabyte", |s| {
        change(s, "/normalizer", replace("a", &"b".repeat(1_000_000)));
    })
    .short(),
    broken("C2 every letter doubles twenty times", |s| {
        let steps = vec![replace("a", "aa"); 20];
        change(s, "/normalizer", json!({"type": "Sequence", "normalizers": steps}));
    }),
    broken("C2 a hundred thousand normalizers deep", |s| {
        let deep =
            "{\"type\":\"Sequence\",\"normalizers\":[".repeat(100_000) + &"]}".repeat(100_000);
        let text = super::parts::tokenizer().to_string();
        s.write(
            "tokenizer.json",
            text.replace("\"normalizer\":null", &format!("\"normalizer\":{deep}")),
        );
    }),
    broken("C2 no JSON", |s| s.write("tokenizer.json", "\u{1b}[31m{")),
    case(
        "C2 300 MB of spaces",
        "truncate -s 300M tokenizer.json; annulus tokenize text.txt --tokenizer tokenizer.json --out c",
        &[3],
        &["tokenizer.json"],
    ),
    case(
        "C4 a vocabulary of a billion",
        "annulus tokenizer train text.txt --vocab 1000000000000 --out t.json",
        &[2, 3],
        &["--vocab"],
    )
    .short(),
    case(
        "C4 a vocabulary of a hundred million",
        "annulus tokenizer train text.txt --vocab 100000000 --out t.json",
        &[2, 3],
        &["--vocab"],
    ),
    case(
        "C4 the largest number",
        "annulus tokenizer train text.txt --vocab 18446744073709551615 --out t.json",
        &[2, 3],
        &["--vocab"],
    ),
];

fn precompiled(map: &str) -> serde_json::Value {
    json!({"type": "Precompiled", "precompiled_charsmap": map})
}

fn replace(from: &str, to: &str) -> serde_json::Value {
    json!({"type": "Replace", "pattern": {"String": from}, "content": to})
}

/// A tokenizer that cannot be used, or one that can after all; never a crash.
const fn broken(name: &'static str, make: fn(&Scene)) -> Case {
    case(
        name,
        "annulus tokenize text.txt --tokenizer tokenizer.json --out c",
        &[3],
        &["tokenizer.json"],
    )
    .made(make)
}

/// What is slow or fine.
const fn slow(name: &'static str, make: fn(&Scene)) -> Case {
    Case { ends: &[0, 3], says: &[], ..broken(name, make) }
}
