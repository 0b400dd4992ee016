//! The same texts in other files: packed, in other fields, in other programs' conversations. They give the tokens
//! of plain lines.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use annulus_data::{Cache, DataError, Records, Texts, Tokenizer, byte_tokenizer};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

const TEXTS: [&str; 4] = ["one and two", "déjà vu\n\"quoted\"", "three", "🦀 four"];

fn tokens(cache: &Cache) -> Vec<u32> {
    let mut ids = vec![0; cache.tokens() as usize];
    cache.read(0, &mut ids).expect("the cache is whole");
    ids
}

fn read(file: PathBuf, records: Records, column: &str) -> Result<Vec<u32>, DataError> {
    let inputs = [file];
    let texts = Texts { column, ..Texts::new(&inputs, records, &Tokenizer::Bytes) };
    Cache::temporary(&texts, &mut |_| ()).map(|cache| tokens(&cache))
}

fn lines(field: &str) -> String {
    let line = |text: &&str| json!({ field: text, "id": 7 }).to_string() + "\n";
    TEXTS.iter().map(line).collect()
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn packed_files_are_read_as_what_is_in_them() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let long = lines("text").repeat(20_000);
    let plain = read(write("a.jsonl", long.as_bytes()), Records::Lines, "text").unwrap();
    // Two members after each other, as `cat a.gz b.gz` leaves them.
    let (first, second) = long.as_bytes().split_at(long.len() / 3);
    let members = [gz(first), gz(second)].concat();
    assert!(members.len() < long.len() / 50, "many blocks come of one");
    for (name, bytes) in [
        ("a.jsonl.gz", members.clone()),
        ("a.jsonl.GZ", members),
        ("a.jsonl.zst", zstd::encode_all(long.as_bytes(), 3).unwrap()),
    ] {
        assert_eq!(read(write(name, &bytes), Records::Lines, "text").unwrap(), plain, "{name}");
        let cut = read(write(name, &bytes[..bytes.len() / 2]), Records::Lines, "text");
        assert!(matches!(cut, Err(DataError::Packed { .. })), "{cut:?}");
    }
    // Tapes fill files up with zeros, which `gzip -dc` passes over.
    let padded = [gz(b"some text"), vec![0; 100_000]].concat();
    assert_eq!(read(write("a.txt.gz", &padded), Records::Text, "text").unwrap().len(), 9);
    for behind in [&b"\0\0more"[..], b"more"] {
        let more = [&gz(b"some text"), behind].concat();
        let error = read(write("a.txt.gz", &more), Records::Text, "text").unwrap_err();
        assert!(matches!(error, DataError::Packed { .. }), "{error}");
    }
    // A folder's files are known by what is in them.
    let inside = folder.path().join("inside");
    fs::create_dir(&inside).unwrap();
    fs::write(inside.join("b.txt.gz"), gz(b"in a folder")).unwrap();
    fs::write(inside.join("c.bin.gz"), gz(b"no text")).unwrap();
    let found = read(inside, Records::Text, "text").unwrap();
    assert_eq!(found[..11], "in a folder".bytes().map(u32::from).collect::<Vec<_>>());
}

/// The window is as long as the header of a frame says, also of one that anybody has written.
#[test]
fn a_window_beyond_the_memory_of_a_reader_is_unpacked_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let packed = |window: u32| {
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(window).unwrap();
        encoder.write_all(b"some text").unwrap();
        let path = folder.path().join("a.txt.zst");
        fs::write(&path, encoder.finish().unwrap()).unwrap();
        path
    };
    assert_eq!(read(packed(27), Records::Text, "text").unwrap().len(), 9);
    let path = packed(31);
    let error = read(path.clone(), Records::Text, "text").unwrap_err();
    assert!(matches!(error, DataError::Window { .. }), "{error}");
    let way = format!("`zstd -d --rm --long=31 {}`", path.display());
    assert!(error.hint().unwrap().contains(&way), "{:?}", error.hint());
}

