//! Texts, lines, batches, tokenizers.

use std::fs;

use candle_core::DType;
use serde_json::{Value, json};

use crate::scene::{Case, Scene, answers};
use crate::tensors::ids;

const TRAIN: &str = "train tiny.yaml output=new";
const LINES: &str = "train tiny.yaml output=new data.format=jsonl data.path=texts.jsonl";
const BATCHES: &str =
    "train tiny.yaml output=new data.format=batches data.path=batches.safetensors";
const TOKENIZER: &str = "train tiny.yaml output=new data.tokenizer=tokenizer.json";

#[test]
fn wrong_texts() {
    let cases: &[Case] = &[
        ("no such text", |s| s.remove("text.txt"), TRAIN),
        ("no text in it", |s| s.write("text.txt", ""), TRAIN),
        ("a short text", |s| s.write("text.txt", "short"), TRAIN),
        ("too short to hold sequences out", |_| (), "train tiny.yaml output=new data.evaluate=100"),
        ("not UTF-8", |s| s.write("text.txt", b"caf\xe9 au lait ".repeat(100)), TRAIN),
        (
            "UTF-16",
            |s| {
                let text = "\u{feff}all happy families".encode_utf16();
                s.write("text.txt", text.flat_map(u16::to_le_bytes).collect::<Vec<_>>());
            },
            TRAIN,
        ),
        (
            "a link to nothing",
            |s| {
                s.remove("text.txt");
                std::os::unix::fs::symlink("gone.txt", s.path("text.txt")).unwrap();
            },
            TRAIN,
        ),
        ("a variable that is not set", |_| (), "check tiny.yaml data.path=${NOT_SET_ANYWHERE}/x"),
        (
            "a folder of something else",
            |s| {
                fs::create_dir(s.path("pictures")).unwrap();
                s.write("pictures/cat.jpg", "");
            },
            "train tiny.yaml output=new data.path=pictures",
        ),
        ("a device", |_| (), "tokenize /dev/null --out cache"),
        ("no data", |s| s.replace("tiny.yaml", "path: text.txt, ", ""), TRAIN),
        ("bytes beyond the vocabulary", |_| (), "train tiny.yaml output=new model.vocab_size=100"),
        ("a file for the folder of caches", |_| (), "tokenize text.txt --out tiny.yaml"),
    ];
    insta::assert_snapshot!(answers(cases));
}

#[test]
fn wrong_lines() {
    let cases: &[Case] = &[
        (
            "no text in a line",
            |s| s.write("texts.jsonl", "{\"text\": \"good\"}\n{\"txt\": \"bad\"}\n"),
            LINES,
        ),
        (
            "a number for a text",
            |s| s.write("texts.jsonl", "{\"text\": \"good\"}\n\n{\"text\": 5}\n"),
            LINES,
        ),
        (
            "a broken line",
            |s| s.write("texts.jsonl", "{\"text\": \"good\"}\n{\"text\": \"bad\n"),
            LINES,
        ),
        ("lines that are a list", |s| s.write("texts.jsonl", "[{\"text\": \"bad\"}]"), LINES),
        (
            "a folder of JSON for lines",
            |s| {
                fs::create_dir(s.path("alpaca")).unwrap();
                s.write("alpaca/data.json", "[]");
            },
            "train tiny.yaml output=new data.format=jsonl data.path=alpaca",
        ),
        ("plain text for lines", |_| (), "train tiny.yaml output=new data.format=jsonl"),
        ("no lines", |s| s.write("texts.jsonl", "\n\n"), LINES),
    ];
    insta::assert_snapshot!(answers(cases));
}

