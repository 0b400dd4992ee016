//! Whole documents where the least room is left for them, and long ones in pieces.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use annulus_data::{
    Cache, Longer, Packed, Packing, Records, Sequence, Source, Texts, Tokenizer, Window,
    count_padding,
};

const DOCUMENTS: usize = 600;

/// Documents of random lengths up to `most` bytes, each of which begins with its number.
fn cache(folder: &Path, most: u64) -> Arc<Cache> {
    let (mut lines, mut random) = (String::new(), 1_u64);
    for number in 0..DOCUMENTS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040);
        let text = "x".repeat(((random >> 33) % most) as usize);
        writeln!(lines, "{{\"text\": \"{number}:{text}\"}}").unwrap();
    }
    let inputs = [folder.join("documents.jsonl")];
    std::fs::write(&inputs[0], lines).unwrap();
    let texts = Texts::new(&inputs, Records::Lines, &Tokenizer::Bytes);
    Arc::new(Cache::open(&texts, folder, false, &mut |_| ()).unwrap())
}

fn all(packing: &Arc<Packing>, window: Window, held_out: u64) -> Vec<Sequence> {
    let packed = Packed::new(packing.clone(), window, held_out, 1, 3).unwrap();
    let count = packed.epoch().unwrap_or(held_out);
    (0..count).flat_map(|step| packed.batch(step).unwrap()).collect()
}

/// The inputs of the documents in a sequence.
fn documents(sequence: &Sequence) -> Vec<&[u32]> {
    let (mut rest, mut found) = (&sequence.inputs[..], Vec::new());
    for &length in &sequence.documents {
        let (document, behind) = rest.split_at(length);
        (rest, found) = (behind, [found, vec![document]].concat());
    }
    assert!(rest.is_empty(), "no more and no fewer tokens than a sequence has");
    found.truncate(found.len() - usize::from(count_padding(sequence) > 0));
    found
}

/// The number that a document begins with.
fn number(document: &[u32]) -> usize {
    let digits = document.iter().map_while(|&id| char::from(id as u8).to_digit(10));
    digits.fold(0, |number, digit| 10 * number + digit as usize)
}

#[test]
fn every_document_comes_once_an_epoch_with_next_to_no_padding() {
    let folder = tempfile::tempdir().unwrap();
    for (tokens, most) in [(100, 90), (256, 250), (64, 20)] {
        let cache = cache(folder.path(), most);
        let next = Packing::new(cache.clone(), tokens, Longer::Refuse).unwrap();
        let before = next.stats();
        let packing = Arc::new(next.best_fit(0));
        let after = packing.stats();
        assert!(after.sequences <= before.sequences, "{before:?} {after:?}");
        assert_eq!((after.documents, after.tokens), (before.documents, before.tokens));
        let room = after.sequences * tokens as u64;
        assert!((room - after.tokens) * 33 < room, "under 3 %: {before:?} {after:?}");
        let read = all(&packing, Window::Train, 0);
        let of =
            |sequence: &Sequence| documents(sequence).into_iter().map(number).collect::<Vec<_>>();
        let found: Vec<Vec<usize>> = read.iter().map(of).collect();
        assert!(found.iter().all(|bin| bin.is_sorted()), "in their order within a sequence");
        let mut once = found.concat();
        once.sort_unstable();
        assert!(once.into_iter().eq(0..DOCUMENTS));
        // Planned again, by another process, they are the same.
        let again = Packing::new(cache, tokens, Longer::Refuse).unwrap().best_fit(0);
        assert_eq!(all(&Arc::new(again), Window::Train, 0), read);
        // Another epoch has the same sequences in another order, from wherever a run goes on.
        let packed = Packed::new(packing, Window::Train, 0, 1, 3).unwrap();
        let second: Vec<Vec<usize>> = (after.sequences..2 * after.sequences)
            .map(|step| of(&packed.batch(step).unwrap()[0]))
            .collect();
        assert_ne!(second, found);
        let sorted = |mut bins: Vec<Vec<usize>>| {
            bins.sort();
            bins
        };
        assert_eq!(sorted(second), sorted(found));
    }
}

