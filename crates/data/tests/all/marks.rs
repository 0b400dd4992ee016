//! Byte-order marks at the beginning of files: no text, and nothing else is made anew for them.

use std::fs;
use std::io::Write;

use annulus_data::{Cache, Records, Texts, Tokenizer};
use flate2::{Compression, write::GzEncoder};

const MARK: &str = "\u{feff}";

/// Of `name` with these bytes: its tokens as bytes, and what a checkpoint knows of them.
fn read(name: &str, bytes: &[u8], records: Records) -> (Vec<u8>, String) {
    let folder = tempfile::tempdir().unwrap();
    let inputs = [folder.path().join(name)];
    fs::write(&inputs[0], bytes).unwrap();
    let texts = Texts::new(&inputs, records, &Tokenizer::Bytes);
    let cache = Cache::temporary(&texts, &mut |_| ()).unwrap();
    let mut ids = vec![0; cache.tokens() as usize];
    cache.read(0, &mut ids).unwrap();
    let bytes = ids.iter().map(|id| u8::try_from(*id).unwrap_or(b'|')).collect();
    (bytes, cache.fingerprint().to_owned())
}

fn gz(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_mark_at_the_beginning_is_no_text() {
    let of = |name: &str, text: &str, records| {
        let bytes = if name.ends_with("gz") { gz(text) } else { text.as_bytes().to_vec() };
        read(name, &bytes, records).0
    };
    for (name, records, text) in [
        ("a.txt", Records::Text, "some text"),
        ("a.txt.gz", Records::Text, "some text"),
        ("a.txt", Records::Text, ""),
        ("a.jsonl", Records::Lines, "{\"text\": \"a\"}\n{\"text\": \"b\"}\n"),
        ("a.jsonl.gz", Records::Lines, "{\"text\": \"a\"}\n{\"text\": \"b\"}\n"),
    ] {
        let marked = of(name, &format!("{MARK}{text}"), records);
        assert_eq!(marked, of(name, text, records), "{name}");
    }
    let within = format!("a{MARK}");
    assert_eq!(of("a.txt", &within, Records::Text), within.as_bytes());
}

/// Caches in which the mark is a token are not taken; all others are.
#[test]
fn only_caches_of_marked_texts_are_made_anew() {
    let text = format!("{MARK}some text");
    let before = [
        (
            "a.txt",
            b"some text".to_vec(),
            "f6911f51cf014598baee45575310b10689303b92061d658b11a28a94ba636e77",
        ),
        (
            "a.txt",
            text.clone().into_bytes(),
            "158d11af4596f18b5a0d508217d306bf678df503771fd96f42a2ee444c50e8df",
        ),
        ("a.txt.gz", gz(&text), "5fda7ff0a49631111a55c1cf5c1815e5c022f801b3586fc46d1845782a664355"),
    ];
    let kept = before.map(|(name, bytes, known)| read(name, &bytes, Records::Text).1 == known);
    assert_eq!(kept, [true, false, false]);
}

/// In older caches what stands between documents begins the next one.
#[test]
fn caches_of_several_documents_are_made_anew() {
    let lines = b"{\"text\": \"a\"}\n{\"text\": \"b\"}\n";
    let (tokens, fingerprint) = read("a.jsonl", lines, Records::Lines);
    assert_eq!(tokens, b"a|b");
    let before = "c19709ce8f37cfc370537b94dec60b77b37e037a305be5bc95dadd697de7113f";
    assert_ne!(fingerprint, before);
}

/// What its first bytes say that a file is, instead of text in UTF-8.
#[test]
fn a_file_that_is_no_text_says_what_it_is() {
    let utf16: Vec<u8> = "\u{feff}text".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let cases: [(&[u8], &str, &str); 9] = [
        (&utf16, "is text in UTF-16, expected UTF-8", "`iconv -f utf-16 -t utf-8 FILE`"),
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "is a PDF, expected text in UTF-8", "`pdftotext FILE`"),
        (b"PK\x03\x04\x14\x00\xff", "is a zip archive", "save a document as text"),
        (b"\x1f\x8b\x08\0", "is packed by gzip", "ends in `.gz`"),
        (b"\x28\xb5\x2f\xfd\x04", "is packed by zstd", "ends in `.zst`"),
        (b"\xfd7zXZ\0\0", "is packed by xz, expected text in UTF-8", "`xz -d FILE`"),
        (b"BZh91AY&SY\xff", "is packed by bzip2", "`bzip2 -d FILE`"),
        (b"PAR1\x15\xff", "is a parquet file", "`format: parquet`"),
        (b"caf\xe9", "is not UTF-8 at byte 3", "`iconv -f latin1 -t utf-8 FILE`"),
    ];
    for (bytes, wanted, way) in cases {
        let folder = tempfile::tempdir().unwrap();
        let inputs = [folder.path().join("a.txt")];
        fs::write(&inputs[0], bytes).unwrap();
        let texts = Texts::new(&inputs, Records::Text, &Tokenizer::Bytes);
        let error = Cache::temporary(&texts, &mut |_| ()).unwrap_err();
        assert!(error.to_string().contains(wanted), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains(way)), "{error}");
    }
}
