//! Windows: every one of an epoch once, nothing held out among them, and no state.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use annulus_data::{Cache, Records, Source, Texts, Tokenizer, Window, Windows};

/// A cache whose token at place `p` is `p`, up to 128.
fn counting(tokens: usize) -> Arc<Cache> {
    assert!(tokens <= 128);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    fs::write(&path, (0..tokens as u8).collect::<Vec<_>>()).unwrap();
    let cache = folder.path().join("cache");
    Arc::new(open(path, Records::Text, &cache))
}

fn open(path: PathBuf, records: Records, folder: &Path) -> Cache {
    let inputs = [path];
    let texts = Texts::new(&inputs, records, &Tokenizer::Bytes);
    Cache::open(&texts, folder, false, &mut |_| {}).unwrap()
}

fn starts(windows: &Windows, steps: std::ops::Range<u64>) -> Vec<u32> {
    let batches = steps.map(|step| windows.batch(step).unwrap());
    batches.flatten().map(|sequence| sequence.inputs[0]).collect()
}

#[test]
fn every_window_of_an_epoch_comes_once_and_epochs_differ() {
    for (length, held_out, tokens, batch) in [(128, 20, 5, 1), (100, 0, 7, 4), (128, 8, 30, 3)] {
        let new = |seed| {
            Windows::new(counting(length), Window::Train, held_out, tokens, batch, seed).unwrap()
        };
        let windows = new(1);
        let count = windows.windows();
        let epochs = starts(&windows, 0..count);
        let mut orders = Vec::new();
        for epoch in epochs.chunks_exact(count as usize) {
            let mut sorted = epoch.to_vec();
            sorted.sort_unstable();
            assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] == tokens as u32));
            assert!(sorted.last().unwrap() + (tokens as u32) < (length as u64 - held_out) as u32);
            orders.push(epoch.to_vec());
        }
        orders.sort();
        orders.dedup();
        assert!(orders.len() == batch, "epochs repeat: {orders:?}");
        assert_ne!(starts(&new(2), 0..count), epochs);
        assert_eq!(starts(&new(1), count - 1..count), epochs[epochs.len() - batch..]);
    }
}

/// Also the last ones of a text whose length is no multiple of the windows'.
#[test]
fn every_token_but_the_first_is_a_target_in_some_epoch() {
    let folder = tempfile::tempdir().unwrap();
    for (length, tokens) in [(299, 100), (200, 100), (301, 100), (101, 100), (150, 100)] {
        let path = folder.path().join(format!("{length}.txt"));
        // No two windows of it are the same.
        let text = (100..999).map(|number| number.to_string()).collect::<Vec<_>>().join(" ");
        fs::write(&path, &text[..length]).unwrap();
        let cache = open(path, Records::Text, &folder.path().join("cache"));
        let mut ids = vec![0; length];
        cache.read(0, &mut ids).unwrap();
        let windows = Windows::new(Arc::new(cache), Window::Train, 0, tokens, 1, 3).unwrap();
        let mut targets = BTreeSet::new();
        for step in 0..3000 * windows.windows() {
            let inputs = windows.batch(step).unwrap().remove(0).inputs;
            let start = ids.windows(tokens).position(|window| window == inputs).unwrap();
            targets.extend(start + 1..=start + tokens);
        }
        assert!(targets.iter().copied().eq(1..length), "{length}");
    }
}

#[test]
fn windows_are_neighbours_shifted_by_one() {
    let windows = Windows::new(counting(40), Window::Train, 0, 6, 2, 3).unwrap();
    for sequence in windows.batch(u64::MAX).unwrap() {
        let first = sequence.inputs[0];
        assert!(sequence.inputs.iter().copied().eq(first..first + 6));
        assert!(sequence.targets.iter().copied().eq(i64::from(first) + 1..i64::from(first) + 7));
    }
}

