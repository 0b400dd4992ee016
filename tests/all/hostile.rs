//! Hostile input, in small: the whole is `cargo xtask attack`.

use annulus_tests::{attack, fuzz};

/// Changed inputs of every reader.
const INPUTS: u64 = 1000;

#[test]
fn every_reader_takes_its_seeds_and_survives_changed_ones() {
    fuzz::try_all(INPUTS);
}

#[test]
fn a_case_of_every_cause_does_no_harm() {
    attack::short(env!("CARGO_BIN_EXE_annulus-under-test"));
}
