//! Caches with right hashes that nobody tokenised: refused when they are opened, or when what is wrong is read.

use std::fs;
use std::path::{Path, PathBuf};

use crate::header::Header;
use crate::{Cache, DataError};

/// Of what a cache is made: ids of 2 bytes, and the numbers behind them.
struct Crafted<'a> {
    ids: &'a [u16],
    documents: &'a [u64],
    learned: &'a [u64],
    vocabulary: u64,
}

const GOOD: Crafted<'_> =
    Crafted { ids: &[1, 2, 3, 4], documents: &[0, 2], learned: &[1, 2, 2, 4], vocabulary: 5 };

fn write(folder: &Path, made: &Crafted<'_>, change: impl Fn(&mut Header)) -> PathBuf {
    let mut content: Vec<u8> = made.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    content.resize(content.len().next_multiple_of(8), 0);
    let numbers = made.documents.iter().chain(made.learned);
    content.extend(numbers.flat_map(|number| number.to_le_bytes()));
    let mut header = Header {
        width: 2,
        tokens: made.ids.len() as u64,
        documents: made.documents.len() as u64,
        vocabulary: made.vocabulary,
        learned: made.learned.len() as u64 / 2,
        content: blake3::hash(&content),
        key: blake3::hash(b"key"),
    };
    change(&mut header);
    let path = folder.join("made.tokens");
    fs::write(&path, [&header.write()[..], &content].concat()).unwrap();
    path
}

#[test]
fn documents_and_stretches_lie_among_the_tokens_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let open = |made: &Crafted<'_>| Cache::open_file(&write(folder.path(), made, |_| {}));
    assert_eq!(open(&GOOD).unwrap().documents(), [0, 2]);
    for documents in [&[0, 4][..], &[0, u64::MAX], &[1, 2], &[0, 0], &[0, 3, 2], &[0, 1, 2, 3, 4]] {
        let error = open(&Crafted { documents, ..GOOD }).unwrap_err();
        assert!(matches!(error, DataError::NoCache { .. }), "{documents:?}: {error}");
    }
    for learned in [&[2, 2][..], &[3, 2], &[0, 5], &[0, 3, 2, 4], &[0, u64::MAX]] {
        let error = open(&Crafted { learned, ..GOOD }).unwrap_err();
        assert!(matches!(error, DataError::NoCache { .. }), "{learned:?}: {error}");
    }
}

#[test]
fn numbers_of_a_header_that_cannot_be_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let changes: [fn(&mut Header); 9] = [
        |header| header.tokens = u64::MAX,
        |header| header.tokens = u64::MAX / 2,
        |header| header.documents = u64::MAX,
        |header| header.learned = u64::MAX / 16,
        |header| header.width = 0,
        |header| header.width = u32::MAX,
        |header| header.width = 4,
        |header| header.vocabulary = 1 << 17,
        |header| header.vocabulary = 0,
    ];
    for change in changes {
        let error = Cache::open_file(&write(folder.path(), &GOOD, change)).unwrap_err();
        assert!(matches!(error, DataError::NoCache { .. }), "{error}");
    }
}

#[test]
fn an_id_beyond_the_vocabulary_is_an_error_where_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let made = Crafted { ids: &[1, 2, 60_000, 4], ..GOOD };
    let cache = Cache::open_file(&write(folder.path(), &made, |_| {})).unwrap();
    cache.read(0, &mut [0; 2]).unwrap();
    let error = cache.read(1, &mut [0; 2]).unwrap_err();
    assert!(error.to_string().ends_with("holds the id 60000, but says it has 5 tokens"), "{error}");
}