#[test]
fn the_same_is_held_out_as_without_it_and_other_packing_is_other_data() {
    let folder = tempfile::tempdir().unwrap();
    let cache = cache(folder.path(), 90);
    let next = || Packing::new(cache.clone(), 100, Longer::Refuse).unwrap();
    let held_out = 5;
    let (next, best) = (Arc::new(next()), Arc::new(next().best_fit(held_out)));
    let kept = all(&next, Window::HeldOut, held_out);
    assert_eq!(all(&best, Window::HeldOut, held_out), kept);
    let numbers = |sequences: &[Sequence]| {
        let found = sequences.iter().flat_map(|one| documents(one).into_iter().map(number));
        let mut found: Vec<usize> = found.collect();
        found.sort_unstable();
        found
    };
    let learned = numbers(&all(&best, Window::Train, held_out));
    assert_eq!([learned, numbers(&kept)].concat(), (0..DOCUMENTS).collect::<Vec<_>>());
    let print = |packing: &Arc<Packing>| {
        Packed::new(packing.clone(), Window::Train, held_out, 1, 3).unwrap().fingerprint()
    };
    assert_ne!(print(&best), print(&next));
}

/// The ids of the whole text, each with how often it is a target.
fn targets(cache: &Cache, sequences: &[Sequence]) -> Vec<(u32, usize)> {
    let mut ids = vec![0; cache.tokens() as usize];
    cache.read(0, &mut ids).unwrap();
    let mut counted: Vec<(u32, usize)> = ids.into_iter().map(|id| (id, 0)).collect();
    let starts: Vec<usize> = cache.documents().iter().map(|start| *start as usize).collect();
    let mut places = starts.clone();
    // Pieces are read in order here.
    let mut current = 0;
    for sequence in sequences {
        let mut first = 0;
        for document in documents(sequence) {
            let begins = document.contains(&u32::from(b':')) && document[0] != u32::from(b'x');
            current = if begins { number(document) } else { current };
            let place = &mut places[current];
            for (offset, input) in document.iter().enumerate() {
                assert_eq!(counted[*place].0, *input);
                *place += 1;
                assert_eq!(i64::from(counted[*place].0), sequence.targets[first + offset]);
                counted[*place].1 += 1;
            }
            first += document.len();
        }
    }
    counted
}

#[test]
fn a_long_document_is_split_and_every_token_is_learned_once() {
    let folder = tempfile::tempdir().unwrap();
    let cache = cache(folder.path(), 300);
    let split = || Packing::new(cache.clone(), 64, Longer::Split).unwrap();
    let stats = split().stats();
    assert_eq!((stats.documents, stats.cut, stats.dropped), (DOCUMENTS as u64, 0, 0));
    assert!(stats.split > 300, "{stats:?}");
    assert_eq!(stats.tokens, cache.tokens() - DOCUMENTS as u64);
    let packing = Arc::new(split());
    let counted = targets(&cache, &all(&packing, Window::HeldOut, stats.sequences));
    for (place, (_, times)) in counted.iter().enumerate() {
        let is_first = cache.documents().binary_search(&(place as u64)).is_ok();
        assert_eq!(*times, usize::from(!is_first), "token {place}");
    }
    // Best fit has the same pieces, with less padding.
    let best = Arc::new(split().best_fit(0));
    assert_eq!(best.stats().tokens, stats.tokens);
    assert!(best.stats().sequences < stats.sequences);
    let pieces = |packing: &Arc<Packing>| {
        let read = all(packing, Window::Train, 0);
        let mut found: Vec<Vec<u32>> =
            read.iter().flat_map(|one| documents(one).into_iter().map(<[u32]>::to_vec)).collect();
        found.sort();
        found
    };
    assert_eq!(pieces(&best), pieces(&packing));
    // What long sequences hold out of a document, short ones do not learn.
    let long = Packing::new(cache.clone(), 150, Longer::Split).unwrap();
    let first = long.first_of_last(3);
    let short = split();
    let own = short.sequences_from(first);
    assert!(own > 3 && own < 20, "{own}");
    let short = Arc::new(short);
    let learned = targets(&cache, &all_in_order(&short, stats.sequences - own));
    assert!(learned[first as usize + 1..].iter().all(|(_, times)| *times == 0));
}

/// The first sequences, in the documents' order.
fn all_in_order(packing: &Arc<Packing>, count: u64) -> Vec<Sequence> {
    let sequences = packing.stats().sequences;
    let mut read = all(packing, Window::HeldOut, sequences);
    read.truncate(count as usize);
    read
}