#[test]
fn wrong_batches() {
    let cases: &[Case] = &[
        (
            "a text for batches",
            |_| (),
            "train tiny.yaml output=new data.format=batches data.path=text.txt",
        ),
        ("no tokens in it", |s| s.tensors("batches.safetensors", &[("ids", ids(8, 17))]), BATCHES),
        (
            "tokens of two dimensions",
            |s| s.tensors("batches.safetensors", &[("tokens", ids(8, 17))]),
            BATCHES,
        ),
        (
            "tokens of another length",
            |s| {
                s.tensors(
                    "batches.safetensors",
                    &[("tokens", ids(8, 16).reshape((4, 2, 16)).unwrap())],
                );
            },
            BATCHES,
        ),
        (
            "tokens of another type",
            |s| {
                let tokens = ids(8, 17).reshape((4, 2, 17)).unwrap().to_dtype(DType::F32).unwrap();
                s.tensors("batches.safetensors", &[("tokens", tokens)]);
            },
            BATCHES,
        ),
        (
            "an id below 0",
            |s| {
                let tokens = ids(8, 17).reshape((4, 2, 17)).unwrap().affine(-1.0, 20.0).unwrap();
                s.tensors("batches.safetensors", &[("tokens", tokens)]);
            },
            BATCHES,
        ),
        (
            "an id beyond the vocabulary",
            |s| {
                let tokens = ids(8, 17).reshape((4, 2, 17)).unwrap().affine(3.0, 0.0).unwrap();
                s.tensors("batches.safetensors", &[("tokens", tokens)]);
            },
            BATCHES,
        ),
        (
            "fewer batches than steps",
            |_| (),
            "train tiny.yaml output=new data.format=batches data.path=batches.safetensors \
             schedule.steps=5",
        ),
        ("batches cut short", |s| s.cut("batches.safetensors", 600), BATCHES),
    ];
    insta::assert_snapshot!(answers(cases));
}

