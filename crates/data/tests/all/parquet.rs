//! Parquet files of pyarrow (`crates/xtask/python/tables.py`): the same tokens as the same records in
//! lines of JSON, and nothing but an error from what is no such file.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::parquet::basic::{Compression, GzipLevel};
use ::parquet::column::writer::ColumnWriter;
use ::parquet::data_type::{ByteArray, ByteArrayType, FixedLenByteArray};
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;
use annulus_data::{
    Cache, DataError, Longer, Packed, Packing, Records, Source as _, Texts, Tokenizer, Window,
    Windows, byte_tokenizer, train_tokenizer,
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

/// A record of Alpaca's with a column `system`, as OpenOrca's have it.
#[test]
fn the_system_column_is_read_as_the_field_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let fields = [("system", "Be short."), ("instruction", "What?"), ("output", "A ring.")];
    let columns = fields.map(|(name, _)| format!("required binary {name} (UTF8);")).concat();
    let schema = Arc::new(parse_message_type(&format!("message m {{ {columns} }}")).unwrap());
    let file = fs::File::create(path("a.parquet")).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for (_, text) in fields {
        let mut column = group.next_column().unwrap().unwrap();
        let written = column.typed::<ByteArrayType>().write_batch(&[text.into()], None, None);
        assert_eq!(written.unwrap(), 1);
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
    let line = fields.map(|(name, text)| format!("{name:?}: {text:?}")).join(", ");
    fs::write(path("a.jsonl"), format!("{{{line}}}\n")).unwrap();
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    fs::write(path("chat_template.jinja"), template).unwrap();
    fs::write(path("tokenizer.json"), byte_tokenizer(257).unwrap().text).unwrap();
    let tokenizer = Tokenizer::open(&path("tokenizer.json").to_string_lossy()).unwrap();
    let read = |name| contents(open(&path(name), Records::Chats, &tokenizer).unwrap());
    assert_eq!(read("a.parquet"), read("a.jsonl"));
    let text = tokenizer.decode(&read("a.parquet").1).unwrap();
    assert!(text.starts_with("<system>Be short.<user>What?<assistant>A ring"), "{text}");
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
        "`body.parquet` is not a usable parquet file: it has no column `text`, but `body`"
    );
    for (name, found) in [
        ("numbers.parquet", "column `text` holds numbers or times, expected texts"),
        ("null.parquet", "row 2: column `text` holds nothing, expected a text"),
    ] {
        let wanted = format!("`{name}` is not a usable parquet file: {found}");
        assert_eq!(complaint(name, Records::Lines), wanted);
    }
}

#[test]
fn files_of_another_kind_are_told_from_files_that_are_cut_short() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.parquet");
    let good = fs::read(fixture("plain.parquet")).unwrap();
    let encrypted = [&good[..good.len() - 1], b"E"].concat();
    let unnamed = [b"x", &good[1..]].concat();
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a";
    for (bytes, found, way) in [
        (&good[..good.len() - 1], "it is cut short", "download it again"),
        (&good[..4], "it is cut short", "download it again"),
        (b"", "it does not begin with `PAR1`", "set `format`"),
        (pointer, "it does not begin with `PAR1`", "`git lfs pull`"),
        (&unnamed, "it does not begin with `PAR1`", "name a parquet file"),
        (&encrypted, "it is encrypted", "without encryption"),
    ] {
        fs::write(&file, bytes).unwrap();
        let error = open(&file, Records::Rows, &Tokenizer::Bytes).unwrap_err();
        let hint = error.hint().unwrap();
        assert!(error.to_string().contains(found) && hint.contains(way), "{error}; {hint}");
    }
}

/// A file of one column of bytes, as `schema` says it, in every way to write them.
fn written(
    path: &Path,
    schema: &str,
    values: &[&[u8]],
    levels: Option<(&[i16], &[i16])>,
    gzip: bool,
) {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let gzip = if gzip { Compression::GZIP(GzipLevel::default()) } else { Compression::SNAPPY };
    let properties = WriterProperties::builder().set_compression(gzip).build();
    let file = fs::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let (definition, repetition) = levels.unzip();
    match column.untyped() {
        ColumnWriter::ByteArrayColumnWriter(writer) => {
            let values: Vec<_> =
                values.iter().map(|value| ByteArray::from(value.to_vec())).collect();
            writer.write_batch(&values, definition, repetition).unwrap();
        }
        ColumnWriter::FixedLenByteArrayColumnWriter(writer) => {
            let values: Vec<FixedLenByteArray> =
                values.iter().map(|value| ByteArray::from(value.to_vec()).into()).collect();
            writer.write_batch(&values, definition, repetition).unwrap();
        }
        _ => panic!("bytes"),
    }
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn bytes_are_texts_where_they_are_utf8_and_refused_where_not() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bytes.parquet");
    for schema in [
        "message m { required binary text; }",
        "message m { required binary text (UTF8); }",
        "message m { required fixed_len_byte_array(5) text; }",
    ] {
        // Equal ones are in a dictionary.
        let texts: [&[u8]; 4] = [b"hello", b"w\xc3\xb6rd", b"hello", b"hello"];
        written(&file, schema, &texts, None, false);
        let cache = open(&file, Records::Lines, &Tokenizer::Bytes).unwrap();
        let mut ids = vec![0; cache.tokens() as usize];
        cache.read(0, &mut ids).unwrap();
        let bytes: Vec<u8> = ids.iter().filter_map(|id| u8::try_from(*id).ok()).collect();
        assert_eq!(bytes, "hellow\u{f6}rdhellohello".as_bytes(), "{schema}");
        written(&file, schema, &[b"hello", b"\xff\xfeabc"], None, false);
        let error = open(&file, Records::Lines, &Tokenizer::Bytes).unwrap_err().to_string();
        let found = "row 2: column `text` holds bytes that are not UTF-8 from byte 0 on";
        assert!(error.ends_with(found), "{schema}: {error}");
    }
}

