//! What a rank reads: its own tokens, whatever the layout, and nothing else that grows with the sequence.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use annulus_data::{
    Batches, Cache, Longer, MadeUp, Mixture, Packed, Packing, Part, Records, Source, Synthetic,
    Texts, Tokenizer, Tokens, Window, Windows,
};
use annulus_memory::{current, enter, peaks, reset_peaks};
use annulus_sequence::{Layout, Positions};
use safetensors::tensor::{Dtype, TensorView};

const ROWS: usize = 3;

const LAYOUTS: [Layout; 4] = [
    Layout::Contiguous,
    Layout::Zigzag,
    Layout::Striped { width: 1 },
    Layout::Striped { width: 48 },
];

/// Lines of many lengths, some learned from, as one text or as documents.
fn cache(folder: &Path, records: Records, bytes: usize) -> Arc<Cache> {
    let mut lines = String::new();
    for number in 0_u64.. {
        let text = "abcdefghij".repeat(1 + (number * number % 301) as usize);
        writeln!(lines, "{{\"text\": \"{number} {text}\"}}").unwrap();
        if lines.len() > bytes {
            break;
        }
    }
    let inputs = [folder.join("text.jsonl")];
    std::fs::write(&inputs[0], lines).unwrap();
    let texts = Texts::new(&inputs, records, &Tokenizer::Bytes);
    Arc::new(Cache::open(&texts, folder, false, &mut |_| ()).unwrap())
}

fn windows(folder: &Path, tokens: usize) -> Windows {
    let cache = cache(folder, Records::Lines, 4 * tokens);
    Windows::new(cache, Window::Train, 0, tokens, ROWS, 7).unwrap()
}

fn packed(folder: &Path, tokens: usize) -> Packed {
    let cache = cache(folder, Records::Lines, 4 * tokens);
    let packing = Arc::new(Packing::new(cache, tokens, Longer::Cut).unwrap());
    Packed::new(packing, Window::Train, 0, ROWS, 7).unwrap()
}

fn best_fit(folder: &Path, tokens: usize) -> Packed {
    let cache = cache(folder, Records::Lines, 16 * tokens);
    let packing = Packing::new(cache, tokens, Longer::Split).unwrap().best_fit(1);
    Packed::new(Arc::new(packing), Window::Train, 1, ROWS, 7).unwrap()
}

fn batches(folder: &Path, tokens: usize) -> Batches {
    let shape = vec![2, ROWS, tokens + 1];
    let count = shape.iter().product::<usize>() as i64;
    let bytes: Vec<u8> = (0..count).flat_map(|id| (id * 7919 % 50_021).to_le_bytes()).collect();
    let view = TensorView::new(Dtype::I64, shape, &bytes).unwrap();
    let path = folder.join("batches.safetensors");
    safetensors::serialize_to_file([("tokens", view)], None, &path).unwrap();
    Batches::open(&path, ROWS, tokens).unwrap()
}

fn mixture(folder: &Path, tokens: usize) -> Mixture {
    let cache = cache(folder, Records::Lines, 4 * tokens);
    let text = Windows::new(cache, Window::Train, 0, tokens, 1, 7).unwrap();
    let recall = MadeUp::new(Synthetic::Recall, tokens, 1, 7).unwrap();
    let part = |source: Arc<dyn Source>| Part { source, weight: 1.0 };
    Mixture::new(vec![part(Arc::new(text)), part(Arc::new(recall))], ROWS, 7)
}

fn read(source: &dyn Source, step: u64, rows: Range<usize>, positions: &Positions) -> Tokens {
    let mut tokens = Tokens::with_room(rows.len(), positions);
    source.read(step, rows, positions, &mut tokens).unwrap();
    tokens
}

/// Every rank of every layout reads what it has of the whole.
#[track_caller]
fn check(source: &dyn Source, tokens: usize) {
    assert_eq!((source.rows(), source.tokens()), (ROWS, tokens));
    let whole = source.batch(1).unwrap();
    assert!(whole.iter().all(|one| one.inputs.len() == tokens && one.targets.len() == tokens));
    for (layout, world) in LAYOUTS.into_iter().flat_map(|layout| [(layout, 2), (layout, 5)]) {
        for positions in layout.shard(tokens, world).unwrap() {
            for rows in [0..1, 1..3, 0..3] {
                let mut wanted = Tokens::default();
                whole[rows.clone()].iter().for_each(|one| wanted.push(one, &positions));
                let found = read(source, 1, rows.clone(), &positions);
                assert!(found == wanted, "{layout:?} over {world}, rows {rows:?} of {source:?}");
            }
        }
    }
}

#[test]
fn a_rank_reads_what_it_has_of_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    // Less than a block of anything, and several.
    for tokens in [300, 20_011] {
        check(&windows(folder.path(), tokens), tokens);
        check(&packed(folder.path(), tokens), tokens);
        check(&best_fit(folder.path(), tokens), tokens);
        check(&batches(folder.path(), tokens), tokens);
        check(&mixture(folder.path(), tokens), tokens);
        check(&MadeUp::new(Synthetic::Recall, tokens, ROWS, 7).unwrap(), tokens);
        check(&MadeUp::new(Synthetic::Needles, tokens, ROWS, 7).unwrap(), tokens);
    }
}

#[test]
fn positions_that_are_far_apart_and_none_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = 20_011;
    let few = Positions::from_list(&[0, 1, 9_000, 19_999, 20_010]).unwrap();
    let sources: [&dyn Source; 3] = [
        &windows(folder.path(), tokens),
        &packed(folder.path(), tokens),
        &batches(folder.path(), tokens),
    ];
    for source in sources {
        for positions in [&few, &Positions::all(0)] {
            let mut wanted = Tokens::default();
            source.batch(0).unwrap().iter().for_each(|one| wanted.push(one, positions));
            assert_eq!(read(source, 0, 0..ROWS, positions), wanted);
        }
    }
}

/// A sequence that is long beside everything of fixed size.
const LONG: usize = 1 << 20;

/// Bytes of a token and its target, and how much besides a rank may hold.
const TOKEN: usize = 12;
const BESIDES: usize = 80 << 10;

/// Reads a row on every rank of 8, each with an account of its own from `owner` on; says what was held, and how long it took.
fn hold(source: &dyn Source, what: &str, owner: usize) -> String {
    let mut said = String::new();
    for layout in LAYOUTS {
        let start = Instant::now();
        let mut most = 0;
        for (rank, positions) in layout.shard(LONG, 8).unwrap().iter().enumerate() {
            enter(owner + rank);
            reset_peaks(owner + rank);
            let before = current(owner + rank).together;
            let tokens = read(source, 0, 1..2, positions);
            let held = (peaks(owner + rank).together - before) as usize;
            drop(tokens);
            most = most.max(held);
            let own = TOKEN * positions.tokens();
            assert!(held >= own && held < own + BESIDES, "{what}, {layout:?}: {held} for {own}");
        }
        let time = start.elapsed().as_secs_f64() / 8.0;
        let time = 1e3 * time;
        writeln!(said, "{what}, {layout:?}: {most} bytes, {time:.1} ms a rank").unwrap();
    }
    said
}

#[test]
fn a_rank_holds_its_share_of_a_long_sequence() {
    let folder = tempfile::tempdir().unwrap();
    let said = [
        hold(&windows(folder.path(), LONG), "windows", 200),
        hold(&batches(folder.path(), LONG), "batches", 220),
        hold(&MadeUp::new(Synthetic::Recall, LONG, ROWS, 0).unwrap(), "recall", 230),
    ];
    println!("{}", said.concat());
}