fn write_tokenizer(scene: &Scene, vocabulary: &str, merges: &str) {
    let model = format!(r#"{{"type": "BPE", "vocab": {vocabulary}, "merges": {merges}}}"#);
    scene.write("tokenizer.json", format!(r#"{{"version": "1.0", "model": {model}}}"#));
}

#[test]
fn wrong_tokenizers() {
    let cases: &[Case] = &[
        ("no such tokenizer", |_| (), TOKENIZER),
        (
            "a broken tokenizer",
            |s| s.write("tokenizer.json", "{\"version\": \"1.0\", \"model\": {"),
            TOKENIZER,
        ),
        ("another JSON file", |s| s.write("tokenizer.json", "{\"text\": 1}"), TOKENIZER),
        ("a tokenizer without tokens", |s| write_tokenizer(s, "{}", "[]"), TOKENIZER),
        ("a merge of nothing", |s| write_tokenizer(s, r#"{"a": 0}"#, r#"["a b"]"#), TOKENIZER),
        (
            "more tokens than the model",
            |s| write_tokenizer(s, r#"{"a": 0, "b": 5000}"#, "[]"),
            TOKENIZER,
        ),
        ("a folder for a tokenizer", |_| (), "tokenize text.txt --out cache --tokenizer run"),
    ];
    insta::assert_snapshot!(answers(cases));
}

const MODEL: &str = "check model.yaml";

/// A model that ends with what is written, and a tokenizer that ends documents with 0.
fn write_model(scene: &Scene, begin: &str, end: &str) {
    scene.run("tokenizer train text.txt --vocab 260 --out tokenizer.json").ended(0);
    let read = |name: &str| -> Value {
        serde_json::from_str(&fs::read_to_string(scene.path(name)).unwrap()).unwrap()
    };
    let mut tokenizer = read("tokenizer.json");
    let token = "<|endoftext|>";
    let frame = json!([{ "Sequence": { "id": "A", "type_id": 0 } }, { "SpecialToken": { "id": token, "type_id": 0 } }]);
    tokenizer["post_processor"] = json!({
        "type": "TemplateProcessing", "single": frame, "pair": frame,
        "special_tokens": { token: { "id": token, "ids": [0], "tokens": [token] } },
    });
    scene.write("tokenizer.json", tokenizer.to_string());
    let mut config = read("model/config.json");
    for (key, id) in [("bos_token_id", begin), ("eos_token_id", end)] {
        config[key] = serde_json::from_str(id).unwrap();
    }
    scene.write("model/config.json", config.to_string());
    let text = fs::read_to_string(scene.path("tiny.yaml")).unwrap();
    let (_, rest) = text.split_once("data: {").unwrap();
    let model = "name: tiny\nmodel: { path: model }\ndata: { tokenizer: tokenizer.json,";
    scene.write("model.yaml", format!("{model}{rest}"));
}

/// The model has a tokenizer of its own, in which two tokens have each other's ids.
fn swap_tokens(scene: &Scene, weights: &str) {
    write_model(scene, "null", "null");
    let text = fs::read_to_string(scene.path("tokenizer.json")).unwrap();
    let text = text.replace("\"a\":65", "\"a\":?").replace("\"b\":66", "\"b\":65");
    scene.write("model/tokenizer.json", text.replace("\"a\":?", "\"a\":66"));
    scene.replace("model.yaml", "path: model", &format!("path: model, weights: {weights}"));
}

#[test]
fn tokenizers_of_other_models() {
    let cases: &[Case] = &[
        ("another end than the model's", |s| write_model(s, "null", "7"), MODEL),
        ("none of the model's ends", |s| write_model(s, "null", "[7, 8]"), MODEL),
        ("a beginning that it does not have", |s| write_model(s, "1000", "0"), MODEL),
        ("the model's", |s| write_model(s, "5", "[7, 0]"), MODEL),
        ("a model that does not say", |s| write_model(s, "null", "null"), MODEL),
        ("other ids than the model's own", |s| swap_tokens(s, "pretrained"), MODEL),
        ("other ids for random weights", |s| swap_tokens(s, "random"), MODEL),
    ];
    insta::assert_snapshot!(answers(cases));
}

const CHATS: &str = "train tiny.yaml output=new data.format=chat data.path=chats.jsonl data.tokenizer=t/tokenizer.json \
     model.vocab_size=280 data.tokens=64";

/// A tokenizer with a template, and a conversation.
fn write_chat(scene: &Scene, record: &str) {
    fs::create_dir(scene.path("t")).unwrap();
    scene.run("tokenizer train text.txt --vocab 280 --out t/tokenizer.json").ended(0);
    let template = "{% for message in messages %}{% if message.role == 'tool' %}\
        {{ raise_exception('no tools here') }}{% endif %}{{ message.content }}{% endfor %}";
    scene.write("t/chat_template.jinja", template);
    let good = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
    scene.write("chats.jsonl", format!("{good}\n{record}\n"));
}

#[test]
fn wrong_chats() {
    let cases: &[Case] = &[
        (
            "bytes for conversations",
            |s| write_chat(s, ""),
            "train tiny.yaml output=new data.format=chat data.path=chats.jsonl",
        ),
        (
            "no template beside the tokenizer",
            |s| {
                write_chat(s, "");
                s.remove("t/chat_template.jinja");
            },
            CHATS,
        ),
        ("a broken conversation", |s| write_chat(s, "{\"messages\": ["), CHATS),
        ("no messages", |s| write_chat(s, "{\"text\": \"a\"}"), CHATS),
        (
            "a wrong role",
            |s| write_chat(s, r#"{"messages": [{"role": "bot", "content": "a"}]}"#),
            CHATS,
        ),
        (
            "an answer that is not to be learned",
            |s| {
                let turns = r#"{"role": "assistant", "content": "a", "weight": 0}"#;
                write_chat(s, &format!(r#"{{"messages": [{turns}]}}"#));
            },
            CHATS,
        ),
        (
            "a template that refuses",
            |s| {
                let turns =
                    r#"{"role": "tool", "content": "a"}, {"role": "assistant", "content": "b"}"#;
                write_chat(s, &format!(r#"{{"messages": [{turns}]}}"#));
            },
            CHATS,
        ),
        (
            "a conversation longer than a sequence",
            |s| {
                let text = "all happy families ".repeat(200);
                let turns = format!(r#"{{"role": "assistant", "content": "{text}"}}"#);
                write_chat(s, &format!(r#"{{"messages": [{turns}]}}"#));
            },
            CHATS,
        ),
        (
            "conversations as a stream",
            |s| write_chat(s, ""),
            "check tiny.yaml data.format=chat data.pack=stream",
        ),
        ("fewer tokens than bytes", |_| (), "tokenizer train text.txt --vocab 100 --out t.json"),
        ("a text for a cache", |s| s.write("a.tokens", "a"), "data show a.tokens"),
    ];
    insta::assert_snapshot!(answers(cases));
}
