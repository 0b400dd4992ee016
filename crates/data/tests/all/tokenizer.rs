//! A `tokenizer.json` is opened without what would spoil long texts, and broken ones are named.

use std::fs;
use std::path::{Path, PathBuf};

use annulus_data::{Cache, Records, Texts, Tokenizer};

/// Words and single letters; text is cut off after 2 tokens, padded to 9, begun with 3, ended with 4.
const JSON: &str = r#"{
  "version": "1.0",
  "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
  "padding": {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": null,
              "pad_id": 0, "pad_type_id": 0, "pad_token": "a"},
  "added_tokens": [
    {"id": 3, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
     "normalized": false, "special": true},
    {"id": 4, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
     "normalized": false, "special": true}
  ],
  "normalizer": null,
  "pre_tokenizer": {"type": "Whitespace"},
  "post_processor": {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
               {"SpecialToken": {"id": "</s>", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]},
                       "</s>": {"id": "</s>", "ids": [4], "tokens": ["</s>"]}}},
  "decoder": null,
  "model": {"type": "BPE", "dropout": 0.9, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": false, "vocab": {"a": 0, "b": 1, "ab": 300}, "merges": [["a", "b"]]}
}"#;

fn open(text: &str) -> (tempfile::TempDir, Result<Tokenizer, annulus_data::DataError>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    fs::write(&path, text).unwrap();
    let tokenizer = Tokenizer::open(path.to_str().unwrap());
    (folder, tokenizer)
}

fn tokens(path: PathBuf, records: Records, tokenizer: &Tokenizer, folder: &Path) -> Cache {
    let inputs = [path];
    Cache::open(&Texts::new(&inputs, records, tokenizer), folder, false, &mut |_| {}).unwrap()
}

#[test]
fn texts_are_whole_and_documents_are_framed() {
    let (folder, tokenizer) = open(JSON);
    let tokenizer = tokenizer.unwrap();
    assert_eq!(tokenizer.vocabulary(), 301);
    for _ in 0..20 {
        let mut ids = Vec::new();
        tokenizer.encode("ab a ab b", &mut |part| ids.extend_from_slice(part)).unwrap();
        assert_eq!(ids, [300, 0, 300, 1]);
    }
    let path = folder.path().join("a.jsonl");
    fs::write(&path, "{\"text\": \"ab b\"}\n{\"text\": \"a\"}\n").unwrap();
    let cache = folder.path().join("cache");
    let cache = tokens(path, Records::Lines, &tokenizer, &cache);
    let mut ids = vec![0; cache.tokens() as usize];
    cache.read(0, &mut ids).unwrap();
    assert_eq!(ids, [3, 300, 1, 4, 3, 0, 4]);
    assert_eq!(cache.documents(), [0, 4]);
}

#[test]
fn a_prompt_begins_once() {
    let (_folder, tokenizer) = open(JSON);
    let tokenizer = tokenizer.unwrap();
    for (text, wanted) in [
        ("ab b", &[3, 300, 1][..]),
        ("<s>ab b", &[3, 300, 1]),
        ("<s>", &[3]),
        ("", &[3]),
        ("ab<s>", &[3, 300, 3]),
    ] {
        assert_eq!(tokenizer.prompt(text).unwrap(), wanted, "{text}");
    }
    assert_eq!(Tokenizer::Bytes.prompt("<s>").unwrap(), [60, 115, 62]);
}

