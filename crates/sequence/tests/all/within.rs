//! A mask that is said to show all that another shows does, pair by pair.

use std::ops::Range;

use annulus_sequence::{Documents, Mask, Region, Rule};

const TOKENS: usize = 26;

/// Masks of up to three of these rules.
fn masks() -> Vec<Mask> {
    let rows = [[7, 9], [3, 13]].map(|lengths| Documents::of_lengths(&lengths));
    let rules = [
        Rule::Causal,
        Rule::Prefix(4),
        Rule::documents(&[6, 5, 9]),
        Rule::documents(&[11]),
        Rule::Documents(rows.to_vec()),
        Rule::KeyPadding(vec![20]),
        Rule::Window(3),
        Rule::Window(8),
        Rule::Dilated { window: 3, dilation: 3 },
        Rule::Strided { stride: 5 },
        Rule::Fixed { block: 6, columns: 1 },
        Rule::Regions(vec![Region { queries: 4..19, keys: 2..12, causal: true }]),
        Rule::Sinks(2),
        Rule::Global(vec![9..11, 14..15]),
    ];
    let all = 0..rules.len();
    let of = |indices: &[usize]| {
        let chosen = indices.iter().map(|index| rules[*index].clone());
        chosen.fold(Mask::full(), Mask::and)
    };
    let mut masks = vec![Mask::full()];
    for one in all.clone() {
        masks.push(of(&[one]));
        for two in one + 1..all.end {
            masks.push(of(&[one, two]));
            masks.extend((two + 1..all.end).map(|three| of(&[one, two, three])));
        }
    }
    masks
}

/// What a mask shows in each of two batch rows, as bits of keys by query.
fn seen(mask: &Mask) -> Vec<u32> {
    let bits = |row, q| (0..TOKENS).map(move |k| u32::from(mask.allows_in(row, q, k)) << k).sum();
    (0..2).flat_map(|row| (0..TOKENS).map(move |q| bits(row, q))).collect()
}

#[test]
fn a_mask_shows_all_of_what_it_says() {
    let masks = masks();
    let seen: Vec<Vec<u32>> = masks.iter().map(seen).collect();
    let (mut told, mut untold) = (0, 0);
    for (wide, wide_seen) in masks.iter().zip(&seen) {
        for (narrow, narrow_seen) in masks.iter().zip(&seen) {
            let shows = wide_seen.iter().zip(narrow_seen).all(|(wide, narrow)| narrow & !wide == 0);
            let says = wide.shows_all_of(narrow, TOKENS);
            assert!(shows || !says, "{wide:?} does not show all of {narrow:?}");
            told += u32::from(says);
            untold += u32::from(shows && !says);
        }
    }
    println!("{told} pairs of masks are told, {untold} are not");
    assert!(told > masks.len() as u32);
}

#[test]
fn schedules_for_any_documents_serve_all_of_them() {
    for mask in masks() {
        let packed = mask.clone().and(Rule::documents(&[4, 10, 2]));
        assert!(mask.of_any_documents().shows_all_of(&packed, TOKENS), "{mask:?}");
    }
}

#[test]
fn masks_are_named_as_they_are_read() {
    for name in ["full", "causal", "causal+window:9+sinks:2", "prefix:3+padding:7", "dilated:4:2"] {
        assert_eq!(Mask::from_name(name).unwrap().to_string(), name);
    }
    let packed = Mask::causal().and(Rule::documents(&[3, 4]));
    assert_eq!(packed.to_string(), "causal+documents");
}

#[test]
fn positions_that_come_later_show_nothing_yet() {
    let window = Mask::causal().and(Rule::Window(3));
    let seen = |global: Vec<Range<usize>>| {
        window.shows_all_of(&window.clone().and(Rule::Global(global)), TOKENS)
    };
    assert!(seen(vec![TOKENS..TOKENS + 1, TOKENS + 5..TOKENS + 9]));
    assert!(!seen(vec![TOKENS - 1..TOKENS + 1, TOKENS + 5..TOKENS + 9]));
}
