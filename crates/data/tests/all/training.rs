//! Tokenizers of one's own: the same every time, of every byte, with an end to every document.

use std::fs;
use std::path::Path;

use annulus_data::{Records, Tokenizer, train_tokenizer, train_tokenizer_of};
use serde_json::{Value, json};

#[test]
fn a_tokenizer_is_trained_and_reads_everything() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let text = "Call me Ishmael. Some years ago—never mind how long precisely. ";
    fs::write(path("a.txt"), text.repeat(30)).unwrap();
    let inputs = [path("a.txt")];
    let train = |vocabulary, out: &str| {
        train_tokenizer(&inputs, Records::Text, vocabulary, &path(out)).unwrap().vocabulary
    };
    assert_eq!(train(290, "one.json"), 290);
    train(290, "two.json");
    assert_eq!(fs::read(path("one.json")).unwrap(), fs::read(path("two.json")).unwrap());
    let tokenizer = Tokenizer::open(path("one.json").to_str().unwrap()).unwrap();
    assert_eq!(
        (tokenizer.vocabulary(), tokenizer.before(), tokenizer.after()),
        (290, &[][..], &[0][..])
    );
    for text in [text, "中文 🦀\r\n\0 e\u{301}", ""] {
        let mut ids = Vec::new();
        tokenizer.encode(text, &mut |part| ids.extend_from_slice(part)).unwrap();
        assert_eq!(tokenizer.decode(&ids).unwrap(), text);
    }
    // What `transformers` encodes may be a prompt: its end is in the file beside.
    let file = fs::read_to_string(path("one.json")).unwrap();
    assert!(file.contains("\"post_processor\": null"));
    // No pair is left long before: said, not filled up.
    assert!(train(100_000, "three.json") < 1000);
    // Lines of JSON with the same texts.
    let lines = format!("{{\"text\": {text:?}}}\n").repeat(30);
    fs::write(path("a.jsonl"), lines).unwrap();
    let found = train_tokenizer(&[path("a.jsonl")], Records::Lines, 290, &path("four.json"));
    assert_eq!(found.unwrap().vocabulary, 290);
    fs::write(path("tokenizer_config.json"), "{}").unwrap();
    let error = train_tokenizer(&inputs, Records::Text, 290, &path("five.json")).unwrap_err();
    assert!(error.to_string().contains("tokenizer_config.json"), "{error}");
    assert!(!path("five.json").exists());
}

/// Of a stretch without white space at most 1024 bytes are a word, and a folder that is not there is made.
#[test]
fn long_words_are_cut() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("a.txt"), format!("{}é", "a".repeat(4096))).unwrap();
    let lines = format!("{{\"body\": {:?}}}\n", "a".repeat(4096));
    fs::write(path("a.jsonl"), lines).unwrap();
    let out = path("there/is/none/out.json");
    // 2, 4, … 1024 letters, and the two bytes of the last.
    let text = train_tokenizer(&[path("a.txt")], Records::Text, 1000, &out).unwrap();
    assert_eq!(text.vocabulary, 257 + 10 + 1);
    let inputs = [path("a.jsonl")];
    let lines = train_tokenizer_of(&inputs, Records::Lines, "body", 1000, &path("b.json"));
    assert_eq!(lines.unwrap().vocabulary, 257 + 10);
}

#[test]
fn what_cannot_be_trained_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (input, out) = (folder.path().join("a.txt"), folder.path().join("out.json"));
    fs::write(&input, "a").unwrap();
    let error =
        train_tokenizer(std::slice::from_ref(&input), Records::Text, 256, &out).unwrap_err();
    assert_eq!(error.to_string(), "--vocab is 256, expected at least 257");
    fs::write(&input, b"caf\xe9 ").unwrap();
    let error = train_tokenizer(&[input], Records::Text, 300, &out).unwrap_err();
    assert!(error.to_string().ends_with("is not UTF-8 at byte 3"), "{error}");
    assert!(!out.exists());
}

/// A model's `bos_token_id` and `eos_token_id` are held to the tokenizer's.
#[test]
fn special_tokens_are_held_to_the_models() {
    let folder = tempfile::tempdir().unwrap();
    let (input, out) = (folder.path().join("a.txt"), folder.path().join("out.json"));
    fs::write(&input, "a").unwrap();
    train_tokenizer(&[input], Records::Text, 257, &out).unwrap();
    let mut file: Value = serde_json::from_slice(&fs::read(&out).unwrap()).unwrap();
    let end = "<|endoftext|>";
    let single = json!([{ "Sequence": { "id": "A", "type_id": 0 } }, { "SpecialToken": { "id": end, "type_id": 0 } }]);
    let special = json!({ end: { "id": end, "ids": [0], "tokens": [end] } });
    let template = json!({ "type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": special });
    file["post_processor"] = template;
    fs::write(&out, file.to_string()).unwrap();
    let tokenizer = Tokenizer::open(out.to_str().unwrap()).unwrap();
    let config = Path::new("model/config.json");
    let check = |begin: &[u32], end: &[u32]| tokenizer.check_special(config, begin, end);
    let said = |begin: &[u32], end: &[u32]| {
        let error = check(begin, end).unwrap_err().to_string();
        error.replace(&out.display().to_string(), "tokenizer.json")
    };
    for end in [&[][..], &[0], &[7, 0]] {
        check(&[1], end).unwrap();
    }
    let ends = "`tokenizer.json` ends documents with 0 (`<|endoftext|>`), but `eos_token_id` in \
                `model/config.json` is 2, 3";
    assert_eq!(said(&[], &[2, 3]), ends);
    let beyond =
        "`tokenizer.json` has 257 tokens, but `bos_token_id` in `model/config.json` is 128000";
    assert_eq!(said(&[128_000], &[]), beyond);
}