/// Not with all its bytes.
#[test]
fn a_text_of_a_conversation_that_is_not_utf8_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("chat_template.jinja"), "{{ messages }}").unwrap();
    fs::write(path("tokenizer.json"), byte_tokenizer(257).unwrap().text).unwrap();
    let tokenizer = Tokenizer::open(&path("tokenizer.json").to_string_lossy()).unwrap();
    let schema = MESSAGES.replace("content", "content (UTF8)");
    let bad = [&[b'a'; 999][..], b"\xff"].concat();
    written(&path("a.parquet"), &schema, &[b"good", &bad], Some((&[1, 1], &[0, 1])), false);
    let error = open(&path("a.parquet"), Records::Chats, &tokenizer).unwrap_err().to_string();
    let found = "row 1: column `messages.content` holds bytes that are not UTF-8 from byte 999 on";
    assert!(error.ends_with(found), "{error}");
}

/// The library was built without them.
#[test]
fn columns_packed_otherwise_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("packed.parquet");
    written(&file, "message m { required binary text; }", &[b"hello"], None, false);
    let bytes = fs::read(&file).unwrap();
    // In the footer, behind the column's path: its codec, of which 1 is Snappy.
    let codec = b"\x04text\x15\x02";
    let at = bytes.windows(codec.len()).rposition(|place| place == codec).unwrap();
    for (number, name) in [(4, "Brotli"), (5, "LZ4"), (7, "LZ4")] {
        let mut other = bytes.clone();
        other[at + codec.len() - 1] = 2 * number;
        fs::write(&file, other).unwrap();
        let error = open(&file, Records::Rows, &Tokenizer::Bytes).unwrap_err();
        let wanted =
            format!("column `text` is packed by {name}, expected zstd, snappy, gzip or none");
        assert!(error.to_string().ends_with(&wanted), "{error}");
        assert!(error.hint().unwrap().starts_with("write it again"));
    }
}

const MESSAGES: &str = "message m { repeated group messages { required binary content; } }";

#[test]
fn rows_and_pages_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("large.parquet");
    let complaint =
        |records, tokenizer: &Tokenizer| open(&file, records, tokenizer).unwrap_err().to_string();
    let one = vec![b'a'; (1 << 26) + 1];
    written(&file, "message m { required binary text; }", &[&one], None, true);
    let error = complaint(Records::Lines, &Tokenizer::Bytes);
    assert!(error.ends_with("row 1: over 67108864 bytes long, the limit of a row"), "{error}");
    // 70 times the same megabyte, which the file has once; and more messages than a row may have.
    let chats = folder.path().join("tokenizer.json");
    fs::write(folder.path().join("chat_template.jinja"), "{{ messages }}").unwrap();
    train_tokenizer(&[fixture("zstd.parquet")], Records::Lines, 280, &chats).unwrap();
    let tokenizer = Tokenizer::open(&chats.to_string_lossy()).unwrap();
    let large = vec![b'a'; 1 << 20];
    for (value, count, found) in [
        (&large[..], 70, "row 1: over 67108864 bytes long, the limit of a row"),
        (b"a", 140_000, "a row has more than 131072 values in a column"),
    ] {
        let (levels, mut repeated) = (vec![1; count], vec![1; count]);
        repeated[0] = 0;
        written(&file, MESSAGES, &vec![value; count], Some((&levels, &repeated)), false);
        let error = complaint(Records::Chats, &tokenizer);
        assert!(error.contains(found), "{error}");
    }
}

/// A page of which the header says that it has 2 GB: refused before they are asked for.
#[test]
fn a_page_that_says_it_is_large_is_refused_before_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("large.parquet");
    let text = vec![b'a'; 1 << 20];
    written(&file, "message m { required binary text; }", &[&text], None, false);
    let mut bytes = fs::read(&file).unwrap();
    // The first page: its size, 1048580 bytes, behind the number of the field.
    let size = [0x15, 0x88, 0x80, 0x80, 0x01];
    let page = |bytes: &[u8]| bytes.windows(5).position(|found| found == size).unwrap();
    let at = page(&bytes);
    bytes.splice(at + 1..at + 5, [0x80, 0x80, 0x80, 0x80, 0x08]);
    fs::write(&file, &bytes).unwrap();
    let error = open(&file, Records::Lines, &Tokenizer::Bytes).unwrap_err().to_string();
    assert!(error.contains("bytes at once, of which 268435456 are read at most"), "{error}");
    // Gzip goes on behind what the page says that it has.
    written(&file, "message m { required binary text; }", &[&text], None, true);
    let mut bytes = fs::read(&file).unwrap();
    let at = page(&bytes);
    bytes[at + 4] = 0;
    fs::write(&file, &bytes).unwrap();
    let error = open(&file, Records::Lines, &Tokenizer::Bytes).unwrap_err().to_string();
    assert!(error.ends_with("a page has more than the 4 bytes that it says it has"), "{error}");
    let end = bytes.len() - 8;
    for (length, found) in [(u32::MAX, "of which 16777216 are read"), (1 << 23, "and it has")] {
        bytes[end..end + 4].copy_from_slice(&length.to_le_bytes());
        fs::write(&file, &bytes).unwrap();
        let error = open(&file, Records::Lines, &Tokenizer::Bytes).unwrap_err().to_string();
        assert!(error.contains(found), "{error}");
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
