//! Hostile input, in small: the whole is `cargo xtask attack`.

use annulus_tests::fuzz;

/// Changed inputs of every reader.
const INPUTS: u64 = 1000;

#[test]
fn every_reader_takes_its_seeds_and_survives_changed_ones() {
    fuzz::try_all(INPUTS);
}
