//! Where sequences come from: documents, their places, and the files and lines that they are in.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use annulus_data::{
    Cache, Longer, MadeUp, Mixture, Origin, Packed, Packing, Part, Place, Records, Source,
    Synthetic, Texts, Tokenizer, Window, Windows, count_padding, places,
};

/// Lines, some of which are no document.
const LINES: &str = "{\"text\": \"one\"}\n\n{\"text\": \"\"}\n{\"text\": \"two of them\"}\n  \n{\"text\": \" \"}\n{\"text\": \"three\"}";

fn cache(inputs: &[PathBuf], records: Records) -> Arc<Cache> {
    let texts = Texts::new(inputs, records, &Tokenizer::Bytes);
    Arc::new(Cache::temporary(&texts, &mut |_| ()).unwrap())
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path
}

/// Every extract is what the cache has there, in order, and nothing else is in a sequence.
#[track_caller]
fn check(source: &dyn Source, caches: &[&Cache], steps: u64) {
    for (step, row) in (0..steps).flat_map(|step| (0..source.rows()).map(move |row| (step, row))) {
        let sequence = source.batch(step).unwrap().remove(row);
        let Some(Origin { source, extracts }) = source.origin(step, row).unwrap() else { continue };
        let cache = caches[source];
        let mut wanted = Vec::new();
        for extract in extracts {
            let mut ids = vec![0; extract.inputs];
            cache
                .read(cache.documents()[extract.document as usize] + extract.first, &mut ids)
                .unwrap();
            wanted.extend(ids);
        }
        let inside = sequence.inputs.len() - count_padding(&sequence);
        assert_eq!(sequence.inputs[..inside], wanted, "step {step}, row {row}");
    }
}

#[test]
fn sequences_are_what_their_origin_says() {
    let folder = tempfile::tempdir().unwrap();
    let lines = (0..400).map(|n| format!("{{\"text\": \"{}\"}}\n", "ab".repeat(n % 37)));
    let text = lines.collect::<Vec<_>>().concat();
    let cache = cache(&[write(folder.path(), "a.jsonl", &text)], Records::Lines);
    let windows = |batch| Windows::new(cache.clone(), Window::Train, 100, 64, batch, 3).unwrap();
    check(&windows(3), &[&cache], 300);
    let held_out = Windows::new(cache.clone(), Window::HeldOut, 700, 64, 2, 3).unwrap();
    check(&held_out, &[&cache], 5);
    assert!(held_out.origin(5, 0).is_err(), "behind the last batch");
    let packing = |longer| Packing::new(cache.clone(), 40, longer).unwrap();
    for packing in [packing(Longer::Cut), packing(Longer::Split).best_fit(4)] {
        let packed = Packed::new(Arc::new(packing), Window::Train, 4, 3, 3).unwrap();
        check(&packed, &[&cache], 300);
    }
    let made_up: Arc<dyn Source> = Arc::new(MadeUp::new(Synthetic::Recall, 64, 1, 3).unwrap());
    assert_eq!(made_up.origin(0, 0).unwrap(), None);
    let text: Arc<dyn Source> = Arc::new(windows(1));
    let part = |source: &Arc<dyn Source>, weight| Part { source: source.clone(), weight };
    let mixture = Mixture::new(vec![part(&made_up, 1.0), part(&text, 2.0)], 4, 3);
    check(&mixture, &[&cache, &cache], 100);
    let sources = (0..4).filter_map(|row| mixture.origin(9, row).unwrap());
    assert!(sources.map(|origin| origin.source).all(|source| source == 1));
}

#[test]
fn documents_are_found_in_their_files_and_lines() {
    let folder = tempfile::tempdir().unwrap();
    let place = |file: &Path, line| Place { file: file.to_owned(), line };
    let [first, second] = ["a.jsonl", "b.jsonl"].map(|name| write(folder.path(), name, LINES));
    let inputs = [first.clone(), second.clone()];
    let find = |inputs: &[PathBuf], records, documents: &[u64]| {
        let texts = Texts::new(inputs, records, &Tokenizer::Bytes);
        let documents: BTreeSet<u64> = documents.iter().copied().collect();
        places(&texts, &documents).unwrap().into_iter().collect::<Vec<_>>()
    };
    assert_eq!(cache(&inputs, Records::Lines).documents().len(), 8);
    let wanted =
        [(0, place(&first, Some(1))), (3, place(&first, Some(7))), (5, place(&second, Some(4)))];
    assert_eq!(find(&inputs, Records::Lines, &[0, 3, 5]), wanted);
    // What lies behind the last that is looked for is not read.
    fs::write(&second, "broken").unwrap();
    assert_eq!(find(&inputs, Records::Lines, &[0, 3]), wanted[..2]);
    // Every line that is not blank is a conversation.
    assert_eq!(find(&inputs[..1], Records::Chats, &[2]), [(2, place(&first, Some(4)))]);
    // A file that is empty but for its mark is no document.
    let text = write(folder.path(), "d.txt", "\u{feff}a");
    let inputs = [
        write(folder.path(), "c.txt", "\u{feff}"),
        write(folder.path(), "b.txt", ""),
        text.clone(),
    ];
    assert_eq!(cache(&inputs, Records::Text).documents().len(), 1);
    assert_eq!(find(&inputs, Records::Text, &[0]), [(0, place(&text, None))]);
}