/// By its own steps; where these put nothing between documents, or are asked to, by the file beside it.
#[test]
fn documents_are_told_apart_by_the_end_that_the_config_names() {
    let both = JSON.to_owned();
    let begin = both.replace(
        r#",
               {"SpecialToken": {"id": "</s>", "type_id": 0}}],"#,
        "],",
    );
    let none = begin.replace(r#"{"SpecialToken": {"id": "<s>", "type_id": 0}}, "#, "");
    let named = r#"{"eos_token": {"content": "</s>"}}"#;
    let asked = r#"{"eos_token": "</s>", "add_eos_token": true}"#;
    for (json, config, before, after) in [
        (&both, "", &[3][..], &[4][..]),
        (&both, asked, &[3], &[4]),
        (&begin, named, &[3], &[]),
        (&begin, asked, &[3], &[4]),
        (&none, "", &[], &[]),
        (&none, named, &[], &[4]),
        (&none, r#"{"pad_token": "<none>", "unk_token": {"content": "<none>"}}"#, &[], &[]),
    ] {
        let (folder, _) = open(json);
        if !config.is_empty() {
            fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
        }
        let path = folder.path().join("tokenizer.json");
        let tokenizer = Tokenizer::open(path.to_str().unwrap()).unwrap();
        assert_eq!((tokenizer.before(), tokenizer.after()), (before, after), "{config}");
        let alone = open(json).1.unwrap();
        assert_eq!(alone.fingerprint() == tokenizer.fingerprint(), alone.after() == after);
        assert!(tokenizer.is_of(json.as_bytes()) && !tokenizer.is_of(config.as_bytes()));
        // A model is held to what its tokenizer does by itself.
        let of_model = tokenizer.check_special(&path, &[], &[0]);
        assert_eq!(of_model.is_ok(), alone.after().is_empty(), "{config}");
    }
    let (folder, _) = open(&none);
    fs::write(folder.path().join("tokenizer_config.json"), "{").unwrap();
    let error =
        Tokenizer::open(folder.path().join("tokenizer.json").to_str().unwrap()).unwrap_err();
    assert!(error.to_string().contains("tokenizer_config.json"), "{error}");
}

/// Older programs name them in a file of their own; what `tokenizer_config.json` says comes first.
#[test]
fn special_tokens_are_named_by_either_file() {
    let none = JSON.replace(r#"{"SpecialToken": {"id": "<s>", "type_id": 0}}, "#, "");
    let none = none.replace(
        r#",
               {"SpecialToken": {"id": "</s>", "type_id": 0}}],"#,
        "],",
    );
    let open = |config: &str, map: &str| {
        let (folder, _) = open(&none);
        for (name, text) in [("tokenizer_config.json", config), ("special_tokens_map.json", map)] {
            if !text.is_empty() {
                fs::write(folder.path().join(name), text).unwrap();
            }
        }
        Tokenizer::open(folder.path().join("tokenizer.json").to_str().unwrap())
    };
    let map = r#"{"eos_token": {"content": "</s>"}, "additional_special_tokens": ["<s>"]}"#;
    for (config, map, after) in [
        ("", map, &[4][..]),
        ("{}", map, &[4]),
        (r#"{"eos_token": "<s>"}"#, map, &[3]),
        (r#"{"eos_token": null}"#, map, &[]),
        ("", "{}", &[]),
    ] {
        let tokenizer = open(config, map).unwrap();
        assert_eq!(tokenizer.after(), after, "{config} {map}");
        let alone = open("", "").unwrap();
        assert_eq!(alone.fingerprint() == tokenizer.fingerprint(), after.is_empty());
    }
    let error = open("", "{").unwrap_err().to_string();
    assert!(error.contains("special_tokens_map.json"), "{error}");
}

/// Transformers adds them when it loads the folder; here a text would have them spelled letter by letter.
#[test]
fn tokens_named_only_beside_the_tokenizer_are_refused() {
    let error = |files: &[(&str, &str)]| {
        let (folder, _) = open(JSON);
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let opened = Tokenizer::open(folder.path().join("tokenizer.json").to_str().unwrap());
        let place = folder.path().to_str().unwrap();
        opened.err().map(|error| {
            let hint = error.hint().unwrap();
            assert!(
                hint.contains(&format!("from_pretrained(\"{place}\").save_pretrained")),
                "{hint}"
            );
            error.to_string().replace(place, "…")
        })
    };
    let (config, map) = ("tokenizer_config.json", "special_tokens_map.json");
    let added = "added_tokens.json";
    let decoder =
        r#"{"added_tokens_decoder": {"3": {"content": "<s>"}, "301": {"content": "<|im_end|>"}}}"#;
    for (name, text) in [
        (config, decoder),
        (config, r#"{"eos_token": "<|im_end|>", "add_eos_token": true}"#),
        (config, r#"{"bos_token": {"content": "<|im_end|>"}}"#),
        (config, r#"{"additional_special_tokens": ["<s>", "<|im_end|>"]}"#),
        (config, r#"{"extra_special_tokens": {"image_token": {"content": "<|im_end|>"}}}"#),
        (map, r#"{"additional_special_tokens": [{"content": "<|im_end|>"}]}"#),
        (added, r#"{"<s>": 3, "<|im_end|>": 301}"#),
    ] {
        let wanted = format!(
            "`…/tokenizer.json` lacks the token \"<|im_end|>\", which `…/{name}` names: texts would have it spelled \
             letter by letter"
        );
        assert_eq!(error(&[(name, text)]), Some(wanted), "{text}");
    }
    // Tokens that it has, and those that no text needs.
    let pad = r#"{"pad_token": "<pad>", "mask_token": {"content": "<mask>"}, "bos_token": "<s>", "eos_token": null}"#;
    for files in [
        &[(config, pad), (added, r#"{"<pad>": 301, "<s>": 3}"#)][..],
        &[(config, "{}"), (map, pad), (added, r#"{"<mask>": 301}"#)],
        &[(config, r#"{"added_tokens_decoder": {}, "eos_token": ""}"#), (added, r#"{"<x>": 9}"#)],
        &[(config, r#"{"additional_special_tokens": [], "extra_special_tokens": {}}"#)],
        &[(
            config,
            r#"{"pad_token": "<pad>", "added_tokens_decoder": {"300": {"content": "<pad>"}}}"#,
        )],
    ] {
        assert_eq!(error(files), None, "{files:?}");
    }
}

/// What stands around a text is found with a text that the tokenizer knows.
#[test]
fn a_tokenizer_need_not_know_any_letter() {
    let vocabulary = r#""vocab": {"a": 0, "b": 1, "ab": 300}, "merges": [["a", "b"]]"#;
    let json = JSON.replace(vocabulary, r#""vocab": {"😀 ": 0, "b": 1, "c": 2}, "merges": []"#);
    let tokenizer = open(&json).1.unwrap();
    assert_eq!((tokenizer.before(), tokenizer.after()), (&[3][..], &[4][..]));
}

#[test]
fn wide_vocabularies_are_kept_whole() {
    let (folder, tokenizer) = open(&JSON.replace("\"ab\": 300", "\"ab\": 70000"));
    let tokenizer = tokenizer.unwrap();
    let path = folder.path().join("a.txt");
    fs::write(&path, "ab a").unwrap();
    let cache = tokens(path, Records::Text, &tokenizer, folder.path());
    let mut ids = [0; 4];
    cache.read(0, &mut ids).unwrap();
    assert_eq!((ids, cache.vocabulary()), ([3, 70000, 0, 4], 70001));
}

#[test]
fn tokenizers_differ_by_their_bytes() {
    let fingerprint = |text: &str| open(text).1.unwrap().fingerprint();
    assert_ne!(fingerprint(JSON), fingerprint(&format!("{JSON}\n")));
    assert_ne!(fingerprint(JSON), Tokenizer::Bytes.fingerprint());
}

#[test]
fn what_is_no_tokenizer_is_named() {
    for text in [
        "",
        "{}",
        "[1]",
        "\u{0}",
        &JSON[..JSON.len() / 2],
        &JSON.replace("\"BPE\"", "\"Magic\""),
        &JSON.replace("[[\"a\", \"b\"]]", "[[\"a\", \"z\"]]"),
        &JSON.replace(
            "{\"type\": \"Whitespace\"}",
            "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(\"}, \"behavior\": \"Isolated\", \"invert\": false}",
        ),
        &format!("{}1", "[".repeat(100_000)),
    ] {
        let error = open(text).1.unwrap_err();
        assert!(error.to_string().contains("tokenizer.json` is not a usable tokenizer: "), "{error}");
        assert!(error.hint().is_some());
    }
    let error = Tokenizer::open("none.json").unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot read `none.json`: No such file or directory (os error 2)"
    );
    let folder = env!("CARGO_MANIFEST_DIR");
    let error = Tokenizer::open(folder).unwrap_err();
    assert!(error.to_string().contains("is a folder, expected a `tokenizer.json`"), "{error}");
    assert_eq!(error.hint(), Some(format!("name the file in it: `{folder}/tokenizer.json`")));
    let error = open("version https://git-lfs.github.com/spec/v1\n").1.unwrap_err();
    assert!(error.to_string().contains("git lfs pull"), "{error}");
}

#[test]
fn tokenizers_contradict_each_other_where_ids_are_others() {
    let model = open(JSON).1.unwrap();
    let found = |from: &str, to: &str| {
        let text = JSON.replace(from, to);
        assert_ne!(text, JSON);
        model.contradiction(&open(&text).1.unwrap())
    };
    assert_eq!(model.contradiction(&open(JSON).1.unwrap()), None);
    // Merges and added tokens give no token another id.
    assert_eq!(found("\"merges\": [[\"a\", \"b\"]]", "\"merges\": []"), None);
    let more = r#", {"id": 5, "content": "<x>", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true}], "normalizer""#;
    assert_eq!(found("],\n  \"normalizer\"", more), None);
    // A token in reserve gets a name.
    assert_eq!(found("</s>", "<|im_end|>"), None);
    let swapped = found("\"a\": 0, \"b\": 1", "\"a\": 1, \"b\": 0");
    assert_eq!(swapped.as_deref(), Some("id 0 is \"a\" in the model's, \"b\" in the other"));
    let moved = found("\"ab\": 300", "\"ab\": 301");
    assert_eq!(moved.as_deref(), Some("\"ab\" is id 300 in the model's, 301 in the other"));
}
