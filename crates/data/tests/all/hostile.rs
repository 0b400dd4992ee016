//! Chat templates and tokenizers that somebody else made, to harm or by mistake: an error that names the file, soon and
//! without taking much memory.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use annulus_data::{Cache, Chat, DataError, Records, Texts, Tokenizer, train_tokenizer};
use serde_json::{Value, json};

/// Two letters, `a` and `b`, and nothing that is done to text.
fn tokenizer() -> Value {
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": false, "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]],
        },
    })
}

fn open(folder: &Path, tokenizer: &Value) -> Result<Tokenizer, DataError> {
    let path = folder.join("tokenizer.json");
    fs::write(&path, tokenizer.to_string()).unwrap();
    Tokenizer::open(path.to_str().unwrap())
}

/// What a template makes of one conversation: the error, which is to come soon.
fn of_template(template: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = open(folder.path(), &tokenizer()).unwrap();
    fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    let chats = folder.path().join("chats.jsonl");
    let messages = json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]});
    fs::write(&chats, messages.to_string() + "\n").unwrap();
    let started = Instant::now();
    let inputs = [chats];
    let texts = Texts::new(&inputs, Records::Chats, &tokenizer);
    let opened = Chat::open(&tokenizer)
        .and_then(|_| Cache::open(&texts, &folder.path().join("cache"), false, &mut |_| {}));
    let error = opened.unwrap_err().to_string();
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}: {error}", started.elapsed());
    assert!(error.contains("chat"), "{error}");
    error
}

#[test]
fn endless_templates_end() {
    let three_deep = "{% for a in range(90000) %}{% for b in range(90000) %}{% for c in range(90000) %}{% endfor %}{% endfor %}{% endfor %}";
    let error = of_template(three_deep);
    assert!(error.contains("fuel") || error.contains("does not end within"), "{error}");
}

#[test]
fn templates_get_no_more_memory_than_their_share() {
    for template in [
        "{{ '%4000000000d'|format(1) }}",
        "{{ [1]|batch(4000000000) }}",
        "{{ [1]|slice(4000000000) }}",
        "{% set a = 'a' * 10000000 %}{{ a|replace('a', a) }}",
        "{% set a = 'a' * 1000000 %}{{ range(100000)|join(a) }}",
        "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
        "{% set n = namespace(s=['ab']) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s|tojson }}",
        "{% for i in range(100000) %}{{ 'a' * 100000 }}{% endfor %}",
        "{{ ([1] * 1000000000)|list }}",
    ] {
        let error = of_template(template);
        let bounded = ["more than", "too large", "too long", "too many", "overflow", "invalid"];
        assert!(bounded.iter().any(|word| error.contains(word)), "{template}: {error}");
    }
}

#[test]
fn nested_templates_do_not_overflow_the_stack() {
    for template in [
        format!("{{{{ {}true }}}}", "not ".repeat(16_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(60_000)),
        format!("{{{{ 'a'{} }}}}", "~'a'".repeat(15_000)),
        format!("{{{{ a{} }}}}", ".a".repeat(30_000)),
        format!("{{{{ 'a'{} }}}}", "|upper".repeat(10_000)),
        format!("{{{{ {}1{} }}}}", "(".repeat(30_000), ")".repeat(30_000)),
        "{{ 1 }}".repeat(20_000),
    ] {
        // Some are templates like any other, only that they say nothing of the assistant.
        of_template(&template);
    }
}

/// A tokenizer whose `part` is `step`.
fn with(part: &str, step: Value) -> Value {
    let mut made = tokenizer();
    made[part] = step;
    made
}

#[test]
fn tokenizers_that_make_their_library_panic_are_named() {
    let replace = |pattern: Value, content: &str| {
        with("normalizer", json!({"type": "Replace", "pattern": pattern, "content": content}))
    };
    let precompiled = |table: &str| {
        with("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": table}))
    };
    let mut merges = tokenizer();
    merges["model"]["merges"] = json!([["a", "zz"]]);
    let template = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<none>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {},
    });
    let mut empty = tokenizer();
    empty["model"]["vocab"] = json!({});
    empty["model"]["merges"] = json!([]);
    for (what, made) in [
        ("merges", merges),
        ("empty table", precompiled("")),
        ("garbage table", precompiled("AAAA")),
        ("table shorter than its tree", precompiled("/////wAA")),
        ("table not base64", precompiled("???")),
        ("tree that points beyond", precompiled("BAAAAP////9hAGIA")),
        ("unknown special token", with("post_processor", template)),
        ("fixed length 0", with("pre_tokenizer", json!({"type": "FixedLength", "length": 0}))),
        ("empty pattern", replace(json!({"String": ""}), "b")),
        ("empty vocabulary", empty),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut said = open(folder.path(), &made).map(|tokenizer| {
            let encoded = tokenizer.encode("abba ab", &mut |_| {});
            encoded.map_err(|error| error.in_file(&folder.path().join("tokenizer.json")))
        });
        let error = match &mut said {
            Ok(encoded) => encoded.as_ref().expect_err(what).to_string(),
            Err(error) => error.to_string(),
        };
        assert!(error.contains("tokenizer.json"), "{what}: {error}");
    }
}

