//! Whole documents in sequences of several lengths: what one length holds out, no other learns.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use annulus_data::{
    Cache, Longer, Packed, Packing, PackingStats, Records, Source, Texts, Tokenizer, Window,
    count_padding, show,
};

/// Documents of 3 to 60 bytes, each of a byte of its own.
fn documents(folder: &std::path::Path) -> Arc<Cache> {
    let mut lines = String::new();
    for number in 0..90_u8 {
        let text = char::from(b'!' + number).to_string().replace(['"', '\\'], "~");
        let text = text.repeat(3 + usize::from(number) * 41 % 58);
        writeln!(lines, "{{\"text\": \"{text}\"}}").unwrap();
    }
    let file = folder.join("documents.jsonl");
    std::fs::write(&file, lines).unwrap();
    let inputs = [file];
    let texts = Texts::new(&inputs, Records::Lines, &Tokenizer::Bytes);
    let cache = Cache::open(&texts, folder, false, &mut |_| ());
    Arc::new(cache.unwrap())
}

#[test]
fn what_is_held_out_is_packed_alone_as_it_is_behind_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let cache = documents(folder.path());
    for longer in [Longer::Cut, Longer::Drop, Longer::Split] {
        for (tokens, held_out) in [(20, 1), (20, 4), (64, 3), (333, 2)] {
            let whole = Packing::new(cache.clone(), tokens, longer).unwrap();
            let first = whole.first_of_last(held_out);
            let alone = Packing::since(cache.clone(), first, tokens, longer).unwrap();
            assert_eq!(alone.stats().sequences, held_out, "{longer:?} {tokens}");
            let [whole, alone] = [whole, alone].map(|packing| {
                Packed::new(Arc::new(packing), Window::HeldOut, held_out, 1, 5).unwrap()
            });
            for step in 0..held_out {
                assert_eq!(whole.batch(step).unwrap(), alone.batch(step).unwrap());
            }
        }
    }
}

/// The bytes of all documents in some sequences.
fn bytes(packing: &Arc<Packing>, window: Window, held_out: u64, count: u64) -> BTreeSet<u32> {
    let packed = Packed::new(packing.clone(), window, held_out, 1, 5).unwrap();
    let sequences = (0..count).flat_map(|step| packed.batch(step).unwrap());
    let inputs = sequences.flat_map(|sequence| sequence.inputs);
    inputs.filter(|&id| id > 0 && id < 256 && id != u32::from(b'~')).collect()
}

#[test]
fn documents_that_long_sequences_hold_out_are_in_no_short_one() {
    let folder = tempfile::tempdir().unwrap();
    let cache = documents(folder.path());
    let pack = |tokens, longer| Arc::new(Packing::new(cache.clone(), tokens, longer).unwrap());
    for longer in [Longer::Cut, Longer::Drop] {
        for (long, held_out) in [(200, 1), (200, 3), (333, 2), (64, 4)] {
            let longest = pack(long, longer);
            let asked = bytes(&longest, Window::HeldOut, held_out, held_out);
            assert!(!asked.is_empty());
            let first = longest.first_of_last(held_out);
            for tokens in [40, 61, 64, 120, 200] {
                let short = pack(tokens, longer);
                let own = short.sequences_from(first);
                let rest = short.stats().sequences - own;
                let learned = bytes(&short, Window::Train, own, rest);
                let both: Vec<_> = learned.intersection(&asked).collect();
                assert!(both.is_empty(), "{longer:?} {long} {tokens}: {both:?}");
                // No more is held out than that asks for: the sequence before has none of them.
                let fewer = bytes(&short, Window::HeldOut, own, own);
                assert!(fewer.is_superset(&asked) || longer == Longer::Drop);
                let before = bytes(&short, Window::Train, own - 1, rest + 1);
                assert!(before.intersection(&asked).next().is_some(), "{long} {tokens}");
            }
        }
    }
    let all = pack(64, Longer::Cut);
    assert_eq!(all.sequences_from(all.first_of_last(0)), 0);
    assert_eq!(all.sequences_from(all.first_of_last(u64::MAX)), all.stats().sequences);
}

/// Else a model never learns to end.
#[test]
fn the_end_of_a_document_is_a_target_and_no_beginning_is() {
    let folder = tempfile::tempdir().unwrap();
    let packing = Arc::new(Packing::new(documents(folder.path()), 130, Longer::Refuse).unwrap());
    let PackingStats { sequences, documents, .. } = packing.stats();
    let packed = Packed::new(packing, Window::HeldOut, sequences, 1, 0).unwrap();
    let mut ends = 0;
    for step in 0..sequences {
        let sequence = packed.batch(step).unwrap().remove(0);
        let mut start = 0;
        for &length in &sequence.documents {
            let targets = &sequence.targets[start..start + length];
            ends += u64::from(targets.last() == Some(&256));
            assert!(!targets[..length - 1].contains(&256), "{targets:?}");
            start += length;
        }
        assert!(!sequence.inputs.contains(&256), "{:?}", sequence.inputs);
    }
    // Behind the last document stands nothing.
    assert_eq!(ends, documents - 1);
}

#[test]
fn padding_is_shown_as_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let packing = Arc::new(Packing::new(documents(folder.path()), 130, Longer::Refuse).unwrap());
    let PackingStats { sequences, tokens, .. } = packing.stats();
    let packed = Packed::new(packing, Window::HeldOut, sequences, 1, 0).unwrap();
    let mut all = 0;
    for step in 0..sequences {
        let sequence = packed.batch(step).unwrap().remove(0);
        let padding = count_padding(&sequence);
        let text = show(&sequence, &Tokenizer::Bytes, 130).unwrap();
        let last = text.lines().last().unwrap();
        assert_eq!(last.starts_with(&format!("padding: {padding} token")), padding > 0, "{text}");
        assert_eq!(text.lines().count(), 130 - padding + usize::from(padding > 0));
        assert!(!show(&sequence, &Tokenizer::Bytes, 9).unwrap().contains("padding"));
        all += padding as u64;
    }
    assert_eq!(all, sequences * 130 - tokens);
}