#[test]
fn the_text_is_the_field_that_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = |field: &str| {
        let path = folder.path().join(format!("{field}.jsonl"));
        fs::write(&path, lines(field)).unwrap();
        path
    };
    let wanted = read(file("text"), Records::Lines, "text").unwrap();
    assert_eq!(read(file("body"), Records::Lines, "body").unwrap(), wanted);
    let missing = read(file("body"), Records::Lines, "text").unwrap_err().to_string();
    assert!(missing.contains("missing field `text`"), "{missing}");
    let missing = read(file("text"), Records::Lines, "body").unwrap_err().to_string();
    assert!(missing.contains("missing field `body`"), "{missing}");
    let prompts = read(file("prompt"), Records::Lines, "text").unwrap_err().to_string();
    assert!(prompts.contains("missing field `text`"), "{prompts}");
    assert!(prompts.contains("but it has `prompt`"), "{prompts}");
    let number = read(file("text"), Records::Lines, "id").unwrap_err().to_string();
    assert!(number.contains("`id` is the number 7, not a string"), "{number}");
}

#[test]
fn rows_are_rows_whatever_the_file_is_called() {
    let fixture = |name: &str| {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/parquet").join(name)
    };
    let folder = tempfile::tempdir().unwrap();
    let nameless = folder.path().join("rows");
    fs::copy(fixture("zstd.parquet"), &nameless).unwrap();
    let lines = read(fixture("texts.jsonl"), Records::Lines, "text").unwrap();
    assert_eq!(read(nameless, Records::Rows, "text").unwrap(), lines);
    let wrong = read(fixture("texts.jsonl"), Records::Rows, "text").unwrap_err();
    assert!(matches!(wrong, DataError::Parquet { .. }), "{wrong}");
    let body = read(fixture("body.parquet"), Records::Rows, "body").unwrap();
    assert!(!body.is_empty());
    let packed = folder.path().join("rows.Parquet.gz");
    fs::write(&packed, gz(&fs::read(fixture("zstd.parquet")).unwrap())).unwrap();
    for records in [Records::Rows, Records::Lines, Records::Chats] {
        let error = read(packed.clone(), records, "text").unwrap_err();
        assert!(matches!(error, DataError::PackedRows { .. }), "{error}");
        assert!(error.hint().unwrap().starts_with("unpack it"));
    }
}

/// A tokenizer of bytes beside a template.
fn speaking(folder: &Path) -> Tokenizer {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}";
    fs::write(folder.join("chat_template.jinja"), template).unwrap();
    let path = folder.join("tokenizer.json");
    fs::write(&path, byte_tokenizer(257).unwrap().text).unwrap();
    Tokenizer::open(&path.to_string_lossy()).unwrap()
}