#[test]
fn tokenizers_that_make_texts_grow_without_bound_are_refused() {
    let replace = |pattern: &str, content: &str| json!({"type": "Replace", "pattern": {"String": pattern}, "content": content});
    let twenty = vec![replace("a", "aa"); 20];
    let regex =
        json!({"type": "Replace", "pattern": {"Regex": "a".repeat(5_000_000)}, "content": "b"});
    for (normalizer, word) in [
        (replace("a", &"b".repeat(1_000_000)), "1000000 bytes"),
        (replace("a", &"b".repeat(1000)), "1000 times as long"),
        (json!({"type": "Sequence", "normalizers": twenty}), "1048576 times as long"),
        (json!({"type": "Sequence", "normalizers": vec![json!({"type": "NFC"}); 100]}), "64 steps"),
        (regex, "5000000 bytes"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let error = open(folder.path(), &with("normalizer", normalizer)).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("tokenizer.json"), "{error}");
    }
}

#[test]
fn steps_that_the_library_would_guess_are_refused() {
    let untagged = json!({"pattern": {"String": "a"}, "content": "b".repeat(1000)});
    let disguised = json!({"type": "Replace", "normalizers": [], "decoders": [], "pattern": {"String": "a"}, "content": "b".repeat(1000)});
    for part in ["normalizer", "pre_tokenizer", "decoder"] {
        for (step, word) in [
            (untagged.clone(), "has no `type`"),
            (json!({"type": "Sequence"}), "a `Sequence` of its steps has none"),
            (json!({"type": "Rot13"}), "`Rot13` is not known"),
            (
                disguised.clone(),
                if part == "pre_tokenizer" { "not known" } else { "times as long" },
            ),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let error = open(folder.path(), &with(part, step)).unwrap_err().to_string();
            assert!(error.contains(word) && error.contains("tokenizer.json"), "{part}: {error}");
        }
    }
}

#[test]
fn tokens_and_ids_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let added = |id: u64| json!([{"id": id, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}]);
    let frame = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [65_633], "tokens": ["<s>"]}},
    });
    let many: serde_json::Map<String, Value> =
        (0..1_050_000).map(|id| (format!("{id:x}"), json!(id))).collect();
    let mut large = tokenizer();
    large["model"]["vocab"] = Value::Object(many);
    let mut far = tokenizer();
    far["model"]["vocab"]["a"] = json!(4_294_967_295_u32);
    for (made, word) in [
        (large, "1050000 tokens, expected at most 1048576"),
        (far, "the id 4294967295"),
        (
            with("added_tokens", Value::Array(vec![added(9)[0].clone(); 70_000])),
            "70000 added tokens",
        ),
        (with("post_processor", frame), "65633"),
        (with("added_tokens", added(65_633)), "`<s>` is 65633, and its other tokens make it 3"),
    ] {
        let error = open(folder.path(), &made).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("tokenizer.json"), "{error}");
    }
}

#[test]
fn a_character_without_a_token_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let made = open(folder.path(), &tokenizer()).unwrap();
    let error = made.encode("abXba", &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("'X' (U+0058) has no token"), "{error}");
    made.encode("abba", &mut |_| {}).unwrap();
}

#[test]
fn a_vocabulary_larger_than_any_is_not_learned() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.txt");
    fs::write(&text, "a few words and a few more").unwrap();
    let out = folder.path().join("out.json");
    let error = train_tokenizer(&[text], Records::Text, 1_000_000_000_000, &out).unwrap_err();
    assert_eq!(error.to_string(), "--vocab is 1000000000000, expected at most 1048576");
    assert!(!out.exists());
}
