//! Parquet files of pyarrow (`crates/xtask/python/tables.py`): the same tokens as the same records in
//! lines of JSON, and nothing but an error from what is no such file.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use annulus_data::{
    Cache, DataError, Longer, Packed, Packing, Records, Source as _, Texts, Tokenizer, Window,
    Windows, train_tokenizer,
};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/parquet").join(name)
}

fn open(file: &Path, records: Records, tokenizer: &Tokenizer) -> Result<Cache, DataError> {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let inputs = [file.to_owned()];
    Cache::open(&Texts::new(&inputs, records, tokenizer), folder.path(), false, &mut |_| ())
}

/// How many documents there are, and all of their ids and targets.
fn contents(cache: Cache) -> (usize, Vec<u32>, Vec<i64>) {
    let (documents, tokens) = (cache.documents().len(), cache.tokens() as usize);
    let cache = Arc::new(cache);
    let batch = if cache.is_marked() {
        let packing = Arc::new(Packing::new(cache, tokens, Longer::Refuse).expect("it fits"));
        Packed::new(packing, Window::Train, 0, 1, 0).expect("one sequence").batch(0)
    } else {
        let windows = Windows::new(cache, Window::HeldOut, tokens as u64, tokens - 1, 1, 0);
        windows.expect("one window").batch(0)
    };
    let sequence = batch.expect("the first").remove(0);
    (documents, sequence.inputs, sequence.targets)
}

#[test]
fn rows_are_read_as_lines_are() {
    let lines = open(&fixture("texts.jsonl"), Records::Lines, &Tokenizer::Bytes).unwrap();
    let lines = contents(lines);
    assert_eq!(lines.0, 27);
    for name in ["plain.parquet", "snappy.parquet", "gzip.parquet", "zstd.parquet"] {
        let rows = open(&fixture(name), Records::Lines, &Tokenizer::Bytes).unwrap();
        assert_eq!(contents(rows), lines, "{name}");
    }
}

#[test]
fn conversations_are_read_as_lines_are() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("tokenizer.json");
    train_tokenizer(&[fixture("zstd.parquet")], Records::Lines, 280, &out).unwrap();
    fs::write(
        folder.path().join("chat_template.jinja"),
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}\
         {% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    )
    .unwrap();
    let tokenizer = Tokenizer::open(&out.to_string_lossy()).unwrap();
    let lines = open(&fixture("chats.jsonl"), Records::Chats, &tokenizer).unwrap();
    let rows = open(&fixture("chats.parquet"), Records::Chats, &tokenizer).unwrap();
    assert!(rows.is_marked());
    assert_eq!(contents(rows), contents(lines));
}

#[test]
fn a_folder_of_parquet_files_is_read_in_name_order() {
    let folder = tempfile::tempdir().unwrap();
    for (name, to) in [("snappy.parquet", "a-000.parquet"), ("texts.jsonl", "a-001.jsonl")] {
        fs::copy(fixture(name), folder.path().join(to)).unwrap();
    }
    let cache = open(folder.path(), Records::Lines, &Tokenizer::Bytes).unwrap();
    assert_eq!(cache.documents().len(), 54);
}

#[test]
fn what_is_no_column_of_texts_is_said() {
    let complaint = |name: &str, records| {
        let error = open(&fixture(name), records, &Tokenizer::Bytes).unwrap_err().to_string();
        error.replace(&fixture("").display().to_string(), "")
    };
    assert_eq!(
        complaint("body.parquet", Records::Lines),
        "`body.parquet` is no usable parquet file: it has no column `text`, but `body`"
    );
    for (name, found) in [
        ("numbers.parquet", "row 1: column `text` holds a number or a time, wanted a text"),
        ("null.parquet", "row 2: column `text` holds nothing, wanted a text"),
    ] {
        let wanted = format!("`{name}` is no usable parquet file: {found}");
        assert_eq!(complaint(name, Records::Lines), wanted);
    }
}

/// Cut anywhere, and with any byte another: an error, or other records; never a panic that gets out.
#[test]
fn damaged_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("damaged.parquet");
    for name in ["plain.parquet", "snappy.parquet", "gzip.parquet", "zstd.parquet"] {
        let good = fs::read(fixture(name)).unwrap();
        for length in (0..good.len()).step_by(499) {
            fs::write(&file, &good[..length]).unwrap();
            let error = open(&file, Records::Lines, &Tokenizer::Bytes).unwrap_err();
            assert!(matches!(error, DataError::Parquet { .. }), "{length}: {error}");
        }
        for at in (0..good.len()).step_by(331) {
            let mut bad = good.clone();
            bad[at] ^= 0xff;
            fs::write(&file, &bad).unwrap();
            // Some bytes are of texts.
            let _ = open(&file, Records::Lines, &Tokenizer::Bytes);
        }
    }
}