#[test]
fn conversations_of_other_programs_are_conversations() {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = speaking(folder.path());
    let read = |line: serde_json::Value| {
        let path = folder.path().join("chats.jsonl");
        fs::write(&path, format!("{line}\n")).unwrap();
        let inputs = [path];
        let texts = Texts::new(&inputs, Records::Chats, &tokenizer);
        Cache::temporary(&texts, &mut |_| ()).map(|cache| tokens(&cache))
    };
    let message = |role: &str, content: &str| json!({ "role": role, "content": content });
    let (system, user, said) = ("Be short.", "What is it?\n\nA ring.", "A ring it is.");
    let asked = [message("user", user), message("assistant", said)];
    let wanted = read(json!({ "messages": asked })).unwrap();
    let with_system = read(
        json!({ "messages": [message("system", system), asked[0].clone(), asked[1].clone()] }),
    );

    let turn = |from: &str, value: &str| json!({ "from": from, "value": value });
    let turns = json!({ "conversations": [turn("human", user), turn("gpt", said)], "id": "x" });
    assert_eq!(read(turns).unwrap(), wanted, "ShareGPT");
    let turns = [turn("system", system), turn("user", user), turn("assistant", said)];
    assert_eq!(read(json!({ "conversations": turns })).unwrap(), with_system.unwrap());
    let weighted = |weight| json!({ "from": "gpt", "value": said, "weight": weight });
    let weighted = |weight| json!({ "conversations": [turn("human", user), weighted(weight)] });
    assert_eq!(read(weighted(1)).unwrap(), wanted, "ShareGPT with weights");
    let alpaca = json!({ "instruction": "What is it?", "input": "A ring.", "output": said });
    assert_eq!(read(alpaca).unwrap(), wanted, "Alpaca");
    let alpaca = json!({ "instruction": user, "input": "", "output": said });
    assert_eq!(read(alpaca).unwrap(), wanted, "Alpaca without an input");

    let turns = json!({ "conversations": [message("human", user), message("gpt", said)] });
    assert_eq!(read(turns).unwrap(), wanted, "turns with `role`");
    assert_eq!(read(json!({ "prompt": user, "completion": said })).unwrap(), wanted, "TRL");
    let lists = json!({ "prompt": [asked[0].clone()], "completion": [asked[1].clone()] });
    assert_eq!(read(lists).unwrap(), wanted, "TRL's messages");
    let part = |text: &str| json!({ "type": "text", "text": text });
    let parts = json!([part("What is it?"), part("\n\nA ring.")]);
    let parts = json!({ "messages": [{ "role": "user", "content": parts }, asked[1].clone()] });
    assert_eq!(read(parts).unwrap(), wanted, "parts");
    let alpaca = json!({ "instruction": user, "output": said, "history": [["Who?", "I."]] });
    let turns =
        [message("user", "Who?"), message("assistant", "I."), asked[0].clone(), asked[1].clone()];
    assert_eq!(read(alpaca).unwrap(), read(json!({ "messages": turns })).unwrap(), "history");
    let alpaca = json!({ "instruction": user, "output": said, "history": [] });
    assert_eq!(read(alpaca).unwrap(), wanted, "no history");

    let image = json!([{ "type": "image_url", "image_url": { "url": "x" } }]);
    let called = |value: &str| json!({ "conversations": [turn("human", "?"), turn("function_call", value)] });
    for (line, wanted) in [
        (
            json!({ "messages": [{ "role": "user", "content": image }] }),
            "part 1 of the content of message 1 is of type `image_url`, expected `text`",
        ),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "text" }] }] }),
            "has no `text`",
        ),
        (json!({ "prompt": "x" }), "missing field `completion`"),
        (json!({ "prompt": "x", "completion": [] }), "neither two texts nor two lists"),
        (
            json!({ "instruction": "x", "output": "y", "history": ["z"] }),
            "`history` is not a list of pairs",
        ),
        (called("look"), "turn 2 is from `function_call`, and its `value` is neither"),
        (json!({ "conversations": [turn("elephant", "?")] }), "turn 1 is from `elephant`"),
        (json!({ "conversations": [{ "from": "human" }] }), "turn 1 has no `value`"),
        (json!({ "conversations": 7 }), "is not a list of turns"),
        (weighted(0), "no message of the `assistant`'s is to be learned"),
        (json!({ "instruction": "do" }), "missing field `output`"),
        (json!({ "instruction": 7, "output": "x" }), "`instruction` is not a text"),
        (json!({}), "missing field `messages`, `conversations`, `instruction` or `prompt`"),
        (json!({ "text": "x" }), "or `prompt`, but it has `text`"),
    ] {
        let error = read(line).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

/// ShareGPT's calls of tools are OpenAI's.
#[test]
fn calls_of_tools_are_messages_that_call() {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = speaking(folder.path());
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for call in m.tool_calls %}\
                    {{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}\n{% endfor %}";
    fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    let turns = json!([
        { "from": "human", "value": "?" },
        { "from": "function_call", "value": "{\"name\": \"look\", \"arguments\": {\"at\": 7}}" },
        { "from": "observation", "value": "a ring" },
        { "from": "gpt", "value": "A ring." }
    ]);
    let path = folder.path().join("chats.jsonl");
    fs::write(&path, format!("{}\n", json!({ "conversations": turns }))).unwrap();
    let inputs = [path];
    let texts = Texts::new(&inputs, Records::Chats, &tokenizer);
    let text = tokenizer.decode(&tokens(&Cache::temporary(&texts, &mut |_| ()).unwrap())).unwrap();
    let wanted = "<user>?<assistant>look{\"at\": 7}<tool>a ring<assistant>A ring.";
    assert_eq!(text, wanted);
}