#[test]
fn what_is_held_out_comes_in_order_and_ends() {
    let windows = Windows::new(counting(100), Window::HeldOut, 31, 5, 2, 0).unwrap();
    assert_eq!(windows.batches(), Some(3));
    assert_eq!(starts(&windows, 0..3), [69, 74, 79, 84, 89, 94]);
    let error = windows.batch(3).unwrap_err();
    assert_eq!(error.to_string(), "step 3 asked for, 3 batches found");
    assert_eq!(windows.vocabulary(), 100);
}

#[test]
fn texts_that_are_too_short_are_refused() {
    let new = |window, held_out, tokens, batch| {
        let error = Windows::new(counting(20), window, held_out, tokens, batch, 0).unwrap_err();
        assert!(error.hint().is_some());
        error.to_string()
    };
    let train = "the text has 20 tokens, but 21 are needed: 6 held out (`data.evaluate`) and at least 15 to train on";
    assert_eq!(new(Window::Train, 6, 14, 1), train);
    let held_out = "the text has 20 tokens, expected at least 22";
    assert_eq!(new(Window::HeldOut, 30, 7, 3), held_out);
    let none = "the text has 20 tokens, but 18446744073709551615 are needed: 18446744073709551615 held out (`data.evaluate`) and at least 18446744073709551615 to train on";
    assert_eq!(new(Window::Train, u64::MAX, usize::MAX, usize::MAX), none);
    assert_eq!(new(Window::Train, 0, 0, 1), "data.tokens is 0, expected at least 1");
    assert_eq!(new(Window::Train, 0, 1, 0), "data.batch is 0, expected at least 1");
}

#[test]
fn the_shortest_text_that_will_do_does() {
    let windows = Windows::new(counting(15), Window::Train, 0, 14, 1, 9).unwrap();
    assert_eq!(starts(&windows, 0..3), [0, 0, 0]);
}

#[test]
fn a_fingerprint_tells_sources_apart() {
    let new = |window, held_out, tokens, batch, seed| {
        Windows::new(counting(60), window, held_out, tokens, batch, seed).unwrap().fingerprint()
    };
    let one = new(Window::Train, 20, 5, 2, 1);
    assert_eq!(one, new(Window::Train, 20, 5, 2, 1));
    for other in [
        new(Window::HeldOut, 20, 5, 2, 1),
        new(Window::Train, 21, 5, 2, 1),
        new(Window::Train, 20, 6, 2, 1),
        new(Window::Train, 20, 5, 3, 1),
        new(Window::Train, 20, 5, 2, 2),
    ] {
        assert_ne!(one, other);
    }
}

#[test]
fn a_window_says_where_documents_begin_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    let lines = ["abc", "", "defgh", "i", "jklmnopq"].map(|text| format!("{{\"text\": {text:?}}}"));
    fs::write(&path, lines.join("\n")).unwrap();
    let cache = folder.path().join("cache");
    let cache = open(path, Records::Lines, &cache);
    let (starts, all) = (cache.documents().to_vec(), cache.tokens());
    assert!(starts.len() >= 4, "{starts:?}");
    let mut ids = vec![0; all as usize];
    cache.read(0, &mut ids).unwrap();
    let windows = Windows::new(Arc::new(cache), Window::HeldOut, all, 5, 1, 0).unwrap();
    for step in 0..windows.batches().unwrap() {
        let sequence = windows.batch(step).unwrap().remove(0);
        let first = step * 5;
        assert_eq!(sequence.inputs, ids[first as usize..][..5]);
        let mut begins = first;
        for length in &sequence.documents {
            assert!(*length > 0 && (begins == first || starts.contains(&begins)));
            begins += *length as u64;
        }
        assert_eq!(begins, first + 5);
        let inside = starts.iter().filter(|at| (first + 1..first + 5).contains(at)).count();
        assert_eq!(sequence.documents.len(), inside + 1, "step {step} of {starts:?}");
    }
}
