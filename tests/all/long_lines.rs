//! A text without a line break, as some books come: read in bounded memory.

use std::fs;

use annulus_tests::run_measured;

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

/// Bytes of the line.
const LENGTH: usize = 8 << 20;
/// Bytes of memory, of the whole process: the tokens alone would be four times the line.
const MOST: u64 = 40 << 20;

#[test]
fn a_line_of_megabytes_is_read_in_bounded_memory() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let words = "it was the best of times, it was the worst of times, ";
    fs::write(folder.path().join("line.txt"), words.repeat(LENGTH.div_ceil(words.len())))
        .expect("a text");
    let length = fs::metadata(folder.path().join("line.txt")).expect("a text").len();
    let arguments = ["tokenize", "line.txt", "--out", "cache", "--json"];
    let (ran, peak) = run_measured(ANNULUS, folder.path(), &arguments);
    let ran = ran.ended(0).json().remove(0);
    assert_eq!(ran["tokens"], length);
    assert_eq!(ran["documents"], 1);
    assert!(peak < MOST, "{peak} bytes");
}
